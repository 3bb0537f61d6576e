"""A bare aiohttp proxy without rules: `python -m benchmarks.proxies.bare UPSTREAM [lease]`.

It replaces one header and passes everything else on. With `lease`, it also takes and gives back one lease of a pool in
memory for each request. The first line of output is its port; it serves until its input is closed.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

from agentos.pool.lease_pool import LeasePool
from agentos.workflows.parallel import Credential, Limits

from .settings import CONCURRENT, KEYS

DROPPED = {"host", "content-length", "transfer-encoding", "connection", "authorization", "x-api-key"}


async def main(upstream: str, with_lease: bool) -> None:
    pool = LeasePool([Credential(key, limits=Limits(max_concurrent=CONCURRENT)) for key in KEYS])
    session = aiohttp.ClientSession(
        auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(), connector=aiohttp.TCPConnector(limit=0),
        skip_auto_headers=("User-Agent", "Accept-Encoding"), timeout=aiohttp.ClientTimeout(total=None),
    )  # fmt: skip

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        handle_ = None
        if with_lease:
            handle_ = pool.make_handle("bench", 1, 0, None, None, None, None)
            assert pool.request_now(handle_, 10)
        try:
            return await forward(request)
        finally:
            if handle_ is not None:
                pool.end(handle_, None, True)

    async def forward(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in DROPPED]
        headers.append(("x-api-key", KEYS[0]))
        async with session.request(request.method, upstream + request.raw_path, headers=headers, data=body) as answer:
            passed = [(name, value) for name, value in answer.headers.items() if name.lower() not in DROPPED]
            if "Content-Length" in answer.headers:
                return web.Response(status=answer.status, headers=dict(passed), body=await answer.read())
            response = web.StreamResponse(status=answer.status, headers=dict(passed))
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
            return response

    server = web.Server(handle, handler_cancellation=True)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=4096)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], "lease" in sys.argv[2:]))
