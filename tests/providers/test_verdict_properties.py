"""Properties of verdicts: any answer or output is read without an error and in bounded time; noise has no effect."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

import httpx
from hypothesis import example
from hypothesis import strategies as st

from agentos.limits.declaration import KINDS, PLAN
from agentos.providers import verdicts
from agentos.providers.verdicts import from_observed, from_output, from_response
from agentos.verdict import VERDICT_KINDS, Verdict
from tests.support.properties import holds_for
from tests.support.texts import NUMBERS, ODD, fuzzy, json_values, mutated

from .test_verdict_objects import HEADER_NAMES, HEADER_VALUES, PROVIDERS, STATUSES, WORDS
from .test_verdicts import VECTORS

NOW = 1794772800.0
# Processor seconds for a quarter of a megabyte. Linear reading takes a tenth of this, a quadratic pattern minutes.
MAX_SECONDS = 3.0
DATES = [
    "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
    "Mon, 31 Feb 2026 25:61:61 GMT", "Sun, 15 Nov 99999 20:00:30 GMT", "Sun, 15 Nov 2026 20:00:30 +9999",
    "9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00+23:59", "2026-W46-1", "20261116T000000Z", "-1", "1e10",
    "6m0s", "1h1h1h", "999999999999999999d", "-5s", "",
]  # fmt: skip


def is_sound(verdict: Verdict) -> None:
    numbers = verdict._asdict()
    for name in ("kind", "window", "scope", "message", "windows"):
        numbers.pop(name)
    for report in verdict.windows:
        assert report.of in (*KINDS, PLAN)
        assert all(each is None or (math.isfinite(each) and each >= 0) for each in report[1:]), verdict
    assert verdict.kind is None or verdict.kind in VERDICT_KINDS
    assert all(each is None or (math.isfinite(each) and each >= 0) for each in numbers.values()), verdict
    assert verdict.requests_period != 0 != verdict.tokens_period
    assert verdict.window in (None, "minute", "hour", "day", "month", "plan", "credits", "capacity", "concurrency")
    assert verdict.scope is None or isinstance(verdict.scope, str)
    assert len(verdict.message) <= 300
    assert "\n" not in verdict.message


# --- headers --------------------------------------------------------------------------------------------------------

NAMES = HEADER_NAMES | st.sampled_from(["RETRY-AFTER", "ratelimit-reset", "X-RateLimit-Remaining", "Date"]) | fuzzy(12)
TEXTS = HEADER_VALUES | st.sampled_from([*NUMBERS, *DATES, *ODD]) | fuzzy(20)
VALUES = (
    TEXTS
    | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.integers()
    | st.floats()
    | st.none()
    | st.lists(TEXTS, max_size=2)
)


class Broken(dict[Any, Any]):
    """A mapping that raises while it is read."""

    def items(self) -> Any:
        yield "retry-after", "5"
        raise RuntimeError("no more")


MAPPINGS = (
    st.dictionaries(NAMES | NAMES.map(lambda name: name.encode("utf-8", "replace")), VALUES, max_size=6)
    | st.lists(st.tuples(NAMES, VALUES), max_size=4)
    | st.builds(Broken)
    | st.lists(st.tuples(NAMES.map(lambda name: name.encode("ascii", "ignore")), TEXTS.map(
        lambda text: text.encode("utf-8", "replace"))), max_size=5).map(httpx.Headers)
)  # fmt: skip


@holds_for(examples=40, status=STATUSES, headers=MAPPINGS, provider=PROVIDERS)
@example(status=429, headers={b"Retry-After": b"\xff"}, provider="")
@example(status=429, headers={"retry-after": ["5", "6"]}, provider="")
@example(status=429, headers={"X-RateLimit-Remaining": 5.5, "x-ratelimit-remaining": "-1"}, provider="")
def test_any_headers_give_sound_verdict(status: Any, headers: Any, provider: str) -> None:
    is_sound(from_response(status, headers, {"error": {"message": "no"}}, provider=provider, now=NOW))
    # The inner function: `from_response` catches exceptions.
    is_sound(verdicts._from_response((status, headers, None), provider, NOW))


# --- bodies and outputs ---------------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*WORDS, *NUMBERS, *DATES])
    | st.sampled_from([10**400, -(10**400), 429, 503, 1e308, -0.0])
    | fuzzy(12)
)
BODIES = json_values(st.sampled_from(WORDS) | fuzzy(5), SCALARS)


def dumped(body: Any) -> bytes:
    return json.dumps(body).encode()


@holds_for(
    examples=40,
    status=STATUSES,
    body=BODIES | mutated(BODIES.map(dumped), [piece.encode("utf-8", "replace") for piece in [*ODD, *NUMBERS, *WORDS]]),
    provider=PROVIDERS,
    exit_status=st.none() | st.integers(-20, 255),
)
@example(status=429, body=b"[" * 100_000, provider="", exit_status=1)
@example(status=429, body=b'{"error":' * 20_000, provider="", exit_status=1)
@example(status=429, body={"error": {"message": "9" * 5000, "retry_after": 10**5000}}, provider="", exit_status=1)
def test_any_body_gives_sound_verdict_from_every_function(
    status: Any, body: Any, provider: str, exit_status: int | None
) -> None:
    is_sound(verdicts._from_response((status, {}, body), provider, NOW))
    is_sound(verdicts._from_output((body, exit_status), provider, NOW))
    if isinstance(body, bytes):
        text = body.decode("utf-8", "replace")
        is_sound(verdicts._from_response((status, {}, text), provider, NOW))
        is_sound(verdicts._from_output((text, exit_status), provider, NOW))
        is_sound(verdicts._from_response((status, {}, memoryview(body)), provider, NOW))
    else:
        is_sound(from_observed(body, provider=provider, now=NOW))


PHRASES = [
    "rate limit", "You've hit your ", "limit reached ", "error: ", "error ", "[", "a:", "a b ", "claude-",
    "2026-11-16 ", "1 hour ", "retry after ", "try again in ", "resets ", "resets at ", "limit 5 requested ",
    "api key ", "no credits ", "account is ", "\x1b[0m", "{", '{"type":', "data: {}\n", "\n", " ", "-", "9",
    "quota ", "credits for ", "a", ".", "_", "<h1", "hit your a-", "security token a ", "rate_limit_", "openai.a.",
    "https://", "Error code: 429 - {'a': ", "1m", "an hour, ", "warning ", "(", "HTTP 401 ", "status code ", "`",
    "I am ", "request failed ", "litellm.A: ", "Aider v0\n", "[API Error: ", "The A b c d e f. ", "a.py:1: ",
    "retried 5 times (", "[ERROR] Model stream ended with", "\x1b]0;", "[{", "attempt 1 failed ",
    "rpc error: code = ", "\r", "+", "| ",
]  # fmt: skip


@holds_for(
    examples=10,
    start=st.sampled_from(["", "error: ", "You've hit your ", "429 ", '{"error": {"message": "']),
    unit=st.lists(st.sampled_from(PHRASES), min_size=1, max_size=3).map("".join),
    end=st.sampled_from(["", "!", "\n", "limit", " again", '"}}']),
    size=st.sampled_from([4_000, 260_000]),
)
def test_any_text_is_read_quickly(start: str, unit: str, end: str, size: int) -> None:
    text = start + unit * (size // len(unit)) + end
    began = time.thread_time()
    is_sound(from_response(429, {"retry-after": text, "x-ratelimit-reset": text}, text, now=NOW))
    is_sound(from_response(None, {"date": text[:200]}, {"error": {"message": text, "code": text[:199]}}, now=NOW))
    is_sound(from_output(text, 1, now=NOW))
    is_sound(from_output(text, 0, now=NOW))
    assert time.thread_time() - began < MAX_SECONDS


# --- noise ----------------------------------------------------------------------------------------------------------

ANSWERS = [vector for vector in VECTORS if vector["channel"] != "cli"]
CASES = [str.lower, str.upper, str.title, str.swapcase]
UNRELATED = st.fixed_dictionaries(
    {},
    optional={
        "X-Request-Id": fuzzy(10).map(lambda text: "req-" + text),
        "server": st.sampled_from(["cloudflare", "nginx/1.29"]),
        "content-length": st.sampled_from(["0", "429"]),
        "set-cookie": st.just("limit=1; retry-after=5; Expires=Sun, 15 Nov 2026 20:00:30 GMT"),
        "": st.just(""),
    },
)


@holds_for(
    examples=40,
    vector=st.sampled_from(ANSWERS),
    case=st.sampled_from(CASES),
    more=UNRELATED,
    is_bytes=st.booleans(),
    spelling=st.sampled_from(["as it is", "text", "bytes", "indented", "ASCII", "spaces around"]),
    fields=st.dictionaries(
        st.sampled_from(["request_id", "trace", "documentation_url", "param"]), st.none() | st.integers(0, 9)
    ),
)
def test_irrelevant_headers_and_fields_change_no_verdict(
    vector: dict[str, Any], case: Any, more: dict[str, str], is_bytes: bool, spelling: str, fields: dict[str, Any]
) -> None:
    recorded, body = vector["headers"] or {}, vector["body"]
    options = {"provider": vector["provider"], "now": vector["now"]}
    expected = from_response(vector["status"], recorded, body, **options)
    headers: Mapping[Any, Any] = {case(name): f" {value}\t" for name, value in recorded.items()} | more
    if is_bytes:
        headers = {key.encode(): value.encode("utf-8", "replace") for key, value in headers.items()}
    if isinstance(body, dict):
        body = {**fields, **body} if len(fields) % 2 else {**body, **{k: v for k, v in fields.items() if k not in body}}
        body = spelled(body, spelling)
    assert from_response(vector["status"], headers, body, **options) == expected


def spelled(body: Any, spelling: str) -> Any:
    if spelling == "as it is":
        return body
    text = json.dumps(body, ensure_ascii=spelling == "ASCII", indent=2 if spelling == "indented" else None)
    if spelling == "spaces around":
        text = f"\r\n {text}\n\n"
    return text.encode() if spelling == "bytes" else text
