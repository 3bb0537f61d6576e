"""Usage readers under all divisions of a stream into chunks, and under garbage."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from agentos.providers.usage import FirstEvents, StreamUsage, TokenUsage, usage_of_body
from tests.support.properties import holds_for

from .usage_streams import NO_USAGE_STREAMS, STREAMS

SHAPES = ("openai-chat", "openai-responses", "openai-embeddings", "anthropic", "gemini", "another")
WHOLE = [(shape, stream) for shape, stream, _ in STREAMS] + NO_USAGE_STREAMS
LINE_ENDS = (b"\n", b"\r\n", b"\r")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["usage", "usageMetadata", "message", "response", "type", "error", "candidates", "finishReason",
                 "prompt_tokens", "input_tokens", "output_tokens", "promptTokenCount", "input_tokens_details",
                 "cached_tokens", "x_groq"]
            ) | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip
events = json_values.map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n")
pieces = st.one_of(
    events,
    st.binary(max_size=20),
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"data:", b"data: ", b"event: error\n", b": comment\n", b"data: [DONE]\n\n"]
    ),
    st.sampled_from([stream for _, stream in WHOLE]),
)
streams = st.lists(pieces, max_size=6).map(b"".join)


def cut(stream: bytes, positions: list[int]) -> list[bytes]:
    """Return the chunks of a stream that is cut at these positions (modulo its length)."""
    ends = sorted({position % (len(stream) + 1) for position in positions} | {len(stream)})
    return [stream[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def read(shape: str, chunks: list[bytes]) -> tuple[TokenUsage | None, bool]:
    reader = StreamUsage(shape)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.usage, reader.is_complete


def classify(chunks: list[bytes]) -> tuple[str, bytes | None]:
    events = FirstEvents()
    for chunk in chunks:
        events.feed(chunk)
    return events.state, events.error


@holds_for(
    examples=60,
    stream=streams,
    shape=st.sampled_from(SHAPES),
    positions=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_result_is_the_same_for_all_chunks(stream: bytes, shape: str, positions: list[int]) -> None:
    """The reference is a stream that arrives byte by byte, which never takes the short way for whole events."""
    each_byte = [stream[index : index + 1] for index in range(len(stream))]
    chunks = cut(stream, positions)
    assert read(shape, chunks) == read(shape, each_byte)
    assert classify(chunks) == classify(each_byte)


@holds_for(
    case=st.sampled_from(STREAMS),
    line_end=st.sampled_from(LINE_ENDS),
    positions=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_usage_is_read_for_all_chunks_and_line_ends(
    case: tuple[str, bytes, TokenUsage], line_end: bytes, positions: list[int]
) -> None:
    shape, stream, usage = case
    stream = stream.replace(b"\r\n", b"\n").replace(b"\n", line_end)
    assert read(shape, cut(stream, positions)) == (usage, True)


@holds_for(
    examples=60,
    body=st.one_of(st.binary(max_size=60), json_values.map(lambda value: json.dumps(value).encode())),
    shape=st.sampled_from(SHAPES),
)
def test_any_body_gives_counts_or_none(body: bytes, shape: str) -> None:
    check(usage_of_body(shape, body))


@holds_for(examples=60, stream=streams, shape=st.sampled_from(SHAPES))
def test_any_stream_gives_counts_or_none(stream: bytes, shape: str) -> None:
    check(read(shape, [stream])[0])


def check(usage: Any) -> None:
    if usage is not None:
        assert isinstance(usage, TokenUsage)
        assert all(type(count) is int and count >= 0 for count in usage)
        assert usage.cache_write_tokens <= usage.input_tokens


def test_deep_nesting_gives_none() -> None:
    body = b'{"usage":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert usage_of_body("openai-chat", body) is None
    assert read("openai-chat", [b"data: " + body + b"_tokens\n\n"]) == (None, False)
