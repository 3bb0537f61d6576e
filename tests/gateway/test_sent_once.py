"""Requests are sent once: an upstream in a process of its own counts side effects (invariants 33 and 34)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import eventually

from . import side_effects
from .support import at_rest, chat_body, credentials, running_gateway

REQUESTS = 150


@contextlib.contextmanager
def judge(seed: int) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, Path(side_effects.__file__), str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


async def send_all(url: str, token: str, dice: random.Random) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        slots = asyncio.Semaphore(20)

        async def send(number: int) -> None:
            headers = {"authorization": f"Bearer {token}", "x-effect": str(number)}
            if dice.random() < 0.5:
                headers["x-stainless-retry-count"] = "0"
            body = chat_body(f"request {number}", **({"stream": True} if dice.random() < 0.5 else {}))
            async with slots:
                with contextlib.suppress(httpx.HTTPError, TimeoutError):
                    async with asyncio.timeout(dice.choice([0.002, 0.01, 0.05, 0.5, 20])):
                        await client.post(f"{url}/v1/chat/completions", headers=headers, content=body)

        await asyncio.gather(*(send(number) for number in range(REQUESTS)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_request_takes_effect_twice(seed: int) -> None:
    """Clients leave at random instants, the upstream refuses, breaks off or is silent. The seed repeats its part."""
    with judge(seed) as url, running_gateway(credentials(url, "a", "b", "c", "d")) as (gateway, token):
        asyncio.run(send_all(gateway.url, token, random.Random(seed)))
        eventually(lambda: at_rest(gateway.pool))
        counts = json.loads(httpx.get(f"{url}/_effects").text)
        assert max(counts["effects"].values()) == 1
        assert sum(counts["refused"].values()) >= 5, "no request was repeated: the test shows nothing"
        assert len(counts["effects"]) > 30
