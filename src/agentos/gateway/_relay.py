"""Relay: passes the answer of a provider to the client as it comes, with back-pressure, and a cut as a cut."""

from __future__ import annotations

import re
import socket
import struct
from http import HTTPStatus

from aiohttp import web

from ._answers import LocalAnswer
from ._exchange import Exchange
from ._request import HOP_BY_HOP, is_text
from ._upstream_answer import Answer, AnswerLost

# Headers of an answer that are not passed on, beside those between neighbours: they are about the provider's host.
_DROPPED = HOP_BY_HOP | frozenset(
    {"set-cookie", "set-cookie2", "alt-svc", "strict-transport-security", "content-length"}
)
# Bytes of a body that is passed on in one piece, together with the head.
MAX_WHOLE_BODY = 64 * 1024
# Statuses of answers without a body.
_EMPTY = frozenset({204, 304})
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_CONTROL = re.compile(r"[\0\r\n]+")


async def relay(web_request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
    """Pass an answer on and settle its request. Raises `ConnectionResetError` where the answer was cut."""
    answer, body = exchange.answer, exchange.error_body
    assert answer is not None
    headers = _headers(answer, exchange)
    try:
        if body is not None:
            relayed = _error(web_request, answer, headers, exchange)
        elif (length := _length(answer)) is not None and length <= MAX_WHOLE_BODY and not _is_stream(answer):
            relayed = RelayedAnswer(web_request, answer.status, headers, length)
            await _whole(exchange, answer, relayed)
        else:
            relayed = RelayedAnswer(web_request, answer.status, headers, length)
            await _stream(exchange, answer, relayed)
    except AnswerLost:
        cut(web_request)
        raise ConnectionResetError("the provider's answer was cut") from None
    finally:
        exchange.finish()
    return relayed


def _length(answer: Answer) -> int | None:
    """Return the length of a body; None if the provider does not state it."""
    if answer.status in _EMPTY:
        return 0
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _is_stream(answer: Answer) -> bool:
    return answer.headers.get("Content-Type", "").startswith("text/event-stream")


def _error(web_request: web.BaseRequest, answer: Answer, headers: list[str], exchange: Exchange) -> RelayedAnswer:
    """Pass an error of the provider on. Raises `AnswerLost` after the beginning of one whose end has not come."""
    assert exchange.error_body is not None
    body = exchange.masked(exchange.error_body)
    relayed = RelayedAnswer(web_request, answer.status, headers, None if exchange.is_error_cut else len(body))
    exchange.finish()
    relayed.send([body], is_last=not exchange.is_error_cut)
    if exchange.is_error_cut:
        raise AnswerLost
    return relayed


async def _whole(exchange: Exchange, answer: Answer, relayed: RelayedAnswer) -> None:
    """Pass a short body on in one piece, together with the head."""
    reader = exchange.reader
    assert reader is not None
    parts = [reader.feed(part) for part in exchange.first_parts]
    while not answer.is_over:
        parts.append(reader.feed(await answer.read()))
    parts.append(reader.end())
    exchange.finish()
    relayed.send(parts, is_last=True)


async def _stream(exchange: Exchange, answer: Answer, relayed: RelayedAnswer) -> None:
    """Pass the parts of a body on, each when it comes: the first one together with the head, the last one with the end.
    `drain` waits while the client does not read."""
    reader = exchange.reader
    assert reader is not None
    feed = reader.feed

    def pass_on(part: bytes) -> bool:
        relayed.send([feed(part)])
        return not relayed.is_full

    parts = [feed(part) for part in exchange.first_parts]
    exchange.first_parts.clear()
    last = b""
    if not answer.is_over:
        relayed.send(parts)
        parts.clear()
        await relayed.drain()
        while (part := await answer.pass_on(pass_on)) is None:
            await relayed.drain()
        last = part
    parts += [feed(last), reader.end()]
    exchange.finish()
    relayed.send(parts, is_last=True)


class RelayedAnswer(web.StreamResponse):
    """An answer whose bytes are written to the client's connection here. A response of aiohttp makes a system call each
    for the head, for every part and for the end."""

    def __init__(self, web_request: web.BaseRequest, status: int, headers: list[str], length: int | None) -> None:
        """`length` is that of the body; None if it is not known."""
        super().__init__(status=status)
        is_new = web_request.version >= (1, 1)
        self._web_request = web_request
        self._is_chunked = length is None and is_new
        self._is_kept = web_request.keep_alive and (is_new or length is not None)
        if "Transfer-Encoding" in web_request.headers:
            self._is_kept = False
        lines = [f"HTTP/1.{1 if is_new else 0} {status} {_REASONS.get(status, 'Unknown')}", *headers]
        if self._is_chunked:
            lines.append("Transfer-Encoding: chunked")
        elif length is not None and status not in _EMPTY:
            lines.append(f"Content-Length: {length}")
        if self._is_kept != is_new:
            lines.append(f"Connection: {'keep-alive' if self._is_kept else 'close'}")
        self._head = _encoded(lines)

    def send(self, parts: list[bytes], *, is_last: bool = False) -> None:
        """Send parts of the body, with one system call; the head before the first. Raises `ConnectionResetError`."""
        if self._is_chunked:
            parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part]
            if is_last:
                parts.append(b"0\r\n\r\n")
        data, self._head = self._head + b"".join(parts), b""
        transport = self._web_request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has closed its connection")
        if data:
            transport.write(data)
            self._web_request.writer.output_size += len(data)  # from which others see that an answer has begun

    @property
    def is_full(self) -> bool:
        """Whether the client does not read as fast as it is sent to."""
        is_paused: bool = self._web_request.protocol.writing_paused
        return is_paused

    async def drain(self) -> None:
        """Wait while the client does not read."""
        if self.is_full:
            await self._web_request.writer.drain()

    @property
    def keep_alive(self) -> bool:
        return self._is_kept

    def force_close(self) -> None:
        self._is_kept = False

    async def prepare(self, request: web.BaseRequest) -> None:
        """No-op: everything has been written."""

    async def write_eof(self, data: bytes = b"") -> None:
        """No-op: everything has been written."""


def _encoded(lines: list[str]) -> bytes:
    """Return the head of an answer. A header that came in several lines becomes one."""
    head = "\r\n".join(lines)
    if head.count("\r") >= len(lines) or head.count("\n") >= len(lines) or "\0" in head:
        head = "\r\n".join(_CONTROL.sub(" ", line) for line in lines)
    return head.encode() + b"\r\n\r\n"


def cut(web_request: web.BaseRequest) -> None:
    """Close the client's connection before the end of the body, so that it cannot be taken for complete."""
    transport = web_request.transport
    if transport is None:
        return
    if web_request.version >= (1, 1):
        transport.close()  # what was written before arrives; the last chunk, or the rest of the length, is missing
    else:  # the end of the connection is the end of the body: only a reset can be told from it
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def _headers(answer: Answer, exchange: Exchange) -> list[str]:
    """Return the headers of an answer that are passed on, as lines."""
    connection = answer.headers.get("Connection")
    named = () if connection is None else {name.strip().lower() for name in connection.split(",")}
    lines = [
        f"{name}: {exchange.masked_text(value)}"
        for name, value in answer.headers.items()
        if (lower := name.lower()) not in _DROPPED and lower not in named and is_text(value)
    ]
    if "Server" not in answer.headers:
        lines.append("Server: agentos")
    return lines


def local_response(answer: LocalAnswer) -> web.Response:
    """Return an answer of the gateway itself."""
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
