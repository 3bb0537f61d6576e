"""An upstream that costs as little as possible: `python -m benchmarks.proxies.upstream [CERTIFICATE KEY]`.

It reads requests by their Content-Length and answers by a word in the body: `bench-stream` gives 20 events as fast as
the socket takes them, each with a write of its own,
`bench-paced` 20 events in steps of 5 ms, `bench-slow` 20 in steps of 100 ms, `bench-idle` one event and then silence,
any other body a short JSON answer. It has the formats of Anthropic (`/v1/messages`) and of OpenAI. The first line of
output is its port; it serves until its input is closed.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys

import uvloop

EVENTS = 20
PACES = {b"bench-stream": 0.0, b"bench-paced": 0.005, b"bench-slow": 0.1}


def _event(name: str, body: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(body)}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer(body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


USAGE = {"input_tokens": 12, "output_tokens": 7}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "bench", "usage": USAGE}
ANTHROPIC = _answer({**MESSAGE, "content": [{"type": "text", "text": "A short answer."}], "stop_reason": "end_turn"})
OPENAI = _answer({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "A short answer."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19},
})  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = _chunk(_event("message_start", {"type": "message_start", "message": {**MESSAGE, "content": []}}))
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "some words of it "}}
NEXT = _chunk(_event("content_block_delta", DELTA))
LAST = _chunk(_event("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE})
              + _event("message_stop", {"type": "message_stop"})) + b"0\r\n\r\n"  # fmt: skip


class Connection(asyncio.Protocol):
    """One connection; pipelined requests are answered in order."""

    def __init__(self) -> None:
        self._buffer = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            total = end + 4 + (int(rest.partition(b"\r\n")[0]) if found else 0)
            if len(self._buffer) < total:
                return
            body, self._buffer = self._buffer[end + 4 : total], self._buffer[total:]
            self._respond(head, body)

    def _respond(self, head: bytes, body: bytes) -> None:
        write = self._transport.write
        if b"bench-idle" in body:
            write(HEAD + FIRST + NEXT)
        else:
            pace = next((pace for word, pace in PACES.items() if word in body), None)
            if pace is None:
                write(ANTHROPIC if b"/v1/messages" in head else OPENAI)
                return
            # With content: events that only open a stream are held back by the gateway until content follows.
            write(HEAD + FIRST + NEXT)
            self._loop.call_later(pace, self._continue, pace, EVENTS - 3)

    def _continue(self, pace: float, left: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(NEXT if left else LAST)
        if left:
            self._loop.call_later(pace, self._continue, pace, left - 1)


async def main(files: list[str]) -> None:
    context = None
    if files:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*files)
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, ssl=context, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1:]))
