"""Cool-downs: how long a credential, its group or its provider is not used after an answer."""

from __future__ import annotations

from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

# Seconds to wait if the provider gives no hint.
DEFAULT_COOL_DOWN = {
    RATE_LIMITED: 60.0,  # the window of most limits
    QUOTA_EXHAUSTED: 3600.0,  # resets are hours or days away; try again now and then
    AUTH_FAILED: 5.0,  # until a new key has reached all of a provider's servers
    OVERLOADED: 1.0,  # doubled with every such answer in a row, see `backoff.delay`
}
# Seconds to wait for a hint of zero or less, so that a provider with wrong hints is not flooded.
MIN_COOL_DOWN = 1.0
# Cap in seconds. A longer hint is more likely a mistake than a plan. Capped cool-downs are reported.
MAX_COOL_DOWN = 86_400.0

# Seconds for which, at most, a text that a command printed takes a credential out of use.
MAX_PRINTED_WAIT = 60.0


def hint_of(verdict: Verdict) -> float | None:
    """Return the seconds to wait that a verdict names, before the cap: its `cool_down`, else its `retry_after`."""
    for hint in (verdict.cool_down, verdict.retry_after):
        if hint is not None and hint == hint:  # not NaN
            return hint if hint > 0 else MIN_COOL_DOWN
    return None


def cool_down(verdict: Verdict) -> float:
    """Return the seconds to wait after this verdict, before the cap."""
    hint = hint_of(verdict)
    return hint if hint is not None else DEFAULT_COOL_DOWN[verdict.kind or RATE_LIMITED]


def item_wait(verdict: Verdict) -> float | None:
    """Return the seconds that an item waits in a run without a pool; None: `delay` by its attempts so far."""
    hint = hint_of(verdict)
    if hint is None and verdict.kind == QUOTA_EXHAUSTED:
        hint = DEFAULT_COOL_DOWN[QUOTA_EXHAUSTED]
    return None if hint is None else min(hint, MAX_COOL_DOWN)
