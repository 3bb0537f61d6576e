"""Objects that belong to one organisation go to its key and to no other (invariant 38); conversations prefer theirs."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agentos.gateway import _affinity
from agentos.gateway.gateway import Gateway

from .support import Call, Upstream, chat_answer, credentials, running_gateway

IDS = ("a", "b", "c", "d")
ENCRYPTED = "gAAAA" + "x" * 300


async def handler(call: Call) -> None:
    """Make files and responses whose ids name the key; a foreign id is refused like an unknown one."""
    owner = call.key[-1]
    if call.method == "POST" and call.target.endswith("/files"):
        await call.answer(200, {"id": f"file-{owner}1", "object": "file"})
    elif call.method == "POST" and call.target.endswith("/batches"):
        await call.answer(200, {"id": f"batch_{owner}1", "output_file_id": None})
    elif "/batches/" in call.target:
        await call.answer(200, {"id": f"batch_{owner}1", "output_file_id": f"file-{owner}2"})
    elif call.target.endswith("/responses"):
        text = call.body.decode()
        assert "resp_" not in text or f"resp_{owner}1" in text
        if json.loads(text).get("stream"):
            await call.begin_stream()
            response = {"id": f"resp_{owner}1", "output": [], "error": None}
            await call.event({"type": "response.created", "response": response}, "response.created")
            item = {"type": "reasoning", "id": "rs_1", "encrypted_content": ENCRYPTED + owner}
            await call.event({"type": "response.output_item.done", "item": item}, "response.output_item.done")
            usage = {"input_tokens": 5, "output_tokens": 6}
            done = {"type": "response.completed", "response": {**response, "usage": usage}}
            await call.event(done, "response.completed")
            await call.end_stream()
        else:
            await call.answer(200, {"id": f"resp_{owner}1", "object": "response", "usage": {"input_tokens": 5}})
    elif call.target.endswith("/files") or "file-" in call.target:
        await call.answer(200, {"owner": owner})
    else:
        await call.answer(200, chat_answer())


def send(gateway: Gateway, token: str, path: str, body: Any = None, method: str = "POST") -> httpx.Response:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    return httpx.request(method, gateway.url + path, headers=headers, content=content, timeout=30)


def test_file_is_used_with_the_key_that_made_it() -> None:
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        ids = [send(gateway, token, "/v1/files", {"purpose": "batch"}).json()["id"] for _ in range(4)]
        assert len(set(ids)) == 4  # each key made one
        for file_id in ids * 2:
            answer = send(gateway, token, f"/v1/files/{file_id}/content", method="GET")
            assert answer.json() == {"owner": file_id[5]}
        body = {"model": "m", "input": [{"type": "input_file", "file_id": ids[2]}]}
        assert send(gateway, token, "/v1/chat/completions", body).status_code == 200
        assert upstream.calls[-1].key[-1] == ids[2][5]


def test_output_of_a_batch_is_read_with_its_key() -> None:
    """The file is made long after the batch, and named in the answer to a look at it."""
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        batches = [send(gateway, token, "/v1/batches", {"endpoint": "/v1/responses"}).json()["id"] for _ in range(4)]
        assert len(set(batches)) == 4
        for batch in batches:
            file_id = send(gateway, token, f"/v1/batches/{batch}", method="GET").json()["output_file_id"]
            answer = send(gateway, token, f"/v1/files/{file_id}/content", method="GET")
            assert answer.json() == {"owner": batch[6]}


@pytest.mark.parametrize("is_stream", [False, True])
def test_previous_response_goes_to_its_key(is_stream: bool) -> None:
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        for number in range(6):
            body: dict[str, Any] = {"model": "m", "input": f"first {number}", "stream": is_stream}
            answer = send(gateway, token, "/v1/responses", body)
            assert answer.status_code == 200
            owner = upstream.calls[-1].key[-1]
            body["previous_response_id"] = f"resp_{owner}1"
            assert send(gateway, token, "/v1/responses", body).status_code == 200
            assert upstream.calls[-1].key[-1] == owner


def test_encrypted_content_goes_to_its_key() -> None:
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        for number in range(6):
            body: dict[str, Any] = {
                "model": "m", "stream": True, "input": f"first {number}", "include": ["reasoning.encrypted_content"],
            }  # fmt: skip
            assert send(gateway, token, "/v1/responses", body).status_code == 200
            owner = upstream.calls[-1].key[-1]
            body["input"] = [{"type": "reasoning", "encrypted_content": ENCRYPTED + owner}]
            assert send(gateway, token, "/v1/responses", body).status_code == 200
            assert upstream.calls[-1].key[-1] == owner


def test_request_waits_for_the_key_of_its_object() -> None:
    """Other keys are free, and would not know the object."""
    refusals: list[tuple[str, str]] = []

    async def refusing(call: Call) -> None:
        if refusals and refusals[0][0] == call.key[-1]:
            error = {"message": "Rate limit reached.", "code": "rate_limit_exceeded"}
            await call.answer(429, {"error": error}, f"retry-after: {refusals.pop()[1]}")
        else:
            await handler(call)

    with Upstream(refusing) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        assert send(gateway, token, "/v1/responses", {"model": "m", "input": "first"}).status_code == 200
        owner = upstream.calls[-1].key[-1]
        body = {"model": "m", "input": "second", "previous_response_id": f"resp_{owner}1"}
        for seconds, status in (("0.2", 200), ("600", 429)):
            refusals.append((owner, seconds))
            answer = send(gateway, token, "/v1/responses", body)
            assert answer.status_code == status
        message = answer.json()["error"]["message"]
        assert message.startswith("the credential for openai is cooling down or at a limit; retry after ")
        assert [call.key[-1] for call in upstream.calls] == [owner] * 4


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v1/files/file-unknown", None, "GET"),
        ("/v1/batches/batch_unknown/cancel", {}, "POST"),
        ("/v1/responses", {"model": "m", "input": "x", "previous_response_id": "resp_unknown"}, "POST"),
        ("/v1/responses", {"model": "m", "input": [{"encrypted_content": "unknown"}]}, "POST"),
        ("/v1/chat/completions", {"model": "m", "messages": [{"content": [{"file_id": "file-unknown"}]}]}, "POST"),
        ("/v1/files", None, "GET"),
    ],
)
def test_unknown_object_is_an_error_and_no_guess(path: str, body: Any, method: str) -> None:
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        answer = send(gateway, token, path, body, method)
        assert answer.status_code == 404
        assert upstream.calls == []


def test_pool_of_one_key_needs_no_memory_of_objects() -> None:
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, "a")) as (gateway, token):
        assert send(gateway, token, "/v1/files/file-unknown", method="GET").status_code == 200
        assert send(gateway, token, "/v1/files", method="GET").status_code == 200


def test_objects_of_several_keys_are_refused_together() -> None:
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        ids = [send(gateway, token, "/v1/files", {}).json()["id"] for _ in range(2)]
        body = {"model": "m", "messages": [{"content": [{"file_id": id_} for id_ in ids]}]}
        answer = send(gateway, token, "/v1/chat/completions", body)
        assert answer.status_code == 404
        assert "several organisations" in answer.json()["error"]["message"]


def test_field_of_a_tool_is_no_object() -> None:
    """A file of the client's own that is named like one of OpenAI's fields."""
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        messages = [{"role": "user", "content": 'a text with "file_id": "file-1" in it'}, {"input": {"file_id": "17"}}]
        assert send(gateway, token, "/v1/chat/completions", {"model": "m", "messages": messages}).status_code == 200


# --- conversations ----------------------------------------------------------------------------------------------------


def keys_of(upstream: Upstream) -> list[str]:
    return [call.key[-1] for call in upstream.calls]


def test_conversation_stays_with_its_credential() -> None:
    long_text = "x" * _affinity.MIN_BYTES
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        other = gateway.open("run", "other", 1)
        body = {"model": "m", "messages": [{"role": "user", "content": long_text}]}
        for _ in range(5):
            send(gateway, token, "/v1/chat/completions", body)
            send(gateway, other, "/v1/chat/completions", body)
        keys = keys_of(upstream)
        assert len(set(keys[::2])) == len(set(keys[1::2])) == 1
        assert keys[0] != keys[1]


def test_session_in_the_request_decides() -> None:
    long_text = "x" * _affinity.MIN_BYTES
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        for _ in range(3):
            for session in ("one", "two"):
                content = {"model": "m", "prompt_cache_key": session, "messages": [{"content": long_text}]}
                send(gateway, token, "/v1/chat/completions", content)
        keys = keys_of(upstream)
        assert len(set(keys[::2])) == len(set(keys[1::2])) == 1
        assert keys[0] != keys[1]


def test_short_requests_are_spread() -> None:
    """Below the length that providers cache there is nothing to stay for."""
    with Upstream(handler) as upstream, running_gateway(credentials(upstream.url, *IDS)) as (gateway, token):
        for _ in range(4):
            send(gateway, token, "/v1/chat/completions", {"model": "m", "messages": []})
        assert set(keys_of(upstream)) == set(IDS)


def test_affinity_ends_with_the_life_of_the_cache() -> None:
    affinity = _affinity.Affinity()
    affinity.remember(("openai", "m", "s"), "a", 100.0)
    assert affinity.credential(("openai", "m", "s"), 100.0 + _affinity.CACHE_SECONDS - 1) == "a"
    assert affinity.credential(("openai", "m", "s"), 100.0 + _affinity.CACHE_SECONDS) is None
    assert affinity.credential(("openai", "other", "s"), 100.0) is None
