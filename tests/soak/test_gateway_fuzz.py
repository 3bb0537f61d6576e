"""Damaged requests by raw socket to a live gateway, for a share of the soak time. The upstream is the judge."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from agentos.gateway import _body, _server
from tests.conftest import eventually
from tests.gateway.support import (
    CANARY,
    Call,
    RawClient,
    Upstream,
    at_rest,
    chat_answer,
    chat_body,
    credentials,
    running_gateway,
)

from .shares import seconds

CLIENTS = 24
BODY = chat_body("hi")
CHUNKED = b"%x\r\n%b\r\n0\r\nX-Trailer: secret\r\n\r\n" % (len(BODY), BODY)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\nConnection: close\r\n"
PIECES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"%0d%0a", b"/../", b"//", b"\xff", b"\x7f", b"0", b"-1", b"#",
    b"ffffffff", b"X: y\r\n z\r\n", b"HTTP/1.0", b"?key=x&", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Host: evil.example\r\n", b"Expect: 100-continue\r\n", b"Connection: keep-alive\r\n", b"Upgrade: h2c\r\n",
    b"Content-Encoding: gzip\r\n",
]  # fmt: skip


def damaged(dice: random.Random) -> bytes:
    """Return a request that is changed in a few places, or two of them."""
    if dice.random() < 0.5:
        data = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    else:
        data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED
    for _ in range(dice.choice([0, 1, 1, 2, 4])):
        start = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data = data[:start] + dice.choice(PIECES) + data[start:]
            case 1:
                data = data[:start] + data[start + dice.randrange(1, 20) :]
            case 2:
                data = data[:start] + bytes([dice.randrange(256)]) + data[start + 1 :]
            case _:
                data = data[: start + 1] + data[max(0, start - dice.randrange(60)) :]
    return data * dice.choice([1, 1, 2])


def test_damaged_requests_are_answered_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request that reaches the upstream has one length, no trailer, and the key in place of the token; the
    gateway serves on, and has neither leases nor bodies left."""
    monkeypatch.setattr(_server, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(_body, "BODY_SECONDS", 1.0)
    faults: list[str] = []

    async def handler(call: Call) -> None:
        names = Counter(line.partition(":")[0].lower() for line in call.header_lines)
        is_framed = names["content-length"] == 1 and not names["transfer-encoding"]
        has_key = call.key == f"{CANARY}-a" and names["authorization"] == 1
        if not is_framed or not has_key or names["x-trailer"] or "/../" in call.target:
            faults.append(repr(call.head))
        await call.answer(200, chat_answer())

    statuses: Counter[bytes] = Counter()
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        end = time.monotonic() + seconds(0.1)

        def send_all(seed: int) -> None:
            dice = random.Random(seed)
            while time.monotonic() < end:
                with RawClient(gateway) as client, contextlib.suppress(OSError):
                    client.socket.settimeout(3)
                    data = damaged(dice).replace(b"TOKEN", token.encode()).replace(b"HOST", client.host.encode())
                    client.send(data)
                    answer = client.read_all()
                    statuses[answer[9:12]] += 1
                    if CANARY.encode() in answer:
                        faults.append(f"the key in {answer!r}")
                assert not faults, f"{faults}; seed {seed}"
                upstream.calls.clear()

        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(send_all, [random.randrange(2**32) for _ in range(CLIENTS)]))
        eventually(lambda: at_rest(gateway.pool) and gateway._state.buffered == 0 and gateway._state.under_way == 0)
        assert httpx.get(f"{gateway.url}/-/health").status_code == 200
    print(f"{statuses.total()} requests: {dict(statuses)}")
    assert statuses[b"200"], "no request was accepted: the test shows nothing"
    assert statuses[b"400"]
    assert not statuses[b"500"]
