"""Relay: passes the answer of a provider to the client as it comes, with back-pressure, and a cut as a cut."""

from __future__ import annotations

import socket
import struct
from typing import NoReturn

from aiohttp import web
from multidict import CIMultiDict

from ._answers import LocalAnswer
from ._exchange import Exchange
from ._request import HOP_BY_HOP, is_text
from ._upstream import Answer, AnswerLost

# Headers of an answer that are not passed on, beside those between neighbours: they are about the provider's host.
_DROPPED = HOP_BY_HOP | frozenset(
    {"set-cookie", "set-cookie2", "alt-svc", "strict-transport-security", "content-length"}
)
# Bytes of a body that is passed on in one piece, together with the head.
MAX_WHOLE_BODY = 64 * 1024


async def relay(web_request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
    """Pass an answer on and settle its request. Raises `ConnectionResetError` where the answer was cut."""
    answer, body = exchange.answer, exchange.error_body
    assert answer is not None
    headers = _headers(answer, exchange)
    if body is not None:
        exchange.finish()
        if exchange.is_error_cut:
            await _send_cut(
                web_request, web.StreamResponse(status=answer.status, headers=headers), exchange.masked(body)
            )
        return web.Response(status=answer.status, body=exchange.masked(body), headers=headers)
    length = answer.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) <= MAX_WHOLE_BODY and not _is_stream(answer):
        return await _whole(web_request, exchange, answer, headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    if length.isdecimal():
        response.content_length = int(length)
    await _stream(web_request, exchange, answer, response)
    return response


def _is_stream(answer: Answer) -> bool:
    return answer.headers.get("Content-Type", "").startswith("text/event-stream")


async def _send_cut(web_request: web.BaseRequest, response: web.StreamResponse, part: bytes) -> NoReturn:
    """Send the beginning of a body whose end has not come. Raises `ConnectionResetError`."""
    await response.prepare(web_request)
    await response.write(part)
    cut(web_request)
    raise ConnectionResetError("the provider's answer was cut")


async def _whole(
    web_request: web.BaseRequest, exchange: Exchange, answer: Answer, headers: CIMultiDict[str]
) -> web.Response:
    """Return a short body as one piece."""
    reader = exchange.reader
    assert reader is not None
    parts = [reader.feed(part) for part in exchange.first_parts]
    try:
        while part := await answer.read():
            parts.append(reader.feed(part))
    except AnswerLost:
        exchange.finish()
        cut(web_request)
        raise ConnectionResetError("the provider's answer was cut") from None
    except BaseException:
        exchange.finish()
        raise
    parts.append(reader.end())
    exchange.finish()
    return web.Response(status=answer.status, body=b"".join(parts), headers=headers)


async def _stream(
    web_request: web.BaseRequest, exchange: Exchange, answer: Answer, response: web.StreamResponse
) -> None:
    """Pass the parts of a body on, each when it comes. `write` waits while the client does not read."""
    reader = exchange.reader
    assert reader is not None
    if web_request.headers.get("Transfer-Encoding"):
        response.force_close()
    try:
        await response.prepare(web_request)
        for part in exchange.first_parts:
            await response.write(reader.feed(part))
        exchange.first_parts.clear()
        while part := await answer.read():
            await response.write(reader.feed(part))
        rest = reader.end()
        exchange.finish()
        if rest:
            await response.write(rest)
        await response.write_eof()
    except AnswerLost:
        cut(web_request)
        raise ConnectionResetError("the provider's answer was cut") from None
    finally:
        exchange.finish()


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


def _headers(answer: Answer, exchange: Exchange) -> CIMultiDict[str]:
    """Return the headers of an answer that are passed on."""
    connection = answer.headers.get("Connection")
    named = () if connection is None else {name.strip().lower() for name in connection.split(",")}
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in answer.headers.items():
        lower = name.lower()
        if lower not in _DROPPED and lower not in named and is_text(value):
            passed.add(name, exchange.masked_text(value))
    passed.setdefault("Server", "agentos")
    return passed


def local_response(answer: LocalAnswer) -> web.Response:
    """Return an answer of the gateway itself."""
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
