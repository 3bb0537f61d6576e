"""Streams through the gateway: order and time of events, refusals inside a 200, disconnects, cuts, back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
import time
from pathlib import Path

import httpx
import pytest

from agentos.pool.lease_pool import LeasePool
from tests.conftest import BUSY, eventually

from .support import Call, RawClient, Upstream, at_rest, chat_body, chat_chunk, credentials, quiet, running_gateway

ANTHROPIC_START = {
    "type": "message_start",
    "message": {"type": "message", "usage": {"input_tokens": 9, "output_tokens": 1}},
}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


def test_event_arrives_before_the_next_is_sent() -> None:
    """The provider waits for the test's signal before each further event: a gateway that buffers would stand still, and
    one that sends what it has at intervals would take longer than 50 ms for the fastest of them, too."""
    gate: list[asyncio.Event] = []
    sent_at: list[float] = []
    delays = []

    async def handler(call: Call) -> None:
        await call.begin_stream()
        for number in range(20):
            sent_at.append(time.monotonic())
            await call.event(chat_chunk(f"part {number}."))
            gate.append(asyncio.Event())
            await gate[-1].wait()
        await call.event("[DONE]")
        await call.end_stream()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(stream=True))
            for number in range(20):
                client.read_until(f"part {number}.".encode())
                delays.append(time.monotonic() - sent_at[number])
                eventually(lambda number=number: len(gate) > number)
                upstream.signal(gate[number])
            assert client.read_until(b"0\r\n\r\n").count(b"[DONE]") == 1
        assert min(delays) < 0.05
        assert at_rest(gateway.pool)


@pytest.mark.parametrize("held_back", [[], [ANTHROPIC_START], [ANTHROPIC_START, {"type": "ping"}]])
def test_error_as_first_content_event_is_a_refusal(held_back: list[dict[str, object]]) -> None:
    async def handler(call: Call) -> None:
        await call.begin_stream()
        for event in held_back:
            await call.event(event, str(event["type"]))
        if call.key.endswith("-a"):
            error = {"type": "rate_limit_error", "message": "limit"}
            await call.event({"type": "error", "error": error}, "error")
        else:
            await call.event({"type": "content_block_delta", "index": 0}, "content_block_delta")
            await call.event({"type": "message_stop"}, "message_stop")
        await call.end_stream()

    with Upstream(handler) as upstream:
        pool = LeasePool(credentials(upstream.url, "a", "b", provider="anthropic"), reporter=quiet)
        pool.quarantine("b", "until the first was refused")
        with running_gateway(pool) as (gateway, token), httpx.Client() as client:
            headers = {"x-api-key": token}
            upstream.handler = _restoring(handler, pool)
            answer = client.post(f"{gateway.url}/v1/messages", headers=headers, content=chat_body(stream=True))
            assert answer.status_code == 200
            assert "message_stop" in answer.text
            assert "rate_limit_error" not in answer.text
            assert answer.text.count("event: message_start") <= 1
            assert gateway.usage(token).refusals == 1
            assert [call.key[-1] for call in upstream.calls] == ["a", "b"]
            assert at_rest(pool)


def _restoring(handler, pool: LeasePool):  # type: ignore[no-untyped-def]
    async def handle(call: Call) -> None:
        if call.key.endswith("-a"):
            pool.restore("b")
        await handler(call)

    return handle


def test_error_after_content_is_passed_on() -> None:
    async def handler(call: Call) -> None:
        await call.begin_stream()
        await call.event({"type": "content_block_delta", "index": 0}, "content_block_delta")
        await call.event(OVERLOADED, "error")
        await call.end_stream()

    with Upstream(handler) as upstream:
        creds = credentials(upstream.url, "a", "b", provider="anthropic")
        with running_gateway(creds) as (gateway, token), httpx.Client() as client:
            answer = client.post(
                f"{gateway.url}/v1/messages", headers={"x-api-key": token}, content=chat_body(stream=True)
            )
            assert "overloaded_error" in answer.text
            assert len(upstream.calls) == 1


def test_handshake_is_passed_on_when_nothing_follows_it() -> None:
    """After two seconds the events that were held back go out: a client must not take the provider for dead."""

    async def handler(call: Call) -> None:
        await call.begin_stream()
        await call.event(ANTHROPIC_START, "message_start")
        await call.wait_for_disconnect()

    with Upstream(handler) as upstream:
        creds = credentials(upstream.url, "a", provider="anthropic")
        with running_gateway(creds) as (gateway, token), RawClient(gateway) as client:
            started_at = time.monotonic()
            client.post(token, chat_body(stream=True), path="/v1/messages")
            client.read_until(b"message_start")
            assert time.monotonic() - started_at >= 1.9


@pytest.mark.parametrize("silent_after", ["nothing", "head", "event"])
def test_disconnect_ends_upstream_request(silent_after: str) -> None:
    """Within a second, also while the upstream is silent; and the request is settled (invariant 34)."""
    reached = []

    async def handler(call: Call) -> None:
        if silent_after != "nothing":
            await call.begin_stream()
        if silent_after == "event":
            await call.event(chat_chunk("first"))
        reached.append(call)
        await call.wait_for_disconnect()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(stream=True))
            eventually(lambda: reached)
            if silent_after == "event":
                client.read_until(b"first")
        assert reached[0].is_cancelled.wait(1.0 + BUSY)
        eventually(lambda: at_rest(gateway.pool))
        assert len(upstream.calls) == 1


def test_disconnect_of_a_request_that_waits_leaves_nothing_behind() -> None:
    async def handler(call: Call) -> None:
        await call.wait_for_disconnect()

    with Upstream(handler) as upstream:
        pool = LeasePool(credentials(upstream.url, "a", max_concurrent=1), reporter=quiet)
        with running_gateway(pool) as (gateway, token), RawClient(gateway) as first:
            first.post(token, chat_body())
            eventually(lambda: upstream.calls)
            with RawClient(gateway) as second:
                second.post(token, chat_body("second"))
                eventually(lambda: pool._store.waiters() == 1)
            eventually(lambda: pool._store.waiters() == 0)
        eventually(lambda: at_rest(pool))
        assert len(upstream.calls) == 1


def test_client_that_leaves_after_last_event_has_not_cancelled() -> None:
    """The usage in the stream is settled, not the estimate: no byte is missing but the end of the body."""
    release: list[asyncio.Event] = []

    async def handler(call: Call) -> None:
        await call.begin_stream()
        await call.event(chat_chunk("text"))
        usage = {"prompt_tokens": 1000, "completion_tokens": 2000, "total_tokens": 3000}
        await call.event({"choices": [], "usage": usage})
        await call.event("[DONE]")
        release.append(asyncio.Event())
        await release[0].wait()
        await call.end_stream()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(stream=True))
            client.read_until(b"[DONE]")
        eventually(lambda: at_rest(gateway.pool))
        usage = gateway.usage(token)
        assert (usage.requests, usage.input_tokens, usage.output_tokens) == (1, 1000, 2000)
        assert gateway.pool.states()[0].tokens == 3000
        upstream.signal(release[0])


def test_disconnect_settles_what_the_stream_has_stated() -> None:
    """Input that was larger than its estimate counts in the windows of the key, although the end is missing."""

    async def handler(call: Call) -> None:
        await call.begin_stream()
        usage = {"input_tokens": 50_000, "output_tokens": 1}
        await call.event({"type": "message_start", "message": {"type": "message", "usage": usage}}, "message_start")
        await call.event({"type": "content_block_delta", "index": 0}, "content_block_delta")
        await call.wait_for_disconnect()

    with Upstream(handler) as upstream:
        creds = credentials(upstream.url, "a", provider="anthropic")
        with running_gateway(creds) as (gateway, token):
            with RawClient(gateway) as client:
                client.post(token, chat_body(stream=True, max_tokens=300), path="/v1/messages")
                client.read_until(b"content_block_delta")
            eventually(lambda: at_rest(gateway.pool))
            usage = gateway.usage(token)
            assert (usage.input_tokens, usage.output_tokens) == (50_000, 300)  # the estimate of its output
            assert gateway.pool.states()[0].tokens == 50_300


@pytest.mark.parametrize("framing", ["chunked", "length", "to the end of the connection in HTTP/1.0"])
def test_cut_upstream_is_passed_on_as_a_cut(framing: str) -> None:
    async def handler(call: Call) -> None:
        if framing == "length":
            await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: x/y\r\ncontent-length: 100000\r\n\r\npart")
        else:
            await call.begin_stream()
            await call.event(chat_chunk("part"))
        call.writer.transport.abort()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            if "1.0" in framing:
                body = chat_body(stream=True)
                head = f"POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer {token}\r\nContent-Length: "
                client.send(f"{head}{len(body)}\r\n\r\n".encode() + body)
                with pytest.raises(ConnectionResetError):
                    while client.socket.recv(65536):
                        pass
            else:
                client.post(token, chat_body(stream=True))
                data = client.read_all()
                assert not data.endswith(b"0\r\n\r\n")
                assert len(data) < 50_000
        eventually(lambda: at_rest(gateway.pool))
        assert len(upstream.calls) == 1


def test_reset_of_a_body_without_length_is_a_cut() -> None:
    """Only the end of the connection ends such a body, and a reset is none."""
    sent: list[asyncio.Event] = []

    async def handler(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: x/y\r\n\r\npart")
        sent.append(asyncio.Event())
        await sent[0].wait()
        connection = call.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        call.writer.transport.abort()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(stream=True))
            client.read_until(b"part")
            eventually(lambda: sent)
            upstream.signal(sent[0])
            assert not client.read_all().endswith(b"0\r\n\r\n")
        eventually(lambda: at_rest(gateway.pool))


def test_paused_reader_of_200_megabytes_keeps_memory_flat() -> None:
    """Back-pressure reaches the upstream: it cannot send on while the client does not read."""
    part = (b"data: " + b"x" * 1_016 + b"\n\n") * 64
    sent = [0]

    async def handler(call: Call) -> None:
        call.writer.transport.set_write_buffer_limits(high=65_536)
        await call.begin_stream()
        for _ in range(200 * 16):
            await call.chunk(part)
            sent[0] += len(part)
        await call.end_stream()

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway, receive_buffer=65_536) as client:
            client.post(token, chat_body(stream=True))
            client.socket.recv(1000)
            before = _memory()
            eventually(lambda: _stands_still(sent))
            assert sent[0] < 20_000_000  # the rest of it waits at the upstream: buffers of sockets are a few MB
            received, most = 0, _memory()
            while received < 200 * 2**20:
                received += len(client.socket.recv(1 << 20))
                most = max(most, _memory())
            assert most - before < 60_000_000  # of the 200 MB; the upstream is in this process, too
        assert sent[0] == 200 * 2**20


def _memory() -> int:
    """Return the resident bytes of this process; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _stands_still(sent: list[int]) -> bool:
    before = sent[0]
    time.sleep(0.3)
    return sent[0] == before


def test_answer_is_passed_on_byte_for_byte() -> None:
    """Also bytes that are no text, an encoding without a request for it, and headers in their order (invariant 37)."""
    content = bytes(range(256)) * 300

    async def handler(call: Call) -> None:
        assert call.headers["accept-encoding"] == "identity"
        lines = ["x-first: 1", "x-twice: a", "x-twice: b", "content-encoding: br", "set-cookie: a=b", "x-hop: 1"]
        head = ["HTTP/1.1 200 OK", f"content-length: {len(content)}", *lines, "connection: keep-alive, x-hop"]
        await call.send("\r\n".join([*head, "", ""]).encode() + content)

    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        with RawClient(gateway) as client:
            client.post(token, chat_body(), "Accept-Encoding: gzip, br", "Connection: close")
            head, _, body = client.read_all().partition(b"\r\n\r\n")
        assert body == content
        lines = head.lower().split(b"\r\n")
        assert lines.index(b"x-first: 1") < lines.index(b"x-twice: a") < lines.index(b"x-twice: b")
        assert b"content-encoding: br" in lines
        assert not any(line.startswith((b"set-cookie", b"x-hop")) for line in lines)
