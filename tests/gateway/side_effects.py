"""An upstream in a process of its own that counts side effects: the judge of requests that are sent once.

Each POST takes effect when it has arrived completely; its number is in the header `x-effect`. What happens then is
decided by the seed: an answer, a refusal, a broken connection at any point, or silence until the gateway disconnects.
A refusal takes no effect. `GET /_effects` returns the number of effects by request.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter

EFFECTS: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()


async def serve(seed: int) -> None:
    dice = random.Random(seed)
    server = await asyncio.start_server(lambda r, w: connected(r, w, dice), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dice: random.Random) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            if head.startswith("GET /_effects"):
                reply(writer, 200, {"effects": EFFECTS, "refused": REFUSED})
                continue
            await answer(fields.get("x-effect", "?"), b'"stream": true' in body, reader, writer, dice)
            await writer.drain()
    except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
        return
    finally:
        writer.close()


def reply(writer: asyncio.StreamWriter, status: int, body: object, *lines: str) -> None:
    data = json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} S", "content-type: application/json", f"content-length: {len(data)}", *lines, "", ""]
    writer.write("\r\n".join(head).encode() + data)


async def answer(number: str, is_stream: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                 dice: random.Random) -> None:  # fmt: skip
    chance = dice.random()
    if chance < 0.2:
        REFUSED[number] += 1
        error = {"error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}}
        reply(writer, 429, error, "retry-after: 0.05")
        return
    if chance < 0.3 and is_stream:
        REFUSED[number] += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        event = b'data: {"error": {"message": "overloaded", "code": "rate_limit_exceeded"}}\n\n'
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        return
    EFFECTS[number] += 1
    if chance < 0.4:
        writer.transport.abort()
    elif chance < 0.5:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()
    elif chance < 0.6:
        await asyncio.wait_for(reader.read(), 1)  # until the gateway disconnects
        raise ConnectionResetError
    elif is_stream:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in (b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    else:
        reply(writer, 200, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
