"""Refusals of providers: another credential, a hold, or an honest answer. And requests that are sent once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentos.gateway import _exchange
from agentos.gateway._joined_requests import LINGER_SECONDS
from agentos.pool.credential import Credential
from agentos.pool.lease_pool import LeasePool
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED
from tests.conftest import eventually

from .support import (
    Call,
    RawClient,
    Upstream,
    at_rest,
    chat_answer,
    chat_body,
    credentials,
    quiet,
    running_gateway,
)

LIMIT = {"error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}}
DEAD = {"error": {"message": "Incorrect API key provided.", "type": "invalid_request_error", "code": "invalid_api_key"}}
NO_CREDIT = {"error": {"message": "No credit.", "type": "insufficient_quota", "code": "insufficient_quota"}}
BUSY = {"error": {"message": "overloaded", "type": "service_unavailable_error", "code": "server_is_overloaded"}}


def post(gateway: Any, token: str, body: bytes | None = None, **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json", **headers}
    with httpx.Client(timeout=60) as client:
        url = f"{gateway.url}/v1/chat/completions"
        return client.post(url, headers=headers, content=chat_body() if body is None else body)


def answering(*refusals: tuple[int, dict[str, Any]], lines: tuple[str, ...] = ()) -> Callable[[Call], Any]:
    """Return a handler that refuses in this order, and then answers."""
    left = list(refusals)

    async def handler(call: Call) -> None:
        if left:
            await call.answer(*left.pop(0), *lines)
        else:
            await call.answer(200, chat_answer())

    return handler


@pytest.mark.parametrize(("status", "body"), [(429, LIMIT), (401, DEAD), (402, NO_CREDIT), (429, NO_CREDIT)])
def test_refusal_leads_to_another_credential(status: int, body: dict[str, Any]) -> None:
    with (
        Upstream(answering((status, body))) as upstream,
        running_gateway(credentials(upstream.url, "a", "b")) as (gateway, token),
    ):
        answer = post(gateway, token)
        assert answer.status_code == 200
        assert len({call.key for call in upstream.calls}) == len(upstream.calls) == 2
        usage = gateway.usage(token)
        assert (usage.requests, usage.refusals) == (1, 1)
        assert gateway.close(token).verdict is None  # the client was not told
        assert at_rest(gateway.pool)


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v1/organization/users"), ("DELETE", "/v1/models/ft-1"), ("GET", "/v1/chat/completions"),
    ("POST", "/v1/organization/admin_api_keys"),
])  # fmt: skip
def test_client_cannot_spoil_a_key_with_an_administrators_path(method: str, path: str) -> None:
    """Ordinary keys are refused there. Any client could have all keys quarantined, for all runs."""
    refusals = [(401, DEAD)] * 6
    with (
        Upstream(answering(*refusals)) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
    ):
        for _ in range(6):
            with httpx.Client(timeout=60) as client:
                answer = client.request(method, gateway.url + path, headers={"authorization": f"Bearer {token}"})
            assert (answer.status_code, answer.json()) == (401, DEAD)
        assert [(state.quarantined, state.cooled_until) for state in gateway.pool.states()] == [(None, None)]
        assert post(gateway, token).status_code == 200
        assert at_rest(gateway.pool)


def test_refused_list_of_models_is_sent_with_another_key() -> None:
    with (
        Upstream(answering((401, DEAD))) as upstream,
        running_gateway(credentials(upstream.url, "a", "b")) as (gateway, token),
    ):
        with httpx.Client(timeout=60) as client:
            answer = client.get(f"{gateway.url}/v1/models", headers={"authorization": f"Bearer {token}"})
        assert (answer.status_code, len(upstream.calls)) == (200, 2)


@pytest.mark.parametrize("status", [503, 529])
def test_overload_is_held_until_it_is_over(status: int) -> None:
    with (
        Upstream(answering((status, BUSY), lines=("retry-after: 1",))) as upstream,
        running_gateway(credentials(upstream.url, "a", "b")) as (gateway, token),
    ):
        assert post(gateway, token).status_code == 200
        assert len(upstream.calls) == 2
        assert gateway.usage(token).held_seconds >= 0.5


def test_request_is_held_until_the_limit_ends() -> None:
    with (
        Upstream(answering((429, LIMIT), lines=("retry-after: 1",))) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
    ):
        started_at = time.monotonic()
        assert post(gateway, token).status_code == 200
        assert time.monotonic() - started_at >= 1.0
        assert gateway.usage(token).held_seconds >= 0.9
        assert len(upstream.calls) == 2


@pytest.mark.parametrize(("seconds", "kind"), [(600, RATE_LIMITED), (18_000, QUOTA_EXHAUSTED)])
def test_wait_beyond_the_hold_is_an_honest_refusal_at_once(seconds: int, kind: str) -> None:
    with (
        Upstream(answering((429, LIMIT), lines=(f"retry-after: {seconds}",))) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
    ):
        started_at = time.monotonic()
        answer = post(gateway, token)
        assert time.monotonic() - started_at < 20
        assert answer.status_code == 429
        assert seconds - 30 < int(answer.headers["retry-after"]) <= seconds
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert len(upstream.calls) == 1
        verdict = gateway.close(token).verdict
        assert verdict is not None
        assert verdict.kind == kind
        assert verdict.retry_after == pytest.approx(seconds, abs=30)


def test_verdict_of_last_request_counts() -> None:
    """The client was refused, came back and succeeded: its attempt has no verdict."""
    with (
        Upstream(answering((429, LIMIT), lines=("retry-after: 1",))) as upstream,
        running_gateway(credentials(upstream.url, "a"), hold=0.5) as (gateway, token),
    ):
        assert post(gateway, token).status_code == 429
        eventually(lambda: post(gateway, token).status_code == 200)
        assert gateway.close(token).verdict is None


def test_hold_of_gemini_ends_before_its_client_leaves() -> None:
    async def handler(call: Call) -> None:
        await call.answer(429, LIMIT, "retry-after: 55")

    with Upstream(handler) as upstream:
        creds = credentials(upstream.url, "a", provider="gemini")
        with running_gateway(creds) as (gateway, token), httpx.Client(timeout=30) as client:
            url = f"{gateway.url}/v1beta/models/m:generateContent"
            answer = client.post(url, headers={"x-goog-api-key": token}, content=b"{}")
            assert answer.status_code == 429
            assert answer.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
            assert answer.json()["error"]["details"][0]["retryDelay"].endswith("s")


def test_stated_timeout_of_client_shortens_its_hold() -> None:
    with (
        Upstream(answering((429, LIMIT), lines=("retry-after: 40",))) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
    ):
        answer = post(gateway, token, **{"x-stainless-read-timeout": "30"})
        assert answer.status_code == 429


def test_no_usable_credential_names_the_command_that_helps() -> None:
    async def handler(call: Call) -> None:
        await call.answer(401, DEAD)

    with Upstream(handler) as upstream:
        pool = LeasePool(credentials(upstream.url, "a"), reporter=quiet)
        pool.quarantine("a", "refused by the provider")
        with running_gateway(pool) as (gateway, token):
            answer = post(gateway, token)
            assert answer.status_code == 503
            assert "agentos keys enable a" in answer.json()["error"]["message"]
            assert answer.headers["x-should-retry"] == "false"
            verdict = gateway.close(token).verdict
            assert verdict is not None
            assert verdict.kind == AUTH_FAILED


def test_provider_without_credential_is_refused() -> None:
    with (
        Upstream(answering()) as upstream,
        running_gateway(credentials(upstream.url, "a", provider="anthropic")) as (gateway, token),
    ):
        answer = post(gateway, token)
        assert answer.status_code == 503
        assert "no credential of openai" in answer.json()["error"]["message"]
        assert upstream.calls == []


@pytest.mark.parametrize("status", [400, 404, 413, 422, 500, 502, 504])
def test_error_that_no_other_key_would_change_is_passed_on(status: int) -> None:
    body = {"error": {"message": "The request is not valid.", "type": "invalid_request_error", "code": None}}
    with (
        Upstream(answering((status, body), lines=("x-request-id: r1",))) as upstream,
        running_gateway(credentials(upstream.url, "a", "b")) as (gateway, token),
    ):
        answer = post(gateway, token)
        assert (answer.status_code, answer.json()) == (status, body)
        assert answer.headers["x-request-id"] == "r1"
        assert len(upstream.calls) == 1
        assert at_rest(gateway.pool)
        assert gateway.usage(token).requests == 0


def test_verdict_reaches_the_pool() -> None:
    with (
        Upstream(answering((429, LIMIT), lines=("retry-after: 600",))) as upstream,
        running_gateway(credentials(upstream.url, "a", "b")) as (gateway, token),
    ):
        post(gateway, token)
        cooled = [state for state in gateway.pool.states() if state.cooling or state.cooled_until]
        assert len(cooled) == 1


# --- sent once (invariant 33) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the head", "in the head", "in the body", "in an event"])
def test_request_whose_answer_was_lost_is_not_sent_again(when: str) -> None:
    async def handler(call: Call) -> None:
        if when == "in the head":
            await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: ")
        elif when == "in the body":
            await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart")
        elif when == "in an event":
            await call.begin_stream()
            await call.chunk(b"data: {")
        call.writer.transport.abort()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a", "b")) as (gateway, token):
        if when == "in the body":
            with pytest.raises(httpx.RemoteProtocolError):
                post(gateway, token)
        else:
            answer = post(gateway, token)
            assert answer.status_code == 502
            assert "x-should-retry" not in answer.headers
        assert len(upstream.calls) == 1
        eventually(lambda: at_rest(gateway.pool))


def test_request_that_may_be_repeated_is_sent_again() -> None:
    lost = [1]

    async def handler(call: Call) -> None:
        if lost:
            lost.clear()
            call.writer.transport.abort()
        else:
            await call.answer(200, chat_answer())

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        assert post(gateway, token, **{"idempotency-key": "k1"}).status_code == 200
        assert len(upstream.calls) == 2


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_other_methods_are_sent_once(method: str) -> None:
    """aiohttp repeats them by itself when a connection breaks."""

    async def handler(call: Call) -> None:
        call.writer.transport.abort()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with httpx.Client() as client:
            url = f"{gateway.url}/v1/models/m"
            assert client.request(method, url, headers={"authorization": f"Bearer {token}"}).status_code == 502
        assert len(upstream.calls) == 1


def test_unreachable_address_leads_to_another_credential() -> None:
    with Upstream(answering()) as upstream:
        creds = credentials("http://127.0.0.1:9", "a") + credentials(upstream.url, "b")
        with running_gateway(creds) as (gateway, token):
            for _ in range(3):
                assert post(gateway, token).status_code == 200
            assert at_rest(gateway.pool)


def test_request_that_cannot_wait_learns_of_an_unreachable_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not sent, because another request has found that out before."""
    monkeypatch.setattr(_exchange, "UNREACHABLE_SECONDS", 20.0)
    with running_gateway(credentials("http://127.0.0.1:9", "a", "b"), hold=15.0) as (gateway, token):
        answers = [post(gateway, token) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [502, 502]
        assert answers[0].json() == answers[1].json()
        assert 15 < int(answers[1].headers["retry-after"]) <= 20
        usage = gateway.usage(token)
        assert (usage.requests, usage.refusals) == (0, 0)  # no provider has answered
        assert {state.cooled_by[""] for state in gateway.pool.states()} == {"unreachable: 127.0.0.1:9"}


def test_address_that_is_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE_URL", "http://127.0.0.1:9")
    credential = Credential("sk-0123456789abcdef", id="a", provider="openai", base_url="env:BASE_URL")
    with running_gateway([credential], hold=0.5) as (gateway, token):
        answer = post(gateway, token)
        assert "the provider at the address of a cannot be reached" in answer.json()["error"]["message"]
        assert gateway.pool.states()[0].cooled_by == {"": "unreachable: the address of a"}


def test_overloaded_provider_is_no_rate_limit() -> None:
    """Its client is told the same as of a limit. The attempt, and the pool, have the true reason."""
    busy = answering((503, BUSY), (503, BUSY), lines=("retry-after: 30",))
    with Upstream(busy) as upstream, running_gateway(credentials(upstream.url, "a", "b"), hold=5.0) as (gateway, token):
        answer = post(gateway, token)
        assert answer.status_code == 429
        message = answer.json()["error"]["message"]
        assert message.startswith("all 2 credentials for openai are resting because the provider is overloaded;")
        assert [state.cooled_by for state in gateway.pool.states()] == [{"m": OVERLOADED}] * 2
        verdict = gateway.close(token).verdict
        assert verdict is not None
        assert verdict.kind == OVERLOADED


def test_unreachable_provider_is_reported_when_the_hold_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exchange, "UNREACHABLE_SECONDS", 0.05)
    with running_gateway(credentials("http://127.0.0.1:9", "a"), hold=0.4) as (gateway, token):
        answer = post(gateway, token)
        assert answer.status_code == 502
        assert "the provider at 127.0.0.1:9 cannot be reached" in answer.json()["error"]["message"]
        assert at_rest(gateway.pool)
        assert gateway.pool.states()[0].requests == 0  # the provider has not seen it


# --- retries that join (a client that gives up and comes back) --------------------------------------------------------


def test_retry_joins_request_under_way() -> None:
    release: list[asyncio.Event] = []

    async def handler(call: Call) -> None:
        release.append(asyncio.Event())
        await release[0].wait()
        await call.answer(200, chat_answer("joined"))

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as first:
            first.post(token, chat_body(), "x-stainless-retry-count: 0")
            eventually(lambda: release)
        with RawClient(gateway) as second:
            second.post(token, chat_body(), "x-stainless-retry-count: 1", "Connection: close")
            upstream.signal(release[0])
            assert b"joined" in second.read_all()
        assert len(upstream.calls) == 1
        assert gateway.usage(token).requests == 1
        assert at_rest(gateway.pool)


@pytest.mark.parametrize("difference", ["body", "token", "count", "path"])
def test_other_request_does_not_join(difference: str) -> None:
    async def handler(call: Call) -> None:
        if len(upstream.calls) == 1:
            await call.wait_for_disconnect()
        else:
            await call.answer(200, chat_answer("second"))

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as first:
            first.post(token, chat_body(), "x-stainless-retry-count: 0")
            eventually(lambda: upstream.calls)
        other = gateway.open("run", "other", 1) if difference == "token" else token
        body = chat_body("other") if difference == "body" else chat_body()
        count = "0" if difference == "count" else "1"
        path = "/v1/completions" if difference == "path" else "/v1/chat/completions"
        with RawClient(gateway) as second:
            second.post(other, body, f"x-stainless-retry-count: {count}", "Connection: close", path=path)
            assert b"second" in second.read_all()
        assert len(upstream.calls) == 2
        eventually(lambda: at_rest(gateway.pool))


def test_request_ends_if_no_retry_joins_it() -> None:
    """Within a second of the disconnect."""

    async def handler(call: Call) -> None:
        await call.wait_for_disconnect()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(), "x-stainless-retry-count: 0")
            eventually(lambda: upstream.calls)
        assert LINGER_SECONDS < 1.0
        assert upstream.calls[0].is_cancelled.wait(10)
        eventually(lambda: at_rest(gateway.pool))


# --- draining ---------------------------------------------------------------------------------------------------------


def test_stop_lets_running_requests_finish() -> None:
    release: list[asyncio.Event] = []

    async def handler(call: Call) -> None:
        release.append(asyncio.Event())
        await release[0].wait()
        await call.answer(200, chat_answer("finished"))

    with (
        Upstream(handler) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
        RawClient(gateway) as earlier,
    ):
        earlier.send(f"HEAD / HTTP/1.1\r\nHost: {earlier.host}\r\n\r\n".encode())
        earlier.read_until(b"\r\n\r\n")
        results: list[httpx.Response] = []
        request = threading.Thread(target=lambda: results.append(post(gateway, token)))
        request.start()
        eventually(lambda: release)
        stopping = threading.Thread(target=gateway.stop)
        stopping.start()
        eventually(lambda: _is_closed(gateway))
        earlier.post(token, chat_body())
        assert earlier.read_all().startswith(b"HTTP/1.1 503")
        assert len(upstream.calls) == 1
        upstream.signal(release[0])
        request.join()
        stopping.join()
        assert results[0].status_code == 200
        assert at_rest(gateway.pool)


def _is_closed(gateway: Any) -> bool:
    try:
        httpx.get(f"{gateway.url}/-/health")
    except httpx.TransportError:
        return True
    return False


def test_stop_cancels_what_does_not_end_in_time() -> None:
    async def handler(call: Call) -> None:
        await call.wait_for_disconnect()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body())
            eventually(lambda: upstream.calls)
            gateway.stop(0.1)
            assert client.read_all() == b""
        assert upstream.calls[0].is_cancelled.wait(10)
        assert at_rest(gateway.pool)


def test_closed_token_cancels_its_requests_and_counts_them() -> None:
    async def handler(call: Call) -> None:
        await call.begin_stream()
        await call.event({"choices": [{"index": 0, "delta": {"content": "part"}}]})
        await call.wait_for_disconnect()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(stream=True, max_tokens=100))
            client.read_until(b"part")
            end = gateway.close(token)
            assert end.usage.requests == 1
            assert end.usage.output_tokens == 100  # estimated
            assert upstream.calls[0].is_cancelled.wait(10)
        eventually(lambda: at_rest(gateway.pool))
        assert gateway.close(token).usage.requests == 0  # idempotent
        assert post(gateway, token).status_code == 401


def test_limits_in_answers_set_the_pace() -> None:
    lines = ("x-ratelimit-limit-requests: 60", "x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 20s")

    async def handler(call: Call) -> None:
        await call.answer(200, chat_answer(), *lines)

    with (
        Upstream(handler) as upstream,
        running_gateway(credentials(upstream.url, "a"), hold=0.2) as (gateway, token),
    ):
        assert post(gateway, token).status_code == 200
        assert post(gateway, token).status_code == 429
        assert len(upstream.calls) == 1
