"""How fast a quota group may be used: what was declared about it, and what was learned in each scope."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ._rate_estimator import IDLE_SECONDS, Learner
from ._usage import Allowance, Taken
from .declaration import Limits, strictest

if TYPE_CHECKING:
    from agentos.verdict import Verdict

# The name of a limit that nobody declared, for people.
LEARNED = "learned limit"
# Where what is allowed grows all the time, a group that cannot serve a large request is looked at this often, in case a
# smaller one comes.
LOOK_AGAIN_SECONDS = 0.1
# Learners are kept for this many scopes of a group; past that, those that have learned nothing are dropped.
MOST_LEARNERS = 64


_NOTHING = Taken(None, None, 0.0)


class PacedLease(Protocol):
    """The attributes of a lease that `Pace` reads. The pool's lease records have them; this package knows no leases."""

    scope: str | None
    requests: int
    tokens: int
    granted_at: float
    is_answered: bool  # a verdict was reported: the request is no longer in flight, although the lease is live
    is_unused: bool  # returned before any request was sent
    waits_for_probe: bool  # can wait until a new credential has served one request


class Charge(NamedTuple):
    """What one lease has taken from one pace, to be corrected and ended there whatever changes in the meantime."""

    allowance: Allowance | None
    taken: Taken | None
    learner: Learner | None


class Pace:
    """Of one group. Asks all that is known about its limits, and takes from all of it together."""

    __slots__ = (
        "_busy_sent",
        "_busy_since",
        "_has_started",
        "_last_at",
        "_sent",
        "_stagger",
        "allowance",
        "ends_after",
        "is_free",
        "is_learning",
        "learners",
        "limits",
        "most",
        "paused_until",
        "wake_at",
    )

    def __init__(self, name: str) -> None:
        # No two groups search at the same speed: else those that start together are refused together, again and again,
        # and seem to share a limit.
        self._stagger = 0.8 + 0.4 * (sum(place * ord(char) for place, char in enumerate(name, 1)) % 97) / 97.0
        self.limits = Limits()
        self.allowance: Allowance | None = None
        self.ends_after: Callable[[float], float] | None = None  # when the provider's day does
        self.learners: dict[str | None, Learner] = {}
        self.is_learning = True  # False: what is learned is learned with others
        self.most = 0  # so many leases of it can be live at once
        self.paused_until = 0.0  # while others try whether they share its limit
        self.wake_at = math.inf  # when the pool looks at it again
        # While nothing restricts it, its use is only counted, since it was last idle: the path of those who have no
        # limits, or never meet one.
        self.is_free = False
        self._has_started = False  # slowly
        self._sent = self._busy_sent = 0
        self._busy_since = self._last_at = -math.inf

    def declare(self, limits: Limits, ends_after: Callable[[float], float], now: float) -> None:
        """One more credential of the group joins. Of several declarations the strictest holds."""
        self.most += limits.max_concurrent
        self._keep_to(replace(strictest(self.limits, limits), max_concurrent=1), ends_after, now)

    def restate(self, declared: list[Limits], ends_after: Callable[[float], float], now: float) -> None:
        """What its credentials declare has changed; what was used is still used."""
        together = Limits()
        for limits in declared:
            together = replace(strictest(together, limits), max_concurrent=1)
        self.most = sum(limits.max_concurrent for limits in declared)
        self._keep_to(together, ends_after, now)

    def _keep_to(self, together: Limits, ends_after: Callable[[float], float], now: float) -> None:
        """`max_concurrent` is counted per credential."""
        if together != self.limits and (together.is_paced or self.allowance is not None):
            if self.ends_after is None or together.day_resets != self.limits.day_resets:
                self.ends_after = ends_after
            if self.allowance is None:
                self.allowance = Allowance(together, self.ends_after, now)
            else:
                self.allowance.change(together, self.ends_after, now)
        self.limits = together
        self._look()

    # --- asking ---------------------------------------------------------------------------------------------------

    def ready_at(self, scope: str | None, requests: int, tokens: int, now: float) -> float:
        """From when on a request may be sent; 0 for now."""
        at = 0.0 if self.allowance is None else self.allowance.ready_at(requests, tokens, now)
        learner = self.learners.get(scope)
        if learner is not None and not learner.is_idle:
            at = max(at, learner.ready_at(requests, tokens, now))
        return at if self.paused_until <= at else self.paused_until if self.paused_until > now else at

    def binding(self, scope: str | None, requests: int, tokens: int, now: float) -> tuple[float, str | None]:
        """When so much may be sent, and the name of the limit that decides that."""
        at, name = (0.0, None) if self.allowance is None else self.allowance.binding(requests, tokens, now)
        learner = self.learners.get(scope)
        learned = 0.0 if learner is None else learner.ready_at(requests, tokens, now)
        if self.paused_until > now:
            learned = max(learned, self.paused_until)
        return (learned, LEARNED) if learned > at else (at, name)

    def changes_at(self, tokens: int, now: float) -> float:
        """When it may admit more tokens or requests at once than now."""
        if self.allowance is not None and tokens:
            at = self.allowance.next_tokens_at(tokens, now)
            if at > now:
                return at
        return now + LOOK_AGAIN_SECONDS

    def token_room(self, scope: str | None, now: float) -> float:
        room = math.inf if self.allowance is None else self.allowance.token_room(now)
        learner = self.learners.get(scope)
        return room if learner is None or learner.tokens is None else min(room, learner.tokens.level(now))

    def too_large(self, requests: int, tokens: int) -> str | None:
        return None if self.allowance is None else self.allowance.too_large(requests, tokens)

    # --- using ----------------------------------------------------------------------------------------------------

    def count(self, requests: int, now: float) -> None:
        """So many were sent while nothing restricts it."""
        if now - self._last_at > IDLE_SECONDS:
            self._busy_since, self._busy_sent = now, self._sent
        self._last_at = now
        self._sent += requests

    def take(self, lease: PacedLease, now: float) -> Charge:
        allowance, learner = self.allowance, self.learners.get(lease.scope)
        entries = None if allowance is None else allowance.take(lease.requests, lease.tokens, now)
        if learner is None and self.is_learning:
            learner = self._learner(lease.scope, now, is_bold=not lease.waits_for_probe)
        if learner is not None:
            learner.take(lease.requests, lease.tokens, now)
        return Charge(allowance, entries, learner)

    def correct(self, charge: Charge, lease: PacedLease, requests: int, tokens: int, now: float) -> None:
        """What the lease really used."""
        more_requests, more_tokens = requests - lease.requests, tokens - lease.tokens
        if charge.allowance is not None and charge.taken is not None:
            charge.allowance.correct(charge.taken, more_requests, more_tokens, requests, tokens, now)
        elif self.allowance is not None:  # there was no limit yet
            self.allowance.correct(_NOTHING, max(0, more_requests), more_tokens, requests, tokens, now)
        if charge.learner is not None:
            charge.learner.correct(more_requests, more_tokens, now)

    def end(self, charge: Charge, lease: PacedLease, now: float) -> None:
        """The lease is over. If nobody said otherwise it was answered well."""
        learner = charge.learner
        if learner is None or lease.is_answered:
            return
        learner.in_flight -= 1
        if not lease.is_unused and (learner.slow is not None or learner.refusals):
            learner.succeeded(lease.granted_at, self.most, now)
            if learner.slow is None:
                self._has_started = True
                self._look()

    # --- learning -------------------------------------------------------------------------------------------------

    def refuse(self, lease: PacedLease, others: int, hint: float | None, now: float) -> float:
        """The provider refused; returns how long to wait. `others`: leases that are on their way."""
        was_free = self.is_free
        learner = self._learner(lease.scope, now)
        if was_free:
            # Leases that are on their way have no charge here: they were not admitted yet, and never will be counted.
            learner.begin(self._busy_since, self._sent - self._busy_sent - others)
            self.is_free = False
        wait = learner.refuse(lease.granted_at, lease.requests, hint, now)
        self.ramp_up(lease.scope, now + wait, now)
        return wait

    def ramp_up(self, scope: str | None, at: float, now: float) -> None:
        if self.most > 1 and self.is_learning:  # one at a time needs no ramp
            self._learner(scope, now).ramp_up(at, self.most)

    def observe(self, lease: PacedLease, verdict: Verdict, reserved: int, now: float) -> None:
        """What the headers of an answer tell. `reserved`: the tokens of other requests that are on their way."""
        learner = self._learner(lease.scope, now)
        self.is_free = False
        if verdict.limit_requests is not None:
            learner.observe(
                lease.granted_at,
                verdict.limit_requests,
                verdict.requests_period or 60.0,
                verdict.remaining_requests,
                verdict.reset_requests,
                now,
            )
        if verdict.limit_tokens is not None:
            period = verdict.tokens_period or 60.0
            learner.observe_tokens(verdict.limit_tokens, period, verdict.remaining_tokens, reserved, now)

    def rate(self) -> float | None:
        """Requests per second, declared or learned; the smaller where both are known."""
        learned = [rate / 60.0 for rate in self.learned().values()]
        declared = [] if self.limits.rate is None else [self.limits.rate]
        return min(declared + learned, default=None)

    def learned_rate(self, scope: str | None) -> float | None:
        """Requests per second, as refusals have taught."""
        learner = self.learners.get(scope)
        return None if learner is None else learner.estimate

    def stop_learning(self) -> None:
        """What it learns, it learns together with others from now on."""
        self.is_learning = self.is_free = False
        self.learners = {}
        self.paused_until = 0.0

    def pause(self, until: float) -> None:
        self.paused_until = until
        self._look()

    def start_with(self, scope: str | None, rate: float, now: float) -> None:
        self._learner(scope, now).start_with(rate, now)

    def newly_learned(self, scope: str | None) -> float | None:
        """Requests per minute, if they became known since the last time and were not declared."""
        learner = self.learners.get(scope)
        if learner is None or learner.is_told or self.limits.requests_per_minute is not None:
            return None
        learned = learner.requests_per_minute
        learner.is_told = learned is not None
        return learned

    def learned(self) -> dict[str | None, float]:
        """Requests per minute by scope, as far as they are known and were not declared."""
        if self.limits.requests_per_minute is not None:
            return {}
        known = {scope: learner.requests_per_minute for scope, learner in self.learners.items()}
        return {scope: rate for scope, rate in known.items() if rate is not None}

    def _learner(self, scope: str | None, now: float, *, is_bold: bool = True) -> Learner:
        learner = self.learners.get(scope)
        if learner is None:
            if len(self.learners) >= MOST_LEARNERS:
                busy = {s: known for s, known in self.learners.items() if known.in_flight or not known.is_idle}
                self.learners = dict(list(busy.items())[-MOST_LEARNERS // 2 :])
            self.is_free = False
            learner = self.learners[scope] = Learner(
                now, self.limits.rate, self.most, stagger=self._stagger, is_bold=is_bold
            )
        return learner

    def _look(self) -> None:
        """Whether anything restricts it."""
        self.is_free = (
            self.allowance is None
            and self.is_learning
            and not self.paused_until
            and (self.most <= 1 or self._has_started)
            and all(learner.is_idle for learner in self.learners.values())
        )
