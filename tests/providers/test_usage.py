"""Usage read from bodies and streams, as each provider states it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.providers import verdicts
from agentos.providers.usage import (
    MAX_HANDSHAKE_BYTES,
    FirstEvents,
    StreamUsage,
    TokenUsage,
    limit_tokens,
    usage_of_body,
)
from agentos.verdict import OVERLOADED, RATE_LIMITED

from .usage_streams import (
    ANTHROPIC,
    CHAT,
    CHAT_WITHOUT_USAGE,
    GEMINI,
    NO_USAGE_STREAMS,
    RESPONSES,
    STREAMS,
    sse,
)


@pytest.mark.parametrize(
    ("shape", "body", "usage"),
    [
        (
            "openai-chat",
            {
                "usage": {
                    "prompt_tokens": 2006,
                    "completion_tokens": 300,
                    "total_tokens": 2306,
                    "prompt_tokens_details": {"cached_tokens": 1920},
                    "completion_tokens_details": {"reasoning_tokens": 100},
                }
            },
            TokenUsage(86, 300, 1920),
        ),
        (
            "openai-responses",
            {
                "object": "response",
                "usage": {"input_tokens": 328, "input_tokens_details": {"cached_tokens": 300}, "output_tokens": 52},
            },
            TokenUsage(28, 52, 300),
        ),
        ("openai-embeddings", {"usage": {"prompt_tokens": 8, "total_tokens": 8}}, TokenUsage(8)),
        (
            "anthropic",
            {
                "type": "message",
                "usage": {
                    "input_tokens": 50,
                    "cache_creation_input_tokens": 248,
                    "cache_read_input_tokens": 1800,
                    "output_tokens": 503,
                },
            },
            TokenUsage(298, 503, 1800, 248),
        ),
        (
            "gemini",
            {
                "usageMetadata": {
                    "promptTokenCount": 1000,
                    "cachedContentTokenCount": 600,
                    "candidatesTokenCount": 20,
                    "thoughtsTokenCount": 300,
                    "toolUsePromptTokenCount": 5,
                    "totalTokenCount": 1325,
                }
            },
            TokenUsage(405, 320, 600),
        ),
        # A stream of Gemini without `alt=sse`: a list, whose last element states all counts.
        (
            "gemini",
            [{"usageMetadata": {"promptTokenCount": 4}}, {"usageMetadata": {"promptTokenCount": 4, "x": 1}}],
            TokenUsage(4),
        ),
        # Compatible providers: reasoning in the total only; cache reads beside the input.
        (
            "openai-chat",
            {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115}},
            TokenUsage(10, 105),
        ),
        (
            "openai-chat",
            {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 8}},
            TokenUsage(2, 5, 8),
        ),
        ("openai-chat", {"choices": []}, None),
        ("openai-chat", {"usage": None}, None),
        ("openai-chat", {"usage": {"prompt_tokens": -1, "completion_tokens": "many"}}, None),
        ("anthropic", {"input_tokens": 14}, None),  # of `count_tokens`, which is no answer of a model
        ("another", {"usage": {"prompt_tokens": 1}}, None),
    ],
)
def test_usage_of_body(shape: str, body: Any, usage: TokenUsage | None) -> None:
    assert usage_of_body(shape, json.dumps(body).encode()) == usage


@pytest.mark.parametrize(
    ("shape", "stream", "usage"), [pytest.param(*case, id=f"{case[0]} {case[2]}") for case in STREAMS]
)
def test_usage_of_stream(shape: str, stream: bytes, usage: TokenUsage) -> None:
    reader = StreamUsage(shape)
    reader.feed(stream)
    assert (reader.usage, reader.is_complete) == (usage, True)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(("shape", "stream", "usage"), STREAMS)
def test_stream_byte_by_byte(shape: str, stream: bytes, usage: TokenUsage, line_end: bytes) -> None:
    reader = StreamUsage(shape)
    for byte in stream.replace(b"\r\n", b"\n").replace(b"\n", line_end):
        reader.feed(bytes([byte]))
    assert (reader.usage, reader.is_complete) == (usage, True)


@pytest.mark.parametrize(("shape", "stream"), NO_USAGE_STREAMS)
def test_stream_without_usage_has_none(shape: str, stream: bytes) -> None:
    reader = StreamUsage(shape)
    reader.feed(stream)
    assert reader.usage is None


def test_chat_stream_without_usage_is_complete() -> None:
    """The usage chunk comes only with `stream_options.include_usage`."""
    reader = StreamUsage("openai-chat")
    reader.feed(CHAT_WITHOUT_USAGE)
    assert (reader.usage, reader.is_complete) == (None, True)


@pytest.mark.parametrize(("shape", "stream"), [("anthropic", ANTHROPIC), ("gemini", GEMINI)])
def test_usage_so_far_of_a_cut_stream(shape: str, stream: bytes) -> None:
    reader = StreamUsage(shape)
    reader.feed(stream[: stream.index(b"\n\n") + 2])
    assert reader.usage is not None
    assert reader.usage.input_tokens
    assert not reader.is_complete


def test_cache_reads_count_against_limits_except_of_anthropic() -> None:
    usage = TokenUsage(input_tokens=100, output_tokens=10, cached_tokens=1000, cache_write_tokens=40)
    assert sum(limit_tokens("anthropic", usage)) == 110
    assert sum(limit_tokens("openai-chat", usage)) == 1110
    assert sum(limit_tokens("gemini", usage)) == 1110


def test_line_without_end_takes_bounded_memory() -> None:
    import tracemalloc

    reader, chunk = StreamUsage("openai-chat"), b"data: " + b"x" * 65_536
    tracemalloc.start()
    try:
        for _ in range(1024):  # 64 MB
            reader.feed(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * 2**20
    reader.feed(b"\n\n" + CHAT)  # the stream is read again after the line
    assert reader.usage is not None


# --- the beginning of a stream --------------------------------------------------------------------------------------

MESSAGE_START = sse({"type": "message_start", "message": {"usage": {"input_tokens": 3}}}, "message_start")
PING = sse({"type": "ping"}, "ping")
CREATED = sse({"type": "response.created", "response": {"status": "in_progress", "error": None}})
IN_PROGRESS = sse({"type": "response.in_progress", "response": {"status": "in_progress", "error": None}})
QUEUED = sse({"type": "response.queued", "response": {"error": None}})


@pytest.mark.parametrize(
    "stream", [b"", b": keep-alive\n\n", MESSAGE_START + PING, CREATED + QUEUED + IN_PROGRESS, b"event: error\n"]
)
def test_handshake_is_neither_content_nor_error(stream: bytes) -> None:
    events = FirstEvents()
    assert events.feed(stream) == "handshake"
    assert events.error is None


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "response.output_item.added", "item": {"type": "message", "error": "no error of the stream"}},
        {"choices": [{"delta": {"content": "an error: rate limit"}}], "error": None},
        {"candidates": [{"content": {"parts": [{"text": '{"error": {"code": 429}}'}]}}]},
        "no object",
    ],
)
def test_content_after_handshake(event: Any) -> None:
    events = FirstEvents()
    later = sse({"type": "error", "error": {"type": "overloaded_error"}})
    assert events.feed(MESSAGE_START + sse(event) + later) == "content"
    assert events.feed(later) == "content"  # an error later is not the first event any more


@pytest.mark.parametrize(
    ("handshake", "event", "name", "kind"),
    [
        (
            MESSAGE_START + PING,
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            "error",
            OVERLOADED,
        ),
        (
            CREATED + IN_PROGRESS,
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Rate limit."}},
            },
            None,
            RATE_LIMITED,
        ),
        (
            CREATED,
            {"type": "error", "code": "rate_limit_exceeded", "message": "Rate limit reached.", "param": None},
            "error",
            RATE_LIMITED,
        ),
        (
            b": processing\n\n",
            {"error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}},
            None,
            RATE_LIMITED,
        ),
        (b"", {"error": {"code": 503, "message": "Overloaded.", "status": "UNAVAILABLE"}}, None, OVERLOADED),
    ],
)
def test_error_after_handshake(handshake: bytes, event: Any, name: str | None, kind: str) -> None:
    events = FirstEvents()
    assert events.feed(handshake) == "handshake"
    assert events.feed(sse(event, name)) == "error"
    assert events.error is not None
    assert json.loads(events.error) == event
    assert verdicts.from_response(200, {}, events.error).kind == kind


def test_unreadable_error_event_is_an_error() -> None:
    events = FirstEvents()
    assert events.feed(b"event: error\ndata: upstream is gone\n\n") == "error"
    assert events.error == b"upstream is gone"


def test_endless_handshake_counts_as_content() -> None:
    events = FirstEvents()
    for _ in range(MAX_HANDSHAKE_BYTES // len(PING) + 1):
        events.feed(PING)
    assert events.state == "content"


def test_responses_stream_begins_with_content_after_two_events() -> None:
    events, count = FirstEvents(), 0
    for event in RESPONSES.split(b"\n\n"):
        count += 1
        if events.feed(event + b"\n\n") != "handshake":
            break
    assert (events.state, count) == ("content", 3)
