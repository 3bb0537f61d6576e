"""Reads the body of a request, within bounds of size, memory and time. Nothing is leased before it has arrived."""

from __future__ import annotations

import asyncio

from aiohttp import StreamReader, web

from ._answers import LocalAnswer, error
from ._request import BodyFacts, read_facts
from ._routes import Route
from ._state import GatewayState
from .client_tokens import Client

# Seconds without a byte of a body after which its request is given up, and the bytes a second that it must average
# after the first BODY_SECONDS.
BODY_SECONDS = 30.0
MIN_BODY_RATE = 10_000
# Bytes of one body, and of all bodies in memory: those that have come and those that are still coming.
MAX_BODY = 100 * 1024 * 1024
MAX_BUFFERED = 1024 * 1024 * 1024
# Bytes of a body that is read on the event loop. A longer one, and one that is compressed, is read on a thread, one of
# a client at a time: meanwhile requests of others go on.
MAX_INLINE = 512 * 1024


class Body:
    """The body of one request. Its bytes count in those of the gateway until `free`."""

    __slots__ = ("_client", "_shape", "_size", "_state", "_web_request", "content")

    def __init__(self, state: GatewayState, client: Client, web_request: web.BaseRequest, shape: str) -> None:
        """`shape` is that of errors."""
        self._state = state
        self._client = client
        self._web_request = web_request
        self._shape = shape
        self._size = 0
        self.content = b""

    async def receive(self) -> None:
        """Read the body; return when it has come completely. Raises `LocalAnswer`."""
        web_request = self._web_request
        length = web_request.content_length or 0
        self._check(length, self._state.buffered + length)
        is_waiting = "Expect" in web_request.headers and web_request.version >= (1, 1)
        if is_waiting and web_request.transport is not None:
            web_request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not web_request.body_exists:
            return
        try:
            if web_request.content.is_eof():  # a short body has come together with the head
                self.content = web_request.content.read_nowait()
                self._add(len(self.content))
            else:
                await self._receive_parts(web_request.content)
        except TimeoutError:
            raise error(self._shape, "timeout", "the body did not arrive in time", status=408) from None
        except (web.RequestPayloadError, ValueError):
            raise error(self._shape, "invalid_request", "the body is not valid HTTP", is_final=True) from None

    async def _receive_parts(self, content: StreamReader) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        parts: list[bytes] = []
        while True:
            latest = started_at + BODY_SECONDS + self._size / MIN_BODY_RATE
            async with asyncio.timeout_at(min(latest, loop.time() + BODY_SECONDS)):
                part = await content.readany()
            if not part:
                self.content = parts[0] if len(parts) == 1 else b"".join(parts)
                return
            parts.append(part)
            self._add(len(part))

    async def read(self, route: Route) -> BodyFacts:
        """Return what the body says. Raises `LocalAnswer` if it is compressed in a way that cannot be undone: its
        model, and objects that belong to one organisation, would not be known."""
        headers, content = self._web_request.headers, self.content
        if len(content) <= MAX_INLINE and "Content-Encoding" not in headers:
            facts = read_facts(route, headers, content)
        else:
            async with self._client.long_body:
                facts = await asyncio.to_thread(read_facts, route, headers, content)
        if not facts.is_readable:
            raise error(self._shape, "invalid_request", "the body has a content encoding that is wrong, unknown (gzip, "
                        "deflate and zstd are known) or too large when decoded", is_final=True)  # fmt: skip
        return facts

    def free(self) -> None:
        """Count the bytes no longer."""
        self._state.buffered -= self._size
        self._size = 0

    def _add(self, size: int) -> None:
        self._size += size
        self._state.buffered += size
        self._check(self._size, self._state.buffered)

    def _check(self, size: int, buffered: int) -> None:
        if size > MAX_BODY:
            raise _too_large(self._shape)
        if buffered > MAX_BUFFERED:
            raise error(self._shape, "overloaded", "the bodies of other requests take all memory that the gateway has "
                        "for them", retry_after=1)  # fmt: skip


def _too_large(shape: str) -> LocalAnswer:
    return error(shape, "too_large", f"the body is larger than {MAX_BODY // 2**20} MB", is_final=True)
