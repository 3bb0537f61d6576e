"""What is read from requests: model, maximum, conversation, estimate and owned objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from agentos.providers.request_facts import (
    NO_FACTS,
    created_objects,
    decode_body,
    encrypted_id,
    estimate_input_tokens,
    read_request,
    session_of,
)
from tests.support.properties import holds_for

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GENERATE = "/v1beta/models/gemini-2.5-pro:generateContent"
STREAM = "/v1beta/models/gemini-2.5-pro:streamGenerateContent"
AZURE = "/openai/deployments/my%20gpt/chat/completions"


def read(path: str, body: Any, **headers: str) -> Any:
    return read_request(path, headers, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, {"model": "gpt-5", "max_completion_tokens": 50, "stream": True}, ("gpt-5", 50, True)),
        (CHAT, {"model": "gpt-5", "max_tokens": 60}, ("gpt-5", 60, False)),
        (RESPONSES, {"model": "gpt-5", "max_output_tokens": 70, "stream": False}, ("gpt-5", 70, False)),
        (MESSAGES, {"model": "claude-1", "max_tokens": 32000, "stream": True}, ("claude-1", 32000, True)),
        (GENERATE, {"generationConfig": {"maxOutputTokens": 80}}, ("gemini-2.5-pro", 80, False)),
        (STREAM, {"contents": []}, ("gemini-2.5-pro", None, True)),
        (AZURE, {"model": "ignored"}, ("my gpt", None, False)),
        (CHAT, {"model": 7, "max_tokens": True, "stream": "yes"}, (None, None, False)),
        (CHAT, {"max_tokens": -1}, (None, None, False)),
        (CHAT, [], (None, None, False)),
    ],
)
def test_model_maximum_and_stream(path: str, body: Any, expected: tuple[Any, ...]) -> None:
    facts = read(path, body)
    assert (facts.model, facts.max_tokens, facts.is_stream) == expected


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({"x-claude-code-session-id": "s1"}, {"metadata": {"user_id": "u"}}, "s1"),
        ({"session-id": "s2"}, {"prompt_cache_key": "p"}, "s2"),
        ({"session_id": "s3"}, {}, "s3"),
        ({}, {"prompt_cache_key": "p", "metadata": {"user_id": "u"}}, "p"),
        ({}, {"metadata": {"user_id": "u"}}, "u"),
        ({}, {"metadata": ["u"], "prompt_cache_key": 7}, None),
        ({"session-id": "x" * 2000}, {}, None),
    ],
)
def test_session(headers: dict[str, str], body: dict[str, Any], session: str | None) -> None:
    assert session_of(headers, body) == session


IMAGE = "iVBORw0KGgo" * 10_000


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "12345678"}]}, 2 + 2),  # and the name `content`
        ({"input": "123456789", "instructions": "1234"}, 4),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "1234"}]}], "system": "1234"}, 5),
        ({"contents": [{"role": "user", "parts": [{"text": "12345678"}]}]}, 5),
        ({"input": "äöüß"}, 2),
        ({"model": "a long name of a model", "metadata": {"text": "not for the model"}}, 0),
        (
            {
                "messages": [
                    {"content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}]}
                ]
            },
            2,
        ),
        ({"messages": [{"content": [{"type": "image", "source": {"data": IMAGE, "media_type": "image/png"}}]}]}, 4),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": IMAGE}}]}]}, 2),
        ({"input": [{"type": "reasoning", "encrypted_content": IMAGE}]}, 0),
        ({"input": "1234", "tools": ["12345678", "container"]}, 8),
    ],
)
def test_estimate_counts_text_only(body: dict[str, Any], tokens: int) -> None:
    assert read(CHAT, body).input_tokens == tokens
    if "tools" not in body:  # tools are measured by the length of their JSON where that is known
        assert estimate_input_tokens(body) == tokens


@pytest.mark.parametrize(
    ("path", "body", "owned"),
    [
        (RESPONSES, {"previous_response_id": "resp_1", "input": "go on"}, ["resp_1"]),
        (RESPONSES, {"conversation": {"id": "conv_1"}}, ["conv_1"]),
        (RESPONSES, {"conversation": "conv_1"}, ["conv_1"]),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]},
            ["file-1"],
        ),
        (
            RESPONSES,
            {"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}, {"type": "item_reference", "id": "rs_1"}]},
            [encrypted_id("gAAAA"), "rs_1"],
        ),
        (RESPONSES, {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1", "vs_2"]}]}, ["vs_1", "vs_2"]),
        (RESPONSES, {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}, ["cntr_1"]),
        (
            RESPONSES,
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}]},
            ["file-1"],
        ),
        (CHAT, {"messages": [{"content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, ["file-1"]),
        (
            MESSAGES,
            {
                "messages": [{"content": [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]}],
                "container": "container_1",
            },
            ["container_1", "file_1"],
        ),
        (
            GENERATE,
            {
                "cachedContent": "cachedContents/c1",
                "contents": [{"parts": [{"fileData": {"fileUri": "https://host/v1beta/files/f1"}}]}],
            },
            ["cachedContents/c1", "files/f1"],
        ),
        ("/v1/batches", {"input_file_id": "file-1", "endpoint": "/v1/responses"}, ["file-1"]),
        ("/v1/responses/resp_1/cancel", {}, ["resp_1"]),
        ("/v1/files/file-1/content", {}, ["file-1"]),
        ("/openai/v1/batches/batch_1", {}, ["batch_1"]),
        ("/v1/messages/batches/msgbatch_1/results", {}, ["msgbatch_1"]),
        ("/v1beta/files/f1", {}, ["files/f1"]),
        ("/v1beta/cachedContents/c1", {}, ["cachedContents/c1"]),
        ("/v1/responses/input_tokens", {}, []),
        ("/v1/messages/count_tokens", {}, []),
        ("/v1/models/gpt-5", {}, []),
    ],
)
def test_owned_objects(path: str, body: Any, owned: list[str]) -> None:
    assert sorted(read(path, body).owned_objects) == sorted(owned)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"content": [{"type": "tool_use", "name": "drive", "input": {"file_id": "file-of-the-user"}}]}]},
        {"messages": [{"content": [{"type": "tool_use", "name": "docker", "input": {"container": "container_1"}}]}]},
        {"contents": [{"parts": [{"functionCall": {"name": "drive", "args": {"file_id": "file_1"}}}]}]},
        {"contents": [{"parts": [{"functionResponse": {"response": {"file_id": "file_1"}}}]}]},
        {"tools": [{"name": "drive", "input_schema": {"properties": {"file_id": {"type": "string"}}}}]},
        {"input": [{"type": "function_call", "arguments": '{"file_id": "file_1"}'}]},
        {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "https://host/files/f1"}}]}]},
        {"messages": [{"role": "user", "content": "previous_response_id file-1 encrypted_content"}]},
    ],
)
def test_data_of_tools_names_no_owned_objects(body: Any) -> None:
    assert read(MESSAGES, body).owned_objects == ()


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ({"type": "response.created", "response": {"id": "resp_1", "output": []}}, ["resp_1"]),
        (
            {
                "type": "response.output_item.done",
                "item": {"id": "rs_1", "type": "reasoning", "encrypted_content": "gAAAA"},
            },
            ["rs_1", encrypted_id("gAAAA")],
        ),
        (
            {"id": "resp_1", "output": [{"id": "msg_1", "type": "message", "content": []}]},
            ["resp_1", "msg_1"],
        ),
        ({"id": "file-1", "object": "file"}, ["file-1"]),
        ({"id": "batch_1", "output_file_id": "file-2", "error_file_id": None}, ["batch_1", "file-2"]),
        ({"name": "cachedContents/c1", "model": "models/gemini"}, ["cachedContents/c1"]),
        ({"id": "chatcmpl-1", "choices": []}, []),
        ({"candidates": [{"content": {"parts": [{"text": "hello"}]}}]}, []),
    ],
)
def test_created_objects(answer: Any, ids: list[str]) -> None:
    assert list(created_objects(answer)) == ids


def test_encrypted_content_of_answer_is_found_in_later_request() -> None:
    item = {"id": "rs_1", "type": "reasoning", "encrypted_content": "gAAAA", "summary": []}
    created = created_objects({"type": "response.output_item.done", "item": item})
    assert set(read(RESPONSES, {"input": [item]}).owned_objects) <= set(created)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("file-1"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "input", "content", "type", "id", "file_id", "container", "encrypted_content", "metadata",
                 "user_id", "tools", "conversation", "response", "item", "output", "max_tokens", "generationConfig"]
            ) | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@holds_for(
    examples=80,
    body=json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40),
    path=st.sampled_from([CHAT, RESPONSES, STREAM, AZURE, "/v1/files/file-1"]) | st.text(max_size=20),
    session=st.text(max_size=5),
)
def test_any_request_gives_facts(body: bytes, path: str, session: str) -> None:
    facts = read_request(path, {"session-id": session}, body)
    assert facts.model is None or isinstance(facts.model, str)
    assert facts.max_tokens is None or type(facts.max_tokens) is int
    assert type(facts.input_tokens) is int
    assert 0 <= facts.input_tokens <= len(body)
    assert all(isinstance(id_, str) and id_ for id_ in facts.owned_objects)
    assert all(isinstance(id_, str) and id_ for id_ in created_objects(decode_body(body)))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b"null", b'{"tools":' + b"[" * 9999]
)
def test_unreadable_body_states_nothing(body: bytes) -> None:
    assert read_request("/v1/chat/completions", {}, body) == NO_FACTS
