"""Unmodified SDK clients behind a proxy: `python -m benchmarks.proxies.clients openai|anthropic URL TOKEN REQUESTS`.

32 clients, each with one request at a time and with the retries that its developers have set. Prints the numbers of
requests that succeeded and failed as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

CLIENTS = 32
# Seconds until the clients are stopped.
CAP = 120.0
MESSAGES: Any = [{"role": "user", "content": "A question of some words."}]


def openai_client(url: str, token: str) -> Callable[[], Awaitable[Any]]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=token)
    return lambda: client.chat.completions.create(model="bench-small", messages=MESSAGES)


def anthropic_client(url: str, token: str) -> Callable[[], Awaitable[Any]]:
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(base_url=url, api_key=token)
    return lambda: client.messages.create(model="bench-small", max_tokens=10, messages=MESSAGES)


async def main(kind: str, url: str, token: str, requests: int) -> None:
    make = {"openai": openai_client, "anthropic": anthropic_client}[kind]
    left, counts, errors = requests, {"succeeded": 0, "failed": 0}, []

    async def work() -> None:
        nonlocal left
        ask = make(url, token)
        while left > 0:
            left -= 1
            try:
                await ask()
                counts["succeeded"] += 1
            except Exception as error:
                counts["failed"] += 1
                errors.append(f"{type(error).__name__}: {error}"[:300])

    try:
        async with asyncio.timeout(CAP):
            await asyncio.gather(*(work() for _ in range(CLIENTS)))
    except TimeoutError:
        pass
    print(json.dumps({**counts, "first_error": errors[0] if errors else ""}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))  # type: ignore[arg-type]
