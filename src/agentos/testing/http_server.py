"""Serve a simulated provider on a local port: HTTP/1.1 with keep-alive, on one thread, for thousands of clients.

Written by hand to use little processor time: benchmarks on the same machine measure the client, and the standard
library's server needs a thread per connection. Bodies have a stated length or come in chunks; the requests of one
connection are answered in order.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from . import contents, control, encodings, endpoints, owned_objects
from .endpoints import Call
from .request_log import Ending, RequestRecord

if TYPE_CHECKING:
    from .answers import Answer
    from .provider import SimulatedProvider

# Largest head of a request in bytes; a longer one is refused.
MAX_HEAD = 65_536
# Connections that may wait to be accepted; the system may lower it.
BACKLOG = 4096
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}


class HttpServer:
    """A server on its own thread, from its creation until `close`."""

    def __init__(self, provider: SimulatedProvider, port: int = 0) -> None:
        """Raise `OSError` if the port is in use."""
        self._socket = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self._loop = asyncio.new_event_loop()
        self._connections: set[_Connection] = set()  # only touched on the loop's thread
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(provider,), name="simulated-provider", daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Abort all connections; block until the thread has ended."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, provider: SimulatedProvider) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(provider))
        self._loop.close()

    async def _serve(self, provider: SimulatedProvider) -> None:
        server = await self._loop.create_server(
            lambda: _Connection(provider, self._connections), sock=self._socket, backlog=BACKLOG
        )
        await self._stop.wait()
        server.close()
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # the transports close their sockets in the loop's next round


class _Connection(asyncio.Protocol):
    """One connection. Its next request is read after the answer to the previous one."""

    _numbers = itertools.count(1)

    def __init__(self, provider: SimulatedProvider, connections: set[_Connection]) -> None:
        self._provider = provider
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the pending answer
        self._answer: Answer | None = None
        self._call: Call | None = None
        self._path = ""
        self._started_at = 0.0  # of the present request, by the monotonic clock
        self._events = 0  # sent of the present stream
        self._keeps_alive = True

    # --- callbacks of asyncio -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read_next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._end_call("client left")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- reading --------------------------------------------------------------------------------------------------

    def _read_next(self) -> None:
        while self._answer is None and self._buffer:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                if len(self._buffer) > MAX_HEAD:
                    self._reply(431, {}, {"error": "the head is too long"})
                    self._close()
                return
            lines = self._buffer[:head_end].decode("latin-1").split("\r\n")
            headers = {}
            for line in lines[1:]:
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
            body, end = self._body(headers, head_end + 4)
            if body is None:
                return
            del self._buffer[:end]
            self._keeps_alive = headers.get("connection", "").lower() != "close"
            method, _, target = lines[0].partition(" ")
            self._handle(method, target.partition(" ")[0], headers, body)

    def _body(self, headers: dict[str, str], start: int) -> tuple[bytes | None, int]:
        """Return the body and its end in the buffer; None while it is incomplete."""
        if "expect" in headers and len(self._buffer) == start:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(start)
        end = start + int(headers.get("content-length") or 0)
        return (bytes(self._buffer[start:end]), end) if len(self._buffer) >= end else (None, 0)

    def _chunks(self, start: int) -> tuple[bytes | None, int]:
        body = bytearray()
        while (line_end := self._buffer.find(b"\r\n", start)) >= 0:
            size = int(self._buffer[start:line_end].partition(b";")[0], 16)
            end = line_end + 2 + size + 2
            if len(self._buffer) < end:
                break
            body += self._buffer[line_end + 2 : end - 2]
            start = end
            if size == 0:
                return bytes(body), end
        return None, 0

    # --- answering ------------------------------------------------------------------------------------------------

    def _handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        path = target.partition("?")[0]
        if path.startswith("/_") or method == "HEAD" or headers.get("upgrade", "").lower() == "websocket":
            self._reply(*self._answer_itself(method, path, body), is_head=method == "HEAD")
            return
        try:
            body = encodings.decode(body, headers.get("content-encoding", ""))
        except ValueError as error:
            self._reply(415, {}, {"error": {"message": str(error), "type": "invalid_request_error"}})
            return
        call = endpoints.parse_call(method, target, headers, body)
        if call is None:
            self._reply(404, {}, {"error": {"message": "no such endpoint", "type": "invalid_request_error"}})
            return
        provider = self._provider
        answer = provider.ask(call.key, tokens=call.reserved_tokens, model=call.model, style=call.style)
        if answer.status == 200:
            answer = self._prepare(call, answer, method, path)
        self._call, self._answer = call, answer
        self._path, self._started_at, self._events = path, time.monotonic(), 0
        if answer.drops:
            self._end_call("dropped")
            self._close()
        elif answer.status == 200 and call.is_stream:
            self._begin_stream(answer, call)
        elif answer.latency > 0:
            self._timer = self._loop.call_later(answer.latency, self._complete)
        else:
            self._complete()

    def _prepare(self, call: Call, answer: Answer, method: str, path: str) -> Answer:
        """Fill in what the provider remembers of earlier requests. Return the answer; another one if the request names
        an object of another organization."""
        provider, objects = self._provider, self._provider.owned_objects
        foreign = objects.foreign(path.encode() + b" " + call.body, answer.group)
        if foreign is not None:
            provider.finish(answer, tokens=0)
            status, body = owned_objects.refusal(call.style, foreign)
            return replace(answer, status=status, body=body, reason="object of another group", charges=[])
        call.text = provider.text
        if call.endpoint == "responses":
            call.object_id = objects.create("resp", answer.group)
            if owned_objects.wants_reasoning(call.body):
                call.reasoning = objects.create("enc", answer.group)
        elif call.endpoint == "files":
            is_new = method == "POST"
            call.object_id = objects.create("file", answer.group) if is_new else path.rpartition("/files/")[2]
        if provider.prompt_cache is not None:
            used = provider.prompt_cache.use(answer.group, call.model, call.prompts, time.monotonic())
            call.cached_tokens, call.cache_write_tokens = (min(tokens, call.prompt_tokens) for tokens in used)
        return answer

    def _answer_itself(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and content for a request that is not for a model."""
        if (method, path) == ("GET", "/_stats"):
            return 200, {}, self._provider.stats()
        if (method, path) == ("GET", "/_log"):
            return 200, {}, [record._asdict() for record in self._provider.requests.records]
        if (method, path) == ("POST", "/_control"):
            try:
                control.apply(self._provider, body)
            except ValueError as error:
                return 400, {}, {"error": str(error)}
            return 200, {}, {}
        if method == "HEAD":  # agents ask whether there is a server
            return 200, {}, {}
        return (404, {}, {}) if path.startswith("/_") else (426, {}, {})  # no WebSocket: clients use HTTP instead

    def _complete(self) -> None:
        answer, call = self._answer, self._call
        assert answer is not None
        assert call is not None
        self._timer = None
        self._end_call()  # before the client can send its next request
        self._reply(answer.status, answer.headers, contents.content(call) if answer.status == 200 else answer.body)
        self._read_next()

    def _begin_stream(self, answer: Answer, call: Call) -> None:
        script = answer.script
        pieces = contents.events(call, answer.breaks_with, script.breaks_after)
        if script.cuts_after is not None:
            pieces = pieces[: contents.handshake_events(call) + script.cuts_after]
        pause = answer.latency / max(1, len(pieces))
        head = {**answer.headers, "content-type": "text/event-stream", "transfer-encoding": "chunked"}
        self._write(self._head(200, head))
        self._stream(pieces, 0, pause)

    def _stream(self, pieces: list[bytes], number: int, pause: float) -> None:
        assert self._answer is not None
        script = self._answer.script
        self._timer = None
        while number < len(pieces):
            self._write(b"%x\r\n%b\r\n" % (len(pieces[number]), pieces[number]))
            number += 1
            self._events = number
            silence = script.stalls if number == 1 and script.stalls else pause
            if silence > 0 and number < len(pieces):
                self._timer = self._loop.call_later(silence, self._stream, pieces, number, pause)
                return
        if script.cuts_after is not None:
            self._end_call("cut")
            self._close()
            return
        self._end_call()
        self._write(b"0\r\n\r\n")
        if not self._keeps_alive:
            self._close()
        self._loop.call_soon(self._read_next)

    def _end_call(self, ending: Ending = "complete") -> None:
        answer, self._answer = self._answer, None
        call = self._call
        if answer is None or call is None:
            return
        self._provider.finish(answer, tokens=call.used_tokens)
        seconds = time.monotonic() - self._started_at
        is_served = answer.status == 200 and answer.breaks_with is None
        counts = (call.prompt_tokens - call.cached_tokens, call.completion_tokens, call.cached_tokens)
        self._provider.requests.add(
            RequestRecord(
                time.time() - seconds, seconds, self._provider.key_id(call.key), self._path, answer.status,
                answer.reason, call.model, *(counts if is_served else (0, 0, 0)), self._events, ending,
                hashlib.blake2b(call.body, digest_size=8).hexdigest(),
            )
        )  # fmt: skip

    def _reply(self, status: int, headers: dict[str, str], content: Any, *, is_head: bool = False) -> None:
        data = b"" if is_head else json.dumps(content).encode()
        head = {**headers, "content-type": "application/json", "content-length": str(len(data))}
        self._write(self._head(status, head) + data)
        if not self._keeps_alive:
            self._close()

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        number = f"req_sim_{next(self._numbers)}"
        headers = {"date": formatdate(usegmt=True), "request-id": number, "x-request-id": number, **headers}
        if not self._keeps_alive:
            headers["connection"] = "close"
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}", *(f"{n}: {v}" for n, v in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            with suppress(OSError):
                self._transport.close()
