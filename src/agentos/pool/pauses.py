"""Says, for people, why a credential is not used now and until when. The live display and `agentos keys` share it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

from agentos.events import STORE_LOST
from agentos.reporters.sentences import unreachable_address, verdict_text
from agentos.verdict import RATE_LIMITED

from ._rules.wait_reasons import is_paused
from .states import CredentialState

# Seconds. A shorter pause is counted down; a longer one ends at a time of day.
COUNTDOWN = 120.0
# Seconds from which on a time of day needs its date.
SAME_DAY = 20 * 3600.0


class Pause(NamedTuple):
    """Why a credential is not used, until an instant in epoch seconds."""

    until: float
    reason: str  # of a cool-down; "" for a limit, which admits the next request then
    scope: str | None = None  # the model that it is about; None for all
    limit: str | None = None  # the name of a limit

    def text(self, now: float) -> str:
        """Return the pause for people, its end first: a narrow terminal cuts the rest."""
        if not self.reason:
            limit = "" if self.limit is None else f" ({self.limit})"
            return f"next request {when_text(self.until, now)}{limit}"
        scope = "" if self.scope is None else f"{self.scope}: "
        return f"{scope}{self.reason} {when_text(self.until, now, 'for', 'until')}"


def pauses(state: CredentialState) -> Iterator[Pause]:
    """Yield the cool-down and the limit that keep all requests from a credential, then those of single models."""
    if state.cooled_until is not None:
        yield Pause(state.cooled_until, _reason(state.cooled_by.get("", RATE_LIMITED)))
    if state.limited_until is not None:
        yield Pause(state.limited_until, "", limit=state.waits_for)
    for scope, until in state.cooling.items():
        yield Pause(until, _reason(state.cooled_by.get(scope, RATE_LIMITED)), scope)


def longest_pause(state: CredentialState, now: float, shortest: float = 0.0) -> Pause | None:
    """Return the pause for all requests that ends last, else that for one model; None if none lasts `shortest`
    seconds."""
    lasting = [pause for pause in pauses(state) if pause.until - now >= shortest]
    return max(lasting, key=lambda pause: (pause.scope is None, pause.until), default=None)


def is_pause(pause: Pause, state: CredentialState, now: float) -> bool:
    """Return whether a credential counts as paused, and not as paced or in use."""
    return is_paused(pause.until - now, is_cool_down=bool(pause.reason), in_use=state.in_use)


def when_text(until: float, now: float, short: str = "in", long: str = "at") -> str:
    """Return an instant as `in 12 s`, `at 22:15`, or `at Nov 20, 22:15`, with these prepositions."""
    seconds = max(0.0, until - now)
    if seconds < COUNTDOWN:
        return f"{short} {math.ceil(seconds)} s"
    if seconds == math.inf:
        return "for ever"
    clock = "%H:%M" if seconds < SAME_DAY else "%b %d, %H:%M"
    return time.strftime(f"{long} {clock}", time.localtime(math.ceil(until)))


def _reason(verdict: str) -> str:
    if verdict == STORE_LOST:
        return "waits until older leases expire,"
    return verdict_text(verdict) + ("" if unreachable_address(verdict) is None else ", rests")
