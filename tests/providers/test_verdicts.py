"""Verdicts of exceptions and responses of real clients."""

from __future__ import annotations

import email.message
import io
import json
import time
import urllib.error
import urllib.response
from collections.abc import Iterator
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.limits.cool_downs import MIN_COOL_DOWN, cool_down
from agentos.providers.verdicts import from_exception, from_observed, from_output, from_response
from agentos.workflows.parallel import (
    AuthFailed,
    Overloaded,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Transient,
    Verdict,
)

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
URL = "https://provider.invalid/v1/work"


def http_date(epoch: float) -> str:
    return formatdate(epoch, usegmt=True)


def httpx_error(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    """Return what httpx raises for this answer."""
    answer = httpx.MockTransport(lambda request: httpx.Response(status, headers=headers))
    with httpx.Client(transport=answer) as client, pytest.raises(httpx.HTTPStatusError) as caught:
        client.get(URL).raise_for_status()
    return caught.value


def urllib_error(status: int, headers: dict[str, str] | None = None) -> urllib.error.HTTPError:
    message = email.message.Message()
    for name, value in (headers or {}).items():
        message[name] = value
    return urllib.error.HTTPError(URL, status, "refused", message, io.BytesIO(b""))


CLIENTS = [httpx_error, urllib_error]


class SdkError(Exception):
    """An exception in the shape that SDKs share: a status, and a response with headers."""

    def __init__(self, status_code: Any, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__("refused")
        self.status_code = status_code
        self.response = SimpleNamespace(status_code=status_code, headers=headers or {})
        vars(self).update(more)


def raised_from(error: BaseException, *causes: BaseException) -> BaseException:
    """Return `error`, raised from the first cause, which was raised from the second, and so on."""
    effect = error
    for cause in causes:
        try:
            raise effect from cause
        except BaseException:
            effect = cause
    return error


# --- exceptions of workers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exc", "kind", "retry_after"),
    [
        (RateLimited(), "rate_limited", None),
        (RateLimited(retry_after=12.5), "rate_limited", 12.5),
        (RateLimited(retry_after=0), "rate_limited", 0),
        (QuotaExhausted(), "quota_exhausted", None),
        (QuotaExhausted(until=NOW + 3600), "quota_exhausted", 3600),
        (QuotaExhausted(until=NOW - 5), "quota_exhausted", 0),
        (AuthFailed(), "auth_failed", None),
        (Overloaded(), "overloaded", None),
        (Overloaded(retry_after=7), "overloaded", 7),
        (Transient(), "transient", None),
        (Permanent(), "permanent", None),
    ],
)
def test_worker_exception_gives_its_kind(exc: Exception, kind: str, retry_after: float | None) -> None:
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after) == (kind, retry_after)


@pytest.mark.parametrize(
    "cls", [RateLimited, QuotaExhausted, AuthFailed, Overloaded, Transient, Permanent, ConnectionResetError]
)
def test_verdict_keeps_message_of_exception(cls: type[Exception]) -> None:
    assert from_exception(cls("said the provider"), now=NOW).message == "said the provider"


def test_subclass_of_rate_limited_is_rate_limited() -> None:
    class TooManyPages(RateLimited):
        pass

    assert from_exception(TooManyPages(retry_after=3), now=NOW) == Verdict("rate_limited", 3, message="rate limited")


def test_now_defaults_to_current_time() -> None:
    before = time.time()
    verdict = from_exception(QuotaExhausted(until=before + 1000))
    after = time.time()
    assert verdict.retry_after is not None
    assert before + 1000 - after <= verdict.retry_after <= 1000


# --- statuses -----------------------------------------------------------------------------------------------------

STATUSES = [
    (400, "permanent"),
    (401, "auth_failed"),
    (402, "quota_exhausted"),
    (404, "permanent"),
    (408, "transient"),
    (422, "permanent"),
    (425, "transient"),
    (429, "rate_limited"),
    (500, "transient"),
    (502, "transient"),
    (503, "overloaded"),
    (504, "transient"),
    (529, "overloaded"),
    (599, "transient"),
]


@pytest.mark.parametrize(("status", "kind"), STATUSES)
def test_error_status_gives_kind(status: int, kind: str) -> None:
    verdict = from_response(status, now=NOW)
    assert verdict == Verdict(kind, message=f"HTTP {status}", window=verdict.window)
    assert verdict.window == {"quota_exhausted": "credits", "overloaded": "capacity"}.get(kind)


@pytest.mark.parametrize(("status", "kind"), STATUSES)
@pytest.mark.parametrize("error_of", CLIENTS)
def test_status_is_read_from_exceptions_of_clients(error_of: Any, status: int, kind: str) -> None:
    verdict = from_exception(error_of(status), now=NOW)
    assert (verdict.kind, verdict.retry_after, verdict.message) == (kind, None, f"HTTP {status}")


@pytest.mark.parametrize("status", [None, 100, 200, 204, 301, 304, 399])
def test_success_status_gives_no_verdict(status: int | None) -> None:
    verdict = from_response(status, {"Retry-After": "5"}, now=NOW)
    assert verdict.kind is None
    assert verdict.retry_after is None


def test_enum_status_is_read_as_number() -> None:
    assert from_exception(SdkError(HTTPStatus.TOO_MANY_REQUESTS), now=NOW) == Verdict(
        "rate_limited", message="HTTP 429"
    )


@pytest.mark.parametrize("status", [True, "429", 1006, 0, 99, 600, None, 429.0])
def test_invalid_status_gives_no_verdict(status: Any) -> None:
    assert from_exception(SdkError(status), now=NOW).kind is None


@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_status_is_read_from_each_attribute_name(name: str) -> None:
    exc = Exception("refused")
    setattr(exc, name, 429)
    exc.headers = {"Retry-After": "4"}  # type: ignore[attr-defined]
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("rate_limited", 4)


def test_status_is_read_from_response() -> None:
    exc = Exception("refused")
    exc.response = SimpleNamespace(status_code=503, headers={"Retry-After": "4"})  # type: ignore[attr-defined]
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("overloaded", 4)


def test_text_in_status_attribute_does_not_hide_status() -> None:
    exc = SdkError("rate_limit_exceeded", {"Retry-After": "4"}, status=429, code="rate_limit_exceeded")
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("rate_limited", 4)


class FalsyResponse:
    """A response that is false if its status is an error, as in requests."""

    status_code = 429

    def __init__(self) -> None:
        self.headers = {"Retry-After": "4"}

    def __bool__(self) -> bool:
        return False


def test_falsy_response_is_read() -> None:
    exc = Exception("refused")
    exc.response = FalsyResponse()  # type: ignore[attr-defined]
    assert from_exception(exc, now=NOW).retry_after == 4
    assert from_observed(FalsyResponse(), now=NOW).retry_after == 4


@pytest.mark.parametrize("headers", [None, "Retry-After: 4", [("Retry-After", "4")], 7])
def test_headers_without_mapping_are_ignored(headers: Any) -> None:
    exc = SdkError(429)
    exc.response.headers = headers
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("rate_limited", None)


class NotSentYet(Exception):
    """An exception with a property that raises."""

    @property
    def response(self) -> Any:
        raise RuntimeError("nothing was sent yet")


def test_raising_attribute_is_ignored() -> None:
    assert from_exception(NotSentYet(), now=NOW) == Verdict(None)
    assert from_exception(raised_from(NotSentYet(), ConnectionResetError()), now=NOW).kind == "transient"


# --- Retry-After --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_of", [*CLIENTS, SdkError])
@pytest.mark.parametrize(
    ("headers", "retry_after"),
    [
        ({}, None),
        ({"Retry-After": "30"}, 30.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": " 30 "}, 30.0),
        ({"retry-after": "30"}, 30.0),
        ({"RETRY-AFTER": "30"}, 30.0),
        ({"Retry-After-Ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "Retry-After": "30"}, 0.25),
        ({"Retry-After": "30", "retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "0", "Retry-After": "30"}, 0.0),
        ({"retry-after-ms": "soon", "Retry-After": "30"}, 30.0),
        ({"Retry-After": http_date(NOW + 90)}, 90.0),
        ({"Retry-After": http_date(NOW - 90)}, 0.0),
        ({"Retry-After": http_date(NOW + 90), "Date": http_date(NOW + 60)}, 30.0),
        ({"Retry-After": http_date(NOW + 90), "date": http_date(NOW - 86_400)}, 86_490.0),
        ({"Retry-After": http_date(NOW + 90), "Date": "yesterday"}, 90.0),
        ({"Retry-After": "30", "Date": http_date(NOW - 86_400)}, 30.0),
        ({"Date": http_date(NOW)}, None),
    ],
)
def test_retry_after_is_read_from_headers(error_of: Any, headers: dict[str, str], retry_after: float | None) -> None:
    verdict = from_exception(error_of(429, headers), now=NOW)
    assert verdict.kind == "rate_limited"
    assert verdict.retry_after == retry_after


@pytest.mark.parametrize("status", [402, 429, 500, 503, 529])
def test_retry_after_is_read_for_every_kind(status: int) -> None:
    assert from_response(status, {"Retry-After": "30"}, now=NOW).retry_after == 30


@pytest.mark.parametrize("value", ["-5", "-0.5", "0", http_date(NOW - 3600)])
def test_past_retry_after_is_zero(value: str) -> None:
    verdict = from_response(429, {"Retry-After": value}, now=NOW)
    assert verdict.kind == "rate_limited"
    assert cool_down(verdict) == MIN_COOL_DOWN


GARBAGE = ["", " ", "soon", "30s", "1, 2", "nan", "inf", "-inf", "1e999", ",", ":::", "2023-11-14T22:14:50Z", "\x00"]


@pytest.mark.parametrize("value", GARBAGE)
def test_invalid_retry_after_is_ignored(value: str) -> None:
    assert from_response(429, {"Retry-After": value}, now=NOW) == Verdict("rate_limited", message="HTTP 429")


@pytest.mark.parametrize(
    "value",
    [
        "Tue, 14 Nov 99999999999999999999 22:14:50 GMT",
        "Tue, 14 Nov 2023 22:14:50 +99999999999999999999",
        "Tue, 99 Nov 2023 22:14:50 GMT",
    ],
)
@pytest.mark.parametrize("name", ["Retry-After", "Date"])
def test_date_out_of_range_is_ignored(name: str, value: str) -> None:
    headers = {"Retry-After": http_date(NOW + 90), name: value}
    expected = None if name == "Retry-After" else 90
    assert from_response(429, headers, now=NOW).retry_after == expected


@given(
    value=st.text()
    | st.text(alphabet="0123456789-+.eE_ ")
    | st.from_regex(r"\A(Tue, )?\d{1,3}[ -](Nov|Feb)[ -]\d{1,5} \d\d:\d\d(:\d\d)?( GMT| [+-]\d{4})?\Z"),
)
@example(value="Tue, 29 Feb 2023 22:14:50 GMT")
@example(value="14 Nov 0 00:00 GMT")
def test_any_retry_after_header_is_read_without_error(value: str) -> None:
    for headers in ({"Retry-After": value}, {"Retry-After": http_date(NOW), "Date": value}, {"retry-after-ms": value}):
        verdict = from_response(429, headers, now=NOW)
        assert verdict.kind == "rate_limited"
        assert verdict.retry_after is None or abs(verdict.retry_after) < float("inf")


@pytest.fixture(params=["UTC0", "EST+5", "IST-5:30"])
def _time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_time_zone")
@pytest.mark.parametrize(
    "value",
    [
        "Tue, 14 Nov 2023 22:14:50 GMT",
        "Tuesday, 14-Nov-23 22:14:50 GMT",
        "Tue Nov 14 22:14:50 2023",
    ],
)
def test_http_dates_are_utc_in_every_local_zone(value: str) -> None:
    assert from_response(429, {"Retry-After": value}, now=NOW).retry_after == 90
    assert from_response(429, {"Retry-After": value, "Date": http_date(NOW + 60)}, now=NOW).retry_after == 30


# --- chains of exceptions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_of", CLIENTS)
def test_cause_of_exception_is_read(error_of: Any) -> None:
    exc = raised_from(RuntimeError("page 7 failed"), error_of(429, {"Retry-After": "30"}))
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("rate_limited", 30)


def test_third_cause_is_read() -> None:
    exc = raised_from(RuntimeError("page"), ValueError("client"), KeyError("transport"), RateLimited(retry_after=3))
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("rate_limited", 3)


def test_cause_beyond_limit_is_ignored() -> None:
    exc = raised_from(*(KeyError(number) for number in range(10)), RateLimited(retry_after=3))
    assert from_exception(exc, now=NOW) == Verdict(None)


def test_outermost_verdict_of_chain_counts() -> None:
    assert from_exception(raised_from(Permanent("give up"), httpx_error(429)), now=NOW).kind == "permanent"
    assert from_exception(raised_from(httpx_error(401), ConnectionError()), now=NOW).kind == "auth_failed"
    assert from_exception(raised_from(KeyError(), RateLimited(), Permanent()), now=NOW).kind == "rate_limited"


def test_wrapped_connection_error_is_transient() -> None:
    request = httpx.Request("GET", URL)
    refused = raised_from(httpx.ConnectError("refused", request=request), ConnectionRefusedError(111, "refused"))
    assert from_exception(refused, now=NOW).kind == "transient"
    late = raised_from(httpx.ReadTimeout("late", request=request), TimeoutError("timed out"))
    assert from_exception(late, now=NOW).kind == "transient"


def test_cyclic_causes_terminate() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert from_exception(first, now=NOW) == Verdict(None)


# --- exceptions of Python -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exc",
    [
        ConnectionError("gone"),
        ConnectionResetError(104, "reset"),
        ConnectionRefusedError(111, "refused"),
        BrokenPipeError(32, "broken"),
        TimeoutError("late"),
    ],
)
def test_connection_errors_and_timeouts_are_transient(exc: Exception) -> None:
    verdict = from_exception(exc, now=NOW)
    assert (verdict.kind, verdict.retry_after, verdict.message) == ("transient", None, str(exc))


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("429"),
        KeyError("rate limit"),
        RuntimeError("HTTP 503"),
        ZeroDivisionError(),
        FileNotFoundError(2, "no"),
        MemoryError(),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
)
def test_unrelated_exception_gives_no_verdict(exc: BaseException) -> None:
    assert from_exception(exc, now=NOW) == Verdict(None)


# --- responses without an exception -------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "kind"), [*STATUSES, (200, None), (304, None)])
def test_response_is_read_like_its_exception(status: int, kind: str | None) -> None:
    kind = "rate_limited" if status == 402 else kind  # with a wait it is about requests in flight, not money
    verdict = from_observed(httpx.Response(status, headers={"Retry-After": "30"}), now=NOW)
    assert (verdict.kind, verdict.retry_after) == (kind, None if kind is None else 30)


def test_response_of_standard_library_is_read() -> None:
    headers = email.message.Message()
    headers["Retry-After"] = http_date(NOW + 90)
    with urllib.response.addinfourl(io.BytesIO(b""), headers, URL, 429) as response:
        verdict = from_observed(response, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("rate_limited", 90)


def test_response_inside_sdk_object_is_read() -> None:
    wrapped = SimpleNamespace(response=httpx.Response(503, headers={"Retry-After": "30"}))
    verdict = from_observed(wrapped, now=NOW)
    assert (verdict.kind, verdict.retry_after) == ("overloaded", 30)


@pytest.mark.parametrize("thing", [None, "429", 429, {"status_code": 429}, object(), SimpleNamespace(response=None)])
def test_object_without_response_gives_no_verdict(thing: Any) -> None:
    assert from_observed(thing, now=NOW) == Verdict(None)


def test_observed_response_uses_current_time() -> None:
    before = time.time()
    verdict = from_observed(httpx.Response(429, headers={"Retry-After": http_date(int(before) + 1000)}))
    after = time.time()
    assert verdict.retry_after is not None
    assert int(before) + 1000 - after <= verdict.retry_after <= 1000


# --- recorded answers of providers --------------------------------------------------------------------------------

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())


@pytest.mark.parametrize("knows_provider", [True, False])
@pytest.mark.parametrize("vector", VECTORS, ids=[f"{each['provider']}: {each['case']}" for each in VECTORS])
def test_recorded_answers_give_expected_verdicts(vector: dict[str, Any], knows_provider: bool) -> None:
    body, now = vector["body"], vector["now"]
    provider = vector["provider"] if knows_provider else None
    if vector["channel"] == "cli":
        text = body if isinstance(body, str) else json.dumps(body)
        verdict = from_output(text, vector.get("exit_code"), provider=provider, now=now)
    else:
        verdict = from_response(vector["status"], vector["headers"], body, provider=provider, now=now)
    expected = vector["expected"]
    assert verdict.kind == expected["kind"]
    assert verdict.retry_after == pytest.approx(expected["retry_after_seconds"])
    assert verdict.remaining_requests == expected["remaining_requests"]
    assert verdict.remaining_tokens == expected["remaining_tokens"]
    assert verdict.reset_requests == pytest.approx(expected["reset_requests_seconds"])
    assert verdict.reset_tokens == pytest.approx(expected["reset_tokens_seconds"])
    if "limit_window" in vector:
        assert verdict.window == vector["limit_window"]
    if "suggested_cooldown_seconds" in vector:
        assert verdict.cool_down == pytest.approx(vector["suggested_cooldown_seconds"])
