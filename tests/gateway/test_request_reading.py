"""Routes, bodies, estimates and holds: pure code, with tables."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
import zstandard

from agentos.gateway import _request
from agentos.gateway._estimates import DEFAULT_OUTPUT, Estimates
from agentos.gateway._hold import hold_of
from agentos.gateway._masking import Masks
from agentos.gateway._owned_objects import OwnedObjects, named_objects
from agentos.gateway._reader import AnswerReader
from agentos.gateway._request import (
    ClientRequest,
    decoded,
    passed_headers,
    passed_query,
    read_facts,
)
from agentos.gateway._routes import Route, find_route
from agentos.gateway.addresses import join_url, known_addresses
from agentos.providers.usage import TokenUsage

ADDRESSES = known_addresses({"acme": "http://acme.example/api"}, {})
CHAT = Route("openai", "/v1/chat/completions", "openai", "openai-chat")


@pytest.mark.parametrize(
    ("path", "headers", "provider", "shape"),
    [
        ("/v1/messages", {}, "anthropic", "anthropic"),
        ("/v1/messages/count_tokens", {}, "anthropic", None),
        ("/v1/messages/batches", {}, "anthropic", None),
        ("/v1/chat/completions", {}, "openai", "openai-chat"),
        ("/v1/completions", {}, "openai", "openai-chat"),
        ("/v1/responses", {}, "openai", "openai-responses"),
        ("/v1/responses/resp_1", {}, "openai", None),
        ("/v1/embeddings", {}, "openai", "openai-embeddings"),
        ("/v1/models", {}, "openai", None),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, "anthropic", None),
        ("/v1/files", {"anthropic-version": "2023-06-01"}, "anthropic", None),
        ("/v1/models/m:generateContent", {}, "gemini", "gemini"),
        ("/v1beta/models/m:streamGenerateContent", {}, "gemini", "gemini"),
        ("/v1beta/models/m:countTokens", {}, "gemini", None),
        ("/v1beta/openai/chat/completions", {}, "gemini", "openai-chat"),
        ("/upload/v1beta/files", {}, "gemini", None),
        ("/openai/deployments/gpt/chat/completions", {}, "azure", "openai-chat"),
        ("/openai/v1/chat/completions", {}, "openai", "openai-chat"),
        ("/azure/openai/v1/responses", {}, "azure", "openai-responses"),
        ("/anthropic/v1/messages", {}, "anthropic", "anthropic"),
        ("/claude/v1/messages", {}, "anthropic", "anthropic"),
        ("/gemini/v1beta/models/m:generateContent", {}, "gemini", "gemini"),
        ("/groq/v1/chat/completions", {}, "groq", "openai-chat"),
        ("/acme/v1/chat/completions", {}, "acme", "openai-chat"),
    ],
)
def test_path_leads_to_provider(path: str, headers: dict[str, str], provider: str, shape: str | None) -> None:
    route = find_route(path, headers, ADDRESSES)
    assert route is not None
    assert (route.provider, route.shape) == (provider, shape)


@pytest.mark.parametrize("path", ["/", "/v2/x", "/nobody/v1/x", "/anthropic", "/anthropic/", "//v1/messages", "/-/x"])
def test_other_paths_lead_nowhere(path: str) -> None:
    assert find_route(path, {}, ADDRESSES) is None


def test_model_is_read_from_the_path() -> None:
    gemini = find_route("/v1beta/models/gemini-x:streamGenerateContent", {}, ADDRESSES)
    azure = find_route("/openai/deployments/gpt-x/chat/completions", {}, ADDRESSES)
    assert gemini is not None
    assert azure is not None
    assert (gemini.model, azure.model) == ("gemini-x", "gpt-x")


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("https://api.openai.com/v1", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1", "/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.groq.com/openai/v1", "/v1/models", "https://api.groq.com/openai/v1/models"),
        ("https://api.groq.com/openai/v1", "/openai/v1/models", "https://api.groq.com/openai/v1/models"),
        ("https://x.example/v1beta", "/v1/models", "https://x.example/v1beta/v1/models"),
        ("https://x.example/a/v1", "/v1/v1/x", "https://x.example/a/v1/v1/x"),
        (
            "https://x.example/openai/deployments/a",
            "/openai/deployments/m/x",
            "https://x.example/openai/deployments/a/x",
        ),
        ("https://x.example/openai/deployments/a", "/x", "https://x.example/openai/deployments/a/x"),
    ],
)
def test_version_stands_once_in_the_url(base: str, path: str, url: str) -> None:
    assert join_url(base, path) == url


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("identity", bytes),
        ("UTF-8", bytes),
    ],
)
def test_model_is_read_from_compressed_body(encoding: str, encode: Any) -> None:
    facts = read_facts(CHAT, {"content-encoding": encoding}, encode(b'{"model": "m", "max_tokens": 7}'))
    assert (facts.model, facts.max_tokens) == ("m", 7)


def test_bomb_is_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_request, "MAX_DECODED_BYTES", 1000)
    for encoding, data in (
        ("gzip", gzip.compress(b"x" * 5000)),
        ("zstd", zstandard.ZstdCompressor().compress(b"x" * 5000)),
    ):
        assert decoded(data, encoding) is None


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd", "gzip"])
def test_body_with_unreadable_encoding_is_noticed(encoding: str) -> None:
    assert not read_facts(CHAT, {"content-encoding": encoding}, b"no such encoding").is_readable


def test_body_of_two_compressed_parts_is_read_as_a_whole() -> None:
    """A provider that reads both would see another request than the gateway."""
    compress = zstandard.ZstdCompressor().compress
    assert decoded(compress(b'{"model": "m",') + compress(b' "a": 1}'), "zstd") == b'{"model": "m", "a": 1}'
    assert decoded(gzip.compress(b"{}") + gzip.compress(b"{}"), "gzip") is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "previous_response_id": "resp_1", "input": "\\ud800"}',
        b'\xef\xbb\xbf{"model": "m", "previous_response_id": "resp_1"}',
        b'{"model": "m", "previous_response_id": "resp_1", "temperature": NaN}',
        b'{"model": "m", "previous_response_id": "resp_1", "a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_model_and_references_are_found_in_invalid_json(body: bytes) -> None:
    """Some providers accept it. A stored response must go to the key that made it all the same."""
    facts = read_facts(CHAT, {}, body)
    assert (facts.model, facts.references, facts.text_bytes) == ("m", ("resp_1",), len(body))


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        ({"previous_response_id": "resp_1"}, ["resp_1"]),
        ({"conversation": "conv_1"}, ["conv_1"]),
        ({"conversation": {"id": "conv_1"}}, ["conv_1"]),
        ({"input": [{"type": "item_reference", "id": "rs_1"}, {"id": "msg_2", "type": "item_reference"}]},
         ["rs_1", "msg_2"]),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1", "vs_2"]}]}, ["vs_1", "vs_2"]),
        ({"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}, ["cntr_1"]),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}]}, ["file-1"]),
        ({"training_file": "file-1", "validation_file": "file-2"}, ["file-1", "file-2"]),
        ({"input_file_id": "file-1"}, ["file-1"]),
        ({"cachedContent": "cachedContents/c1"}, ["c1"]),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "https://host/v1beta/files/f1"}}]}]}, ["f1"]),
        ({"input": [{"type": "function_call", "arguments": '{"file_id": "file-1", "container": "cntr_1"}'}]}, []),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, []),
        ({"tools": [{"name": "drive", "parameters": {"properties": {"file_ids": {"type": "array"}}}}]}, []),
        ({"input": [{"type": "message", "id": "msg_1", "content": "previous_response_id file-1"}]}, []),
    ],
)  # fmt: skip
def test_objects_of_an_organisation_are_found(body: dict[str, Any], ids: list[str]) -> None:
    for separators in ((",", ":"), (", ", ": ")):
        facts = read_facts(CHAT, {}, json.dumps(body, separators=separators).encode())
        assert named_objects(ClientRequest("POST", CHAT, "", [], b"", facts)) == ids


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ({"type": "response.created", "response": {"id": "resp_1", "output": []}}, ["resp_1"]),
        ({"id": "resp_1", "output": [{"id": "msg_1", "type": "message"}, {"id": "rs_1", "type": "reasoning"}]},
         ["resp_1", "msg_1", "rs_1"]),
        ({"id": "resp_1", "output": [{"id": "ci_1", "container_id": "cntr_1"}]}, ["resp_1", "ci_1", "cntr_1"]),
        ({"type": "response.output_text.delta", "item_id": "msg_1", "delta": '"id": "resp_1"'}, []),
    ],
)  # fmt: skip
def test_answer_names_the_objects_that_it_made(answer: dict[str, Any], ids: list[str]) -> None:
    objects = OwnedObjects()
    route = Route("openai", "/v1/responses", "openai", "openai-responses")
    objects.read(route, json.dumps(answer).encode(), "key-1")
    owners = {id_ for id_ in ("resp_1", "msg_1", "rs_1", "ci_1", "cntr_1") if _owner(objects, id_) == "key-1"}
    assert owners == set(ids)


@pytest.mark.parametrize(
    ("method", "path", "answer", "ids"),
    [
        ("POST", "/v1/files", {"object": "file", "id": "file-1", "filename": '"output_file_id": "file-2"'}, ["file-1"]),
        ("POST", "/v1/uploads/upload_1/complete", {"id": "upload_1", "file": {"id": "file-1"}}, ["file-1", "upload_1"]),
        ("GET", "/v1/batches/b1", {"id": "b1", "output_file_id": "file-1", "error_file_id": "file-2"},
         ["b1", "file-1", "file-2"]),
        ("GET", "/v1/fine_tuning/jobs/j1", {"id": "j1", "result_files": ["file-1", "file-2"]},
         ["file-1", "file-2", "j1"]),
        ("GET", "/v1beta/batches/b1", {"name": "batches/b1", "response": {"responsesFile": "files/f1"}}, ["b1", "f1"]),
        ("GET", "/v1/files/file-1/content", {"id": "file-2", "output_file_id": "file-3"}, []),
        ("DELETE", "/v1/files/file-1", {"id": "file-1"}, []),
    ],
)  # fmt: skip
def test_answer_about_an_object_names_its_files(method: str, path: str, answer: dict[str, Any], ids: list[str]) -> None:
    """But not the content of a file, which a client has written."""
    objects = OwnedObjects()
    route = find_route(path, {}, known_addresses(environ={}))
    assert route is not None
    request = ClientRequest(method, route, "", [], b"")
    reader = AnswerReader(request, "key-1", Masks(()), objects, False, True)
    reader.feed(json.dumps(answer).encode())
    assert sorted(objects._owners) == ids


def _owner(objects: OwnedObjects, id_: str) -> str | None:
    body = json.dumps({"input": [{"type": "item_reference", "id": id_}]}).encode()
    owners, _ = objects.owners(ClientRequest("POST", CHAT, "", [], b"", read_facts(CHAT, {}, body)))
    return next(iter(owners), None)


def test_long_name_of_a_session_is_not_kept() -> None:
    """Twenty thousand are remembered: a client that names long ones would fill the memory."""
    name = "s" * 1_000_000
    sessions = [
        read_facts(CHAT, headers, json.dumps({"prompt_cache_key": key}).encode()).session
        for headers, key in (({}, name), ({}, name + "2"), ({"session-id": name}, ""))
    ]
    assert all(session is not None and len(session) < 100 for session in sessions)
    assert sessions[0] == sessions[2] != sessions[1]


def test_images_do_not_count_as_text() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}}
    body = json.dumps({"model": "m", "messages": [{"content": [image, {"text": "x" * 400}]}]}).encode()
    assert 400 < read_facts(CHAT, {}, body).text_bytes < 1500


def test_query_loses_keys_only() -> None:
    assert passed_query("alt=sse&key=x&KEY=y&a=%2B&api_key=z&b") == "alt=sse&a=%2B&b"


def test_headers_named_by_connection_are_not_passed_on() -> None:
    headers = [("X-A", "1"), ("X-B", "2"), ("Connection", "x-a")]
    assert passed_headers(headers, "keep-alive, x-a") == [("X-B", "2")]


# --- estimates and holds ----------------------------------------------------------------------------------------------


def test_output_estimate_is_what_the_model_produced() -> None:
    estimates = Estimates()
    assert estimates.of("m", 4000, None) == (1000, DEFAULT_OUTPUT)
    assert estimates.of("m", 4000, 32) == (1000, 32)
    for number in range(100):
        estimates.learn("m", 4000, TokenUsage(1000, 10 * number))
    assert 900 <= estimates.of("m", 4000, 32_000)[1] <= 990
    assert estimates.of("other", 4000, 32_000)[1] == DEFAULT_OUTPUT


def test_input_estimate_follows_the_ratio_of_the_model() -> None:
    estimates = Estimates()
    for _ in range(100):
        estimates.learn("m", 4000, TokenUsage(500, 10, 1000))
    assert estimates.of("m", 4000, 1)[0] == pytest.approx(1500, rel=0.01)


@pytest.mark.parametrize(
    ("route", "fields", "seconds"),
    [
        (CHAT, {}, 280),
        (CHAT, {"user_agent": "QwenCode/0.15 (linux)"}, 110),
        (CHAT, {"stated_timeout": 120.0}, 110),
        (CHAT, {"stated_timeout": 600.0}, 280),
        (CHAT, {"stated_timeout": 5.0}, 4),
        (Route("gemini", "/x", "gemini", "gemini"), {}, 50),
    ],
)
def test_hold_ends_before_the_client_leaves(route: Route, fields: dict[str, Any], seconds: float) -> None:
    request = ClientRequest("POST", route, "", [], b"", **fields)
    assert hold_of(request, 280.0) == seconds
    assert hold_of(request, 3.0) <= 3.0
