"""Hostile requests, written to the socket byte by byte: each is answered clearly, and none is forwarded wrongly."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentos.gateway import _body, _server
from agentos.gateway._request import read_facts
from agentos.gateway.gateway import Gateway
from tests.conftest import eventually

from .support import CANARY, Call, RawClient, Upstream, at_rest, chat_answer, chat_body, credentials, running_gateway

BODY = chat_body()


class Target:
    """A gateway, its upstream, and a token."""

    def __init__(self, gateway: Gateway, upstream: Upstream, token: str) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.token = token

    def answer(self, *parts: bytes) -> bytes:
        """Return everything that the gateway answers, until it closes the connection."""
        with RawClient(self.gateway) as client:
            for part in parts:
                client.send(part.replace(b"TOKEN", self.token.encode()).replace(b"HOST", client.host.encode()))
            return client.read_all()


@pytest.fixture(scope="module")
def served() -> Iterator[Target]:
    async def handler(call: Call) -> None:
        await call.answer(200, chat_answer())

    with Upstream(handler) as upstream:
        creds = [
            *credentials(upstream.url, "o"),
            *credentials(upstream.url, "a", provider="anthropic"),
            *credentials(upstream.url, "g", provider="gemini"),
        ]
        with running_gateway(creds) as (gateway, token):
            yield Target(gateway, upstream, token)


@pytest.fixture
def target(served: Target) -> Target:
    served.upstream.calls.clear()
    return served


def head(*lines: str, first: str = "POST /v1/chat/completions HTTP/1.1", close: bool = True) -> bytes:
    whole = [first, "Host: HOST", "Authorization: Bearer TOKEN", *(["Connection: close"] if close else []), *lines]
    return "\r\n".join([*whole, "", ""]).encode("latin-1")


def with_length(body: bytes = BODY) -> str:
    return f"Content-Length: {len(body)}"


CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

# What is written, and the status of the answer (0: the connection is closed without one). Nothing reaches the upstream.
REFUSED = {
    "length and chunks": (head(with_length(), "Transfer-Encoding: chunked") + CHUNKED, 400),
    "chunks and length": (head("Transfer-Encoding: chunked", with_length()) + CHUNKED, 400),
    "two lengths": (head(with_length(), "Content-Length: 3") + BODY, 400),
    "two equal lengths": (head(with_length(), with_length()) + BODY, 400),
    "signed length": (head(f"Content-Length: +{len(BODY)}") + BODY, 400),
    "hexadecimal length": (head("Content-Length: 0x10") + BODY, 400),
    "length with a list": (head(f"Content-Length: {len(BODY)}, {len(BODY)}") + BODY, 400),
    "length of underscores": (head("Content-Length: 1_0") + BODY, 400),
    "unknown transfer encoding": (head("Transfer-Encoding: identity") + CHUNKED, 400),
    "chunked twice": (head("Transfer-Encoding: chunked, chunked") + CHUNKED, 400),
    "compressed and chunked": (head("Transfer-Encoding: gzip, chunked") + CHUNKED, 501),
    "chunks in HTTP/1.0": (head("Transfer-Encoding: chunked", first="POST /v1/responses HTTP/1.0") + CHUNKED, 400),
    "space before the colon": (head("Transfer-Encoding : chunked") + CHUNKED, 400),
    "bad chunk size": (head("Transfer-Encoding: chunked") + b"zz\r\nabc\r\n0\r\n\r\n", 400),
    "negative chunk size": (head("Transfer-Encoding: chunked") + b"-1\r\nabc\r\n0\r\n\r\n", 400),
    "chunk size with a prefix": (head("Transfer-Encoding: chunked") + b"0x3\r\nabc\r\n0\r\n\r\n", 400),
    "huge chunk size": (head("Transfer-Encoding: chunked") + b"f" * 40 + b"\r\nabc\r\n0\r\n\r\n", 400),
    "chunk without its end": (head("Transfer-Encoding: chunked") + b"3\r\nabcX\r\n0\r\n\r\n", 400),
    "folded header": (head("X-Folded: a\r\n b", with_length()) + BODY, 400),
    "header without a colon": (head("nothing", with_length()) + BODY, 400),
    "header without a name": (head(": value", with_length()) + BODY, 400),
    "header name with a space": (head("X Name: value", with_length()) + BODY, 400),
    "NUL in a header": (head("X-Nul: a\0b", with_length()) + BODY, 400),
    "carriage return in a header": (head("X-Cr: a\rb", with_length()) + BODY, 400),
    "header that is not UTF-8": (head("X-Bad: caf\xe9", with_length()) + BODY, 400),
    "unknown content encoding": (head("Content-Encoding: br", with_length()) + BODY, 400),
    "wrong content encoding": (head("Content-Encoding: zstd", with_length()) + BODY, 400),
    "two hosts": (head("Host: HOST", with_length()) + BODY, 400),
    "no host": (head(with_length()).replace(b"Host: HOST\r\n", b"") + BODY, 400),
    "foreign host": (head(with_length()).replace(b"Host: HOST", b"Host: evil.example") + BODY, 421),
    "foreign host with our port": (head(with_length()).replace(b"Host: 127", b"Host: 128") + BODY, 200),
    "empty host": (head(with_length()).replace(b"Host: HOST", b"Host: ") + BODY, 421),
    "host with a user": (head(with_length()).replace(b"Host: HOST", b"Host: u@HOST") + BODY, 421),
    "line feeds only": (head(with_length()).replace(b"\r\n", b"\n") + BODY, 400),
    "control byte in the method": (head(with_length()).replace(b"POST", b"PO\x01ST") + BODY, 400),
    "control byte in the target": (head(with_length()).replace(b"completions", b"comp\x01") + BODY, 400),
    "no target": (head(with_length(), first="POST HTTP/1.1") + BODY, 400),
    "unknown version": (head(with_length(), first="POST / HTTP/9.9") + BODY, 400),
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50 + b"\r\n\r\n", 400),
    "huge header": (head("X-Huge: " + "x" * 70_000, with_length()) + BODY, 400),
    "many headers": (head(*(f"X-{n}: y" for n in range(500)), with_length()) + BODY, 400),
    "huge target": (head(with_length(), first="POST /v1/" + "x" * 70_000 + " HTTP/1.1") + BODY, 400),
    "length above the limit": (head("Content-Length: 999999999999"), 413),
    "absolute form": (head(with_length(), first="POST http://evil.example/v1/chat/completions HTTP/1.1") + BODY, 400),
    "CONNECT": (head(first="CONNECT api.openai.com:443 HTTP/1.1"), 405),
    "TRACE": (head(first="TRACE /v1/models HTTP/1.1"), 405),
    "OPTIONS of a browser": (head("Origin: https://evil.example", first="OPTIONS /v1/models HTTP/1.1"), 405),
    "asterisk form": (head(first="OPTIONS * HTTP/1.1"), 405),
    "escaped line end in the path": (head(first="GET /v1/models%0d%0aX-Evil:%201 HTTP/1.1"), 400),
    "escaped line end in the query": (head(first="GET /v1/models?a=%0d%0aX-Evil:%201 HTTP/1.1"), 400),
    "dot segments": (head(first="GET /v1/../admin HTTP/1.1"), 400),
    "escaped dot segments": (head(first="GET /v1/%2e%2e/admin HTTP/1.1"), 400),
    "dot segment after an escaped slash": (head(first="GET /v1/x%2f..%2fadmin HTTP/1.1"), 400),
    "dot segment with a parameter": (head(first="GET /v1/..;x=y/admin HTTP/1.1"), 400),
    "escaped dot segment with a parameter": (head(first="GET /v1/%2e%2e%3b/admin HTTP/1.1"), 400),
    "dot segments escaped twice": (head(first="GET /v1/%252e%252e/admin HTTP/1.1"), 400),
    "backslash in the path": (head(first="GET /v1/..\\admin HTTP/1.1"), 400),
    "fragment": (head(first="GET /v1/models#x HTTP/1.1"), 400),
    "Origin": (head("Origin: https://evil.example", with_length()) + BODY, 403),
    "null Origin": (head("Origin: null", with_length()) + BODY, 403),
    "Sec-Fetch-Site": (head("Sec-Fetch-Site: cross-site", with_length()) + BODY, 403),
    "WebSocket": (head("Upgrade: websocket", "Sec-WebSocket-Key: x", first="GET /v1/responses HTTP/1.1"), 426),
    "h2c": (head("Upgrade: h2c", "HTTP2-Settings: AAMAAABk", with_length()) + BODY, 426),
    "unknown expectation": (head("Expect: a miracle", with_length()) + BODY, 417),
    "token in the URL": (
        head(with_length(), first="POST /v1/chat/completions?key=TOKEN HTTP/1.1").replace(
            b"Authorization: Bearer TOKEN\r\n", b""
        ) + BODY, 401,
    ),
    "no token": (head(with_length()).replace(b"Authorization: Bearer TOKEN\r\n", b"") + BODY, 401),
    "wrong token": (head(with_length()).replace(b"TOKEN", b"agentos-" + b"x" * 32) + BODY, 401),
    "token of another scheme": (head(with_length()).replace(b"Bearer TOKEN", b"Basic TOKEN") + BODY, 401),
    "path of no provider": (head(with_length(), first="POST /nothing/here HTTP/1.1") + BODY, 404),
    "HEAD of a provider's path": (head(first="HEAD /v1/models HTTP/1.1"), 404),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
}  # fmt: skip
del REFUSED["foreign host with our port"]


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_request_is_refused(target: Target, case: str) -> None:
    data, status = REFUSED[case]
    answer = target.answer(data)
    assert re.match(rf"HTTP/1\.[01] {status} ".encode(), answer), answer
    assert len(re.findall(rb"HTTP/1\.[01] \d\d\d [A-Z]", answer)) == 1, (
        "a part of the request was taken for another one"
    )
    assert target.upstream.calls == []
    assert CANARY.encode() not in answer
    assert target.token.encode() not in answer or case in ("garbage",)
    assert at_rest(target.gateway.pool)


def test_errors_have_the_format_of_the_provider(target: Target) -> None:
    for path, mark in (("/v1/messages", b'"type": "error"'), ("/v1beta/models/m:generateContent", b'"status": "UN')):
        data = head(with_length(), first=f"POST {path} HTTP/1.1").replace(b"TOKEN", b"wrong") + BODY
        assert mark in target.answer(data)


# --- accepted, in the right way ---------------------------------------------------------------------------------------


def test_trailer_reaches_neither_this_request_nor_the_next(target: Target) -> None:
    """aiohttp hands the last trailer to the next request of a connection: it must not have one."""
    chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
    trailers = b"0\r\nX-Trailer: evil\r\nAuthorization: Bearer stolen\r\n\r\n"
    second = head(with_length(), first="POST /v1/responses HTTP/1.1").replace(b"Authorization: Bearer TOKEN\r\n", b"")
    answer = target.answer(head("Transfer-Encoding: chunked", close=False) + chunk + trailers, second + BODY)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(target.upstream.calls) == 1
    assert b"evil" not in target.upstream.calls[0].head
    assert target.upstream.calls[0].body == BODY


def test_refused_request_with_trailer_ends_its_connection(target: Target) -> None:
    refused = head("Transfer-Encoding: chunked", close=False).replace(b"TOKEN", b"agentos-" + b"x" * 32)
    trailers = b"0\r\nAuthorization: Bearer stolen\r\n\r\n"
    answer = target.answer(refused + b"%x\r\n%b\r\n" % (len(BODY), BODY) + trailers, head(with_length()) + BODY)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert target.upstream.calls == []


def test_empty_host_is_refused_after_a_request_without_one(target: Target) -> None:
    old = head(with_length(), first="POST /v1/chat/completions HTTP/1.0").replace(b"Host: HOST\r\n", b"")
    assert b" 200 " in target.answer(old + BODY)
    assert b" 421 " in target.answer(head(with_length()).replace(b"HOST", b"") + BODY)


def test_chunked_request_is_forwarded_with_length(target: Target) -> None:
    assert b"HTTP/1.1 200" in target.answer(head("Transfer-Encoding: chunked") + CHUNKED)
    call = target.upstream.calls[0]
    assert call.body == BODY
    assert call.headers["content-length"] == str(len(BODY))
    assert "transfer-encoding" not in call.headers


def test_pipelined_requests_are_answered_in_order(target: Target) -> None:
    bodies = [chat_body(f"request {number}") for number in range(3)]
    data = b"".join(head(with_length(b), close=b is bodies[-1]) + b for b in bodies)
    answer = target.answer(data)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert [call.body for call in target.upstream.calls] == bodies


def test_expectation_is_met_after_the_token_was_checked(target: Target) -> None:
    with RawClient(target.gateway) as client:
        client.send(head("Expect: 100-continue", with_length()).replace(b"TOKEN", target.token.encode()).replace(
            b"HOST", client.host.encode()))  # fmt: skip
        assert client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(BODY)
        assert b"HTTP/1.1 200" in client.read_all()
    assert "expect" not in target.upstream.calls[0].headers
    refused = target.answer(head("Expect: 100-continue", with_length()).replace(b"TOKEN", b"wrong"))
    assert refused.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("line", ["X: y", "Expect: 100-continue"])
def test_http_1_0_is_answered_and_closed(target: Target, line: str) -> None:
    """Such a client knows no interim answer: it would take one for the answer."""
    first = "POST /v1/chat/completions HTTP/1.0"
    data = head(line, with_length(), first=first, close=False).replace(b"Host: HOST\r\n", b"") + BODY
    answer = target.answer(data)
    assert answer.startswith(b"HTTP/1.0 200")
    assert b"transfer-encoding" not in answer.lower()


def test_sec_fetch_mode_alone_is_accepted(target: Target) -> None:
    """Gemini CLI sends it, and is no browser."""
    data = head("sec-fetch-mode: cors", with_length(), first="POST /v1beta/models/m:generateContent HTTP/1.1") + BODY
    assert b"HTTP/1.1 200" in target.answer(data)
    assert "sec-fetch-mode" not in target.upstream.calls[0].headers


@pytest.mark.parametrize("first", ["HEAD / HTTP/1.1", "GET / HTTP/1.1", "GET /-/health HTTP/1.1"])
def test_root_and_health_need_no_token(target: Target, first: str) -> None:
    assert b"HTTP/1.1 200" in target.answer(head(first=first).replace(b"Authorization: Bearer TOKEN\r\n", b""))


@pytest.mark.parametrize("first", ["GET /-/pool HTTP/1.1", "GET /-/metrics HTTP/1.1"])
def test_pages_about_the_pool_need_a_token(target: Target, first: str) -> None:
    assert b"HTTP/1.1 200" in target.answer(head(first=first))
    assert b"HTTP/1.1 401" in target.answer(head(first=first).replace(b"TOKEN", b"wrong"))


# --- what is passed on ------------------------------------------------------------------------------------------------


def test_private_headers_of_the_client_are_not_sent_upstream(target: Target) -> None:
    dropped = [
        "Cookie: a=b", "X-Api-Key: other", "api-key: other", "OpenAI-Organization: org", "OpenAI-Project: p",
        "X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "Via: 1.1 x", "TE: trailers", "Keep-Alive: timeout=5",
        "Proxy-Authorization: Basic x", "X-Named: dropped", "Referer: http://x/", "Accept-Encoding: gzip",
        "X_Api_Key: other", "Content_Length: 5",
    ]  # fmt: skip
    kept = [
        "session_id: zero",
        "OpenAI-Beta: one",
        "anthropic-beta: two",
        "X-Own: three",
        "User-Agent: client/1",
        "X-Twice: 1",
        "X-Twice: 2",
    ]
    first = "POST /v1/chat/completions?key=secret&a=1&access_token=t&b=%41 HTTP/1.1"
    data = head(*dropped, *kept, with_length(), first=first).replace(b": close", b": close, X-Named") + BODY
    assert b"HTTP/1.1 200" in target.answer(data)
    call = target.upstream.calls[0]
    assert call.target == "/v1/chat/completions?a=1&b=%41"
    assert call.headers["authorization"] == f"Bearer {CANARY}-o"
    assert [line for line in call.header_lines if line in kept] == kept
    names = {line.partition(":")[0].lower() for line in call.header_lines}
    own = {"host", "content-length", "authorization", "accept-encoding"}
    assert names == own | {line.partition(":")[0].lower() for line in kept}
    assert target.token not in call.head.decode()


@pytest.mark.parametrize(
    ("path", "header", "value"),
    [
        ("/v1/messages", "x-api-key", f"{CANARY}-a"),
        ("/anthropic/v1/messages", "x-api-key", f"{CANARY}-a"),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", "x-goog-api-key", f"{CANARY}-g"),
        ("/gemini/v1beta/models/m:generateContent", "x-goog-api-key", f"{CANARY}-g"),
        ("/v1beta/openai/chat/completions", "authorization", f"Bearer {CANARY}-g"),
        ("/openai/v1/responses", "authorization", f"Bearer {CANARY}-o"),
        ("/v1/embeddings", "authorization", f"Bearer {CANARY}-o"),
        ("/chat/completions", "authorization", f"Bearer {CANARY}-o"),
    ],
)
def test_key_is_in_the_header_that_the_provider_reads(target: Target, path: str, header: str, value: str) -> None:
    assert b"HTTP/1.1 200" in target.answer(head(with_length(), first=f"POST {path} HTTP/1.1") + BODY)
    call = target.upstream.calls[0]
    assert call.headers[header] == value
    others = {"authorization", "x-api-key", "x-goog-api-key", "api-key"} - {header}
    assert not others & call.headers.keys()


# --- time and size ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ", b"P", b""])
def test_slow_head_is_closed(target: Target, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Also a connection that sends nothing: some thousands of them would keep all clients away."""
    monkeypatch.setattr(_server, "HEAD_SECONDS", 0.2)
    assert target.answer(data) == b""


def test_long_head_without_end_is_closed_early(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of its client: thousands of them would fill the memory until the deadline for heads."""
    monkeypatch.setattr(_server, "MAX_SLOW_HEAD", 20_000)
    line = b"X-Pad: " + b"x" * 1000 + b"\r\n"
    with RawClient(target.gateway) as short:
        short.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + 10 * line)
        assert target.answer(b"POST /v1/chat/completions HTTP/1.1\r\n" + 30 * line) == b""
        rest = head(with_length(), first="X: y").replace(b"TOKEN", target.token.encode())
        short.send(rest.replace(b"HOST", short.host.encode()) + BODY)
        assert b"HTTP/1.1 200" in short.read_all()


def test_slow_body_is_refused_without_a_lease(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_body, "BODY_SECONDS", 0.2)
    answer = target.answer(head(with_length()) + BODY[:5])
    assert answer.startswith(b"HTTP/1.1 408")
    assert target.upstream.calls == []
    assert at_rest(target.gateway.pool)


def test_dripping_body_is_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, but all of them would take hours."""
    monkeypatch.setattr(_body, "BODY_SECONDS", 0.3)
    with RawClient(target.gateway) as client:
        client.post(target.token, b"", "X: y")
        client.read_until(b"\r\n\r\n")
        data = head("Content-Length: 100000").replace(b"TOKEN", target.token.encode())
        client.send(data.replace(b"HOST", client.host.encode()))
        client.socket.settimeout(0.05)
        answer = b""
        for _ in range(400):
            try:
                client.send(b"x")
                answer += client.socket.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if answer:
                break
    assert b"408" in answer


def test_body_above_the_limit_is_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_body, "MAX_BODY", 1000)
    chunk = b"200\r\n" + b"x" * 512 + b"\r\n"
    answer = target.answer(head("Transfer-Encoding: chunked") + 5 * chunk)
    assert answer.startswith(b"HTTP/1.1 413")
    assert target.upstream.calls == []


def test_bodies_under_way_count_in_the_memory_of_all(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may be as long as its own limit allows. They are freed with their connections."""
    monkeypatch.setattr(_body, "MAX_BUFFERED", 100_000)
    state = target.gateway._state
    with RawClient(target.gateway) as first:
        data = head("Content-Length: 99000").replace(b"TOKEN", target.token.encode())
        first.send(data.replace(b"HOST", first.host.encode()) + b"x" * 90_000)
        eventually(lambda: state.buffered == 90_000)
        assert target.answer(head("Content-Length: 90000")).startswith(b"HTTP/1.1 503")
        chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
        assert target.answer(head("Transfer-Encoding: chunked") + 3 * chunk).startswith(b"HTTP/1.1 503")
        assert target.answer(head(with_length()) + BODY).startswith(b"HTTP/1.1 200")
    eventually(lambda: state.buffered == 0)


@pytest.mark.parametrize("lines", [("Content-Encoding: gzip",), ()])
def test_long_or_compressed_body_is_read_on_a_thread(
    target: Target, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    """Reading a bomb takes a tenth of a second and more, which other requests must not wait for."""
    threads = []

    def read(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read_facts(*arguments)

    monkeypatch.setattr(_body, "read_facts", read)
    body = gzip.compress(BODY) if lines else chat_body("x" * _body.MAX_INLINE)
    answer = target.answer(head(with_length(body), *lines) + body)
    assert answer.startswith(b"HTTP/1.1 200")
    assert target.answer(head(with_length()) + BODY).startswith(b"HTTP/1.1 200")
    assert threads[0] != threads[1] == "agentos-gateway"


def test_connections_beyond_the_limit_are_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server, "MAX_CONNECTIONS", 0)
    assert target.answer(b"").startswith(b"HTTP/1.1 503")


def test_refused_connection_needs_no_transport_of_asyncio() -> None:
    """uvloop's transports are no subclasses of asyncio's."""

    class Transport:
        written = b""
        is_closed = False

        def write(self, data: bytes) -> None:
            self.written += data

        def close(self) -> None:
            self.is_closed = True

    transport = Transport()
    _server._TooMany().connection_made(transport)  # type: ignore[arg-type]
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    assert transport.is_closed


def test_open_connections_are_forgotten(target: Target) -> None:
    for _ in range(5):
        target.answer(head(first="GET /-/health HTTP/1.1"))
    assert json.loads(target.answer(head(first="GET /-/health HTTP/1.1")).partition(b"\r\n\r\n")[2]) == {
        "status": "ok", "requests_under_way": 0,
    }  # fmt: skip
    eventually(lambda: at_rest(target.gateway.pool))
