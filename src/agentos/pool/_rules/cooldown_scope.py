"""Cool-downs: how long an answer makes us wait, and where that wait is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentos.events import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict
from agentos.limits.pace import Pace

if TYPE_CHECKING:
    from .records import CredentialRecord

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


class Domain:
    """What cools down together: a quota group, a provider, or one credential; per scope, `None` being all of them.

    `cooling` holds only what has not ended yet: the pool removes an entry at its instant, before it decides anything.
    """

    __slots__ = ("cooled_by", "cooling", "kind", "members", "name", "overloads", "pace")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind  # "group", "provider" or "credential"
        self.name = name  # None: the provider of credentials that name none
        self.members: dict[str, CredentialRecord] = {}
        self.cooling: dict[str | None, float] = {}
        self.cooled_by: dict[str | None, str] = {}  # the verdict behind each of them
        self.pace = Pace(name or "")  # of a group, or of groups that seem to share a limit
        self.overloads: dict[str | None, tuple[int, float]] = {}  # by scope: how often in a row, and since when

    def usable_at(self, scope: str | None) -> float:
        """The instant from which this domain no longer forbids `scope`; 0 when it does not."""
        if not self.cooling:
            return 0.0
        whole = self.cooling.get(None, 0.0)
        return whole if scope is None else max(whole, self.cooling.get(scope, 0.0))
