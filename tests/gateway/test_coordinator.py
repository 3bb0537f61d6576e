"""`ParallelCoordinator(gateway=True)`: workers in Python send their requests to a gateway of the run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentos.gateway.gateway import Gateway
from agentos.testing import SimulatedProvider
from agentos.workflows.parallel import Credential, CredentialCoordinator, ParallelCoordinator, current_item
from tests.providers.sdk_clients import load

from .support import CANARY, quiet

ROOT = Path(__file__).parents[2]
BODY = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say something."}]}


@pytest.fixture
def provider() -> Iterator[SimulatedProvider]:
    keys = [f"{CANARY}-limited", f"{CANARY}-good"]
    with SimulatedProvider(keys, limits=[], latency=0.005) as provider:
        provider.script(["limit"] * 20, key=keys[0], retry_after=30)
        yield provider


def pool_of(provider: SimulatedProvider, name: str = "openai") -> CredentialCoordinator:
    credentials = [Credential(key, provider=name, base_url=provider.base_url) for key in provider.keys]
    return CredentialCoordinator(credentials, reporter=quiet)


def ask(item: str, token: str) -> dict[str, Any]:
    """Send two requests as a client that knows nothing of keys, and return all that the worker could see."""
    context = current_item()
    assert token == context.client_token
    headers = {"authorization": f"Bearer {token}"}
    for _ in range(2):
        answer = httpx.post(f"{context.gateway_url}/v1/chat/completions", json=BODY, headers=headers, timeout=30)
        answer.raise_for_status()
    return {"item": item, "answer": answer.json(), "headers": str(answer.headers), "begin": token[:8]}


async def ask_async(item: str, token: str) -> dict[str, Any]:
    return await asyncio.to_thread(ask, item, token)


@pytest.mark.parametrize(("workers", "worker"), [("threads", ask), ("threads", ask_async), ("processes", ask)])
def test_workers_use_the_gateway_of_their_run(provider: SimulatedProvider, workers: str, worker: Any) -> None:
    coordinator = ParallelCoordinator(2, pool_of(provider), reporter=None, workers=workers, gateway=True)
    _, results = coordinator.execute_parallel(["a", "b", "c"], worker)
    assert all(result.success for result in results), results
    assert CANARY not in str([result.value for result in results])
    assert {result.value["begin"] for result in results} == {"agentos-"}
    assert sum(entry.status == 200 for entry in provider.log) == 6
    assert not [thread for thread in threading.enumerate() if thread.name == "agentos-gateway"]


def test_worker_that_fails_ends_the_gateway_of_its_run(provider: SimulatedProvider) -> None:
    def fail(_item: str, _token: str) -> None:
        raise ValueError("a mistake of the worker")

    coordinator = ParallelCoordinator(2, pool_of(provider), reporter=None, gateway=True)
    _, results = coordinator.execute_parallel(["a"], fail)
    assert not results[0].success
    assert not [thread for thread in threading.enumerate() if thread.name == "agentos-gateway"]


def test_tokens_are_counted_before_the_request_and_cost_none(provider: SimulatedProvider) -> None:
    """`count_tokens` of Anthropic is passed on, and counts as a request without tokens."""
    with Gateway(pool_of(provider, "anthropic")) as gateway:
        token = gateway.open("run", "item", 1)
        with load("anthropic").Anthropic(base_url=gateway.url, api_key=token) as client:
            counted = client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "some words"}])
        assert counted.input_tokens > 0
        usage = gateway.usage(token)
        assert (usage.requests, usage.input_tokens, usage.output_tokens) == (1, 0, 0)


def test_examples_of_the_page_run_unchanged(provider: SimulatedProvider, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "gateway.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    script = tmp_path / "example.py"
    script.write_text("".join(blocks) + "\nprint([result.value for result in results])\n")
    variables = {"OPENAI_API_KEY": provider.keys[1], "OPENAI_BASE_URL": f"{provider.base_url}/v1"}
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert "Succeeded: 2" in done.stdout, done.stdout + done.stderr
