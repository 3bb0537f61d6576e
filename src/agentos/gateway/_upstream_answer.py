"""Answer: receives the answer of a provider to one request, and hands its body on.

While a request is under way, its `Answer` is the protocol of the connection's transport, in place of aiohttp's. Parts
of a body go from aiohttp's parser to their consumer in one call: a stream reader between them costs a future and a task
switch for each event, and parses again for each chunk that it gives out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import HttpResponseParser
from multidict import CIMultiDict, CIMultiDictProxy

# Bytes that are read ahead of a client that reads slowly.
READ_AHEAD = 64 * 1024
# Bytes of a line of an answer's head, and number of its headers.
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 500
_NO_HEADERS: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())


class AnswerLost(Exception):
    """The request was sent, but its answer did not come, or not completely: it may have been carried out."""


class Answer(asyncio.Protocol):
    """The answer of a provider: its head, and its body as it comes."""

    __slots__ = (
        "_connection",
        "_failure",
        "_handler",
        "_is_paused",
        "_is_reusable",
        "_loop",
        "_parser",
        "_parts",
        "_payload",
        "_size",
        "_take",
        "_transport",
        "_waiter",
        "headers",
        "is_received",
        "status",
    )  # fmt: skip

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Receive what comes on a connection from now on, until `close` or `release`. Raises `AnswerLost`."""
        handler, transport = connection.protocol, connection.transport
        if handler is None or transport is None:
            raise AnswerLost("ServerDisconnectedError")
        self._connection, self._handler, self._transport, self._loop = connection, handler, transport, loop
        self._parser: Any = HttpResponseParser(
            self, loop, READ_AHEAD, read_until_eof=True, auto_decompress=False, max_line_size=MAX_HEADER_BYTES,  # type: ignore[arg-type]
            max_field_size=MAX_HEADER_BYTES, max_headers=MAX_HEADERS,
        )  # fmt: skip
        self._payload: aiohttp.StreamReader | None = None  # that the parser feeds; emptied after each call of it
        self._parts: list[bytes] = []  # of the body, that nothing has taken yet
        self._size = 0  # of them
        self._take: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: str | None = None  # why nothing more will come, although the end is missing
        self._is_paused = False
        self._is_reusable = True
        self.is_received = False  # the whole body has come
        self.status = 0  # until the head has come
        self.headers = _NO_HEADERS
        transport.set_protocol(self)

    # --- what the transport calls -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            messages, is_upgraded, _ = self._parser.feed_data(data)
            if messages:
                self._begin(messages)
            payload = self._payload
            if payload is None:
                if is_upgraded:  # to a protocol that was not asked for
                    self._fail("ClientError")
                return
            part = payload.read_nowait()
            self.is_received = payload.is_eof()
        except Exception as error:  # `HttpProcessingError`: the answer is not valid HTTP
            self._fail(type(error).__name__)
            return
        take = self._take
        if take is None or self.is_received:
            self._keep(part)
        elif part:
            self._hand_on(take, part)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)  # which tells aiohttp's connector
        if self.is_received or self._failure is not None or self._parser is None:
            return
        try:
            self._parser.feed_eof()  # raises if the end of the body is stated, and missing
            self.is_received = exc is None and self._payload is not None and self._payload.is_eof()
        except Exception as error:
            exc = exc or error
        self._is_reusable = False
        if self.is_received:
            self._wake()
        else:
            self._fail("ServerDisconnectedError" if exc is None else type(exc).__name__)

    def pause_reading(self) -> None:
        """No-op: what the parser reads is taken from it at once."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """No-op: the parser never stops."""

    # --- what has come ------------------------------------------------------------------------------------------------

    def _begin(self, messages: list[tuple[Any, aiohttp.StreamReader]]) -> None:
        """Take the head of the answer. Interim answers (status 1xx) are skipped."""
        for message, payload in messages:
            if self.status:  # a second answer, which nothing asked for
                self._is_reusable = False
            elif message.code == 101:
                self._fail("ClientError")
            elif message.code >= 200:
                self.status, self.headers, self._payload = message.code, message.headers, payload
                self._is_reusable = not message.should_close
                self._wake()

    def _keep(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self._size += len(part)
            if self._size > READ_AHEAD and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
        if part or self.is_received:
            self._wake()

    def _hand_on(self, take: Callable[[bytes], bool], part: bytes) -> None:
        try:
            if take(part):
                return
        except Exception as error:
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)
        self._take = None
        self._wake()

    def _fail(self, name: str) -> None:
        """`name` is the kind of an error. Its text may hold bytes of an answer."""
        self._failure = self._failure or name
        self._is_reusable = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Return when something has come. Raises `AnswerLost` if nothing will."""
        if self._failure is not None:
            raise AnswerLost(self._failure)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # --- for the request ----------------------------------------------------------------------------------------------

    async def receive_head(self) -> None:
        """Return when `status` and `headers` have come. Raises `AnswerLost`."""
        while not self.status:
            await self._wait()

    @property
    def has_part(self) -> bool:
        """Whether `read` returns at once."""
        return bool(self._parts) or self.is_received

    @property
    def is_over(self) -> bool:
        """Whether the whole body has come and was read."""
        return self.is_received and not self._parts

    async def read(self) -> bytes:
        """Return the next bytes of the body, as they came; empty at its end. Raises `AnswerLost`."""
        while not self._parts and not self.is_received:
            await self._wait()
        return self._read_kept()

    async def pass_on(self, take: Callable[[bytes], bool]) -> bytes | None:
        """Call `take` with each part of the body when it comes, except for the last one: return that. Return None when
        `take` has returned False, or soon. Raises `AnswerLost`, and what `take` raises."""
        if self.is_received:
            return self._read_kept()
        if self._parts and not take(self._read_kept()):
            return None
        self._take = take
        try:
            await self._wait()
        finally:
            self._take = None
        return None

    def _read_kept(self) -> bytes:
        parts, self._parts, self._size = self._parts, [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """End the answer: a body that has not arrived completely is cancelled by closing the connection, at once and
        not only when the rest of a request has been sent."""
        transport = self._connection.transport
        self._leave()
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()
        self._connection.close()

    def release(self) -> None:
        """Give the connection back for the next request; close it if a body was not read or not sent completely."""
        transport = self._connection.transport
        if transport is None or not self._is_reusable or not self.is_over or transport.get_write_buffer_size():
            self.close()
        else:
            self._leave()
            self._connection.release()

    def _leave(self) -> None:
        """Give the transport back to aiohttp's protocol; break the cycle with the parser."""
        if self._connection.transport is not None:
            self._connection.transport.set_protocol(self._handler)
        self._parser = None
