"""Unmodified clients behind a gateway: SDKs of providers, litellm, httpx and curl; sync, async and streaming.

Each client makes its requests with four keys, of which one is rate-limited, one dead, one out of credit, and one good.
No client may notice a limit, and its retries are as its developers have set them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentos.gateway.gateway import Gateway
from agentos.limits.declaration import Limits
from agentos.pool.credential import Credential
from agentos.pool.lease_pool import LeasePool
from agentos.testing import SimulatedProvider
from tests.providers.sdk_clients import load

from .support import CANARY, at_rest, quiet

TEXT = "A simulated answer."
MESSAGES = [{"role": "user", "content": "Say something."}]
KINDS = ("limited", "dead", "poor", "good")


@pytest.fixture
def provider() -> Iterator[SimulatedProvider]:
    keys = [f"{CANARY}-{provider}-{kind}" for provider in ("openai", "anthropic", "gemini") for kind in KINDS]
    with SimulatedProvider(keys, limits=[], latency=0.005) as provider:
        for key in keys:
            if key.endswith("dead"):
                provider.kill(key)
            elif key.endswith("poor"):
                provider.exhaust(key, status=402)
            elif key.endswith("limited"):
                provider.script(["limit"] * 100, key=key, retry_after=30)
        yield provider


@pytest.fixture
def gateway(provider: SimulatedProvider) -> Iterator[tuple[Gateway, str]]:
    credentials = [
        Credential(
            key, id="-".join(key.split("-")[-2:]), provider=key.split("-")[-2], base_url=provider.base_url,
            limits=Limits(max_concurrent=20),
        )
        for key in provider.keys
    ]  # fmt: skip
    pool = LeasePool(credentials, reporter=quiet)
    gateway = Gateway(pool)
    gateway.start()
    token = gateway.open("run", "item", 1)
    yield gateway, token
    usage = gateway.usage(token)
    assert usage.requests > 0
    assert usage.output_tokens > 0
    gateway.stop(1)
    assert at_rest(pool)
    refused = [entry.key for entry in provider.log if entry.status >= 400]
    assert max(map(refused.count, refused), default=0) <= 3, "a refused key was used again and again"


# --- openai -----------------------------------------------------------------------------------------------------------


def chat_with_openai(url: str, token: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=token) as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
        return answer.choices[0].message.content or ""


def stream_chat_with_openai(url: str, token: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=token) as client:
        stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)  # type: ignore[arg-type]
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream).strip()


def respond_with_openai(url: str, token: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=token) as client:
        return client.responses.create(model="m", input="Say something.").output_text


def stream_responses_with_openai(url: str, token: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=token) as client:
        stream = client.responses.create(model="m", input="Say something.", stream=True)
        return "".join(event.delta for event in stream if event.type == "response.output_text.delta").strip()


async def chat_with_async_openai(url: str, token: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token) as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
        return answer.choices[0].message.content or ""


async def stream_chat_with_async_openai(url: str, token: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token) as client:
        stream: AsyncIterator[Any]
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)  # type: ignore[arg-type,assignment]
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream]).strip()


# --- anthropic --------------------------------------------------------------------------------------------------------


def ask_anthropic(url: str, token: str) -> str:
    with anthropic.Anthropic(base_url=url, api_key=token) as client:
        answer = client.messages.create(model="m", max_tokens=64, messages=MESSAGES)  # type: ignore[arg-type]
        return answer.content[0].text  # type: ignore[union-attr]


def stream_anthropic(url: str, token: str) -> str:
    with (
        anthropic.Anthropic(base_url=url, api_key=token) as client,
        client.messages.stream(model="m", max_tokens=64, messages=MESSAGES) as stream,  # type: ignore[arg-type]
    ):
        return "".join(stream.text_stream).strip()


async def stream_async_anthropic(url: str, token: str) -> str:
    async with (
        anthropic.AsyncAnthropic(base_url=url, auth_token=token) as client,
        client.messages.stream(model="m", max_tokens=64, messages=MESSAGES) as stream,  # type: ignore[arg-type]
    ):
        return "".join([text async for text in stream.text_stream]).strip()


# --- gemini -----------------------------------------------------------------------------------------------------------


def gemini_client(url: str, token: str) -> Any:
    genai = load("google.genai")
    return genai.Client(api_key=token, http_options=genai.types.HttpOptions(base_url=url))


def ask_gemini(url: str, token: str) -> str:
    client = gemini_client(url, token)
    return client.models.generate_content(model="m", contents="Say something.").text or ""


def stream_gemini(url: str, token: str) -> str:
    client = gemini_client(url, token)
    stream = client.models.generate_content_stream(model="m", contents="Say something.")
    return "".join(chunk.text or "" for chunk in stream).strip()


async def ask_async_gemini(url: str, token: str) -> str:
    client = gemini_client(url, token)
    try:
        return (await client.aio.models.generate_content(model="m", contents="Say something.")).text or ""
    finally:
        await client.aio.aclose()


# --- litellm, httpx and curl ------------------------------------------------------------------------------------------


def ask_litellm(url: str, token: str) -> str:
    """In a process of its own: the import changes settings of others, and takes seconds."""
    program = (
        "import os, litellm\n"
        "litellm.suppress_debug_info = True\n"
        "url, key = os.environ['URL'], os.environ['TOKEN']\n"
        "messages = [{'role': 'user', 'content': 'Say something.'}]\n"
        "def ask(model, base, **more):\n"
        "    return litellm.completion(model=model, api_base=base, api_key=key, messages=messages, **more)\n"
        "texts = [ask('openai/m', url + '/v1').choices[0].message.content]\n"
        "texts.append(ask('anthropic/m', url, max_tokens=64).choices[0].message.content)\n"
        "texts.append(''.join(c.choices[0].delta.content or '' for c in ask('openai/m', url + '/v1', stream=True)))\n"
        "print({text.strip() for text in texts})\n"
    )
    variables = {**os.environ, "URL": url, "TOKEN": token, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return TEXT if ended.stdout.strip() == repr({TEXT}) else ended.stdout


def ask_httpx(url: str, token: str) -> str:
    answer = httpx.post(
        f"{url}/v1/messages", json={"model": "m", "max_tokens": 64, "messages": MESSAGES},
        headers={"x-api-key": token, "anthropic-version": "2023-06-01"}, timeout=60,
    )  # fmt: skip
    return str(answer.raise_for_status().json()["content"][0]["text"])


async def stream_async_httpx(url: str, token: str) -> str:
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        events = [json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events).strip()


def ask_curl(url: str, token: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = json.dumps({"model": "m", "messages": MESSAGES})
    ended = subprocess.run(
        ["curl", "-sS", "--fail", "-K", "-", f"{url}/v1/chat/completions", "-H", "content-type: application/json",
         "-d", body],
        input=f'header = "Authorization: Bearer {token}"\n', capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return str(json.loads(ended.stdout)["choices"][0]["message"]["content"])


CLIENTS: list[Callable[[str, str], Any]] = [
    chat_with_openai, stream_chat_with_openai, respond_with_openai, stream_responses_with_openai,
    chat_with_async_openai, stream_chat_with_async_openai, ask_anthropic, stream_anthropic, stream_async_anthropic,
    ask_gemini, stream_gemini, ask_async_gemini, ask_litellm, ask_httpx, stream_async_httpx, ask_curl,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")  # of google-genai
@pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)
def test_client_notices_no_refusal(ask: Callable[[str, str], Any], gateway: tuple[Gateway, str]) -> None:
    server, token = gateway
    for _ in range(1 if ask is ask_litellm else 6):
        answer = ask(server.url, token)
        assert (asyncio.run(answer) if asyncio.iscoroutine(answer) else answer) == TEXT


def test_many_clients_at_once_pass_no_limit() -> None:
    """Twenty unmodified clients share four keys of five requests a second each; the provider's log is the judge."""
    keys = [f"{CANARY}-{number}" for number in range(4)]
    with SimulatedProvider(keys, requests_per_second=5, burst=5, latency=0.01) as provider:
        credentials = [
            Credential(key, provider="openai", base_url=provider.base_url,
                       limits=Limits(requests_per_minute=300, burst=5, max_concurrent=20))
            for key in keys
        ]  # fmt: skip
        gateway = Gateway(LeasePool(credentials, reporter=quiet))
        gateway.start()
        token = gateway.open("run", "item", 1)

        async def ask(client: openai.AsyncOpenAI) -> None:
            for _ in range(4):
                await client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]

        async def ask_all() -> None:
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=token) as client:
                await asyncio.gather(*(ask(client) for _ in range(20)))

        asyncio.run(ask_all())
        gateway.stop(1)
        assert provider.answered == 80
        assert provider.limited == 0
