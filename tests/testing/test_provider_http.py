"""The simulated provider over HTTP: endpoints, streams, connections and speed."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentos.providers.usage import TokenUsage, usage_of_body
from agentos.testing import Concurrency, DailyQuota, Scripted, SimulatedProvider
from tests.conftest import BUSY, eventually

CHAT = {"model": "sim-1", "messages": [{"role": "user", "content": "12345678"}], "max_tokens": 10}


@pytest.fixture
def sim() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(["k1", "k2"], limits=[DailyQuota(1000)], latency=0.0) as provider:
        yield provider


@pytest.fixture
def client(sim: SimulatedProvider) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sim.base_url, headers={"Authorization": "Bearer k1"}) as client:
        yield client


def exchange(sim: SimulatedProvider, *pieces: bytes) -> bytes:
    """Send raw bytes; return all bytes until the server closes the connection."""
    host, port = sim.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while data := connection.recv(65_536):
            received += data
    return received


def test_plain_endpoint_echoes_and_keeps_its_connection(sim: SimulatedProvider, client: httpx.Client) -> None:
    for number in range(3):
        answer = client.post("/v1/work", content=f"item {number}")
        assert answer.json() == {"status": 200, "echo": f"item {number}"}
        assert answer.headers["x-ratelimit-remaining-requests"] == str(999 - number)
    assert sim.answered == 3


def test_http_answers_report_limits_and_dead_keys(sim: SimulatedProvider, client: httpx.Client) -> None:
    sim.script([429], retry_after=1.5)
    answer = client.post("/v1/work")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1.5")
    assert client.post("/v1/work", headers={"Authorization": "Bearer nobody"}).status_code == 401
    assert client.post("/v1/work").status_code == 200
    assert client.get("/nowhere").status_code == 404
    assert client.put("/v1/work").status_code == 404


def test_chat_completions_answer_with_usage(client: httpx.Client) -> None:
    body = client.post("/v1/chat/completions", json=CHAT).json()
    assert body["choices"][0]["message"]["content"] == "A simulated answer."
    usage = body["usage"]
    assert [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")] == [2, 10, 12]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert client.get("/v1/models").json()["data"][0]["id"] == "sim-1"
    body = client.post("/v1/responses", json={"model": "sim-1", "input": "1234"}).json()
    assert body["usage"]["input_tokens"] == 1


def test_each_style_reads_its_key_and_error_format(sim: SimulatedProvider, client: httpx.Client) -> None:
    anthropic = client.post("/v1/messages", json=CHAT, headers={"x-api-key": "k2"})
    assert usage_of_body("anthropic", anthropic.content) == TokenUsage(2, 10)
    assert "anthropic-ratelimit-requests-remaining" in anthropic.headers
    path = "/v1beta/models/sim-1:generateContent"
    contents = {"contents": [{"parts": [{"text": "12345678"}]}], "generationConfig": {"maxOutputTokens": 4}}
    by_header = client.post(path, json=contents, headers={"x-goog-api-key": "k2"})
    assert by_header.json()["usageMetadata"]["totalTokenCount"] == 6
    assert client.post(f"{path}?key=k2", json=contents).status_code == 200
    assert client.post(path, json=contents).json()["error"]["status"] == "INVALID_ARGUMENT"
    assert [entry.model for entry in sim.log] == ["sim-1"] * 4
    assert sim.counts["k2"] == {200: 3}


def test_each_style_lists_models_for_a_valid_key(client: httpx.Client) -> None:
    by_anthropic = client.get("/v1/models?limit=1", headers={"x-api-key": "k2"})
    assert by_anthropic.json()["data"][0]["type"] == "model"
    assert client.get("/v1/models", headers={"x-api-key": "nobody"}).json()["type"] == "error"
    by_gemini = client.get("/v1beta/models?pageSize=1", headers={"x-goog-api-key": "k2"})
    assert by_gemini.json()["models"][0]["name"] == "models/sim-1"
    assert client.get("/v1beta/models").json()["error"]["status"] == "INVALID_ARGUMENT"


def stream(client: httpx.Client, path: str, **options: Any) -> list[dict[str, Any]]:
    request = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    lines = client.post(path, json=request, **options).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(piece) for piece in data if piece != "[DONE]"]


def test_streams_arrive_in_pieces_and_may_break(sim: SimulatedProvider, client: httpx.Client) -> None:
    assert stream(client, "/v1/chat/completions")[-1]["usage"]["total_tokens"] == 12
    assert stream(client, "/v1/messages", headers={"x-api-key": "k2"})[-1] == {"type": "message_stop"}
    path = "/v1beta/models/sim-1:streamGenerateContent?alt=sse"
    assert len(stream(client, path, headers={"x-goog-api-key": "k2"})) == 3
    assert stream(client, "/v1/responses")[-1]["type"] == "response.completed"
    sim.script([Scripted(breaks_with="limit")] * 2)
    assert stream(client, "/v1/chat/completions")[-1]["error"]["code"] == "rate_limit_exceeded"
    assert stream(client, "/v1/responses")[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
    assert stream(client, "/v1/chat/completions")[-1]["usage"]["total_tokens"] == 12  # the connection is still usable


def test_tokens_are_reserved_by_request_and_settled_by_answer() -> None:
    request = CHAT | {"max_tokens": 60}
    limits = [DailyQuota(100, counts="tokens")]
    with (
        SimulatedProvider(["k1"], limits=limits, latency=0.0) as sim,
        httpx.Client(base_url=sim.base_url, headers={"Authorization": "Bearer k1"}) as client,
    ):
        answers = [client.post("/v1/chat/completions", json=request) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-tokens"] for answer in answers] == ["38", "20", "2", "46"]


def test_dropped_connection_is_a_transport_error(sim: SimulatedProvider, client: httpx.Client) -> None:
    sim.script([Scripted(drops=True)])
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/v1/work")
    assert client.post("/v1/work").status_code == 200


def test_disconnected_client_frees_its_concurrency() -> None:
    with SimulatedProvider(["k1"], limits=[Concurrency(1)], latency=60.0) as sim:
        with pytest.raises(httpx.ReadTimeout), httpx.Client(timeout=0.2) as client:
            client.post(sim.url, headers={"Authorization": "Bearer k1"})
        eventually(lambda: sim.ask("k1").status == 200)


def test_split_and_pipelined_requests_are_answered(sim: SimulatedProvider) -> None:
    head = b"POST /v1/work HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k1\r\n"
    plain = head + b"Content-Length: 3\r\n\r\none"
    chunked = head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\ntw\r\n1;x=y\r\no\r\n0\r\n\r\n"
    pieces = [(plain + plain + chunked)[start : start + 7] for start in range(0, len(plain + plain + chunked), 7)]
    received = exchange(sim, *pieces)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(b'"echo": "one"') == 2
    assert b'"echo": "two"' in received


def test_head_without_end_is_refused(sim: SimulatedProvider) -> None:
    assert exchange(sim, b"POST / HTTP/1.1\r\nx: " + b"a" * 70_000).startswith(b"HTTP/1.1 431 ")


def test_latencies_of_concurrent_requests_do_not_add_up() -> None:
    request = b"POST /v1/work HTTP/1.1\r\nAuthorization: Bearer k1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def ask(host: str, port: str) -> bytes:  # cheaper than a real client
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer[:12]

    async def ask_all(address: list[str]) -> list[bytes]:
        return await asyncio.gather(*(ask(*address) for _ in range(200)))

    with SimulatedProvider(["k1"], limits=[], latency=1.0) as sim:
        started = time.monotonic()
        assert set(asyncio.run(ask_all(sim.base_url.removeprefix("http://").split(":")))) == {b"HTTP/1.1 200"}
        assert time.monotonic() - started < 1 + BUSY
        assert sim.peak_concurrency["k1"] > 100


def test_provider_process_serves_until_its_input_closes() -> None:
    command = [sys.executable, "-m", "agentos.testing", "--keys", "2", "--fixed", "1/86400"]
    command += [
        "--latency",
        "0",
        "--sliding",
        "9",
        "--rate",
        "9",
        "--per-day",
        "9",
        "--concurrent",
        "9",
        "--groups",
        "1",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        assert started["keys"] == ["sim-key-1", "sim-key-2"]
        with httpx.Client() as client:
            for key in started["keys"]:
                client.post(started["url"], headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(f"{started['base_url']}/_stats") as response:
            stats = json.load(response)
        assert (stats["answered"], stats["limited"]) == (1, 1)
        assert [entry[3:5] for entry in stats["log"]] == [[200, "ok"], [429, "requests per day"]]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, None])
def test_provider_process_survives_without_input(stdin: int | None, unused_port: int) -> None:
    """With the null device as stdin, or none at all, a signal ends the provider, and nothing else."""
    command = [sys.executable, "-m", "agentos.testing", "--port", str(unused_port)]
    if stdin is None:
        command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        assert started["base_url"] == f"http://127.0.0.1:{unused_port}"
        with httpx.Client() as client:
            for _ in range(3):
                answer = client.post(started["url"], headers={"Authorization": f"Bearer {started['keys'][0]}"})
                assert answer.status_code == 200
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
