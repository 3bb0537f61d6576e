"""Properties of the request path and of reading answers: fuzzing, in the suite and in `make soak`."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from agentos.gateway._masking import Masks
from agentos.gateway._owned_objects import OwnedObjects, named_objects
from agentos.gateway._reader import AnswerReader
from agentos.gateway._request import ClientRequest, number_header, read_facts
from agentos.gateway._routes import Route, check_target, find_route
from agentos.gateway.addresses import known_addresses
from tests.support.properties import holds_for

from .support import CANARY

ADDRESSES = known_addresses({"acme": "http://acme.example/api"}, {})
CHAT = Route("openai", "/v1/chat/completions", "openai", "openai-chat")

# --- paths ------------------------------------------------------------------------------------------------------------

SPELLED = ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens",
           "/v1beta/models/m:generateContent", "/v1/files/file-1/content", "/v1/batches"]  # fmt: skip


@holds_for(examples=60, path=st.sampled_from(SPELLED), data=st.data())
def test_other_spelling_of_a_path_follows_the_same_rules(path: str, data: st.DataObject) -> None:
    """Escapes, repeated slashes, a slash at the end, parameters: many servers do not tell them apart, and requests
    spelled so would pass by limits of tokens, prices and the owners of objects."""
    start = path.index("/", 1) + 1
    characters = list(path[start:])
    for index in data.draw(st.lists(st.integers(0, len(characters) - 1), max_size=4, unique=True)):
        escape = f"%{ord(characters[index]):02x}"
        characters[index] = "//" if characters[index] == "/" and data.draw(st.booleans()) else escape
    spelled = path[:start] + "".join(characters) + data.draw(st.sampled_from(["", "/", "//", ";a=b"]))
    assert check_target(spelled) is None
    headers = {"anthropic-version": "1"} if "messages" in path else {"x-goog-api-key": "k"} if ":" in path else {}
    plain, other = find_route(path, headers, ADDRESSES), find_route(spelled, headers, ADDRESSES)
    assert plain is not None
    assert other is not None
    assert other.path == spelled
    assert (other.shape, other.model, other.plain_path) == (plain.shape, plain.model, plain.plain_path)
    request = ClientRequest("POST", other, "", [], b"")
    assert named_objects(request) == named_objects(ClientRequest("POST", plain, "", [], b""))


@holds_for(examples=60, target=st.text(max_size=60))
def test_accepted_target_has_no_character_that_changes_the_request(target: str) -> None:
    if check_target(target) is None:
        assert target.startswith("/")
        assert target.isascii()
        assert target.isprintable()
        assert " " not in target
        assert ".." not in target.partition("?")[0].split("/")


@holds_for(
    examples=60,
    segments=st.lists(st.sampled_from(["v1", "..", ".", "%2e", "%2E%2e", "a", "%2f", "%5c", "models", "", "%0d%0a"])),
)
def test_dot_segments_never_pass(segments: list[str]) -> None:
    target = "/" + "/".join(segments)
    if check_target(target) is None:
        assert not {"..", ".", "%2e", "%2E%2e", "%5c", "%0d%0a"} & set(segments)


FIELDS = st.sampled_from(
    ["model", "stream", "max_tokens", "generationConfig", "maxOutputTokens", "metadata", "user_id", "prompt_cache_key",
     "file_id", "previous_response_id", "encrypted_content", "messages", "content", "data"],
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=20,
)


@holds_for(examples=60, value=JSON, encoding=st.sampled_from(["", "gzip", "deflate", "zstd", "br", "nonsense"]))
def test_any_json_body_is_read_without_an_error(value: Any, encoding: str) -> None:
    facts = read_facts(CHAT, {"content-encoding": encoding}, json.dumps(value).encode())
    assert facts.model is None or isinstance(facts.model, str)
    assert facts.max_tokens is None or facts.max_tokens >= 0
    named_objects(ClientRequest("POST", CHAT, "", [], b"", facts))


@holds_for(examples=60, body=st.binary(max_size=300), encoding=st.sampled_from(["", "gzip", "deflate", "zstd"]))
def test_any_bytes_are_read_without_an_error(body: bytes, encoding: str) -> None:
    read_facts(CHAT, {"content-encoding": encoding}, body)


@holds_for(headers=st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=10), max_size=6))
def test_number_headers_of_any_text_are_read(headers: dict[str, str]) -> None:
    for name in headers:
        number = number_header(headers, name)
        assert number is None or number >= 0


@holds_for(
    examples=60, text=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=8), repeats=st.integers(0, 6)
)
def test_key_is_masked_for_every_division_into_parts(text: bytes, cuts: list[int], repeats: int) -> None:
    key = b"sk-sk-canary-0123456789"
    answer = text[:100] + key * repeats + text[100:] + key[:7]
    for other in ("another-secret", "sk-sk-canary", "0123456789"):
        masks = Masks([other, key.decode()])
        positions = sorted({0, *(cut % (len(answer) + 1) for cut in cuts), len(answer)})
        parts = [masks.feed(answer[a:b]) for a, b in itertools.pairwise(positions)]
        received = b"".join(parts) + masks.end()
        assert key not in received
        masked = answer.replace(key, b"*" * len(key))
        assert received == masked.replace(other.encode(), b"*" * len(other)) == masks.whole(answer)


# --- answers ----------------------------------------------------------------------------------------------------------

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/files", "/v1/messages", "/v1beta/models/m:generateContent")
PIECES = st.sampled_from(
    [b'"id": "resp_', b'"encrypted_content": "', b'"id":"', b"data: ", b"\n\n", b"event: error\n", b'{"usage": ',
     b"\xff", b'"_tokens": 1e400', b"[DONE]", b'"response": {}', b'"message_', b'"usageMetadata": {', b"}", b'"', b"\r",
     b"\0"],
)  # fmt: skip


@holds_for(
    examples=60,
    path=st.sampled_from(PATHS),
    parts=st.lists(PIECES | st.binary(max_size=20), max_size=12),
    is_stream=st.booleans(),
    has_encrypted=st.booleans(),
)
def test_any_bytes_of_an_answer_are_read(path: str, parts: list[bytes], is_stream: bool, has_encrypted: bool) -> None:
    """No answer raises an error in the gateway, and every byte is passed on (invariant 37)."""
    route = find_route(path, {}, ADDRESSES)
    assert route is not None
    body = b'"encrypted_content"' if has_encrypted else b""
    reader = AnswerReader(
        ClientRequest("POST", route, "", [], body), "a", Masks([CANARY]), OwnedObjects(), is_stream, True
    )
    passed = b"".join([reader.feed(part) for part in parts]) + reader.end()
    assert passed == b"".join(itertools.chain(parts))
    reader.usage()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/files"])
def test_id_that_is_not_utf8_is_read(path: str) -> None:
    route = find_route(path, {}, ADDRESSES)
    assert route is not None
    OwnedObjects().read(route, b'{"id": "resp_\xff"}', "a")
