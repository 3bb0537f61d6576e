"""SDKs and HTTP clients, each reduced to one request: `ask(key)`.

They are imported at their first use (some take seconds), without retries of their own, and keep one client per key.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from importlib import import_module
from typing import Any

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
CHAT = {"model": "sim-1", "messages": MESSAGES, "max_tokens": 10}


def load(name: str) -> Any:
    # Otherwise litellm downloads a list of prices at import, with retries.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    if name in sys.modules:
        return sys.modules[name]
    with warnings.catch_warnings():  # of the libraries themselves, when they are compiled and imported
        warnings.simplefilter("ignore")
        module = import_module(name)
    # The libraries are some hundred thousand objects: without this, `gc.collect()` in later tests takes a second.
    gc.freeze()
    return module


class LazyModule:
    """Imports a module when it is first used: each process of a test run collects all tests, and runs some of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks of fixtures
            raise AttributeError(attribute)
        return getattr(load(self._name), attribute)


class Sdk:
    is_async = False
    # Whether its exceptions contain the body.
    keeps_body = True

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._clients: dict[str, Any] = {}

    def client(self, key: str) -> Any:
        key = str(key)
        if key not in self._clients:
            self._clients[key] = self.make(key)
        return self._clients[key]

    def make(self, key: str) -> Any:
        raise NotImplementedError

    def ask(self, key: str) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        for client in self._clients.values():
            await self.close_client(client)

    async def close_client(self, client: Any) -> None:
        client.close()


class AsyncSdk(Sdk):
    is_async = True

    async def close_client(self, client: Any) -> None:
        await client.close()


class OpenAi(Sdk):
    name = "OpenAI"

    def make(self, key: str) -> Any:
        return getattr(load("openai"), self.name)(api_key=key, base_url=f"{self.base_url}/v1", max_retries=0)

    def ask(self, key: str) -> Any:
        return self.client(key).chat.completions.create(**CHAT)


class AsyncOpenAi(AsyncSdk, OpenAi):
    name = "AsyncOpenAI"

    async def ask(self, key: str) -> Any:
        return await self.client(key).chat.completions.create(**CHAT)


class OpenAiResponses(OpenAi):
    def ask(self, key: str) -> Any:
        return self.client(key).responses.create(model="sim-1", input="hello")


class Anthropic(Sdk):
    name = "Anthropic"

    def make(self, key: str) -> Any:
        return getattr(load("anthropic"), self.name)(api_key=key, base_url=self.base_url, max_retries=0)

    def ask(self, key: str) -> Any:
        return self.client(key).messages.create(**CHAT)


class AsyncAnthropic(AsyncSdk, Anthropic):
    name = "AsyncAnthropic"

    async def ask(self, key: str) -> Any:
        return await self.client(key).messages.create(**CHAT)


class GoogleGenai(Sdk):
    def make(self, key: str) -> Any:
        genai = load("google.genai")
        return genai.Client(api_key=key, http_options=genai.types.HttpOptions(base_url=self.base_url))

    def ask(self, key: str) -> Any:
        return self.client(key).models.generate_content(model="sim-1", contents="hello")


class AsyncGoogleGenai(GoogleGenai):
    is_async = True

    async def ask(self, key: str) -> Any:
        return await self.client(key).aio.models.generate_content(model="sim-1", contents="hello")

    async def close_client(self, client: Any) -> None:
        await client.aio.aclose()
        client.close()


class LiteLlm(Sdk):
    route = "openai"
    path = "/v1"

    def options(self, key: str) -> dict[str, Any]:
        load("litellm").suppress_debug_info = True  # it prints to the terminal at every error
        return {
            "model": f"{self.route}/sim-1",
            "messages": MESSAGES,
            "max_tokens": 10,
            "api_base": self.base_url + self.path,
            "api_key": str(key),
            "max_retries": 0,
        }

    def ask(self, key: str) -> Any:
        return load("litellm").completion(**self.options(key))


class LiteLlmAnthropic(LiteLlm):
    route = "anthropic"
    path = ""


class LiteLlmGemini(LiteLlm):
    route = "gemini"
    path = ""


class AsyncLiteLlm(LiteLlm):
    is_async = True

    async def ask(self, key: str) -> Any:
        return await load("litellm").acompletion(**self.options(key))

    async def close(self) -> None:
        await load("litellm").close_litellm_async_clients()


class AsyncLiteLlmAnthropic(AsyncLiteLlm, LiteLlmAnthropic):
    pass


class AsyncLiteLlmGemini(AsyncLiteLlm, LiteLlmGemini):
    pass


class Httpx(Sdk):
    def make(self, key: str) -> Any:
        return load("httpx").Client(base_url=self.base_url, headers={"Authorization": f"Bearer {key}"})

    def ask(self, key: str) -> Any:
        return self.client(key).post("/v1/chat/completions", json=CHAT).raise_for_status().json()


class HttpxForGemini(Httpx):
    def ask(self, key: str) -> Any:
        response = self.client(key).post(
            "/v1beta/models/sim-1:generateContent",
            json={"contents": [{"parts": [{"text": "hello"}]}]},
            headers={"x-goog-api-key": str(key)},
        )
        return response.raise_for_status().json()


class AsyncHttpx(AsyncSdk, Httpx):
    def make(self, key: str) -> Any:
        return load("httpx").AsyncClient(base_url=self.base_url, headers={"Authorization": f"Bearer {key}"})

    async def ask(self, key: str) -> Any:
        response = await self.client(key).post("/v1/chat/completions", json=CHAT)
        return response.raise_for_status().json()

    async def close_client(self, client: Any) -> None:
        await client.aclose()


class Requests(Sdk):
    def make(self, key: str) -> Any:
        session = load("requests").Session()
        session.headers["Authorization"] = f"Bearer {key}"
        return session

    def ask(self, key: str) -> Any:
        response = self.client(key).post(f"{self.base_url}/v1/chat/completions", json=CHAT, timeout=30)
        response.raise_for_status()
        return response.json()


class Aiohttp(AsyncSdk):
    keeps_body = False

    def make(self, key: str) -> Any:
        return load("aiohttp").ClientSession(headers={"Authorization": f"Bearer {key}"}, raise_for_status=True)

    async def ask(self, key: str) -> Any:
        async with self.client(key).post(f"{self.base_url}/v1/chat/completions", json=CHAT) as response:
            return await response.json()


SDKS: dict[str, type[Sdk]] = {
    "openai": OpenAi,
    "openai responses": OpenAiResponses,
    "openai async": AsyncOpenAi,
    "anthropic": Anthropic,
    "anthropic async": AsyncAnthropic,
    "google-genai": GoogleGenai,
    "google-genai async": AsyncGoogleGenai,
    "litellm openai": LiteLlm,
    "litellm openai async": AsyncLiteLlm,
    "litellm anthropic": LiteLlmAnthropic,
    "litellm anthropic async": AsyncLiteLlmAnthropic,
    "litellm gemini": LiteLlmGemini,
    "litellm gemini async": AsyncLiteLlmGemini,
    "httpx": Httpx,
    "httpx gemini": HttpxForGemini,
    "httpx async": AsyncHttpx,
    "requests": Requests,
    "aiohttp": Aiohttp,
}
