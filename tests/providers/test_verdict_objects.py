"""Verdicts of exceptions and responses in the shapes of SDKs, and of generated ones, which must not raise."""

# ruff: noqa: E501 - tables of answers, one per line
from __future__ import annotations

import io
import json
import math
import subprocess
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict

from agentos.providers import _command_output as command_output
from agentos.providers import _dates as dates
from agentos.providers import _evidence as evidence
from agentos.providers._bodies import read
from agentos.providers.verdicts import (
    _from_exception,
    _from_response,
    from_exception,
    from_observed,
    from_output,
    from_response,
)
from agentos.verdict import VERDICT_KINDS, WindowReport
from agentos.workflows.parallel import RateLimited, Verdict

NOW = 1794772800.0  # Sunday, 2026-11-15 20:00:00 UTC


def error(module: str, name: str, message: str = "refused", *bases: type, **attributes: Any) -> Exception:
    """Return an exception whose class has this name and module."""
    cls = type(name, bases or (Exception,), {"__module__": module})
    exc = cls(message)
    vars(exc).update(attributes)
    return exc


def answer(status: int, headers: dict[str, str] | None = None, body: Any = None) -> httpx.Response:
    return httpx.Response(status, headers=headers, json=body)


INSUFFICIENT = {
    "message": "You exceeded your current quota",
    "type": "insufficient_quota",
    "code": "insufficient_quota",
}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
SPENT = {
    "type": "error",
    "error": {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
}
PER_DAY = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "x",
        "details": [{"violations": [{"quotaId": "GenerateRequestsPerDay", "quotaDimensions": {"model": "gemini-3"}}]}],
    }
}

EXCEPTIONS: list[tuple[str, Exception, dict[str, Any]]] = [
    ("openai keeps the inner error", error("openai", "RateLimitError", status_code=429, body=INSUFFICIENT,
     code="insufficient_quota", type="insufficient_quota", response=answer(429, {}, {"error": INSUFFICIENT})),
     {"kind": "quota_exhausted", "window": "credits"}),
    ("openai in a stream", error("openai", "APIError", body={"code": "rate_limit_exceeded", "message": "Try again in 4s"},
     code="rate_limit_exceeded", type=None), {"kind": "rate_limited", "retry_after": 4}),
    ("openai in a stream of a gateway", error("openai", "APIError", code=429, type=None,
     body={"code": 429, "message": "slow"}), {"kind": "rate_limited"}),
    ("openai, only a type", error("openai", "APIError", body=None, code=None, type="server_error"), {"kind": "transient"}),
    ("openai on Azure", error("openai", "RateLimitError", status_code=429, code="429", type=None,
     body={"code": "429", "message": "Please retry after 8 seconds."}), {"kind": "rate_limited", "retry_after": 8}),
    ("openai, no connection", error("openai", "APIConnectionError", "Connection error.", body=None, code=None),
     {"kind": "transient"}),
    ("openai, too late", error("openai", "APITimeoutError", "x", body=None), {"kind": "transient"}),
    ("anthropic in a stream", error("anthropic", "APIStatusError", status_code=200, type="overloaded_error",
     body=OVERLOADED, response=answer(200)), {"kind": "overloaded"}),
    ("anthropic, money", error("anthropic", "RateLimitError", status_code=429, body=SPENT), {"kind": "quota_exhausted",
     "window": "month"}),
    ("anthropic, overloaded", error("anthropic", "OverloadedError", status_code=529, body=OVERLOADED, type=None),
     {"kind": "overloaded"}),
    ("groq in a stream", error("groq", "APIError", body={"error": {"message": "x", "code": "rate_limit_exceeded"}}),
     {"kind": "rate_limited"}),
    ("genai", error("google.genai.errors", "ClientError", code=429, status="RESOURCE_EXHAUSTED", details=PER_DAY,
     message="x", response=answer(429, {}, PER_DAY)), {"kind": "quota_exhausted", "window": "day", "scope": "gemini-3",
                                                       "cool_down": 43_200}),
    ("genai in a stream", error("google.genai.errors", "ServerError", code=503, status="UNAVAILABLE", details={},
     message="busy", response=answer(200)), {"kind": "overloaded"}),
    ("genai, async", error("google.genai.errors", "ClientError", code=429, status="RESOURCE_EXHAUSTED", details=PER_DAY,
     response=SimpleNamespace(status=429, headers={"Retry-After": "3"})), {"kind": "quota_exhausted", "retry_after": 3}),
    ("mistral", error("mistralai.client.errors", "SDKError", status_code=429, headers={"retry-after": "5"},
     body='{"object":"error","message":"Service tier capacity exceeded for this model.","type":"invalid_request_error"}'),
     {"kind": "overloaded", "retry_after": 5}),
    ("cohere", error("cohere.errors", "TooManyRequestsError", status_code=429, headers={"date": "x"},
     body={"message": "limited to 1000 API calls / month"}), {"kind": "quota_exhausted", "window": "month"}),
    ("botocore", error("botocore.exceptions", "ClientError", response={
        "Error": {"Code": "ThrottlingException", "Message": "Too many tokens per day"},
        "ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"x-amzn-requestid": "1"}}}),
     {"kind": "quota_exhausted", "window": "day"}),
    ("botocore, expired", error("botocore.exceptions", "ClientError", response={
        "Error": {"Code": "ExpiredTokenException", "Message": "expired"}, "ResponseMetadata": {"HTTPStatusCode": 403}}),
     {"kind": "auth_failed"}),
    ("botocore in a stream", error("botocore.exceptions", "EventStreamError", response={
        "Error": {"Code": "throttlingException", "Message": "Too many requests"}}), {"kind": "rate_limited"}),
    ("botocore, no connection", error("botocore.exceptions", "EndpointConnectionError"), {"kind": "transient"}),
    ("grpc", error("grpc._channel", "RpcError", code=lambda: SimpleNamespace(name="RESOURCE_EXHAUSTED"),
     details=lambda: "Too many requests"), {"kind": "rate_limited"}),
    ("grpc, bad key", error("grpc.aio", "RpcError", code=lambda: SimpleNamespace(name="UNAUTHENTICATED"),
     details=lambda: "who are you"), {"kind": "auth_failed"}),
    ("aiohttp", error("aiohttp", "ClientResponseError", status=429, headers={"Retry-After": "6"}, message="Too Many"),
     {"kind": "rate_limited", "retry_after": 6}),
    ("PyGithub", error("github", "GithubException", status=403, headers={}, data={"message": "secondary rate limit"}),
     {"kind": "rate_limited", "cool_down": 60}),
    # litellm: own statuses and codes, the answer of the provider in the message
    ("litellm, 529", error("litellm.exceptions", "InternalServerError", status_code=500, llm_provider="anthropic", code="500",
     type=None, message="litellm.InternalServerError: AnthropicException - " + json.dumps(OVERLOADED)),
     {"kind": "overloaded"}),
    ("litellm, gemini 503", error("litellm.exceptions", "InternalServerError", status_code=500, llm_provider="gemini",
     message='litellm.InternalServerError: geminiException - {\n"error": {"code": 503, "status": "UNAVAILABLE"}}\n'),
     {"kind": "overloaded"}),
    ("litellm, quota", error("litellm.exceptions", "RateLimitError", status_code=429, llm_provider="gemini", code="429",
     type="throttling_error", message="litellm.RateLimitError: geminiException - " + json.dumps(PER_DAY)),
     {"kind": "quota_exhausted", "window": "day"}),
    ("litellm, bytes", error("litellm.exceptions", "RateLimitError", status_code=429, llm_provider="anthropic",
     message=f"litellm.RateLimitError: AnthropicException - {json.dumps(SPENT).encode()!r}"),
     {"kind": "quota_exhausted", "window": "month"}),
    ("litellm, headers", error("litellm.exceptions", "RateLimitError", status_code=429, llm_provider="openai", code="429",
     type="throttling_error", body=None, response=answer(429), litellm_response_headers={"Retry-After": "7"},
     message="litellm.RateLimitError: RateLimitError: OpenAIException - Rate limit reached"),
     {"kind": "rate_limited", "retry_after": 7}),
    ("litellm, money", error("litellm.exceptions", "BadRequestError", status_code=402, llm_provider="deepseek",
     message="litellm.BadRequestError: DeepseekException - Insufficient Balance"), {"kind": "quota_exhausted"}),
    # connections
    *((f"{module}.{name}", error(module, name), {"kind": "transient"}) for module, name in [
        ("httpx", "ConnectError"), ("httpx2", "ReadTimeout"), ("httpx2._exceptions", "RemoteProtocolError"),
        ("aiohttp.client_exceptions", "ServerDisconnectedError"), ("requests.exceptions", "ConnectionError"),
        ("requests.exceptions", "ChunkedEncodingError"), ("urllib3.exceptions", "MaxRetryError"),
        ("anthropic", "APIConnectionError"), ("http.client", "IncompleteRead"), ("urllib.error", "URLError"),
    ]),
    ("same name in another module", error("shop.orders", "ConnectError"), {"kind": None}),
    ("code of a user's exception", error("shop.orders", "Refused", code="unauthorized", details={"message": "bad API key"}),
     {"kind": None}),
    ("other error of a library", error("httpx", "UnsupportedProtocol"), {"kind": None}),
    ("code of a database", error("psycopg.errors", "UniqueViolation", code="23505", type=None), {"kind": None}),
]  # fmt: skip


@pytest.mark.parametrize(("exc", "expected"), [each[1:] for each in EXCEPTIONS], ids=[each[0] for each in EXCEPTIONS])
def test_exceptions_of_sdks(exc: Exception, expected: dict[str, Any]) -> None:
    fields = from_exception(exc, now=NOW)._asdict()
    assert {name: fields[name] for name in expected} == expected


def test_first_retryable_exception_of_group_counts() -> None:
    group = ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [ConnectionError(), RateLimited(retry_after=3)])])
    assert from_exception(group, now=NOW) == Verdict("rate_limited", 3, message="rate limited")
    assert from_exception(ExceptionGroup("g", [ValueError(), TimeoutError("late")]), now=NOW).kind == "transient"
    assert from_exception(ExceptionGroup("g", [ValueError()]), now=NOW) == Verdict(None)
    wrapped = RuntimeError("all failed")
    wrapped.__cause__ = group
    assert from_exception(wrapped, now=NOW).kind == "rate_limited"


def test_called_process_error_is_read_by_its_output() -> None:
    exc = subprocess.CalledProcessError(1, ["claude"], output=b"", stderr="You've hit your limit · resets 9pm (UTC)")
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.cool_down) == ("quota_exhausted", 3600)
    assert from_exception(subprocess.CalledProcessError(75, ["x"]), now=NOW).kind == "rate_limited"
    assert from_exception(subprocess.CalledProcessError(1, ["x"]), now=NOW).kind is None


# --- responses ----------------------------------------------------------------------------------------------------

PACED = {"X-RateLimit-Limit-Requests": "60", "x-ratelimit-remaining-requests": "7"}


class StreamReader:
    """The type of `content` in aiohttp."""


def requests_response(status: int, body: Any) -> requests.Response:
    """Return a response as requests returns it with `stream=True`: its body has not arrived."""
    response = requests.Response()
    response.status_code, response.headers = status, CaseInsensitiveDict(PACED)
    raw = io.BytesIO(json.dumps(body).encode())
    response.raw = urllib3.HTTPResponse(raw, PACED, status, preload_content=False)
    return response


def test_unread_body_of_requests_stays_unread() -> None:
    response = requests_response(429, {"error": INSUFFICIENT})
    assert from_observed(response, now=NOW).kind == "rate_limited"
    assert json.loads(response.content) == {"error": INSUFFICIENT}
    assert from_observed(response, now=NOW).kind == "quota_exhausted"


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, headers=PACED, json={"choices": []}),
        SimpleNamespace(status=200, headers=PACED, _body=b"{}", content=StreamReader(), read=None),
        SimpleNamespace(headers=PACED, http_response=httpx.Response(200, headers=PACED)),
        SimpleNamespace(response=httpx.Response(200, headers=PACED, stream=httpx.ByteStream(b"x"))),
        SimpleNamespace(sdk_http_response=SimpleNamespace(headers=PACED)),
        SimpleNamespace(_hidden_params={"additional_headers": {f"llm_provider-{k}": v for k, v in PACED.items()}}),
        SimpleNamespace(response_metadata={"headers": PACED}),
        {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": PACED}},
    ],
)
def test_success_reports_remaining_requests(response: Any) -> None:
    verdict = from_observed(response, now=NOW)
    reported = WindowReport("requests", 60, 60, 7, None)
    assert verdict == Verdict(None, remaining_requests=7, limit_requests=60, requests_period=60, windows=(reported,))


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (httpx.Response(429, json={"error": INSUFFICIENT}), "quota_exhausted"),
        (httpx.Response(200, json={"error": {"code": 429, "message": "x"}, "choices": []}), "rate_limited"),
        (SimpleNamespace(choices=[], error={"code": 503, "message": "Overloaded"}), "overloaded"),
        (
            SimpleNamespace(status="failed", error=SimpleNamespace(code="rate_limit_exceeded", message="x")),
            "rate_limited",
        ),
        (SimpleNamespace(status="completed", error=None), None),
        (SimpleNamespace(type="error", code="server_error", message="x"), "transient"),
        (
            SimpleNamespace(
                type="response.failed", response=SimpleNamespace(error=SimpleNamespace(code="server_is_overloaded"))
            ),
            "overloaded",
        ),
        (OVERLOADED, "overloaded"),
        ({"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 429}}, "rate_limited"),
        (SimpleNamespace(status=429, _body=json.dumps({"error": INSUFFICIENT}), read=None), "quota_exhausted"),
        (SimpleNamespace(status=429, _body=None, content=StreamReader(), read=None), "rate_limited"),
        (MagicMock(), None),
    ],
)
def test_response_object_without_exception_is_read(response: Any, kind: str | None) -> None:
    assert from_observed(response, now=NOW).kind == kind


# --- times of day -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("resets 3:50pm (Asia/Tokyo)", "2026-11-16T06:50:00+00:00"),
        ("resets 12am (UTC)", "2026-11-16T00:00:00+00:00"),
        ("resets 12:30 PM (America/Los_Angeles)", "2026-11-15T20:30:00+00:00"),
        ("resets at 20:00 UTC", "2026-11-16T20:00:00+00:00"),
        ("try again at Nov 16th, 2026 9:00 AM UTC", "2026-11-16T09:00:00+00:00"),
        ("try again at 16 November 2026 21:15 GMT", "2026-11-16T21:15:00+00:00"),
        ("will reset on 2026-11-20 at 08:00 UTC", "2026-11-20T08:00:00+00:00"),
        ("reset on 11/17/2026 at 9:00 AM (UTC)", "2026-11-17T09:00:00+00:00"),
        ("reset on 17/11/2026 at 9:00 AM (UTC)", "2026-11-17T09:00:00+00:00"),
        ("resets Jan 2, 5am (UTC)", "2027-01-02T05:00:00+00:00"),
        ("resets Mon 9am (UTC)", "2026-11-16T09:00:00+00:00"),
        ("resets tomorrow at 1:00 UTC", "2026-11-16T01:00:00+00:00"),
        ("try again at 5pm PST", "2026-11-16T01:00:00+00:00"),
        ("try again at 6:00 UTC+9", "2026-11-15T21:00:00+00:00"),
        ("resets soon", None),
        ("resets 31 Feb 2027", None),
        ("resets at 25:99 UTC", None),
        ("again 7 of 9", None),
    ],
)
def test_time_of_day_in_text_gives_wait(text: str, instant: str | None) -> None:
    from datetime import datetime

    seconds = dates.seconds_until_clock(text, NOW)
    assert seconds == (None if instant is None else datetime.fromisoformat(instant).timestamp() - NOW)


def test_time_without_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XXX-5:30")  # UTC+5:30: it is 1:30 on the 16th
        time.tzset()
        assert dates.seconds_until_clock("Please try again at 11:30 PM.", NOW) == 22 * 3600
        assert dates.seconds_until_clock("try again at Nov 16th, 2026 9:00 AM.", NOW) == 7.5 * 3600
    time.tzset()


def test_missing_zone_database_uses_fixed_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    import zoneinfo

    def missing(key: str) -> Any:
        raise zoneinfo.ZoneInfoNotFoundError(key)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    assert dates.seconds_until_day(NOW, is_pacific=True) == 43_200
    assert dates.seconds_until_clock("resets 1pm (America/Los_Angeles)", NOW) == 3600
    assert dates.seconds_until_clock("resets 1pm (Mars/Olympus)", NOW) is not None


# --- properties ---------------------------------------------------------------------------------------------------

WORDS = [
    "error", "code", "type", "status", "message", "details", "metadata", "violations", "quotaId", "retryDelay", "resets_at",
    "rate_limit_info", "rejected", "headers", "availability", "retry_after", "Error", "Code", "response", "429", "day",
    "rate_limit_exceeded", "RESOURCE_EXHAUSTED", "result", "is_error", "unifiedWindows", "reset", "@type", "google", "raw",
    "try again in 5m3s", "resets 3pm (UTC)", "resets Nov 31", "limit: 0", "per day", "insufficient_quota", "{}", "1e999",
]  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(WORDS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=5), inner),
    max_leaves=20,
)
HEADER_NAMES = st.sampled_from(
    [
        "retry-after", "Retry-After-Ms", "x-amz-retry-after", "date", "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-tokens", "x-ratelimit-reset-requests", "x-ratelimit-reset", "x-tokenlimit-limit",
        "anthropic-ratelimit-unified-status", "anthropic-ratelimit-unified-reset", "anthropic-ratelimit-tokens-reset",
        "x-codex-primary-used-percent", "x-codex-primary-reset-at", "x-quota-snapshot-chat", "x-amzn-errortype",
    ]
)  # fmt: skip
HEADER_VALUES = st.text(max_size=30) | st.sampled_from(
    ["0", "-1", "9" * 400, "1e308", "nan", "rejected", "100", "1794780000", "1794787200000", "2026-11-16T00:00:00Z",
     "9999-12-31T23:59:59-23:59", "Sun, 15 Nov 2026 20:00:30 GMT", "6m0s", "rem=0&rst=x", "ThrottlingException"]
)  # fmt: skip
HEADERS = st.dictionaries(HEADER_NAMES | st.text(max_size=5), HEADER_VALUES, max_size=5)
STATUSES = st.sampled_from(
    [None, 0, 200, 400, 401, 402, 403, 412, 413, 429, 498, 500, 503, 529, True, "429", -5, 10**9]
)
PROVIDERS = st.sampled_from(["", "groq", "gemini", "github", "together", "openrouter"])
NOWS = st.sampled_from([NOW, 0.0, 1e9, 4e9])


def is_sound(verdict: Verdict) -> bool:
    durations = (verdict.retry_after, verdict.cool_down, verdict.reset_requests, verdict.reset_tokens)
    counts = (verdict.remaining_requests, verdict.remaining_tokens, verdict.limit_requests, verdict.limit_tokens)
    assert verdict.kind is None or verdict.kind in VERDICT_KINDS
    assert all(each is None or (math.isfinite(each) and each >= 0) for each in durations)
    assert all(each is None or each >= 0 for each in counts)
    assert verdict.window in (None, "minute", "hour", "day", "month", "plan", "credits", "capacity", "concurrency")
    assert len(verdict.message) <= 300
    assert "\n" not in verdict.message
    return True


# The inner functions: the public ones catch exceptions.


@given(status=STATUSES, headers=HEADERS, body=JSON | st.binary(max_size=50), provider=PROVIDERS, now=NOWS)
def test_any_answer_gives_sound_verdict(status: Any, headers: Any, body: Any, provider: str, now: float) -> None:
    assert is_sound(_from_response((status, headers, body), provider, now))
    if not isinstance(body, bytes):
        assert is_sound(_from_response((status, headers, json.dumps(body)), provider, now))


@given(events=st.lists(JSON, max_size=4), noise=st.text(max_size=40), status=st.none() | st.integers(0, 255), now=NOWS)
def test_any_output_gives_sound_verdict(events: list[Any], noise: str, status: int | None, now: float) -> None:
    text = "\n".join([noise, *(json.dumps(event) for event in events), noise])
    assert is_sound(command_output.read(text, status, "", now))


@given(
    text=st.lists(st.sampled_from([*WORDS, " ", "in", "at", "3", ":", "50pm", "Nov", "2026-", "(Asia/Tokyo)"])).map(
        " ".join
    )
)
def test_any_sentence_gives_sound_verdict(text: str) -> None:
    assert is_sound(_from_response((429, {}, text), "", NOW))
    assert is_sound(command_output.read(text, 1, "", NOW))


@given(attributes=st.dictionaries(st.sampled_from([
    "status_code", "status", "code", "type", "body", "details", "response", "headers", "message", "llm_provider", "data",
    "litellm_response_headers", "raw_response", "error_code", "__cause__"]), JSON))  # fmt: skip
def test_any_exception_gives_sound_verdict(attributes: dict[str, Any]) -> None:
    attributes.pop("__cause__", None)
    exc = error("sdk", "SdkError", **attributes)
    assert is_sound(_from_exception(exc, "", NOW))
    assert is_sound(from_observed(SimpleNamespace(**attributes), now=NOW))


@pytest.mark.parametrize(
    "thing", [None, 7, object(), b"\xff\xfe", float("nan"), {1: 2}, [None], Exception, MagicMock()]
)
def test_public_functions_never_raise(thing: Any) -> None:
    for verdict in (
        from_exception(thing, now=NOW),
        from_observed(thing, now=NOW),
        from_output(thing, thing, now=NOW),
        from_response(thing, thing, thing, now=NOW),
        from_response(429, thing, thing, provider=thing, now=NOW),
        from_response(429, {}, {}, now=math.nan),
    ):
        assert is_sound(verdict)


def test_deep_and_long_bodies_are_read() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"error": deep, "message": json.dumps({"error": "x"})}
    for body in (deep, "[" * 100_000, '{"error":' * 5000, "x" * 2_000_000, "try again in 9s " * 50_000):
        assert is_sound(from_response(429, {}, body, now=NOW))
    assert evidence.judge(429, {}, read("{", NOW, is_error=True), "", NOW).kind == "rate_limited"
