"""Unmodified clients behind a gateway: SDKs of providers, litellm, httpx and curl; sync, async and streaming.

Each client makes its requests with four keys, of which one is rate-limited, one dead, one out of credit, and one
overloaded for a while. No client may notice a limit, and its retries are as its developers have set them. The judge is
the log of the provider, a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import httpx
import pytest

from agentos.gateway.gateway import Gateway
from agentos.limits.declaration import Limits
from agentos.pool.credential import Credential
from agentos.pool.lease_pool import LeasePool
from agentos.testing import SimulatedProvider
from tests.clients.provider import RunningProvider, running_provider
from tests.providers.sdk_clients import LazyModule, load

from .support import CANARY, at_rest, quiet

anthropic, openai = LazyModule("anthropic"), LazyModule("openai")
TEXT = "A simulated answer."
MESSAGES = [{"role": "user", "content": "Say something."}]
KINDS = ("limited", "dead", "out_of_credit", "overloaded")
PROVIDERS = ("openai", "anthropic", "gemini")
# Of the limited key, in requests; the gateway does not know it.
PER_MINUTE = 2
OVERLOADED_SECONDS = 0.3


@pytest.fixture
def provider() -> Iterator[RunningProvider]:
    troubles = {kind: [key_of(provider, kind) for provider in PROVIDERS] for kind in KINDS}
    keys = [key for kind in KINDS for key in troubles[kind]]
    with running_provider(
        keys=keys, per_minute=PER_MINUTE, overloaded_seconds=OVERLOADED_SECONDS, latency=0.005, **troubles
    ) as provider:
        yield provider


def key_of(provider: str, kind: str) -> str:
    return f"{CANARY}-{provider}-{kind}"


@pytest.fixture
def gateway(provider: RunningProvider) -> Iterator[tuple[Gateway, str]]:
    credentials = [
        Credential(
            key_of(name, kind), id=f"{name}-{kind}", provider=name, base_url=provider.base_url,
            limits=Limits(max_concurrent=20),
        )
        for name in PROVIDERS
        for kind in KINDS
    ]  # fmt: skip
    pool = LeasePool(credentials, reporter=quiet)
    gateway = Gateway(pool)
    gateway.start()
    token = gateway.open("run", "item", 1)
    yield gateway, token
    usage = gateway.usage(token)
    gateway.stop(1)
    assert at_rest(pool)
    statuses = [(row["key"], row["status"]) for row in provider.log()]
    assert usage.requests == sum(status == 200 for _, status in statuses) > 0
    assert usage.output_tokens > 0
    refused = [key for key, status in statuses if status >= 400]
    assert refused, "no key was refused: the test shows nothing"
    assert max(map(refused.count, refused)) <= 3, "a refused key was used again and again"


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


async def ask_async_anthropic(url: str, token: str) -> str:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=token) as client:
        answer = await client.messages.create(model="m", max_tokens=64, messages=MESSAGES)  # type: ignore[arg-type]
        return answer.content[0].text  # type: ignore[union-attr]


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


async def stream_async_gemini(url: str, token: str) -> str:
    client = gemini_client(url, token)
    try:
        stream = await client.aio.models.generate_content_stream(model="m", contents="Say something.")
        return "".join([chunk.text or "" async for chunk in stream]).strip()
    finally:
        await client.aio.aclose()


# --- litellm, httpx and curl ------------------------------------------------------------------------------------------


def ask_litellm(url: str, token: str) -> str:
    """In a process of its own: the import changes settings of others, and takes seconds."""
    program = (
        "import asyncio, os, litellm\n"
        "litellm.suppress_debug_info = True\n"
        "url, key = os.environ['URL'], os.environ['TOKEN']\n"
        "messages = [{'role': 'user', 'content': 'Say something.'}]\n"
        "def options(provider):\n"
        "    base = url + '/v1' if provider == 'openai' else url\n"
        "    return dict(model=provider + '/m', api_base=base, api_key=key, messages=messages, max_tokens=64)\n"
        "async def ask(provider):\n"
        "    answer = await litellm.acompletion(**options(provider))\n"
        "    stream = await litellm.acompletion(**options(provider), stream=True)\n"
        "    parts = [chunk.choices[0].delta.content or '' async for chunk in stream]\n"
        "    return [answer.choices[0].message.content, ''.join(parts)]\n"
        "texts = []\n"
        "for provider in ('openai', 'anthropic'):\n"
        "    texts.append(litellm.completion(**options(provider)).choices[0].message.content)\n"
        "    stream = litellm.completion(**options(provider), stream=True)\n"
        "    texts.append(''.join(chunk.choices[0].delta.content or '' for chunk in stream))\n"
        "    texts += asyncio.run(ask(provider))\n"
        "assert len(texts) == 8\n"
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


async def ask_async_httpx(url: str, token: str) -> str:
    body = {"contents": [{"parts": [{"text": "Say something."}]}]}
    async with httpx.AsyncClient(timeout=60, headers={"x-goog-api-key": token}) as client:
        answer = await client.post(f"{url}/v1beta/models/m:generateContent", json=body)
    return str(answer.raise_for_status().json()["candidates"][0]["content"]["parts"][0]["text"])


def stream_httpx(url: str, token: str) -> str:
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    headers = {"authorization": f"Bearer {token}"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
        return text_of_events(answer.iter_lines())


async def stream_async_httpx(url: str, token: str) -> str:
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        return text_of_events([line async for line in answer.aiter_lines()])


def text_of_events(lines: Iterable[str]) -> str:
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events).strip()


def ask_curl(url: str, token: str) -> str:
    return str(json.loads(output_of_curl(url, token))["choices"][0]["message"]["content"])


def stream_curl(url: str, token: str) -> str:
    return text_of_events(output_of_curl(url, token, stream=True).splitlines())


def output_of_curl(url: str, token: str, **more: Any) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = json.dumps({"model": "m", "messages": MESSAGES, **more})
    ended = subprocess.run(
        ["curl", "-sSN", "--fail", "-K", "-", f"{url}/v1/chat/completions", "-H", "content-type: application/json",
         "-d", body],
        input=f'header = "Authorization: Bearer {token}"\n', capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return ended.stdout


CLIENTS: list[Callable[[str, str], Any]] = [
    chat_with_openai, stream_chat_with_openai, respond_with_openai, stream_responses_with_openai,
    chat_with_async_openai, stream_chat_with_async_openai, ask_anthropic, stream_anthropic, ask_async_anthropic,
    stream_async_anthropic, ask_gemini, stream_gemini, ask_async_gemini, stream_async_gemini, ask_litellm, ask_httpx,
    stream_httpx, ask_async_httpx, stream_async_httpx, ask_curl, stream_curl,
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

        async def ask(client: Any) -> None:
            for _ in range(4):
                await client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]

        async def ask_all() -> None:
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=token) as client:
                await asyncio.gather(*(ask(client) for _ in range(20)))

        asyncio.run(ask_all())
        gateway.stop(1)
        assert provider.answered == 80
        assert provider.limited == 0
