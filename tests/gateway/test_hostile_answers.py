"""Answers of an upstream that is broken or hostile: each reaches the client as it is, as a cut, or as a clear error."""

from __future__ import annotations

import asyncio

import pytest

from agentos.gateway._reader import AnswerReader
from tests.conftest import eventually

from .support import CANARY, Call, Handler, RawClient, Upstream, at_rest, chat_body, credentials, running_gateway


def sends(data: bytes) -> Handler:
    async def handler(call: Call) -> None:
        await call.send(data)
        call.writer.close()

    return handler


def answer_to(data: bytes, path: str = "/v1/chat/completions") -> bytes:
    """Return what a client receives if the upstream sends these bytes and closes the connection."""
    with Upstream(sends(data)) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(stream=True), "Connection: close", path=path)
            answer = client.read_all()
        eventually(lambda: at_rest(gateway.pool))
        assert len(upstream.calls) == 1
        return answer


BROKEN = {
    "no HTTP": b"hello\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "more than its length": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}more",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",
    "header without end": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(600)) + b"\r\n",
}


@pytest.mark.parametrize("case", BROKEN)
def test_answer_that_is_no_http_is_an_error(case: str) -> None:
    answer = answer_to(BROKEN[case])
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_interim_answers_are_left_out() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    answer = answer_to(interim + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n{}")
    assert b"link" not in answer


def test_redirect_is_passed_on_and_not_followed() -> None:
    """The key never goes to a host that an answer names, and the client sees no key in the address."""
    location = f"location: http://127.0.0.1:9/?key={CANARY}-a".encode()
    answer = answer_to(b"HTTP/1.1 307 Moved\r\n%b\r\ncontent-length: 0\r\n\r\n" % location)
    assert answer.startswith(b"HTTP/1.1 307 ")
    assert CANARY.encode() not in answer


@pytest.mark.parametrize("framing", ["content-length: 5000", "transfer-encoding: chunked"])
def test_error_that_was_cut_is_passed_on_as_a_cut(framing: str) -> None:
    part = b'{"error": ' if "length" in framing else b'a\r\n{"error": \r\n'
    answer = answer_to(f"HTTP/1.1 400 Bad\r\n{framing}\r\n\r\n".encode() + part)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'a\r\n{"error": \r\n')  # the last chunk is missing


def test_error_beyond_its_limit_is_not_passed_on_as_complete() -> None:
    answer = answer_to(b"HTTP/1.1 400 Bad\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert not answer.endswith(b"0\r\n\r\n")
    assert b"content-length" not in answer.lower()


def test_header_that_is_no_text_is_left_out() -> None:
    """aiohttp would pass it on without the bytes that are not UTF-8."""
    head = b"HTTP/1.1 200 OK\r\nx-bad: caf\xe9\r\nx-good: caf\xc3\xa9\r\ncontent-length: 2\r\n\r\n{}"
    answer = answer_to(head)
    assert b"x-bad" not in answer
    assert b"x-good: caf\xc3\xa9\r\n" in answer


def test_bug_within_an_answer_cuts_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Not as a second answer within the first, which a client would read as the rest of its body."""

    event = b'data: {"choices": []}\n\n'
    gate: list[asyncio.Event] = []
    received: list[bytes] = []

    def feed(_reader: AnswerReader, data: bytes) -> bytes:
        if received:
            raise RuntimeError("a bug")
        return data

    async def handler(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await call.send(b"%x\r\n%b\r\n" % (len(event), event))
        gate.append(asyncio.Event())
        await gate[0].wait()
        await call.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))

    monkeypatch.setattr(AnswerReader, "feed", feed)
    with (
        Upstream(handler) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
        RawClient(gateway) as client,
    ):
        client.post(token, chat_body(stream=True))
        received.append(client.read_until(event))
        eventually(lambda: gate)
        upstream.signal(gate[0])
        answer = received[0] + client.read_all()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not answer.endswith(b"0\r\n\r\n")
    assert "RuntimeError in a request" in caplog.text


def test_stream_with_a_length_arrives_event_by_event() -> None:
    gate: list[asyncio.Event] = []

    async def handler(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 30\r\n\r\ndata: {}\n\n")
        gate.append(asyncio.Event())
        await gate[0].wait()
        await call.send(b"data: [DONE]\n\n".ljust(20, b"\n"))

    with (
        Upstream(handler) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
        RawClient(gateway) as client,
    ):
        client.post(token, chat_body(stream=True))
        client.read_until(b"data: {}\n\n")
        eventually(lambda: gate)
        upstream.signal(gate[0])
        client.read_until(b"[DONE]")
