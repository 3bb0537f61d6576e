"""A canary key is in no byte that a client receives, in no log, metric or page (36). Nor is a client token."""

from __future__ import annotations

import json
import logging

import httpx
import pytest

from agentos.pool.credential import Credential
from agentos.pool.lease_pool import LeasePool

from .support import CANARY, Call, RawClient, Upstream, chat_body, chat_chunk, credentials, quiet, running_gateway

KEY = f"{CANARY}-a"


async def echo(call: Call) -> None:
    """A provider that gives the key away in every part of its answer."""
    way = call.headers.get("x-way", "")
    if way == "body":
        await call.answer(200, {"you sent": call.header_lines})
    elif way == "long body":
        await call.answer(200, (call.key.encode() + b" ") * 10_000)
    elif way == "header":
        await call.answer(200, {}, f"x-echo: {call.key}", f"x-other: a{call.key}b")
    elif way.isdecimal():
        await call.answer(int(way), {"error": {"message": f"wrong key {call.key}", "code": "bad_request"}})
    elif way == "stream":
        await call.begin_stream()
        text = json.dumps(chat_chunk(f"key {call.key} and {call.key[:12]}"))
        for character in f"data: {text}\n\n":
            await call.chunk(character.encode())
        await call.end_stream()
    elif way == "event":
        await call.begin_stream()
        await call.event(chat_chunk("begin"))
        await call.event({"error": {"message": f"broken {call.key}"}})
        await call.end_stream()


WAYS = ["body", "long body", "header", "400", "404", "500", "429", "401", "stream", "event"]


@pytest.mark.parametrize("way", WAYS)
def test_no_byte_of_an_answer_has_the_key(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Upstream(echo) as upstream:
        events: list[object] = []
        pool = LeasePool(credentials(upstream.url, "a"), reporter=events.append)
        with running_gateway(pool, hold=0.1) as (gateway, token), RawClient(gateway) as client:
            client.post(token, chat_body("a secret prompt", stream=True), f"x-way: {way}", "Connection: close")
            answer = client.read_all()
            assert answer.startswith(b"HTTP/1.1 ")
            assert CANARY.encode() not in answer
            assert upstream.calls[0].key == KEY, "the test sent no key"
            pages = "".join(
                httpx.get(gateway.url + page, headers={"x-api-key": token}).text
                for page in ("/-/pool", "/-/metrics", "/-/health")
            )
            usage = repr(gateway.close(token))
        for text in (caplog.text, pages, usage, repr(events), repr(gateway), repr(gateway._state)):
            assert CANARY not in text
            assert token not in text
            assert "secret prompt" not in text


@pytest.mark.parametrize("way", ["body", "stream", "400"])
def test_secret_in_a_header_of_the_credential_is_masked(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is a reference is as secret as the key: a token of an organisation's own proxy."""
    secret = "team-secret-0123456789"
    monkeypatch.setenv("TEAM_SECRET", secret)

    async def handler(call: Call) -> None:
        status = 400 if way == "400" else 200
        if way == "stream":
            await call.begin_stream()
            await call.event(chat_chunk(call.headers["x-team"]))
            await call.end_stream()
        else:
            await call.answer(
                status, {"error": {"message": str(call.header_lines)}}, f"x-echo: {call.headers['x-team']}"
            )

    with Upstream(handler) as upstream:
        credential = Credential(
            KEY, id="a", provider="openai", base_url=upstream.url, headers={"X-Team": "env:TEAM_SECRET"}
        )
        with running_gateway([credential]) as (gateway, token), RawClient(gateway) as client:
            client.post(token, chat_body(), "Connection: close")
            answer = client.read_all()
            assert upstream.calls[0].headers["x-team"] == secret
            assert secret.encode() not in answer
            assert b"*" * len(secret) in answer
            assert CANARY.encode() not in answer


def test_body_with_the_key_keeps_its_length() -> None:
    with Upstream(echo) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        headers = {"authorization": f"Bearer {token}", "x-way": "long body"}
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body())
        assert len(answer.content) == 10_000 * (len(KEY) + 1)
        assert set(answer.content) == set(b"* ")


def test_bug_in_the_gateway_logs_no_content(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"a message with {KEY} and a secret prompt")

    monkeypatch.setattr("agentos.gateway._body.read_facts", fail)
    with running_gateway(LeasePool(credentials("http://127.0.0.1:9", "a"), reporter=quiet)) as (gateway, token):
        answer = httpx.post(
            f"{gateway.url}/v1/messages", headers={"x-api-key": token}, content=chat_body("a secret prompt")
        )
        assert answer.status_code == 500
        assert answer.json()["type"] == "error"
        assert "RuntimeError in a request, raised at test_secrets.py" in caplog.text
        assert CANARY not in caplog.text + answer.text
        assert "secret prompt" not in caplog.text + answer.text


def test_metrics_count_requests_tokens_refusals_and_holds() -> None:
    left = [1]

    async def handler(call: Call) -> None:
        if left:
            left.clear()
            await call.answer(429, {"error": {"code": "rate_limit_exceeded"}}, "retry-after: 1")
        else:
            await call.answer(200, {"usage": {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100}})

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        headers = {"authorization": f"Bearer {token}"}
        httpx.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body(), timeout=30)
        page = httpx.get(f"{gateway.url}/-/metrics", headers=headers)
        assert page.headers["content-type"].startswith("text/plain")
        labels = 'gen_ai_provider_name="openai",gen_ai_request_model="m"'
        for line in (
            f'gen_ai_client_token_usage_total{{{labels},gen_ai_token_type="input"}} 70.0',
            f'gen_ai_client_token_usage_total{{{labels},gen_ai_token_type="output"}} 30.0',
            'agentos_gateway_refusals_total{gen_ai_provider_name="openai",kind="rate_limited"} 1.0',
            'duration_seconds_count{gen_ai_provider_name="openai",http_response_status_code="200"} 1.0',
            "agentos_gateway_requests_under_way 0.0",
        ):
            assert line in page.text, page.text
        assert "agentos_gateway_held_seconds_total" in page.text
