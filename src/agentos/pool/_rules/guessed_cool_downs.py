"""GuessedCoolDowns: cool-downs whose end the provider did not name are probed instead of waited out.

A used-up quota without a time may be refilled in an hour or in a minute. So its group cools for a minute first; then
one request goes alone (the *probe*). If it is refused without a time again, the group cools for twice as long, up to
an hour, and never past the guess. Its success opens the group. A time that the provider names is obeyed to its end.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from agentos.limits.cool_downs import cool_down, hint_of
from agentos.verdict import QUOTA_EXHAUSTED, Verdict

from .cooldown_scope import CooldownScope
from .records import LeaseRecord

if TYPE_CHECKING:
    from .allocator import Allocator

# Seconds until the first probe; doubled with each one in a row that is refused.
FIRST_PROBE_SECONDS = 60.0
MAX_PROBE_SECONDS = 3600.0
# Seconds that other requests wait for the answer to a probe.
HOLD_SECONDS = 10.0


class Guess:
    """A cool-down of one group and scope whose end is a guess, from the first refusal to the next success."""

    __slots__ = ("hold_until", "named_until", "probe", "probes", "since")

    def __init__(self) -> None:
        self.probes = 0  # refused in a row
        self.since = -inf  # of the present cool-down
        self.probe: LeaseRecord | None = None  # the lease that goes alone
        self.hold_until = -inf  # while it does
        self.named_until = -inf  # end of a cool-down that the provider named meanwhile


class GuessedCoolDowns:
    """Called by the rules of a pool; `CooldownScope.guesses` has the state."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def seconds(self, group: CooldownScope, scope: str | None, verdict: Verdict, sent_at: float, now: float) -> float:
        """Return for how long a refusal cools a group: as long as the provider named, or until the next probe."""
        seconds = cool_down(verdict)
        if hint_of(verdict) is not None and not verdict.is_guess:
            return seconds
        guess = group.guesses.get(scope)
        if guess is None:
            guess = group.guesses[scope] = Guess()
            for member in group.members.values():
                member.is_healthy = False
        if sent_at >= guess.since:  # else it was sent before the present cool-down began, and is not counted again
            guess.probes += 1
            guess.since, guess.probe = now, None
        until_probe = min(FIRST_PROBE_SECONDS * 2.0 ** min(guess.probes - 1, 32), MAX_PROBE_SECONDS)
        return max(min(seconds, until_probe), verdict.retry_after or 0.0)

    def granted(self, record: LeaseRecord, group: CooldownScope, now: float) -> None:
        """Let the first lease after a guessed cool-down go alone."""
        for scope in dict.fromkeys((None, record.scope)):
            guess = group.guesses.get(scope)
            if guess is not None and guess.probe is None and scope not in group.cooling:
                guess.probe, guess.hold_until = record, now + HOLD_SECONDS
                group.start_cooldown(scope, guess.hold_until, QUOTA_EXHAUSTED)
                self._allocator.wake_ups.at_cooldown_end(guess.hold_until, group, scope)

    def is_probe(self, record: LeaseRecord, group: CooldownScope) -> bool:
        """Return whether a live lease is the probe for which others wait."""
        return any(guess.probe is record for guess in group.guesses.values())

    def named(self, group: CooldownScope, scope: str | None, until: float) -> None:
        """Remember a cool-down that ends before that of a probe: it stays when the probe has ended."""
        guess = group.guesses.get(scope)
        if guess is not None and group.cooling.get(scope) == guess.hold_until:
            guess.named_until = max(guess.named_until, until)

    def succeeded(self, record: LeaseRecord | None, group: CooldownScope, now: float) -> None:
        """Open a group after a success that was sent after its last refusal."""
        for scope, guess in tuple(group.guesses.items()):
            if record is None or (record.granted_at >= guess.since and scope in (None, record.scope)):
                del group.guesses[scope]
                self._end_hold(guess, group, scope, now)

    def ended(self, record: LeaseRecord, group: CooldownScope, now: float) -> None:
        """Let another request be the probe if this one has ended without an answer."""
        for scope, guess in group.guesses.items():
            if guess.probe is record:
                guess.probe = None
                self._end_hold(guess, group, scope, now)

    def _end_hold(self, guess: Guess, group: CooldownScope, scope: str | None, now: float) -> None:
        if group.cooling.get(scope) == guess.hold_until:
            if guess.named_until > now:
                group.start_cooldown(scope, guess.named_until, group.cooled_by[scope])
                self._allocator.wake_ups.at_cooldown_end(guess.named_until, group, scope)
                return
            group.end_cooldown(scope)
            self._allocator.wake_ups.look_again(group, now)
