"""HTTP endpoints: where each style has the key, and what a request costs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from .dialects import Style

# Tokens of an answer, unless its request allows fewer.
COMPLETION_TOKENS = 16
# Tokens reserved for the answer to a request that states no maximum.
DEFAULT_MAX_TOKENS = 16
TEXT = "A simulated answer."
# Endings of the paths of OpenAI and Azure, with the fields of the prompt.
_OPENAI = {
    "/chat/completions": ("chat", ("tools", "messages")),
    "/responses": ("responses", ("tools", "instructions", "input")),
    "/embeddings": ("embeddings", ("input",)),
}


@dataclass(slots=True)
class Call:
    """A parsed request."""

    # "work", "chat", "responses", "embeddings", "models", "files", "messages", "count_tokens" or "generate"
    endpoint: str
    style: Style
    key: str
    model: str | None = None
    is_stream: bool = False
    # A chat stream ends with its usage only if the request asks for it.
    has_usage: bool = True
    prompt_tokens: int = 0
    max_tokens: int = 0
    body: bytes = b""
    # The parts of the prompt, in the order in which a prompt cache sees them.
    prompts: tuple[Any, ...] = ()
    # Of the prompt: read from the prompt cache, and written to it.
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    # Of the answer: its text, the id of its object, and encrypted reasoning.
    text: str = TEXT
    object_id: str = "resp_sim"
    reasoning: str | None = None

    @property
    def reserved_tokens(self) -> int:
        return 0 if self.endpoint == "count_tokens" else self.prompt_tokens + self.max_tokens

    @property
    def completion_tokens(self) -> int:
        if self.endpoint in ("work", "models", "files", "embeddings", "count_tokens"):
            return 0
        return min(max(COMPLETION_TOKENS, math.ceil(len(self.text) / 4)), self.max_tokens)

    @property
    def used_tokens(self) -> int:
        """Return the tokens that count against a limit. Anthropic does not count what was read from a cache."""
        uncounted = self.cached_tokens if self.style == "anthropic" else 0
        return 0 if self.endpoint == "count_tokens" else self.prompt_tokens - uncounted + self.completion_tokens


def parse_call(method: str, target: str, headers: dict[str, str], body: bytes) -> Call | None:
    """Return the parsed request; None if there is no such endpoint."""
    path, _, query = target.partition("?")
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    if "/v1/files" in path and method in ("GET", "POST", "DELETE"):
        key = headers.get("x-api-key")
        return Call("files", "openai", bearer, body=body) if key is None else Call("files", "anthropic", key, body=body)
    if method == "GET":
        return _list_of_models(path, headers, bearer)
    if method != "POST":
        return None
    if path.endswith("/v1/work"):
        return Call("work", "openai", bearer, body=body)
    for ending, (endpoint, prompts) in _OPENAI.items():
        if path.endswith(ending):
            call = _call(endpoint, "openai", headers.get("api-key") or bearer, body, *prompts)
            deployment = path.removesuffix(ending).rpartition("/openai/deployments/")[2]
            call.model = unquote(deployment) if "/openai/deployments/" in path else call.model
            return call
    if path.endswith(("/v1/messages", "/v1/messages/count_tokens")):
        endpoint = path.rpartition("/")[2]
        return _call(endpoint, "anthropic", headers.get("x-api-key") or bearer, body, "tools", "system", "messages")
    name, _, verb = unquote(path).rpartition("/models/")[2].partition(":")
    if verb in ("generateContent", "streamGenerateContent"):
        key = headers.get("x-goog-api-key") or parse_qs(query).get("key", [""])[0]
        call = _call("generate", "gemini", key, body, "systemInstruction", "contents")
        call.model = name
        call.is_stream = verb == "streamGenerateContent"
        return call
    return None


def _list_of_models(path: str, headers: dict[str, str], bearer: str) -> Call | None:
    """Parse a request for the list of models. OpenAI and Anthropic share a path and differ in the key's header."""
    if path.endswith("/v1beta/models"):
        return Call("models", "gemini", headers.get("x-goog-api-key", ""))
    if path.endswith("/openai/models"):
        return Call("models", "openai", headers.get("api-key", ""))
    if not path.endswith("/v1/models"):
        return None
    key = headers.get("x-api-key")
    return Call("models", "openai", bearer) if key is None else Call("models", "anthropic", key)


def _call(endpoint: str, style: Style, key: str, body: bytes, *prompts: str) -> Call:
    try:
        request = json.loads(body)
    except ValueError:
        request = {}
    request = request if isinstance(request, dict) else {}
    settings = request.get("generationConfig")
    settings = settings if isinstance(settings, dict) else {}
    values = [request.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    values.append(settings.get("maxOutputTokens"))
    max_tokens = next((value for value in values if isinstance(value, int)), DEFAULT_MAX_TOKENS)
    options = request.get("stream_options")
    parts = tuple(request.get(name) for name in prompts)
    return Call(
        endpoint,
        style,
        key,
        model=request.get("model"),
        is_stream=bool(request.get("stream")),
        has_usage=isinstance(options, dict) and options.get("include_usage") is True,
        prompt_tokens=math.ceil(sum(map(_length, parts)) / 4),
        max_tokens=0 if endpoint == "embeddings" else max_tokens,
        body=body,
        prompts=parts,
    )


def _length(prompt: Any) -> int:
    """Return the number of characters in a prompt, nested texts included."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, list):
        return sum(map(_length, prompt))
    if isinstance(prompt, dict):
        return sum(_length(value) for name, value in prompt.items() if name not in ("role", "type"))
    return 0
