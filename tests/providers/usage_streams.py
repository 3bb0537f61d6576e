"""Streams of answers as the providers send them, with the usage that each states."""

from __future__ import annotations

import json
from typing import Any

from agentos.providers.usage import TokenUsage


def sse(event: Any, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    data = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def _chat(*choices: Any, **more: Any) -> bytes:
    return sse({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": list(choices), **more})


def _delta(text: str) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": text}, "finish_reason": None}


CHAT_WITHOUT_USAGE = (
    _chat({"index": 0, "delta": {"role": "assistant", "content": ""}})
    + _chat(_delta('Its "usage" has prompt_tokens: {"usage":{"prompt_tokens":1000}}'))
    + _chat({"index": 0, "delta": {}, "finish_reason": "stop"})
    + b"data: [DONE]\n\n"
)
CHAT = (
    _chat({"index": 0, "delta": {"role": "assistant", "content": ""}}, usage=None)
    + _chat(_delta("Hello"), usage=None)
    + _chat({"index": 0, "delta": {}, "finish_reason": "stop"}, usage=None)
    + _chat(
        usage={
            "prompt_tokens": 19,
            "completion_tokens": 10,
            "total_tokens": 29,
            "prompt_tokens_details": {"cached_tokens": 16},
        }
    )
    + b"data: [DONE]\n\n"
)
GROQ = (
    _chat(_delta("Hello"), x_groq={"id": "req_1"})
    + _chat(
        {"index": 0, "delta": {}, "finish_reason": "stop"},
        x_groq={"id": "req_1", "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}},
    )
    + b"data: [DONE]\n\n"
)
# JSON over several lines of data, as the standard for events allows.
CHAT_IN_LINES = (
    b'data: {"choices": [],\ndata:  "usage": {"prompt_tokens": 7,\ndata: "completion_tokens": 2}}\n\ndata: [DONE]\n\n'
)


def _response(type_: str, **fields: Any) -> bytes:
    whole = {"id": "resp_1", "object": "response", "error": None, "max_output_tokens": None, "usage": None, **fields}
    return sse({"type": type_, "response": whole}, type_)


RESPONSES = (
    _response("response.created", status="in_progress")
    + _response("response.in_progress", status="in_progress")
    + sse({"type": "response.output_item.added", "output_index": 0, "item": {"id": "msg_1", "type": "message"}})
    + sse({"type": "response.output_text.delta", "item_id": "msg_1", "delta": '"response" and _tokens'})
    + sse({"type": "response.output_item.done", "output_index": 0, "item": {"id": "msg_1", "type": "message"}})
    + _response(
        "response.completed",
        status="completed",
        output=[{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}],
        usage={
            "input_tokens": 37,
            "input_tokens_details": {"cached_tokens": 30},
            "output_tokens": 11,
            "output_tokens_details": {"reasoning_tokens": 8},
            "total_tokens": 48,
        },
    )
)
ANTHROPIC = (
    sse(
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "usage": {
                    "input_tokens": 25,
                    "cache_creation_input_tokens": 100,
                    "cache_read_input_tokens": 2000,
                    "output_tokens": 1,
                },
            },
        },
        "message_start",
    )
    + sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    + sse({"type": "ping"}, "ping")
    + sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}})
    + sse({"type": "content_block_stop", "index": 0})
    + sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}})
    + sse({"type": "message_stop"}, "message_stop")
)
# A newer version repeats all counts, because tools on the server read more input.
ANTHROPIC_WITH_TOOLS = (
    sse({"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}})
    + sse(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {
                "input_tokens": 10682,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": None,
                "output_tokens": 510,
            },
        }
    )
    + sse({"type": "message_stop"})
)


def _gemini(text: str, end: bytes = b"\r\n\r\n", **more: Any) -> bytes:
    """Gemini ends its lines with CR LF."""
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, **more.pop("candidate", {})}
    return b"data: " + json.dumps({"candidates": [candidate], **more}).encode() + end


GEMINI = (
    _gemini("Hel", b"\n\n", usageMetadata={"promptTokenCount": 12, "totalTokenCount": 12})
    + _gemini("lo", usageMetadata={"promptTokenCount": 12, "candidatesTokenCount": 1, "totalTokenCount": 13})
    + _gemini(
        "!",
        candidate={"finishReason": "STOP"},
        usageMetadata={
            "promptTokenCount": 12,
            "cachedContentTokenCount": 8,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 40,
            "totalTokenCount": 55,
        },
    )
)

STREAMS: list[tuple[str, bytes, TokenUsage]] = [
    ("openai-chat", CHAT, TokenUsage(3, 10, 16)),
    ("openai-chat", GROQ, TokenUsage(7, 2)),
    ("openai-chat", CHAT_IN_LINES, TokenUsage(7, 2)),
    ("openai-responses", RESPONSES, TokenUsage(7, 11, 30)),
    ("anthropic", ANTHROPIC, TokenUsage(125, 15, 2000, 100)),
    ("anthropic", ANTHROPIC_WITH_TOOLS, TokenUsage(10682, 510)),
    ("gemini", GEMINI, TokenUsage(4, 43, 8)),
]
NO_USAGE_STREAMS: list[tuple[str, bytes]] = [
    ("openai-chat", CHAT_WITHOUT_USAGE),
    ("openai-responses", _response("response.failed", error={"code": "server_error", "message": "An error."})),
    ("anthropic", sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})),
    ("gemini", _gemini("Hello", candidate={"finishReason": "STOP"})),
    ("openai-embeddings", CHAT),
    ("another", CHAT),
]
