"""Credentials with an address and headers of their own behind one gateway: two resources of Azure are one pool."""

from __future__ import annotations

import httpx

from agentos.limits.declaration import Limits
from agentos.pool.credential import Credential

from .support import CANARY, Call, Upstream, chat_answer, chat_body, running_gateway

PATH = "/openai/deployments/gpt/chat/completions?api-version=2026-01-01"


def test_two_azure_resources_are_one_pool() -> None:
    """Each gets its own key and headers. The refusal of one leads to the other, and no client sees it."""
    seen: list[tuple[str, str, str, str]] = []

    def resource(name: str) -> Upstream:
        async def handler(call: Call) -> None:
            seen.append((name, call.headers["api-key"], call.headers["x-resource"], call.target))
            if name == "eu" and len(seen) > 1:
                await call.answer(429, {"error": {"code": "429", "message": "Too many requests"}}, "retry-after: 60")
            else:
                await call.answer(200, chat_answer(name))

        return Upstream(handler)

    with resource("eu") as eu, resource("us") as us:
        pool = [
            Credential(
                f"{CANARY}-{name}", id=name, provider="azure", base_url=url, headers={"X-Resource": name},
                limits=Limits(max_concurrent=1),
            )
            for name, url in (("eu", eu.url), ("us", us.url))
        ]  # fmt: skip
        with running_gateway(pool) as (gateway, token), httpx.Client(headers={"api-key": token}) as client:
            for _ in range(6):
                answer = client.post(gateway.url + PATH, content=chat_body(), headers={"x-resource": "forged"})
                assert answer.status_code == 200
            usage = gateway.usage(token)
    assert {name for name, *_ in seen} == {"eu", "us"}
    assert all(key == f"{CANARY}-{name}" and header == name for name, key, header, _ in seen)
    assert {target for *_, target in seen} == {PATH}
    assert (usage.requests, usage.refusals) == (6, 1)


def test_two_azure_deployments_are_one_pool() -> None:
    """Each has a name of its own, in its address. It takes the place of the one that the client names."""

    async def handler(call: Call) -> None:
        await call.answer(200, chat_answer())

    with Upstream(handler) as upstream:
        pool = [
            Credential(
                f"{CANARY}-{name}", id=name, provider="azure", base_url=f"{upstream.url}/openai/deployments/gpt-{name}",
                limits=Limits(max_concurrent=1),
            )
            for name in ("eu", "us")
        ]  # fmt: skip
        with running_gateway(pool) as (gateway, token), httpx.Client(headers={"api-key": token}) as client:
            for _ in range(4):
                assert client.post(gateway.url + PATH, content=chat_body()).status_code == 200
    assert {(call.headers["api-key"], call.target) for call in upstream.calls} == {
        (f"{CANARY}-{name}", PATH.replace("gpt", f"gpt-{name}")) for name in ("eu", "us")
    }
