"""Gateways for tests, an upstream whose answers a test writes byte by byte, and a client that does the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from agentos.gateway.addresses import address_of
from agentos.gateway.gateway import Gateway
from agentos.limits.declaration import Limits
from agentos.pool.credential import Credential
from agentos.pool.lease_pool import LeasePool

# A key that must be in no byte outside the gateway and its upstream.
CANARY = "sk-canary-4f9d1c7e2b8a6053"
PROVIDERS = ("openai", "anthropic", "gemini")


def quiet(_event: object) -> None:
    """A reporter that prints nothing."""


def credentials(base_url: str, *ids: str, provider: str = "openai", **limits: Any) -> list[Credential]:
    """Return credentials whose keys are their ids after a common prefix."""
    limits.setdefault("max_concurrent", 50)
    return [
        Credential(f"{CANARY}-{id_}", id=id_, provider=provider, base_url=base_url, limits=Limits(**limits))
        for id_ in ids
    ]


@contextlib.contextmanager
def running_gateway(pool_or_credentials: LeasePool | list[Credential], **options: Any) -> Iterator[tuple[Gateway, str]]:
    """Yield a started gateway and a client token."""
    is_pool = isinstance(pool_or_credentials, LeasePool)
    pool = pool_or_credentials if is_pool else LeasePool(pool_or_credentials, reporter=quiet)  # type: ignore[arg-type]
    providers = options.pop("providers", {name: address_of(name) for name in ("acme",)})
    gateway = Gateway(pool, providers=providers, **options)  # type: ignore[arg-type]
    gateway.start()
    try:
        yield gateway, gateway.open("run", "item", 1)
    finally:
        gateway.stop(0)


def at_rest(pool: LeasePool) -> bool:
    """Return whether no lease is live (invariant 34)."""
    return not any(state.live_leases for state in pool.states())


# --- an upstream that a test writes -----------------------------------------------------------------------------------


class Call:
    """One request as it reached the upstream, and the way to answer it."""

    def __init__(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.body = body
        self.reader = reader
        self.writer = writer
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.target = lines[0].split(" ")[:2]
        self.header_lines = [line for line in lines[1:] if line]
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in self.header_lines)
        }
        self.is_cancelled = threading.Event()

    @property
    def key(self) -> str:
        headers = self.headers
        return headers.get("x-api-key") or headers.get("x-goog-api-key") or headers.get("authorization", "")[7:]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, body: bytes | dict[str, Any], *lines: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [
            f"HTTP/1.1 {status} Status",
            "content-type: application/json",
            f"content-length: {len(content)}",
            *lines,
        ]
        await self.send("\r\n".join([*head, "", ""]).encode() + content)

    async def begin_stream(self, *lines: str) -> None:
        head = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked", *lines]
        await self.send("\r\n".join([*head, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, data: dict[str, Any] | str, name: str | None = None) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        await self.chunk(f"{'' if name is None else f'event: {name}' + chr(10)}data: {text}\n\n".encode())

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def wait_for_disconnect(self) -> None:
        """Wait until the gateway closes the connection, and note it."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read()
        self.is_cancelled.set()


Handler = Callable[[Call], Awaitable[None]]


class Upstream:
    """A server on a thread of its own; `handler` answers each request. Keeps all requests."""

    def __init__(self, handler: Handler, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self._host = host
        self._tls = tls
        self.calls: list[Call] = []
        self.loop = asyncio.new_event_loop()
        self._started = threading.Event()

    def __enter__(self) -> Upstream:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, self._host, 0, limit=2**20, ssl=self._tls)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http{'' if self._tls is None else 's'}://{host}:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        server.close()
        # Also the tasks of connections that were accepted just now, which have not begun.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                call = Call(head, await self._read_body(reader, length), reader, writer)
                self.calls.append(call)
                await self.handler(call)
        with contextlib.suppress(Exception):
            writer.close()

    async def _read_body(self, reader: asyncio.StreamReader, length: int) -> bytes:
        return await reader.readexactly(length)

    def signal(self, event: asyncio.Event) -> None:
        """Set an event that a handler waits for."""
        self.loop.call_soon_threadsafe(event.set)


# --- answers ----------------------------------------------------------------------------------------------------------


def chat_answer(text: str = "hello", **usage: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10} | usage
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "m", "usage": usage,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }  # fmt: skip


def chat_chunk(text: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": [choice],
        **more,
    }


def chat_body(text: str = "hi", **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


# --- a client that writes bytes ---------------------------------------------------------------------------------------


class RawClient:
    """A connection to a gateway on which a test writes and reads bytes."""

    def __init__(self, gateway: Gateway, *, receive_buffer: int | None = None) -> None:
        host, _, port = gateway.url.removeprefix("http://").rpartition(":")
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((host, int(port)))
        self.socket.settimeout(30)
        self.host = f"{host}:{port}"

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, token: str, body: bytes, *lines: str, path: str = "/v1/chat/completions") -> None:
        head = [
            f"POST {path} HTTP/1.1", f"Host: {self.host}", f"Authorization: Bearer {token}",
            "Content-Type: application/json", f"Content-Length: {len(body)}", *lines,
        ]  # fmt: skip
        self.send("\r\n".join([*head, "", ""]).encode() + body)

    def read_until(self, mark: bytes) -> bytes:
        """Return what came until `mark` is among it."""
        data = b""
        while mark not in data:
            part = self.socket.recv(65536)
            assert part, f"closed after {data!r}"
            data += part
        return data

    def read_all(self) -> bytes:
        """Return what comes until the gateway closes the connection."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while part := self.socket.recv(65536):
                data += part
        return data
