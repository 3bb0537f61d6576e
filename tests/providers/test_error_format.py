"""Errors of our own, read by the providers' SDKs and by our reader of verdicts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_args

import pytest

from agentos.providers import verdicts
from agentos.providers.error_format import STATUSES, ErrorKind, error_body, error_headers
from agentos.verdict import AUTH_FAILED, OVERLOADED, PERMANENT, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT

from .sdk_clients import Anthropic, GoogleGenai, OpenAi, OpenAiResponses, Sdk, load

MESSAGE = "No credential is usable before 14:05 UTC: run `agentos keys` “now”."
KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)


class ErrorServer(ThreadingHTTPServer):
    """Answers every request with one error, and counts the requests."""

    daemon_threads = True
    status = 500
    headers: dict[str, str]
    body: bytes
    requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer_with(self, shape: str, kind: ErrorKind, retry_after: float | None, *, is_final: bool = False) -> None:
        self.status = STATUSES[kind]
        self.body = error_body(shape, self.status, kind, MESSAGE, retry_after)
        self.headers = error_headers(shape, retry_after, is_final=is_final)
        self.requests = 0


class _Handler(BaseHTTPRequestHandler):
    server: ErrorServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.requests += 1
        self.send_response(self.server.status)
        for name, value in {**self.server.headers, "content-length": str(len(self.server.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: Any) -> None:
        """No-op: the output of the tests stays empty."""


@pytest.fixture(scope="module")
def server() -> Iterator[ErrorServer]:
    with ErrorServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def raised_by(sdk: Sdk) -> Any:
    try:
        sdk.ask("key-1")
    except Exception as error:
        return error
    finally:
        for client in sdk._clients.values():
            client.close()
    raise AssertionError("the SDK raised nothing")


OPENAI_CLASSES = {
    429: "RateLimitError",
    401: "AuthenticationError",
    402: "APIStatusError",
    403: "PermissionDeniedError",
    400: "BadRequestError",
    404: "NotFoundError",
    413: "APIStatusError",
    500: "InternalServerError",
    503: "InternalServerError",
    504: "InternalServerError",
}
ANTHROPIC_CLASSES = {
    **OPENAI_CLASSES,
    413: "RequestTooLargeError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "sdk"), [("openai-chat", OpenAi), ("openai-responses", OpenAiResponses)])
def test_openai_sdk_raises_its_class(server: ErrorServer, shape: str, sdk: type[Sdk], kind: ErrorKind) -> None:
    server.answer_with(shape, kind, 7.2 if kind == "rate_limited" else None)
    error = raised_by(sdk(server.url))
    assert type(error).__name__ == OPENAI_CLASSES[server.status]
    assert error.body["message"] == MESSAGE
    assert error.code == json.loads(server.body)["error"]["code"]
    assert error.response.headers.get("retry-after") == ("8" if kind == "rate_limited" else None)


@pytest.mark.parametrize("kind", KINDS)
def test_anthropic_sdk_raises_its_class(server: ErrorServer, kind: ErrorKind) -> None:
    server.answer_with("anthropic", kind, 7.2 if kind == "rate_limited" else None)
    error = raised_by(Anthropic(server.url))
    anthropic = load("anthropic")
    assert isinstance(error, getattr(anthropic, ANTHROPIC_CLASSES[server.status], anthropic.APIStatusError))
    assert error.body["error"]["message"] == MESSAGE
    assert error.type == json.loads(server.body)["error"]["type"]
    assert error.response.headers.get("retry-after") == ("8" if kind == "rate_limited" else None)


@pytest.mark.parametrize("kind", KINDS)
def test_google_sdk_raises_its_class(server: ErrorServer, kind: ErrorKind) -> None:
    server.answer_with("gemini", kind, 7.2 if kind == "rate_limited" else None)
    error = raised_by(GoogleGenai(server.url))
    assert type(error).__name__ == ("ServerError" if server.status >= 500 else "ClientError")
    assert (error.code, error.message) == (server.status, MESSAGE)
    assert error.status == json.loads(server.body)["error"]["status"]


@pytest.mark.parametrize(("name", "sdk"), [("openai", OpenAi), ("anthropic", Anthropic)])
def test_sdk_waits_as_told(server: ErrorServer, name: str, sdk: type[Sdk]) -> None:
    shape = "anthropic" if name == "anthropic" else "openai-chat"
    server.answer_with(shape, "rate_limited", 12.001)
    error = raised_by(sdk(server.url))
    client = sdk(server.url).client("key-1")
    assert client._parse_retry_after_header(error.response.headers) == 13
    client.close()


@pytest.mark.parametrize(("shape", "sdk"), [("openai-chat", OpenAi), ("anthropic", Anthropic)])
def test_sdk_repeats_no_final_refusal(server: ErrorServer, shape: str, sdk: type[Sdk]) -> None:
    """Both would repeat a 503 otherwise."""
    server.answer_with(shape, "overloaded", None, is_final=True)
    patient = sdk(server.url)
    patient._clients["key-1"] = patient.client("key-1").with_options(max_retries=2)
    raised_by(patient)
    assert server.requests == 1


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("rate_limited", {RATE_LIMITED}),
        ("quota_exhausted", {QUOTA_EXHAUSTED, RATE_LIMITED}),
        ("budget_reached", {QUOTA_EXHAUSTED}),
        ("overloaded", {OVERLOADED}),
        ("auth_failed", {AUTH_FAILED}),
        ("invalid_request", {PERMANENT, None}),
        ("not_found", {PERMANENT, None}),
        ("too_large", {PERMANENT, None}),
        ("server_error", {TRANSIENT}),
    ],
)
@pytest.mark.parametrize("shape", ["openai-chat", "anthropic", "gemini"])
def test_our_reader_understands_it(shape: str, kind: ErrorKind, verdict: set[str | None]) -> None:
    """A gateway may stand behind another one."""
    status = STATUSES[kind]
    wait = 30 if kind in ("rate_limited", "overloaded") else None
    found = verdicts.from_response(
        status, error_headers(shape, wait), error_body(shape, status, kind, MESSAGE, wait), now=1_800_000_000
    )
    assert found.kind in verdict
    assert found.retry_after == wait
    assert found.message.endswith(MESSAGE)


def test_body_is_ascii_json_for_any_message() -> None:
    body = error_body("openai-chat", 400, "invalid_request", 'quote " and \ud800 and \u2028')
    assert json.loads(body.decode("ascii"))["error"]["message"] == 'quote " and \ud800 and \u2028'
