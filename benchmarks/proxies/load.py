"""A load generator on plain sockets: requests one after the other on each of several connections."""

from __future__ import annotations

import asyncio
import json
import time
from urllib.parse import urlsplit

ANTHROPIC = "/v1/messages"
OPENAI = "/v1/chat/completions"


def request_bytes(url: str, path: str, token: str, model: str) -> bytes:
    """Return a small request as an SDK would send it."""
    body = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "A question of some words."}]}
    if model != "bench-small":
        body["stream"] = True
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1", f"host: {urlsplit(url).netloc}", "content-type: application/json",
        "accept: application/json", "user-agent: bench/1.0",
        *(["anthropic-version: 2023-06-01"] if path == ANTHROPIC else []),
        f"x-api-key: {token}", f"authorization: Bearer {token}", f"content-length: {len(data)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + data


class Connection(asyncio.Protocol):
    """One connection that sends a request as soon as the last one was answered. `first` and `total` are the seconds
    until the first byte of the body and until the end, for each request."""

    def __init__(self, request: bytes, count: int, pause: float = 0.0) -> None:
        self._request, self._left, self._pause = request, count, pause
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.first: list[float] = []
        self.total: list[float] = []
        self._buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if self._pause:
            self._loop.call_later(self._pause, self._send)
        else:
            self._send()

    def _send(self) -> None:
        self._buffer, self._has_first = b"", False
        self._sent_at = time.perf_counter()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or not body:
            return
        if not self._has_first:
            self._has_first = True
            self.first.append(time.perf_counter() - self._sent_at)
            if not head.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(RuntimeError(f"refused: {self._buffer[:500]!r}"))
        _, has_length, rest = head.lower().partition(b"content-length:")
        if len(body) < int(rest.partition(b"\r\n")[0]) if has_length else not body.endswith(b"0\r\n\r\n"):
            return
        self.total.append(time.perf_counter() - self._sent_at)
        self._left -= 1
        if self._left:
            self._send()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError(f"closed after {self._buffer[:200]!r}"))


async def run(url: str, request: bytes, connections: int, count: int, spread: float = 0.0) -> list[Connection]:
    """Send `count` requests on each connection; the connections begin within `spread` seconds. Return them, closed."""
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    opened = []
    for number in range(connections):
        pause = spread * number / connections
        _, connection = await loop.create_connection(
            lambda pause=pause: Connection(request, count, pause),  # type: ignore[misc]
            address.hostname, address.port,
        )  # fmt: skip
        opened.append(connection)
    await asyncio.gather(*(connection.done for connection in opened))
    for connection in opened:
        connection.transport.close()
    return opened
