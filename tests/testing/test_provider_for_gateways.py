"""What gateways and agents need of the simulated provider: streams, faults inside them, caches, logs and control."""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentos.providers.usage import FirstEvents, StreamUsage, TokenUsage, usage_of_body
from agentos.testing import DailyQuota, Scripted, SimulatedProvider
from tests.conftest import eventually
from tests.providers.sdk_clients import load

CHAT = {"model": "sim-1", "messages": [{"role": "user", "content": "12345678"}], "max_tokens": 10}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
RESPONSES = {"model": "sim-1", "input": "12345678", "stream": True}
GEMINI = "/v1beta/models/sim-1:streamGenerateContent?alt=sse"
CONTENTS = {"contents": [{"parts": [{"text": "12345678"}]}], "generationConfig": {"maxOutputTokens": 10}}
# Shape, path and body of a request for a stream.
STREAMS: list[tuple[str, str, dict[str, Any]]] = [
    ("openai-chat", "/v1/chat/completions", CHAT | WITH_USAGE),
    ("openai-responses", "/v1/responses", RESPONSES | {"max_output_tokens": 10}),
    ("anthropic", "/v1/messages", CHAT | {"stream": True}),
    ("gemini", GEMINI, CONTENTS),
]
ALL_HEADERS = {"Authorization": "Bearer k1", "x-api-key": "k1", "x-goog-api-key": "k1"}


@contextmanager
def serve(**options: Any) -> Iterator[tuple[SimulatedProvider, httpx.Client]]:
    limits = [DailyQuota(1000)]
    with (
        SimulatedProvider(["k1", "k2"], limits=limits, latency=0.0, **options) as sim,
        httpx.Client(base_url=sim.base_url, headers=ALL_HEADERS) as client,
    ):
        yield sim, client


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "path", "body"), STREAMS)
def test_usage_of_stream_is_read(shape: str, path: str, body: dict[str, Any]) -> None:
    with serve() as (_, client):
        usage = StreamUsage(shape)
        usage.feed(client.post(path, json=body).content)
        assert (usage.usage, usage.is_complete) == (TokenUsage(2, 10), True)


def test_chat_stream_has_usage_only_on_request() -> None:
    with serve() as (_, client):
        assert b'"usage"' not in client.post("/v1/chat/completions", json=CHAT | {"stream": True}).content


def test_responses_stream_has_items_and_parts() -> None:
    """Codex reads the answer from `response.output_item.done`."""
    with serve(text="one two") as (_, client):
        lines = client.post("/v1/responses", json=RESPONSES).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert events[8]["item"]["content"][0]["text"] == "one two"
    assert events[9]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 0}


def test_sdks_accumulate_streams() -> None:
    openai, anthropic = load("openai"), load("anthropic")
    with (
        serve(text="one two three") as (sim, _),
        openai.OpenAI(api_key="k1", base_url=f"{sim.base_url}/v1", max_retries=0) as client,
        anthropic.Anthropic(api_key="k1", base_url=sim.base_url, max_retries=0) as other,
    ):
        with client.responses.stream(model="sim-1", input="hello") as events:
            assert events.until_done().get_final_response().output_text == "one two three"
        with other.messages.stream(**CHAT) as events:
            assert events.get_final_text() == "one two three"
        assert other.messages.count_tokens(model="sim-1", messages=CHAT["messages"]).input_tokens == 2
        assert client.embeddings.create(model="sim-1", input="12345678").usage.prompt_tokens == 2
        assert [model.id for model in client.models.list()] == ["sim-1"]


@pytest.mark.parametrize(("shape", "path", "body"), STREAMS)
def test_error_is_first_event_after_handshake(shape: str, path: str, body: dict[str, Any]) -> None:
    with serve() as (sim, client):
        sim.script([Scripted(breaks_with="limit", breaks_after=0)])
        answer = client.post(path, json=body)
    first = FirstEvents()
    assert (answer.status_code, first.feed(answer.content)) == (200, "error")
    assert first.error is not None
    assert json.loads(first.error)


@pytest.mark.parametrize(("shape", "path", "body"), STREAMS)
def test_error_later_comes_after_content(shape: str, path: str, body: dict[str, Any]) -> None:
    with serve() as (sim, client):
        sim.script([Scripted(breaks_with="overloaded", breaks_after=2)])
        content = client.post(path, json=body).content
    assert FirstEvents().feed(content) == "content"
    last = json.loads(content.strip().splitlines()[-1].removeprefix(b"data: "))
    assert last.get("error") or last["response"]["error"]


def test_cut_stream_has_no_end() -> None:
    with serve(text="a b c d") as (sim, client):
        sim.script([Scripted(cuts_after=2)])
        received = b""
        with (
            pytest.raises(httpx.RemoteProtocolError),
            client.stream("POST", "/v1/chat/completions", json=CHAT | WITH_USAGE) as answer,
        ):
            for chunk in answer.iter_raw():
                received += chunk
        assert received.count(b"data: ") == 2
        assert [(record.events, record.ending) for record in sim.requests.records] == [(2, "cut")]


def test_stalled_stream_sends_its_first_event() -> None:
    with serve() as (sim, client):
        sim.script([Scripted(stalls=60.0)])
        with client.stream("POST", "/v1/responses", json=RESPONSES) as answer:
            assert next(answer.iter_raw()).startswith(b"event: response.created")
        eventually(lambda: [record.ending for record in sim.requests.records] == ["client left"])


# --- requests ---------------------------------------------------------------------------------------------------------


def zstd() -> Any:
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "gzip, zstd"])
def test_compressed_request_is_read(encoding: str) -> None:
    body = json.dumps(CHAT).encode()
    compress = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": lambda data: zstd().compress(data)}
    for name in encoding.split(", "):
        body = compress[name](body)
    headers = {"content-encoding": encoding}
    with serve() as (_, client):
        answer = client.post("/v1/chat/completions", content=body, headers=headers)
        assert usage_of_body("openai-chat", answer.content) == TokenUsage(2, 10)
        assert client.post("/v1/chat/completions", content=b"x" + body, headers=headers).status_code == 415
        headers = {"content-encoding": "br"}
        assert client.post("/v1/chat/completions", content=body, headers=headers).status_code == 415


def test_streamed_zstd_frame_is_read() -> None:
    """A frame that was written as a stream does not state its size."""
    compressor = zstd().ZstdCompressor()
    body = compressor.compress(json.dumps(CHAT).encode()) + compressor.flush()
    with serve() as (_, client):
        answer = client.post("/v1/chat/completions", content=body, headers={"content-encoding": "zstd"})
    assert answer.status_code == 200


def test_azure_deployment_is_the_model() -> None:
    openai = load("openai")
    options: dict[str, Any] = {"api_version": "2024-10-21", "max_retries": 0}
    with (
        serve() as (sim, _),
        openai.AzureOpenAI(api_key="k2", azure_endpoint=sim.base_url, **options) as client,
    ):
        client.chat.completions.create(**CHAT | {"model": "my-deployment"})
        assert [(entry.key, entry.model) for entry in sim.log] == [("k2", "my-deployment")]
        (record,) = sim.requests.records
        assert record.path == "/openai/deployments/my-deployment/chat/completions"


@pytest.mark.parametrize(("shape", "path", "body"), STREAMS)
def test_prompt_cache_serves_the_same_group_only(shape: str, path: str, body: dict[str, Any]) -> None:
    long = {"text": "x" * 4000} if shape == "gemini" else {"role": "user", "content": "x" * 4000}
    prompt = (
        {"contents": [{"parts": [long]}]}
        if shape == "gemini"
        else {"input": [long]}
        if shape == "openai-responses"
        else {"messages": [long]}
    )

    def ask(client: httpx.Client, key: str) -> TokenUsage:
        usage = StreamUsage(shape)
        headers = {"Authorization": f"Bearer {key}", "x-api-key": key, "x-goog-api-key": key}
        usage.feed(client.post(path, json=body | prompt, headers=headers).content)
        assert usage.usage is not None
        return usage.usage

    with serve(prompt_cache=True) as (sim, client):
        first, again, other = ask(client, "k1"), ask(client, "k1"), ask(client, "k2")
        assert [record.cached_tokens for record in sim.requests.records] == [0, again.cached_tokens, 0]
    assert (first.cached_tokens, other.cached_tokens) == (0, 0)
    assert again.cached_tokens == 960
    assert again.input_tokens + again.cached_tokens == first.input_tokens
    if shape == "anthropic":
        assert (first.cache_write_tokens, again.cache_write_tokens) == (960, 0)


def test_head_and_upgrade_need_no_key() -> None:
    with serve() as (sim, client):
        assert client.head("/").status_code == 200
        upgrade = {"connection": "Upgrade", "upgrade": "websocket"}
        assert client.get("/v1/responses", headers=upgrade).status_code == 426
        assert not sim.log


# --- faults of one key, log and control -------------------------------------------------------------------------------


def test_overload_of_one_key_spares_the_others() -> None:
    with serve(overload=[(0, 100, "k1")]) as (sim, _):
        assert [sim.ask(key).status for key in sim.keys] == [503, 200]
        sim.overload_for(60, key="k2")
        assert sim.ask("k2", style="anthropic").status == 529
        sim.reset()
        assert sim.ask("k2").status == 200


def test_request_log_has_no_keys(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serve(request_log=log) as (_, client):
        client.post("/v1/chat/completions", json=CHAT)
        client.post("/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer canary"})
        records = client.get("/_log").json()
    assert records == [json.loads(line) for line in log.read_text().splitlines()]
    served, refused = records
    assert [served[name] for name in ("key_id", "path", "status", "input_tokens", "output_tokens", "ending")] == [
        "key-1", "/v1/chat/completions", 200, 2, 10, "complete",
    ]  # fmt: skip
    assert (refused["key_id"], refused["status"], refused["reason"]) == ("unknown", 401, "dead")
    assert served["digest"] == refused["digest"]  # the same request twice
    assert "canary" not in log.read_text()


def test_control_scripts_each_key() -> None:
    with serve() as (sim, client):

        def control(*instructions: dict[str, Any]) -> httpx.Response:
            return client.post("/_control", json=list(instructions))

        script = [429, "overloaded", {"breaks_with": "limit", "breaks_after": 0}, 200]
        assert control({"do": "script", "answers": script, "key": 1, "retry_after": 3}).status_code == 200
        control({"do": "kill", "key": "k2"})
        answers = [sim.ask("k1") for _ in range(4)]
        assert [answer.status for answer in answers] == [429, 503, 200, 200]
        assert answers[0].headers["retry-after"] == "3"
        assert answers[2].breaks_with is not None
        assert sim.ask("k2").status == 401
        control({"do": "revive", "key": 2}, {"do": "exhaust", "key": 2, "status": 402})
        assert sim.ask("k2").status == 402
        control({"do": "refill", "key": 2}, {"do": "overload", "key": 2, "seconds": 60})
        assert (sim.ask("k2").status, sim.ask("k1").status) == (503, 200)
        control({"do": "reset"})
        assert sim.ask("k2").status == 200


@pytest.mark.parametrize(
    "body", ["", "7", "[7]", '{"do": "kill"}', '{"do": "kill", "key": 9}', '{"do": "no"}', '{"do": "kill", "x": 1}']
)
def test_unknown_instruction_is_refused(body: str) -> None:
    with serve() as (_, client):
        answer = client.post("/_control", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]


def test_process_with_faults_per_key(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ["--keys", "6", "--latency", "0", "--dead", "1", "--no-quota", "2", "--no-credit", "3", "--words", "2"]
    options += [
        "--overload",
        "4=0-100",
        "--key-limit",
        "sim-key-5=1/3600",
        "--script",
        "6=429,break:limit:0,cut:1,drop",
    ]
    options += ["--script-retry-after", "7", "--log", str(log), "--prompt-cache"]
    command = [sys.executable, "-m", "agentos.testing", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())

        def ask(number: int, path: str = "/v1/chat/completions") -> httpx.Response:
            headers = {"Authorization": f"Bearer sim-key-{number}"}
            return httpx.post(started["base_url"] + path, json=CHAT | {"stream": True}, headers=headers)

        answers = [ask(number) for number in (1, 2, 3, 4, 5, 5, 6, 6)]
        assert [answer.status_code for answer in answers] == [401, 429, 402, 503, 200, 429, 429, 200]
        assert answers[1].json()["error"]["code"] == "insufficient_quota"
        assert answers[6].headers["retry-after"] == "7"
        assert b"word-1 " in answers[4].content
        assert FirstEvents().feed(answers[7].content) == "error"
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError):
                ask(6)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    endings = [json.loads(line)["ending"] for line in log.read_text().splitlines()]
    assert endings == ["complete"] * 8 + ["cut", "dropped"]


@pytest.mark.parametrize("option", [["--dead", "9"], ["--script", "1=never"], ["--key-limit", "5/60"]])
def test_unusable_option_is_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module("agentos.testing.__main__").main
    with pytest.raises(SystemExit):
        main(option)
    assert "error:" in capsys.readouterr().err


# --- objects of one organization --------------------------------------------------------------------------------------


def as_key(key: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {key}"}}


def test_stored_response_belongs_to_its_group() -> None:
    request = {"model": "sim-1", "input": "hello"}
    with serve() as (sim, _), httpx.Client(base_url=sim.base_url) as client:
        id_ = client.post("/v1/responses", json=request, **as_key("k1")).json()["id"]
        later = request | {"previous_response_id": id_}
        assert client.post("/v1/responses", json=later, **as_key("k1")).status_code == 200
        refused = client.post("/v1/responses", json=later, **as_key("k2"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert [record.reason for record in sim.requests.records][-1] == "object of another group"
        assert sim.ask("k2").status == 200


def test_encrypted_reasoning_belongs_to_its_group() -> None:
    request = {"model": "sim-1", "input": "hello", "include": ["reasoning.encrypted_content"]}
    with serve() as (sim, _), httpx.Client(base_url=sim.base_url) as client:
        reasoning, message = client.post("/v1/responses", json=request, **as_key("k1")).json()["output"]
        assert (reasoning["type"], message["type"]) == ("reasoning", "message")
        later = request | {"input": [reasoning, message, {"role": "user", "content": "go on"}]}
        assert client.post("/v1/responses", json=later, **as_key("k1")).status_code == 200
        refused = client.post("/v1/responses", json=later, **as_key("k2"))
        assert refused.json()["error"]["code"] == "invalid_encrypted_content"
        stream = client.post("/v1/responses", json=request | {"stream": True}, **as_key("k1")).text
        assert stream.count("response.output_item.done") == 4  # name and type of two events
        assert '"output_index": 1' in stream


def test_file_belongs_to_its_group() -> None:
    with serve() as (sim, _), httpx.Client(base_url=sim.base_url) as client:
        id_ = client.post("/v1/files", content=b"content", **as_key("k1")).json()["id"]
        assert client.get(f"/v1/files/{id_}", **as_key("k1")).json()["id"] == id_
        assert client.get(f"/v1/files/{id_}", **as_key("k2")).status_code == 404
        message = {"role": "user", "content": [{"type": "file", "file": {"file_id": id_}}]}
        request = CHAT | {"messages": [message]}
        assert client.post("/v1/chat/completions", json=request, **as_key("k1")).status_code == 200
        assert client.post("/v1/chat/completions", json=request, **as_key("k2")).status_code == 404
        by_anthropic = client.get(f"/v1/files/{id_}", headers={"x-api-key": "k2"})
        assert by_anthropic.json()["error"]["type"] == "not_found_error"
