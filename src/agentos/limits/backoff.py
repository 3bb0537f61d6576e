"""How long to wait before the next try."""

from __future__ import annotations

from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

BASE_SECONDS = 0.5
# A minute is the window of most providers' limits: waiting longer than that buys nothing.
MAX_SECONDS = 60.0


def delay(failures: int, jitter: float, *, base: float = BASE_SECONDS, most: float = MAX_SECONDS) -> float:
    """The pause after the `failures`-th failure in a row (1, 2, …): doubled each time, up to `most`.

    `jitter`, from 0 to 1, spreads it over the upper half, so that items that failed together do not come back together.
    """
    full: float = min(most, base * 2.0 ** min(failures - 1, 32))
    return full * (0.5 + 0.5 * jitter)


# Seconds to wait where the provider gives no hint.
DEFAULT_COOL_DOWN = {
    RATE_LIMITED: 60.0,  # the window of most limits
    QUOTA_EXHAUSTED: 3600.0,  # resets are hours or days away; look again now and then
    AUTH_FAILED: 5.0,  # long enough for a new key to reach all of a provider's servers
    OVERLOADED: 1.0,  # doubled with every answer in a row, see `_core.backoff`
}
# A hint of zero or less says "now": this much, so that a provider that lies is not hammered.
LEAST_COOL_DOWN = 1.0
# A longer hint is more likely a mistake than a plan; after a day we ask again. The cap is reported.
MOST_COOL_DOWN = 86_400.0


def hint_of(verdict: Verdict) -> float | None:
    """Seconds to wait, before the cap, where that is known: our own figure, else the provider's."""
    for hint in (verdict.cool_down, verdict.retry_after):
        if hint is not None and hint == hint:  # not NaN
            return hint if hint > 0 else LEAST_COOL_DOWN
    return None


def cool_down(verdict: Verdict) -> float:
    """Seconds to wait after this answer, before the cap."""
    hint = hint_of(verdict)
    return hint if hint is not None else DEFAULT_COOL_DOWN[verdict.kind or RATE_LIMITED]


def wait_alone(verdict: Verdict) -> float | None:
    """Seconds that one item waits, where no pool cools down; None: as long as its tries so far suggest."""
    hint = hint_of(verdict)
    if hint is None and verdict.kind == QUOTA_EXHAUSTED:
        hint = DEFAULT_COOL_DOWN[QUOTA_EXHAUSTED]
    return None if hint is None else min(hint, MOST_COOL_DOWN)
