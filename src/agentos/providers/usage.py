"""Reads the tokens that an answer used, from its body or from its stream, and classifies the beginning of a stream.

The gateway feeds the bytes of answers on their way to the client. Nothing here raises for bytes of any kind.

Shapes of answers: `openai-chat`, `openai-responses`, `openai-embeddings`, `anthropic` and `gemini`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from ._event_stream import Event, EventReader

# Largest number of tokens that is believed.
MAX_TOKENS = 2**53
# Bytes of a stream that are held back at most while only events of the handshake have come.
MAX_HANDSHAKE_BYTES = 64 * 1024

_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)


class TokenUsage(NamedTuple):
    """The tokens of one answer."""

    input_tokens: int = 0  # without those read from a prompt cache, with those written to one
    output_tokens: int = 0  # with those of reasoning
    cached_tokens: int = 0  # input read from a prompt cache
    cache_write_tokens: int = 0  # the part of `input_tokens` that was written to a prompt cache


def limit_tokens(shape: str, usage: TokenUsage) -> tuple[int, int]:
    """Return the input and the output tokens that count against limits of the provider. Anthropic does not count cache
    reads, others do."""
    cached_tokens = 0 if shape == "anthropic" else usage.cached_tokens
    return usage.input_tokens + cached_tokens, usage.output_tokens


def usage_of_body(shape: str, body: bytes) -> TokenUsage | None:
    """Return the usage in the body of an answer (JSON, not compressed); None if it states none."""
    usage = None
    for answer in _decode_answers(body):
        usage = _usage_of(shape, answer, None) or usage
    return usage


class StreamUsage:
    """Reads the usage of an answer from its stream of events, for any division into chunks."""

    __slots__ = ("_markers", "_reader", "_shape", "is_complete", "usage")

    def __init__(self, shape: str) -> None:
        self._shape = shape
        self._markers = _MARKERS.get(shape, ())
        self._reader = EventReader()
        self.usage: TokenUsage | None = None  # as far as the stream has stated it
        self.is_complete = False  # the last event of an answer has come

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the stream (not compressed)."""
        # The usual chunk has whole events, most of them of content only, which need not be parsed.
        if data.endswith((b"\n\n", b"\r\n\r\n")) and self._reader.is_between_events:
            if not self._has_marker(data):
                return
            if b"\r" not in data:
                for part in data.split(b"\n\n"):
                    if self._has_marker(part):
                        self._read_events(part + b"\n\n")
                return
        self._read_events(data)

    def _read_events(self, data: bytes) -> None:
        for event in self._reader.feed(data):
            if self._has_marker(event.data):
                self._read(event.data)

    def _has_marker(self, data: bytes) -> bool:
        for marker in self._markers:  # noqa: SIM110 - runs for every chunk, and a generator takes longer than the rest
            if marker in data:
                return True
        return False

    def _read(self, data: bytes) -> None:
        if self._shape == "openai-chat" and data.strip() == b"[DONE]":
            self.is_complete = True
            return
        for answer in _decode_answers(data):
            self.usage = _usage_of(self._shape, answer, self.usage) or self.usage
            self.is_complete = self.is_complete or _is_end(self._shape, answer)


class FirstEvents:
    """Classifies the beginning of a stream, which is held back until it is known whether the provider refuses.

    A provider may answer 200 and refuse inside the stream: after events that only open it (the handshake) comes an
    error instead of content.
    """

    __slots__ = ("_reader", "_size", "error", "state")

    def __init__(self) -> None:
        self._reader = EventReader(MAX_HANDSHAKE_BYTES)
        self._size = 0
        self.state: Literal["handshake", "content", "error"] = "handshake"
        self.error: bytes | None = None  # the JSON of the error

    def feed(self, data: bytes) -> Literal["handshake", "content", "error"]:
        """Read the next bytes (not compressed) and return the state. "handshake": neither content nor an error has
        come. The other two are final."""
        if self.state != "handshake":
            return self.state
        data = data[: MAX_HANDSHAKE_BYTES - self._size]
        self._size += len(data)
        start = 0
        while start < len(data) and self.state == "handshake":
            # One event at a time: those behind the first with content need not be parsed.
            end = data.find(b"\n\n", start) + 2
            end = len(data) if end < 2 else end
            for event in self._reader.feed(data[start:end]):
                kind = _kind_of(event)
                if kind != "handshake":
                    self.state = kind
                    self.error = event.data if kind == "error" else None
                    return kind
            start = end
        if self._size >= MAX_HANDSHAKE_BYTES:
            self.state = "content"
        return self.state


# --- answers and events -----------------------------------------------------------------------------------------------


class _Answer(msgspec.Struct):
    """The fields of answers and events that are read; msgspec skips all others without building them."""

    type: Any = None
    usage: Any = None
    usageMetadata: Any = None  # noqa: N815 - as Gemini spells it
    error: Any = None
    message: Any = None
    response: _Inner | None = None
    candidates: Any = None
    x_groq: Any = None


class _Inner(msgspec.Struct):
    """The whole answer inside an event of a Responses stream."""

    usage: Any = None


_DECODER = msgspec.json.Decoder(_Answer)
_LIST_DECODER = msgspec.json.Decoder(list[_Answer])

# An event without all of these states no usage and is not the last one. Each stands for keys that such an event has.
_MARKERS: dict[str, tuple[bytes, ...]] = {
    "openai-chat": (b"_tokens", b"[DONE]"),
    "openai-responses": (b'"response"',),
    "anthropic": (b'"message_',),
    "gemini": (b"usageMetadata", b"finishReason"),
}
_LAST_EVENTS = {
    "openai-responses": frozenset({"response.completed", "response.incomplete", "response.failed"}),
    "anthropic": frozenset({"message_stop"}),
}
# Events that only open a stream or keep it alive.
_HANDSHAKE = frozenset({"message_start", "ping", "response.created", "response.in_progress", "response.queued"})
# Data without all of these is content: it is no error, opens no stream, and spells nothing of that with escapes.
_TELLING = re.compile(rb"error|failed|message_start|ping|response\.|\\")


def _decode_answers(data: bytes) -> list[_Answer]:
    """Return the object in JSON, or the objects of a list (Gemini without server-sent events); empty if unreadable."""
    try:
        return _LIST_DECODER.decode(data) if data.lstrip()[:1] == b"[" else [_DECODER.decode(data)]
    except _UNREADABLE:
        return []


def _is_end(shape: str, answer: _Answer) -> bool:
    if shape == "gemini":
        candidates = answer.candidates if isinstance(answer.candidates, list) else ()
        return any(isinstance(each, dict) and each.get("finishReason") for each in candidates)
    return isinstance(answer.type, str) and answer.type in _LAST_EVENTS.get(shape, ())


def _kind_of(event: Event) -> Literal["handshake", "content", "error"]:
    if event.name != b"error" and not _TELLING.search(event.data):
        return "content"
    answers = _decode_answers(event.data)
    if not answers:
        return "error" if event.name == b"error" else "content"
    answer = answers[0]
    if event.name == b"error" or answer.error or answer.type in ("error", "response.failed"):
        return "error"
    return "handshake" if isinstance(answer.type, str) and answer.type in _HANDSHAKE else "content"


# --- usage by shape ---------------------------------------------------------------------------------------------------


def _usage_of(shape: str, answer: _Answer, previous: TokenUsage | None) -> TokenUsage | None:
    """Return the usage that an answer or event states, added to the `previous` one; None if it states none."""
    read = _READERS.get(shape)
    if read is None:
        return None
    for usage in _stated(shape, answer):
        if isinstance(usage, dict):
            sum_so_far = read(usage, previous)
            if sum_so_far is not None:
                return sum_so_far
    return None


def _stated(shape: str, answer: _Answer) -> tuple[Any, ...]:
    """Return the objects that may hold the usage."""
    if shape == "gemini":
        return (answer.usageMetadata,)
    if shape == "anthropic":
        return answer.usage, _table(answer.message).get("usage")
    if shape == "openai-responses" and answer.response is not None:
        return answer.usage, answer.response.usage
    if shape == "openai-chat":
        return answer.usage, _table(answer.x_groq).get("usage")
    return (answer.usage,)


def _read_openai(usage: dict[str, Any], previous: TokenUsage | None) -> TokenUsage | None:
    """Read usage of chat completions, responses and embeddings. Input includes cache reads there."""
    del previous  # each statement is about the whole answer
    total_input = _count(usage, "prompt_tokens", "input_tokens")
    output = _count(usage, "completion_tokens", "output_tokens")
    total = _count(usage, "total_tokens")
    if total_input is None and output is None:
        return None
    details = _table(usage.get("prompt_tokens_details")) or _table(usage.get("input_tokens_details"))
    cached = _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens") or 0
    total_input = total_input or 0
    cached = min(cached, total_input)
    # Some compatible providers leave the tokens of reasoning out of the output, and count them in the total only.
    output = max(output or 0, (total or 0) - total_input)
    uncached = total_input - cached
    return TokenUsage(uncached, output, cached, min(_count(details, "cache_write_tokens") or 0, uncached))


def _read_anthropic(usage: dict[str, Any], previous: TokenUsage | None) -> TokenUsage | None:
    """Read usage of messages. `message_start` states the input, `message_delta` the output and, in newer versions, all
    counts again. Input excludes reads and writes of a cache there; writes count against a limit."""
    previous = previous or TokenUsage()
    plain_input = _count(usage, "input_tokens")
    output = _count(usage, "output_tokens")
    if plain_input is None and output is None:
        return None
    cached = _count(usage, "cache_read_input_tokens")
    cache_write = _count(usage, "cache_creation_input_tokens")
    cache_write = previous.cache_write_tokens if cache_write is None else cache_write
    plain_input = previous.input_tokens - previous.cache_write_tokens if plain_input is None else plain_input
    return TokenUsage(
        input_tokens=plain_input + cache_write,
        output_tokens=previous.output_tokens if output is None else output,
        cached_tokens=previous.cached_tokens if cached is None else cached,
        cache_write_tokens=cache_write,
    )


def _read_gemini(usage: dict[str, Any], previous: TokenUsage | None) -> TokenUsage | None:
    """Read usage of Gemini: each chunk states all counts so far. Input includes cache reads there."""
    del previous
    prompt = _count(usage, "promptTokenCount")
    output = _count(usage, "candidatesTokenCount")
    thoughts = _count(usage, "thoughtsTokenCount")
    if prompt is None and output is None and thoughts is None:
        return None
    total_input = (prompt or 0) + (_count(usage, "toolUsePromptTokenCount") or 0)
    cached = min(_count(usage, "cachedContentTokenCount") or 0, total_input)
    return TokenUsage(total_input - cached, (output or 0) + (thoughts or 0), cached)


_READERS: dict[str, Callable[[dict[str, Any], TokenUsage | None], TokenUsage | None]] = {
    "openai-chat": _read_openai,
    "openai-responses": _read_openai,
    "openai-embeddings": _read_openai,
    "anthropic": _read_anthropic,
    "gemini": _read_gemini,
}


def _count(table: dict[str, Any], *names: str) -> int | None:
    """Return the first of these fields that is a number of tokens; None if there is none."""
    for name in names:
        value = table.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
            return value
    return None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
