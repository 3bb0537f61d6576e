"""The rules: from what an answer says to a verdict.

Evidence is weighed in this order: a code in the body, a header of the provider, the status, the text. A status alone is
often wrong: quotas hide under 429, 400, 402 and 403, bad keys under 400, overload under 429.
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
)

from . import _dates as clocks
from . import _headers as headers
from . import _phrases as texts
from ._bodies import Said
from ._headers import Allowance, Headers
from ._phrases import Meaning

_BY_STATUS = {
    401: AUTH_FAILED,
    402: QUOTA_EXHAUSTED,
    408: TRANSIENT,
    425: TRANSIENT,
    429: RATE_LIMITED,
    503: OVERLOADED,
    529: OVERLOADED,
}
MOST_MESSAGE = 300
# Where the end of a long window is known, a hint shorter than this does not mean it.
_SHORTEST_BELIEVED = 3600.0
# An allowance of nothing does not come back by waiting; it may be bought. Looked at again after a day.
_NO_ALLOWANCE_WAIT = clocks.DAY
# GitHub asks for at least this after a secondary limit that names no wait.
_SECONDARY_WAIT = 60.0
_LONG_WINDOWS = ("day", "month", "plan")
_PERIODS = {"day": headers.DAY, "hour": headers.HOUR}
_WINDOW_OF_PERIOD = {headers.MINUTE: "minute", headers.HOUR: "hour", headers.DAY: "day"}


def judge(status: int | None, told: Headers, said: Said | None, provider: str, now: float) -> Verdict:
    """The verdict. `told` are the headers in lower case; `said` is None where the body is no error."""
    is_failure = (status is not None and status >= 400) or said is not None
    if said is not None and said.headers:
        told = {**headers.lower(said.headers), **told}
    requests, tokens = headers.allowances(told, provider, now) if told else (headers.UNTOLD, headers.UNTOLD)
    if not is_failure:
        return _paced(NO_VERDICT, requests, tokens)
    said = said or Said()
    text = said.text
    status = status if status is not None and status >= 400 else said.status
    hint = headers.retry_after(told, now)
    meant = _meaning(status, told, said, text, provider, requests, hint)
    if meant is None:
        return _paced(Verdict(None, message=_message(status, text)), requests, tokens)
    return concluded(meant, status, told, said, provider, now, requests, tokens)


def concluded(
    meant: Meaning,
    status: int | None,
    told: Headers,
    said: Said,
    provider: str,
    now: float,
    requests: Allowance = headers.UNTOLD,
    tokens: Allowance = headers.UNTOLD,
) -> Verdict:
    """The verdict of a known kind: how long, over which window, for which model."""
    kind, window = meant
    text = said.text
    hint = _hint(kind, told, said, text, requests, tokens, now)
    window = window or _window_untold(kind, hint, told, said, requests, tokens)
    verdict = Verdict(
        kind,
        retry_after=hint,
        cool_down=_cool_down(kind, window, hint, told, said, text, provider, now),
        window=window,
        scope=_scope(said, text) if kind in RETRY_ON_OTHER_KEY and kind != AUTH_FAILED else None,
        message=_message(status, text),
    )
    if window in _PERIODS and requests.remaining == 0 and requests.limit is not None:
        requests = requests._replace(period=_PERIODS[window])
    return _paced(verdict, requests, tokens)


def one_line(text: str) -> str:
    text = " ".join(text[: 4 * MOST_MESSAGE].split())
    return text if len(text) <= MOST_MESSAGE else f"{text[: MOST_MESSAGE - 1]}…"


# --- what it is ---------------------------------------------------------------------------------------------------


def _meaning(
    status: int | None, told: Headers, said: Said, text: str, provider: str, requests: Allowance, hint: float | None
) -> Meaning | None:
    is_google = _is_google(said, text, provider)
    codes = [told.get("x-codex-rate-limit-reached-type", ""), *said.codes, told.get("x-amzn-errortype", "")]
    coded = next((found for code in codes if code and (found := texts.meaning_of_code(code))), None)
    if coded is not None and coded[0] == PERMANENT:
        return coded
    if status is None:
        status = next((standing_in for code in codes if code and (standing_in := texts.status_of_code(code))), None)
    if said.quotas and (coded is None or coded[0] in (RATE_LIMITED, QUOTA_EXHAUSTED)):
        return _of_quotas(said)
    if status == 503 and coded is not None and coded[0] == RATE_LIMITED:
        return OVERLOADED, "capacity"
    if coded is not None and coded[0] != RATE_LIMITED:
        return _with_window(coded, text)
    if headers.is_plan_used_up(told) and status == 429:
        return QUOTA_EXHAUSTED, "plan"
    if coded is None and status != 429:
        meant = _by_status(status, told, text, provider, requests, hint)
        if meant is None or meant[0] != RATE_LIMITED:
            return meant
        coded = meant
    return _of_limit(status, coded, codes, text, told, is_google=is_google)


def _of_limit(
    status: int | None, coded: Meaning | None, codes: list[str], text: str, told: Headers, *, is_google: bool
) -> Meaning:
    """What calls itself a limit: a wait, or a long allowance that is used up, or no room for anybody, or too much."""
    if status == 413 or texts.is_too_large(text):
        return PERMANENT, None
    if texts.is_busy(text):
        return OVERLOADED, "capacity"
    if coded is not None and coded[1] == "concurrency":
        return coded
    if is_google and texts.names_no_allowance(text):
        return QUOTA_EXHAUSTED, "plan"
    paid = texts.money(text)
    if paid is not None:
        return paid
    window = (coded[1] if coded is not None else None) or texts.window(text, longest=is_google)
    if window in ("month", "plan"):
        return QUOTA_EXHAUSTED, window
    if window == "day" and (is_google or texts.wait(text) is None):
        # A day that rolls says when the next request fits; any other is over until it ends.
        is_rolling = not is_google and "rate_limit_exceeded" in codes and headers.retry_after(told, 0.0) is not None
        return (RATE_LIMITED if is_rolling else QUOTA_EXHAUSTED), window
    if coded is None and window is None and not is_google and texts.is_current_quota(text):
        return QUOTA_EXHAUSTED, "credits"
    if "concurren" in text.lower():
        window = window or "concurrency"
    return RATE_LIMITED, window


def _of_quotas(said: Said) -> Meaning:
    """Google's violated quotas: the longest window counts, whatever the hint says."""
    if any(value == "0" for _, value in said.quotas) or texts.names_no_allowance(said.text):
        return QUOTA_EXHAUSTED, "plan"
    window = texts.window(" ".join(quota for quota, _ in said.quotas), longest=True)
    return (QUOTA_EXHAUSTED if window in _LONG_WINDOWS else RATE_LIMITED), window


def _by_status(
    status: int | None, told: Headers, text: str, provider: str, requests: Allowance, hint: float | None
) -> Meaning | None:
    """What the status says, and what the text adds to it, where no code says more."""
    if status is None:
        return by_text(text)
    if status == 402:
        # With a wait it is a budget for what is in flight; without, it is money.
        if hint is not None and hint < _SHORTEST_BELIEVED:
            return RATE_LIMITED, "concurrency"
        return texts.money(text) or (QUOTA_EXHAUSTED, texts.window(text) or "credits")
    if status == 403 and _is_github_limit(told, text, provider, requests):
        return RATE_LIMITED, None
    if status in (400, 403, 412):
        paid = texts.money(text)
        if paid is not None:
            return paid
        if texts.is_about_key(text):
            return AUTH_FAILED, None
    if status == 498 and "groq" in provider:
        return OVERLOADED, "capacity"
    if status >= 500 and texts.is_busy(text):
        return OVERLOADED, "capacity"
    if status == 424 and told.get("x-amzn-errortype", "").startswith("ModelError"):
        return TRANSIENT, None
    kind = _BY_STATUS.get(status) or (TRANSIENT if status >= 500 else PERMANENT)
    return kind, "capacity" if kind == OVERLOADED else None


def _is_github_limit(told: Headers, text: str, provider: str, requests: Allowance) -> bool:
    if texts.is_limit(text):
        return True
    return requests.remaining == 0 and ("x-ratelimit-resource" in told or provider == "github")


def by_text(text: str) -> Meaning | None:
    """What a text alone says: an error without a status, a line that a command printed."""
    if not text:
        return None
    if texts.is_busy(text) and not texts.is_plan(text):
        return OVERLOADED, "capacity"
    if "not your usage limit" in text.lower():
        return OVERLOADED, "capacity"
    paid = texts.money(text)
    if paid is not None:
        return paid
    if texts.is_plan(text):
        return _plan_by_text(text)
    if texts.is_limited(text):
        return (QUOTA_EXHAUSTED, "plan") if texts.window(text) == "plan" else (RATE_LIMITED, None)
    if texts.is_about_key(text):
        return AUTH_FAILED, None
    status = texts.status(text)
    if status is not None:
        return _by_status(status, {}, text, "", headers.UNTOLD, None)
    if texts.is_too_large(text):
        return PERMANENT, None
    return (TRANSIENT, None) if texts.is_broken(text) else None


def _plan_by_text(text: str) -> Meaning:
    window = texts.window(text)
    if window in ("minute", "hour"):
        return RATE_LIMITED, window
    if window is None and texts.is_current_quota(text) and "billing" in text.lower():
        return QUOTA_EXHAUSTED, "credits"
    if window is None and "quota" in text.lower():
        return QUOTA_EXHAUSTED, None  # how long tells the wait
    return QUOTA_EXHAUSTED, window or "plan"


def _with_window(coded: Meaning, text: str) -> Meaning:
    kind, window = coded
    if kind == QUOTA_EXHAUSTED and window is None:
        paid = texts.money(text)
        window = texts.window(text) or (paid[1] if paid is not None else None)
    return kind, window


# --- how long -----------------------------------------------------------------------------------------------------


def _hint(
    kind: str, told: Headers, said: Said, text: str, requests: Allowance, tokens: Allowance, now: float
) -> float | None:
    """What the answer says of the wait: a header, else the body, else the sentence, else the exhausted allowance."""
    hint = headers.retry_after(told, now)
    if hint is not None or kind in (PERMANENT, AUTH_FAILED):
        return hint
    hint = said.wait if said.wait is not None else texts.wait(text)
    if hint is None and kind in (RATE_LIMITED, QUOTA_EXHAUSTED):
        if kind == QUOTA_EXHAUSTED:
            hint = headers.plan_reset(told, now)
        resets = [each.reset for each in (requests, tokens) if each.remaining == 0 and each.reset is not None]
        if hint is None and resets:
            hint = max(resets)
    return hint


def _window_untold(
    kind: str, hint: float | None, told: Headers, said: Said, requests: Allowance, tokens: Allowance
) -> str | None:
    """The window, where no word names it: by the allowance that is used up, else by the length of the wait."""
    if kind == OVERLOADED:
        return "capacity"
    if kind == RATE_LIMITED:
        for used_up in (requests, tokens):
            if used_up.remaining == 0 and used_up.period in _WINDOW_OF_PERIOD:
                return _WINDOW_OF_PERIOD[used_up.period]
        if hint is None:
            names = [told.get("x-amzn-errortype", ""), *said.codes]
            return "minute" if any("throttl" in name.lower() for name in names) else None
        return "minute" if hint <= headers.MINUTE else "day" if hint >= clocks.DAY else None
    if kind == QUOTA_EXHAUSTED and hint is not None:
        return "day" if hint <= clocks.DAY else "plan" if hint <= 7 * clocks.DAY else "month"
    return None


def _cool_down(
    kind: str, window: str | None, hint: float | None, told: Headers, said: Said, text: str, provider: str, now: float
) -> float | None:
    """What we would wait, where the answer names no wait, or one that cannot be meant."""
    if kind not in RETRY_ON_OTHER_KEY or kind == AUTH_FAILED:
        return None
    if hint is None:
        clock = clocks.seconds_until_clock(text, now)
        if clock is not None:
            return clock
        if kind == RATE_LIMITED and texts.is_secondary(text):
            return _SECONDARY_WAIT
    if kind != QUOTA_EXHAUSTED:
        return None
    until: float | None = None
    if window == "day":
        until = clocks.seconds_until_day(now, is_pacific=_is_google(said, text, provider))
    elif window == "month":
        until = clocks.seconds_until_month(now)
    elif window == "plan":
        if texts.names_no_allowance(text) or any(value == "0" for _, value in said.quotas):
            return _NO_ALLOWANCE_WAIT
        until = headers.plan_reset(told, now)
        return until if until is not None and (hint is None or hint < until) else None
    if until is None or (hint is not None and hint >= min(until, _SHORTEST_BELIEVED)):
        return None
    return until


# --- the rest -----------------------------------------------------------------------------------------------------


def _is_google(said: Said, text: str, provider: str) -> bool:
    return said.is_google or provider.startswith(("gemini", "vertex", "google")) or texts.is_about_google(text)


def _scope(said: Said, text: str) -> str | None:
    """The model, where the answer names exactly one: it narrows the cool-down."""
    if said.models:
        return next(iter(said.models)) if len(said.models) == 1 else None
    return texts.model(text)


def _message(status: int | None, text: str) -> str:
    start = f"HTTP {status}" if status is not None else ""
    return one_line(f"{start}: {text}" if start and text else start or text)


def _paced(verdict: Verdict, requests: Allowance, tokens: Allowance) -> Verdict:
    if requests is headers.UNTOLD and tokens is headers.UNTOLD:
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
