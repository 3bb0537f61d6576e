"""HTTP endpoints: where each style has the key, what a request costs, and the body of its answer."""

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


@dataclass(slots=True)
class Call:
    """A parsed request."""

    # "work", "chat", "responses", "models", "messages" or "generate"
    endpoint: str
    style: Style
    key: str
    model: str | None = None
    is_stream: bool = False
    prompt_tokens: int = 0
    max_tokens: int = 0
    body: bytes = b""

    @property
    def reserved_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens

    @property
    def completion_tokens(self) -> int:
        return 0 if self.endpoint in ("work", "models") else min(COMPLETION_TOKENS, self.max_tokens)

    @property
    def used_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def parse_call(method: str, target: str, headers: dict[str, str], body: bytes) -> Call | None:
    """Return the parsed request; None if there is no such endpoint."""
    path, _, query = target.partition("?")
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    if method == "GET":
        return _list_of_models(path, headers, bearer)
    if method != "POST":
        return None
    if path.endswith("/v1/work"):
        return Call("work", "openai", bearer, body=body)
    if path.endswith("/chat/completions"):
        return _call("chat", "openai", bearer, body, "messages")
    if path.endswith("/v1/responses"):
        return _call("responses", "openai", bearer, body, "input", "instructions")
    if path.endswith("/v1/messages"):
        return _call("messages", "anthropic", headers.get("x-api-key") or bearer, body, "messages", "system")
    name, _, verb = unquote(path).rpartition("/models/")[2].partition(":")
    if verb in ("generateContent", "streamGenerateContent"):
        key = headers.get("x-goog-api-key") or parse_qs(query).get("key", [""])[0]
        call = _call("generate", "gemini", key, body, "contents", "systemInstruction")
        call.model = name
        call.is_stream = verb == "streamGenerateContent"
        return call
    return None


def _list_of_models(path: str, headers: dict[str, str], bearer: str) -> Call | None:
    """Parse a request for the list of models. OpenAI and Anthropic share a path and differ in the key's header."""
    if path.endswith("/v1beta/models"):
        return Call("models", "gemini", headers.get("x-goog-api-key", ""))
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
    length = sum(_length(request.get(name)) for name in prompts)
    return Call(
        endpoint,
        style,
        key,
        model=request.get("model"),
        is_stream=bool(request.get("stream")),
        prompt_tokens=math.ceil(length / 4),
        max_tokens=max_tokens,
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


def content(call: Call) -> dict[str, Any]:
    """Return the body of the answer to a served request."""
    return _CONTENTS[call.endpoint](call)


def events(call: Call, breaks_with: dict[str, Any] | None) -> list[bytes]:
    """Return the answer as server-sent events. A broken stream ends with its error after the first two events."""
    is_named = call.endpoint in ("messages", "responses")
    pieces = _STREAMS[call.endpoint](call)
    if breaks_with is not None:
        pieces = [*pieces[:2], _stream_error(call, breaks_with)]
    lines = [(f"event: {piece['type']}\n" if is_named else "") + f"data: {json.dumps(piece)}\n\n" for piece in pieces]
    if call.endpoint == "chat" and breaks_with is None:
        lines.append("data: [DONE]\n\n")
    return [line.encode() for line in lines]


def _stream_error(call: Call, error: dict[str, Any]) -> dict[str, Any]:
    if call.endpoint == "responses":
        return {"type": "response.failed", "sequence_number": 2, "response": _responses(call, "failed", error["error"])}
    return error


# --- OpenAI ----------------------------------------------------------------------------------------------------------


def _work(call: Call) -> dict[str, Any]:
    return {"status": 200, "echo": call.body.decode("utf-8", "replace")}


def _models(call: Call) -> dict[str, Any]:
    if call.style == "gemini":
        return {"models": [{"name": "models/sim-1", "displayName": "Sim 1"}]}
    if call.style == "anthropic":
        model = {"type": "model", "id": "sim-1", "display_name": "Sim 1", "created_at": "1970-01-01T00:00:00Z"}
        return {"data": [model], "has_more": False, "first_id": "sim-1", "last_id": "sim-1"}
    return {"object": "list", "data": [{"id": "sim-1", "object": "model", "created": 0, "owned_by": "simulator"}]}


def _chat_usage(call: Call) -> dict[str, int]:
    prompt, completion = call.prompt_tokens, call.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _chat(call: Call) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop", "logprobs": None}
    return {
        "id": "chatcmpl-sim",
        "object": "chat.completion",
        "created": 0,
        "model": call.model or "sim-1",
        "choices": [choice],
        "usage": _chat_usage(call),
    }


def _chat_stream(call: Call) -> list[dict[str, Any]]:
    head = {"id": "chatcmpl-sim", "object": "chat.completion.chunk", "created": 0, "model": call.model or "sim-1"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in _words())]
    pieces = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": _chat_usage(call)}
    return [*pieces, end]


def _responses(call: Call, status: str = "completed", error: Any = None) -> dict[str, Any]:
    text = {"type": "output_text", "text": TEXT, "annotations": []}
    message = {"id": "msg_sim", "type": "message", "status": "completed", "role": "assistant", "content": [text]}
    prompt, completion = call.prompt_tokens, call.completion_tokens
    usage = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
    return {
        "id": "resp_sim",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": error,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": call.model or "sim-1",
        "output": [message] if status == "completed" else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }


def _responses_stream(call: Call) -> list[dict[str, Any]]:
    position = {"item_id": "msg_sim", "output_index": 0, "content_index": 0}
    deltas = [{"type": "response.output_text.delta", **position, "delta": word, "logprobs": []} for word in _words()]
    pieces: list[dict[str, Any]] = [
        {"type": "response.created", "response": _responses(call, "in_progress")},
        *deltas,
        {"type": "response.completed", "response": _responses(call)},
    ]
    return [{**piece, "sequence_number": number} for number, piece in enumerate(pieces)]


# --- Anthropic -------------------------------------------------------------------------------------------------------


def _messages(call: Call) -> dict[str, Any]:
    return {
        "id": "msg_sim",
        "type": "message",
        "role": "assistant",
        "model": call.model or "sim-1",
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": call.prompt_tokens, "output_tokens": call.completion_tokens},
    }


def _messages_stream(call: Call) -> list[dict[str, Any]]:
    start = {**_messages(call), "content": [], "stop_reason": None}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in _words()
    ]
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": call.completion_tokens},
        },
        {"type": "message_stop"},
    ]


# --- Gemini ----------------------------------------------------------------------------------------------------------


def _generate(call: Call, text: str = TEXT) -> dict[str, Any]:
    prompt, completion = call.prompt_tokens, call.completion_tokens
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "candidatesTokenCount": completion,
            "totalTokenCount": prompt + completion,
        },
        "modelVersion": call.model or "sim-1",
    }


def _generate_stream(call: Call) -> list[dict[str, Any]]:
    return [_generate(call, word) for word in _words()]


def _words() -> list[str]:
    return [word + " " for word in TEXT.split(" ")]


_CONTENTS = {
    "work": _work,
    "models": _models,
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
    "generate": _generate,
}
_STREAMS = {
    "chat": _chat_stream,
    "responses": _responses_stream,
    "messages": _messages_stream,
    "generate": _generate_stream,
}
