"""Windows in answers: which ones each provider states, and what a pool makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.providers.verdicts import from_response
from agentos.testing import FakeClock
from agentos.verdict import QUOTA_EXHAUSTED, RATE_LIMITED, WindowReport
from agentos.workflows.parallel import Credential, CredentialCoordinator, LeaseTimeout, Limits, Window

NOW = 1_794_772_800.0  # 2026-11-15T20:00:00Z
HOUR = 3600.0
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "49",
    "anthropic-ratelimit-requests-reset": "2026-11-15T20:00:02Z",
    "anthropic-ratelimit-tokens-limit": "48000",
    "anthropic-ratelimit-tokens-remaining": "40000",
    "anthropic-ratelimit-tokens-reset": "2026-11-15T20:00:10Z",
    "anthropic-ratelimit-input-tokens-limit": "40000",
    "anthropic-ratelimit-input-tokens-remaining": "30000",
    "anthropic-ratelimit-input-tokens-reset": "2026-11-15T20:00:15Z",
    "anthropic-ratelimit-output-tokens-limit": "8000",
    "anthropic-ratelimit-output-tokens-remaining": "7000",
    "anthropic-ratelimit-output-tokens-reset": "2026-11-15T20:00:08Z",
}
UNIFIED = {
    "anthropic-ratelimit-unified-status": "allowed",
    "anthropic-ratelimit-unified-5h-status": "allowed",
    "anthropic-ratelimit-unified-5h-utilization": "0.62",
    "anthropic-ratelimit-unified-5h-reset": "1794780000",
    "anthropic-ratelimit-unified-7d-utilization": "0.05",
    "anthropic-ratelimit-unified-7d-reset": "1795204800",
}
GROQ = {
    "x-ratelimit-limit-requests": "14400",
    "x-ratelimit-remaining-requests": "14370",
    "x-ratelimit-reset-requests": "2m59.56s",
    "x-ratelimit-limit-tokens": "18000",
    "x-ratelimit-remaining-tokens": "17997",
    "x-ratelimit-reset-tokens": "7.66s",
}
AZURE = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "7",
    "x-ratelimit-limit-tokens": "-1",
    "x-ratelimit-remaining-tokens": "-1",
}
CODEX = {
    "x-codex-primary-used-percent": "40",
    "x-codex-primary-window-minutes": "300",
    "x-codex-primary-reset-at": "1794780000",
}


def violation(quota: str, value: str | None = None) -> dict[str, Any]:
    return {"quotaId": quota, **({} if value is None else {"quotaValue": value})}


def gemini(*violations: dict[str, Any]) -> dict[str, Any]:
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": list(violations)},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "20.5s"},
    ]
    return {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "quota", "details": details}}


@pytest.mark.parametrize(
    ("headers", "provider", "windows"),
    [
        (ANTHROPIC, "anthropic", [
            ("requests", 60, 50, 49, 2), ("tokens", 60, 48000, 40000, 10), ("input_tokens", 60, 40000, 30000, 15),
            ("output_tokens", 60, 8000, 7000, 8)]),
        (UNIFIED, "anthropic", [("plan", 5 * HOUR, 100, 38, 7200), ("plan", 168 * HOUR, 100, 95, 432_000)]),
        (GROQ, "groq", [("requests", 24 * HOUR, 14400, 14370, 179.56), ("tokens", 60, 18000, 17997, 7.66)]),
        (GROQ, "openai", [("requests", 60, 14400, 14370, 179.56), ("tokens", 60, 18000, 17997, 7.66)]),
        (AZURE, "azure", [("requests", 60, 60, 0, 7)]),
        (CODEX, "openai", [("plan", 5 * HOUR, 100, 60, 7200)]),
        ({"anthropic-ratelimit-unified-5h-utilization": "much", "x-codex-primary-used-percent": "5"}, "", []),
    ],
    ids=["anthropic", "unified", "groq", "openai", "azure", "codex", "unreadable"],
)  # fmt: skip
def test_headers_state_windows(headers: dict[str, str], provider: str, windows: list[tuple[Any, ...]]) -> None:
    verdict = from_response(200, headers, None, provider=provider, now=NOW)
    assert [pytest.approx(tuple(window[1:])) for window in verdict.windows] == [window[1:] for window in windows]
    assert [window.of for window in verdict.windows] == [window[0] for window in windows]


def test_scarce_output_tokens_do_not_pace_all_tokens() -> None:
    verdict = from_response(200, ANTHROPIC, None, provider="anthropic", now=NOW)
    assert (verdict.remaining_tokens, verdict.limit_tokens) == (7000, None)


@pytest.mark.parametrize(
    ("quota", "value", "kind", "report"),
    [
        ("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "15", RATE_LIMITED, ("requests", 60, 15, 0, 20.5)),
        ("GenerateContentInputTokensPerModelPerMinute-FreeTier", "250000", RATE_LIMITED,
         ("input_tokens", 60, 250_000, 0, 20.5)),
        ("GenerateRequestsPerDayPerProjectPerModel-FreeTier", None, QUOTA_EXHAUSTED,
         ("requests", 86_400, None, 0, None)),
    ],
    ids=["requests", "input", "day"],
)  # fmt: skip
def test_violations_name_windows_by_quota_id(quota: str, value: str | None, kind: str, report: tuple[Any, ...]) -> None:
    verdict = from_response(429, {}, gemini(violation(quota, value)), provider="gemini", now=NOW)
    assert verdict.kind == kind
    assert verdict.windows == (WindowReport(*report),)


class Answer:
    """An answer of any client library."""

    def __init__(self, headers: dict[str, str], status: int = 200) -> None:
        self.status_code = status
        self.headers = headers


def pool_of(clock: FakeClock, provider: str = "anthropic", **limits: Any) -> CredentialCoordinator:
    rules = Limits(**{"max_concurrent": 9, **limits})
    return CredentialCoordinator([Credential("sk-one-123456", id="k", provider=provider, limits=rules)], clock=clock)


def is_granted(pool: CredentialCoordinator, **amounts: Any) -> bool:
    try:
        with pool.lease(timeout=0, **amounts):
            return True
    except LeaseTimeout:
        return False


def headers(kind: str, limit: int, remaining: int, reset: str = "2026-11-15T20:00:30Z") -> dict[str, str]:
    name = f"anthropic-ratelimit-{kind}"
    return {f"{name}-limit": str(limit), f"{name}-remaining": str(remaining), f"{name}-reset": reset}


def test_usage_of_others_counts_in_declared_window() -> None:
    clock = FakeClock(epoch=NOW)
    pool = pool_of(clock, input_tokens_per_minute=1000)
    with pool.lease(input_tokens=100, scope="opus") as lease:
        lease.observe(Answer(headers("input-tokens", 1000, 300)))
    assert pool.states()[0].used["input tokens per minute"] == (700, 1000)
    assert not is_granted(pool, input_tokens=301, scope="opus")
    with pool.lease(input_tokens=10, scope="opus") as lease:  # the newest answer counts
        lease.observe(Answer(headers("input-tokens", 1000, 890)))
    assert pool.states()[0].used["input tokens per minute"] == (110, 1000)


def test_report_of_older_request_is_ignored() -> None:
    clock = FakeClock(epoch=NOW)
    pool = pool_of(clock, input_tokens_per_minute=1000)
    with pool.lease(input_tokens=10) as older:
        clock.advance(1)
        with pool.lease(input_tokens=10) as newer:
            newer.observe(Answer(headers("input-tokens", 1000, 500)))
        older.observe(Answer(headers("input-tokens", 1000, 900)))
    assert pool.states()[0].used["input tokens per minute"] == (500, 1000)


def test_undeclared_directions_are_paced_by_answers() -> None:
    clock = FakeClock(epoch=NOW)
    pool = pool_of(clock)
    with pool.lease(input_tokens=1000, output_tokens=50, scope="opus") as lease:
        lease.observe(Answer({**headers("input-tokens", 40_000, 5_000), **headers("output-tokens", 8_000, 7_000)}))
    assert not is_granted(pool, input_tokens=6_000, output_tokens=10, scope="opus")
    assert pool.states()[0].used["input tokens per minute for opus"] == (35_000, 40_000)
    assert is_granted(pool, input_tokens=4_000, output_tokens=10, scope="opus")
    assert is_granted(pool, input_tokens=6_000, output_tokens=10, scope="haiku")  # another model has its own
    clock.advance(61)
    assert is_granted(pool, input_tokens=39_000, output_tokens=10, scope="opus")


def test_reservation_for_output_ends_with_its_lease() -> None:
    """Anthropic reserves max_tokens when a request arrives, and corrects it when the answer is complete."""
    pool = pool_of(FakeClock(epoch=NOW), output_tokens_per_minute=8_000)
    with pool.lease(output_tokens=100) as lease:
        lease.observe(Answer(headers("output-tokens", 8_000, 1_000)))
        assert not is_granted(pool, output_tokens=2_000)
        lease.settle(output_tokens=200)
    assert is_granted(pool, output_tokens=2_000)


def test_plan_leaves_its_reserve_for_people() -> None:
    clock = FakeClock(epoch=NOW)
    pool = pool_of(clock, reserve=0.1)

    def answer(utilization: str) -> Answer:
        return Answer({**UNIFIED, "anthropic-ratelimit-unified-5h-utilization": utilization})

    with pool.lease() as lease:
        lease.observe(answer("0.62"))
    assert pool.states()[0].used["% of the plan per 5 hours"] == (pytest.approx(62), 90)
    assert is_granted(pool)
    with pool.lease() as lease:
        lease.observe(answer("0.9"))
    assert not is_granted(pool)
    assert pool.states()[0].waits_for == "% of the plan per 5 hours"
    clock.advance(7199)
    assert not is_granted(pool)
    clock.advance(1)
    assert is_granted(pool)


def test_plan_feeds_a_declared_window_of_its_length() -> None:
    clock = FakeClock(epoch=NOW)
    pool = pool_of(clock, windows=[Window("requests", 50, "5h", "first-use")])
    with pool.lease() as lease:
        lease.observe(Answer(UNIFIED))
    assert pool.states()[0].used["requests per 5 hours"] == (31, 50)
    clock.advance(7200)
    assert pool.states()[0].used["requests per 5 hours"] == (0, 50)


def test_day_of_groq_feeds_a_declared_day() -> None:
    pool = pool_of(FakeClock(epoch=NOW), "groq", requests_per_day=14_400)
    with pool.lease() as lease:
        lease.observe(Answer(GROQ))
    assert pool.states()[0].used["requests per day"] == (30, 14_400)


def test_violated_day_of_gemini_fills_the_declared_day() -> None:
    clock = FakeClock(epoch=NOW)
    pool = pool_of(clock, "gemini", requests_per_day=250, day_resets="00:00 America/Los_Angeles")

    class Refused(Exception):
        status_code = 429
        body = gemini(violation("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "250"))

    with pytest.raises(Refused), pool.lease():
        raise Refused
    assert pool.states()[0].used["requests per day"] == (250, 250)


@pytest.mark.parametrize("limit", [0, -5, 10**30])
def test_absurd_limits_are_not_believed(limit: int) -> None:
    pool = pool_of(FakeClock(epoch=NOW))
    with pool.lease() as lease:
        lease.observe(Answer(headers("input-tokens", limit, 0)))
    assert is_granted(pool, input_tokens=5)
