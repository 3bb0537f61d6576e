"""How a request reaches its provider: proxies of the environment, the head that is written, and reused connections."""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from pathlib import Path

import httpx
import pytest

from agentos.gateway import _upstream
from agentos.gateway.gateway import Gateway
from tests.conftest import eventually
from tests.support.tls import write_certificate

from .support import CANARY, Call, Upstream, at_rest, chat_answer, chat_body, credentials, running_gateway


async def succeed(call: Call) -> None:
    await call.answer(200, chat_answer())


def post(gateway: Gateway, token: str, **more: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    with httpx.Client(trust_env=False, timeout=10) as client:
        return client.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body(**more))


def test_proxy_gets_a_plain_request_in_absolute_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the proxy goes to the proxy only: in a header of its own."""
    with Upstream(succeed) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("://", "://user:pass@"))
        with running_gateway(credentials("http://provider.test:8080", "a")) as (gateway, token):
            answers = [post(gateway, token) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    for call in proxy.calls:
        assert call.target == "http://provider.test:8080/v1/chat/completions"
        assert call.headers["host"] == "provider.test:8080"
        assert call.headers["proxy-authorization"] == f"Basic {base64.b64encode(b'user:pass').decode()}"
        assert call.key == f"{CANARY}-a"


def test_proxy_is_asked_for_a_tunnel_to_a_tls_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that refuses the tunnel sees no key, and its credential counts as unreachable."""

    async def refuse(call: Call) -> None:
        await call.answer(403, {})

    with Upstream(refuse) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with running_gateway(credentials("https://provider.test", "a"), hold=1.0) as (gateway, token):
            answer = post(gateway, token)
            eventually(lambda: at_rest(gateway.pool))
    assert answer.status_code == 502
    address = f"provider.test:443 through the proxy {proxy.url.removeprefix('http://')}"
    assert f"the provider at {address} cannot be reached" in answer.json()["error"]["message"]
    assert {(call.method, call.target) for call in proxy.calls} == {("CONNECT", "provider.test:443")}
    assert not any(CANARY.encode() in call.head for call in proxy.calls)


def test_host_without_a_proxy_is_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Upstream(succeed) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        assert post(gateway, token).status_code == 200


@pytest.mark.parametrize("value", ["a\r\nx-injected: yes", "a\nb", "a\rb", "a\0b"])
def test_head_with_a_line_break_is_not_sent(value: str) -> None:
    """Keys and headers of a credential are checked where they are read; this is the last check of all lines."""
    lines = ["POST /v1/chat/completions HTTP/1.1", f"Authorization: Bearer {value}"]
    with pytest.raises(_upstream.Untrusted, match="a header has a line break"):
        _upstream._encoded(lines, 0)


def test_request_that_cannot_be_sent_gives_its_lease_back(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)  # which the gateway does not trust
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with (
        Upstream(succeed, tls=context) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
    ):
        assert post(gateway, token).status_code == 502
        eventually(lambda: at_rest(gateway.pool))
        assert (gateway.usage(token).requests, gateway.pool.states()[0].requests) == (0, 0)
    assert not upstream.calls


def test_connection_is_reused_after_interim_answers() -> None:
    """Answers with status 1xx are not the answer, also if several come."""
    writers = set()

    async def answer(call: Call) -> None:
        writers.add(call.writer)
        await call.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await succeed(call)

    with Upstream(answer) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        answers = [post(gateway, token) for _ in range(3)]
    assert [each.json()["usage"]["total_tokens"] for each in answers] == [10, 10, 10]
    assert len(writers) == 1


def test_answer_before_the_end_of_the_body_closes_connection() -> None:
    """T1: the provider answers a large request from its head. T2: the gateway has sent a part of the body. The next
    request must not be written behind that part."""

    async def refuse_early(call: Call) -> None:
        await call.answer(413, {"error": {"message": "too large"}})
        await asyncio.Event().wait()  # reads no more

    class EarlyUpstream(Upstream):
        async def _read_body(self, *_: object) -> bytes:
            return b""

    with EarlyUpstream(refuse_early) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        large = post(gateway, token, padding="x" * 20_000_000)
        upstream.handler = succeed
        small = post(gateway, token)
    assert large.status_code == 413
    assert small.status_code == 200


def test_folded_header_of_an_answer_stays_in_one_head() -> None:
    """A header that a provider sends in two lines is passed on in one, and no line of it begins a new header."""

    async def answer(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-note: one\r\n two: x\r\ncontent-length: 2\r\n\r\n{}"
        )

    with Upstream(answer) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        response = post(gateway, token)
    assert response.status_code in (200, 502)
    assert "two" not in response.headers
    assert "\n" not in response.headers.get("x-note", "")


def test_answer_without_a_body_has_no_length() -> None:
    async def answer(call: Call) -> None:
        await call.send(b"HTTP/1.1 204 No Content\r\nx-id: 1\r\n\r\n")

    with Upstream(answer) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        answers = [post(gateway, token) for _ in range(2)]
    assert [each.status_code for each in answers] == [204, 204]
    assert "content-length" not in answers[0].headers
    assert "transfer-encoding" not in answers[0].headers


def test_unsolicited_answer_does_not_serve_the_next_request() -> None:
    """An upstream (such as a proxy that ends idle connections) sends a second answer that no request asked for."""

    async def answer_twice(call: Call) -> None:
        await call.answer(200, chat_answer())
        await asyncio.sleep(0.05)  # the gateway has given the connection back
        await call.answer(200, {"id": "unsolicited"})

    with Upstream(answer_twice) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        for number in range(4):
            assert post(gateway, token, user=str(number)).json().get("id") != "unsolicited"
            eventually(lambda: at_rest(gateway.pool))
            threading.Event().wait(0.1)
        eventually(lambda: len(upstream.calls) == 4)
