"""Concludes a verdict from the status, headers and body of an answer.

The evidence in order of weight: a code in the body, a header of the provider, the status, the text. A status alone is
often wrong: providers send used-up quotas with 429, 400, 402 and 403, bad keys with 400, and overload with 429.
"""

from __future__ import annotations

from agentos.verdict import (
    AUTH_FAILED,
    NO_VERDICT,
    OVERLOADED,
    PERMANENT,
    QUOTA_EXHAUSTED,
    RATE_LIMITED,
    RETRY_ON_OTHER_KEY,
    TRANSIENT,
    Verdict,
    WindowReport,
)

from . import _dates as dates
from . import _phrases as phrases
from ._bodies import BodyFacts
from ._headers import (
    DAY,
    HOUR,
    MINUTE,
    NOT_REPORTED,
    Headers,
    ReportedLimit,
    is_plan_used_up,
    lower,
    plan_reset,
    reported_limits,
    retry_after,
)
from ._phrases import Meaning
from ._reported_windows import plan_windows, violated_windows, with_limits

_BY_STATUS = {
    401: AUTH_FAILED,
    402: QUOTA_EXHAUSTED,
    408: TRANSIENT,
    425: TRANSIENT,
    429: RATE_LIMITED,
    503: OVERLOADED,
    529: OVERLOADED,
}
# Characters of a verdict's message.
MAX_MESSAGE = 300
# Seconds. A shorter hint for a used-up day or month is about a shorter limit, and the end of the window counts.
_MIN_LONG_HINT = 3600.0
# Seconds until an allowance of zero is tried again: it does not reset, but the user may buy one.
_NO_ALLOWANCE_WAIT = DAY
# Seconds that GitHub asks to wait, at least, after a secondary limit without a hint.
_SECONDARY_WAIT = 60.0
_LONG_WINDOWS = ("day", "month", "plan")
_PERIODS = {"day": DAY, "hour": HOUR}
_WINDOW_OF_PERIOD = {MINUTE: "minute", HOUR: "hour", DAY: "day"}


def judge(status: int | None, headers: Headers, facts: BodyFacts | None, provider: str, now: float) -> Verdict:
    """Return the verdict of an answer. `headers` are in lower case; `facts` is None if the body is no error."""
    is_failure = (status is not None and status >= 400) or facts is not None
    if facts is not None and facts.headers:
        headers = {**lower(facts.headers), **headers}
    requests, tokens, windows = reported_limits(headers, provider, now) if headers else (NOT_REPORTED, NOT_REPORTED, ())
    windows = (*windows, *plan_windows(headers, now))
    if not is_failure:
        return with_limits(NO_VERDICT, requests, tokens, windows)
    facts = facts or BodyFacts()
    text = facts.text
    status = status if status is not None and status >= 400 else facts.status
    hint = retry_after(headers, now)
    meaning = _meaning(status, headers, facts, text, provider, requests, hint)
    if meaning is None:
        return with_limits(Verdict(None, message=_message(status, text)), requests, tokens, windows)
    return verdict_of(meaning, status, headers, facts, provider, now, requests, tokens, windows)


def verdict_of(
    meaning: Meaning,
    status: int | None,
    headers: Headers,
    facts: BodyFacts,
    provider: str,
    now: float,
    requests: ReportedLimit = NOT_REPORTED,
    tokens: ReportedLimit = NOT_REPORTED,
    windows: tuple[WindowReport, ...] = (),
) -> Verdict:
    """Return the verdict of a known kind, with its wait, window and model."""
    kind, window = meaning
    text = facts.text
    hint = _hint(kind, headers, facts, text, requests, tokens, now)
    window = window or _derived_window(kind, hint, headers, facts, requests, tokens)
    cool_down, is_guess = _cool_down(kind, window, hint, headers, facts, text, provider, now)
    verdict = Verdict(
        kind,
        retry_after=hint,
        cool_down=cool_down,
        is_guess=is_guess,
        window=window,
        scope=_scope(facts, text) if kind in RETRY_ON_OTHER_KEY and kind != AUTH_FAILED else None,
        message=_message(status, text),
    )
    if window in _PERIODS and requests.remaining == 0 and requests.limit is not None:
        requests = requests._replace(period=_PERIODS[window])
    windows = (*windows, *violated_windows(facts, hint)) if kind in (RATE_LIMITED, QUOTA_EXHAUSTED) else windows
    return with_limits(verdict, requests, tokens, windows)


def one_line(text: str) -> str:
    """Return a text in one line of at most `MAX_MESSAGE` characters."""
    text = " ".join(text[: 4 * MAX_MESSAGE].split())
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"


# --- the kind -----------------------------------------------------------------------------------------------------


def _meaning(
    status: int | None,
    headers: Headers,
    facts: BodyFacts,
    text: str,
    provider: str,
    requests: ReportedLimit,
    hint: float | None,
) -> Meaning | None:
    is_google = _is_google(facts, text, provider)
    codes = [headers.get("x-codex-rate-limit-reached-type", ""), *facts.codes, headers.get("x-amzn-errortype", "")]
    codes = [code for code in codes if code]
    by_code = next(filter(None, map(phrases.meaning_of_code, codes)), None)
    if by_code is not None and by_code[0] == PERMANENT:
        return by_code
    if status is None:
        status = next(filter(None, map(phrases.status_of_code, codes)), None)
    if facts.quotas and (by_code is None or by_code[0] in (RATE_LIMITED, QUOTA_EXHAUSTED)):
        return _by_quotas(facts)
    if status == 503 and by_code is not None and by_code[0] == RATE_LIMITED:
        return OVERLOADED, "capacity"
    if by_code is not None and by_code[0] != RATE_LIMITED:
        return _with_window(by_code, text)
    if is_plan_used_up(headers) and status == 429:
        return QUOTA_EXHAUSTED, "plan"
    if by_code is None and status != 429:
        meaning = _by_status(status, headers, text, provider, requests, hint, is_key_refused_by_403=is_google)
        if meaning is None or meaning[0] != RATE_LIMITED:
            return meaning
        by_code = meaning
    return _by_limit(status, by_code, codes, text, headers, is_google=is_google)


def _by_limit(
    status: int | None, by_code: Meaning | None, codes: list[str], text: str, headers: Headers, *, is_google: bool
) -> Meaning:
    """Return what a refusal by a limit means: a rate, a used-up quota, an overloaded provider, or a request that is
    too large for any wait."""
    if status == 413 or phrases.is_too_large(text):
        return PERMANENT, None
    if phrases.is_busy(text):
        return OVERLOADED, "capacity"
    if by_code is not None and by_code[1] == "concurrency":
        return by_code
    if is_google and phrases.names_no_allowance(text):
        return QUOTA_EXHAUSTED, "plan"
    by_money = phrases.money(text)
    if by_money is not None:
        return by_money
    window = (by_code[1] if by_code is not None else None) or phrases.window(text, longest=is_google)
    if window in ("month", "plan"):
        return QUOTA_EXHAUSTED, window
    if window == "day" and (is_google or phrases.wait(text) is None):
        # A sliding window comes with the wait for the next request; a calendar day is used up until it ends.
        is_rolling = not is_google and "rate_limit_exceeded" in codes and retry_after(headers, 0.0) is not None
        return (RATE_LIMITED if is_rolling else QUOTA_EXHAUSTED), window
    if by_code is None and window is None and not is_google and phrases.is_current_quota(text):
        return QUOTA_EXHAUSTED, "credits"
    if "concurren" in text.lower():
        window = window or "concurrency"
    return RATE_LIMITED, window


def _by_quotas(facts: BodyFacts) -> Meaning:
    """Return what Google's violated quotas mean: the longest window counts, also against a short hint."""
    if any(value == "0" for _, value in facts.quotas) or phrases.names_no_allowance(facts.text):
        return QUOTA_EXHAUSTED, "plan"
    window = phrases.window(" ".join(quota for quota, _ in facts.quotas), longest=True)
    return (QUOTA_EXHAUSTED if window in _LONG_WINDOWS else RATE_LIMITED), window


def _by_status(
    status: int | None,
    headers: Headers,
    text: str,
    provider: str,
    requests: ReportedLimit,
    hint: float | None,
    *,
    is_key_refused_by_403: bool,
) -> Meaning | None:
    """Return what status and text mean, for answers without a specific code.

    `is_key_refused_by_403`: a 403 that names no other reason is about the key. Google answers so; and a client that
    prints no more than the status says nothing else.
    """
    if status is None:
        return by_text(text)
    if status == 402:
        # With a short wait it is a budget for requests in flight, else it is money.
        if hint is not None and hint < _MIN_LONG_HINT:
            return RATE_LIMITED, "concurrency"
        return phrases.money(text) or (QUOTA_EXHAUSTED, phrases.window(text) or "credits")
    if status == 403 and _is_github_limit(headers, text, provider, requests):
        return RATE_LIMITED, None
    if status in (400, 403, 412):
        by_money = phrases.money(text)
        if by_money is not None:
            return by_money
        if phrases.is_about_key(text):
            return AUTH_FAILED, None
    if status == 403 and is_key_refused_by_403 and not phrases.is_about_resource(text):
        return AUTH_FAILED, None
    if status == 498 and "groq" in provider:
        return OVERLOADED, "capacity"
    if status >= 500 and phrases.is_busy(text):
        return OVERLOADED, "capacity"
    if status == 424 and headers.get("x-amzn-errortype", "").startswith("ModelError"):
        return TRANSIENT, None
    kind = _BY_STATUS.get(status) or (TRANSIENT if status >= 500 else PERMANENT)
    return kind, "capacity" if kind == OVERLOADED else None


def _is_github_limit(headers: Headers, text: str, provider: str, requests: ReportedLimit) -> bool:
    if phrases.is_limit(text):
        return True
    return requests.remaining == 0 and ("x-ratelimit-resource" in headers or provider == "github")


def by_text(text: str) -> Meaning | None:
    """Return what a text alone means: of an error without a status, or of a line that a command printed."""
    if not text:
        return None
    if phrases.is_too_large(text):
        return PERMANENT, None
    if phrases.is_busy(text) and not phrases.is_plan(text):
        return OVERLOADED, "capacity"
    if "not your usage limit" in text.lower():
        return OVERLOADED, "capacity"
    by_money = phrases.money(text)
    if by_money is not None:
        return by_money
    if phrases.is_plan(text):
        return _plan_by_text(text)
    if phrases.is_limited(text):
        return (QUOTA_EXHAUSTED, "plan") if phrases.window(text) == "plan" else (RATE_LIMITED, None)
    if phrases.is_about_key(text):
        return AUTH_FAILED, None
    status = phrases.status(text)
    if status is not None:
        return _by_status(status, {}, text, "", NOT_REPORTED, None, is_key_refused_by_403=True)
    if phrases.is_forbidden(text):
        return PERMANENT, None
    return (TRANSIENT, None) if phrases.is_broken(text) else None


def _plan_by_text(text: str) -> Meaning:
    window = phrases.window(text)
    if window in ("minute", "hour"):
        return RATE_LIMITED, window
    if window is None and phrases.is_current_quota(text) and "billing" in text.lower():
        # Google says so of each limit; a wait of seconds or minutes is that of a rate.
        wait = phrases.wait(text)
        return (RATE_LIMITED, None) if wait is not None and wait < HOUR else (QUOTA_EXHAUSTED, "credits")
    if window is None and "quota" in text.lower():
        return QUOTA_EXHAUSTED, None  # the wait decides the window
    return QUOTA_EXHAUSTED, window or "plan"


def _with_window(by_code: Meaning, text: str) -> Meaning:
    kind, window = by_code
    if kind == QUOTA_EXHAUSTED and window is None and phrases.window(text) == "minute":
        return RATE_LIMITED, "minute"
    if kind == QUOTA_EXHAUSTED and window is None:
        by_money = phrases.money(text)
        window = phrases.window(text) or (by_money[1] if by_money is not None else None)
    return kind, window


# --- the wait -----------------------------------------------------------------------------------------------------


def _hint(
    kind: str,
    headers: Headers,
    facts: BodyFacts,
    text: str,
    requests: ReportedLimit,
    tokens: ReportedLimit,
    now: float,
) -> float | None:
    """Return the wait that an answer states: in a header, else a field, else a sentence, else for a used-up limit."""
    hint = retry_after(headers, now)
    if hint is not None or kind in (PERMANENT, AUTH_FAILED):
        return hint
    hint = facts.wait if facts.wait is not None else phrases.wait(text)
    if hint is None and kind in (RATE_LIMITED, QUOTA_EXHAUSTED):
        if kind == QUOTA_EXHAUSTED:
            hint = plan_reset(headers, now)
        resets = [each.reset for each in (requests, tokens) if each.remaining == 0 and each.reset is not None]
        if hint is None and resets:
            hint = max(resets)
    return hint


def _derived_window(
    kind: str,
    hint: float | None,
    headers: Headers,
    facts: BodyFacts,
    requests: ReportedLimit,
    tokens: ReportedLimit,
) -> str | None:
    """Return the window of a limit that the answer does not name: that of the used-up limit, else by the wait."""
    if kind == OVERLOADED:
        return "capacity"
    if kind == RATE_LIMITED:
        for reported in (requests, tokens):
            if reported.remaining == 0 and reported.period in _WINDOW_OF_PERIOD:
                return _WINDOW_OF_PERIOD[reported.period]
        if hint is None:
            names = [headers.get("x-amzn-errortype", ""), *facts.codes]
            return "minute" if any("throttl" in name.lower() for name in names) else None
        return "minute" if hint <= MINUTE else "day" if hint >= DAY else None
    if kind == QUOTA_EXHAUSTED and hint is not None:
        return "day" if hint <= DAY else "plan" if hint <= 7 * DAY else "month"
    return None


def _cool_down(
    kind: str,
    window: str | None,
    hint: float | None,
    headers: Headers,
    facts: BodyFacts,
    text: str,
    provider: str,
    now: float,
) -> tuple[float | None, bool]:
    """Return the wait to use instead of the hint, if there is none or it is too short for a used-up window; and whether
    that wait is a guess, because the provider named no time."""
    if kind not in RETRY_ON_OTHER_KEY or kind == AUTH_FAILED:
        return None, False
    if hint is None:
        wait = dates.seconds_until_clock(text, now)
        if wait is not None:
            return wait, False
        if kind == RATE_LIMITED and phrases.is_secondary(text):
            return _SECONDARY_WAIT, True
    if kind != QUOTA_EXHAUSTED:
        return None, False
    reset: float | None = None
    if window == "day":
        reset = dates.seconds_until_day(now, is_pacific=_is_google(facts, text, provider))
    elif window == "month":
        reset = dates.seconds_until_month(now)
    elif window == "plan":
        if phrases.names_no_allowance(text) or any(value == "0" for _, value in facts.quotas):
            return _NO_ALLOWANCE_WAIT, True
        reset = plan_reset(headers, now)
        return (reset if reset is not None and (hint is None or hint < reset) else None), False
    if reset is None or (hint is not None and hint >= min(reset, _MIN_LONG_HINT)):
        return None, False
    return reset, True


# --- other fields--------------------------------------------------------------------------------------------------


def _is_google(facts: BodyFacts, text: str, provider: str) -> bool:
    return facts.is_google or provider.startswith(("gemini", "vertex", "google")) or phrases.is_about_google(text)


def _scope(facts: BodyFacts, text: str) -> str | None:
    """Return the model if the answer names exactly one: only requests for it cool down."""
    if facts.models:
        return next(iter(facts.models)) if len(facts.models) == 1 else None
    return phrases.model(text)


def _message(status: int | None, text: str) -> str:
    start = f"HTTP {status}" if status is not None else ""
    return one_line(f"{start}: {text}" if start and text else start or text)
