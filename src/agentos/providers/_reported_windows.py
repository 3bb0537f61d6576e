"""Reads windows from answers that name them: the plan of a subscription, and quotas that Google says are used up."""

from __future__ import annotations

import re

from agentos.durations import parse_number
from agentos.limits.declaration import INPUT_TOKENS, PLAN, REQUESTS, TOKENS
from agentos.verdict import Verdict, WindowReport

from ._bodies import BodyFacts
from ._dates import wait_of
from ._headers import NOT_REPORTED, Headers, ReportedLimit, server_now

_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(\d+)([hd])-utilization")
_CODEX = re.compile(r"(x-codex-[a-z]+)-used-percent")
_HOURS = {"h": 3_600.0, "d": 86_400.0}


def plan_windows(headers: Headers, now: float) -> list[WindowReport]:
    """Return the windows of a subscription, in percent of the plan."""
    reports: list[WindowReport] = []
    for name, value in headers.items():
        if name.startswith("anthropic-ratelimit-unified-") and (match := _UNIFIED.fullmatch(name)):
            used, seconds = parse_number(value), float(match[1]) * _HOURS[match[2]]
            used = None if used is None else 100.0 * used
            reset = headers.get(name.replace("-utilization", "-reset"))
        elif name.startswith("x-codex-") and (match := _CODEX.fullmatch(name)):
            used, seconds = parse_number(value), 60.0 * (parse_number(headers.get(f"{match[1]}-window-minutes")) or 0.0)
            reset = headers.get(f"{match[1]}-reset-at")
        else:
            continue
        if used is not None and seconds >= 60.0:
            wait = None if reset is None else wait_of(reset, server_now(headers, now))
            reports.append(WindowReport(PLAN, seconds, 100.0, 100.0 - min(max(used, 0.0), 100.0), wait))
    return reports


def violated_windows(facts: BodyFacts, hint: float | None) -> list[WindowReport]:
    """Return the quotas that an answer of Google says are used up. `hint`: the wait that it names, which is about the
    quotas of a minute."""
    reports = []
    for quota, value in facts.quotas:
        words = quota.lower()
        of = REQUESTS if "request" in words else INPUT_TOKENS if "input" in words else TOKENS
        if "perminute" in words:
            seconds, reset = 60.0, hint
        elif "perday" in words:
            seconds, reset = 86_400.0, None
        else:
            continue
        if of == TOKENS and "token" not in words:
            continue
        limit = parse_number(value)
        reports.append(WindowReport(of, seconds, limit if limit is not None and limit > 0 else None, 0.0, reset))
    return reports


def with_limits(
    verdict: Verdict, requests: ReportedLimit, tokens: ReportedLimit, windows: tuple[WindowReport, ...]
) -> Verdict:
    """Return a verdict with the limits that its answer states."""
    if windows:
        verdict = verdict._replace(windows=windows)
    if requests is NOT_REPORTED and tokens is NOT_REPORTED:
        return verdict
    return verdict._replace(
        remaining_requests=requests.remaining,
        remaining_tokens=tokens.remaining,
        reset_requests=requests.reset,
        reset_tokens=tokens.reset,
        limit_requests=requests.limit,
        limit_tokens=tokens.limit,
        requests_period=requests.period,
        tokens_period=tokens.period,
    )
