"""Keys that fail together: groups of one provider that were declared apart and yet seem to share a limit.

If two groups are refused at the same moments, again and again, they may share a limit, or only have started together
and have equal ones. A *trial* tells: one pauses while the other goes faster than it ever could alone. If that goes well
they share a limit, and from then on are paced as one. That holds until a success disproves it: a request that one of
them sent right after the other was refused, and that was admitted although nothing can have been left.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from agentos.events import LimitShared

from .cooldown_scope import CooldownScope
from .records import CredentialRecord, LeaseRecord

# Refusals this close to each other (seconds), or within the time of one request, happened at the same moment; so many
# times is again and again; and who was there half as often is suspected, too.
SAME_MOMENT = 0.25
MOST_MOMENT = 1.0
OFTEN = 4
HALF_AS_OFTEN = 0.5
# How much was admitted lately is known after so many requests; what is twice as long ago counts half.
LEAST_FLOW = 3
FLOW_SECONDS = 10.0
# In a trial the slowest goes at this share of what all had together, at least 1.6 times what it had, and has passed
# after so many requests. Alone it would be refused after two or three.
TRIAL_SHARE = 0.8
TRIAL_REQUESTS = 12
# A request that is admitted within this share of the time of one request after a refusal speaks against a common limit.
SOON = 0.125
# Refusals that are remembered, of a provider; and in how many scopes.
REMEMBERED = 64
MOST_SUSPICIONS = 256


class _Refusal(NamedTuple):
    cooldown_scope: CooldownScope
    credential: CredentialRecord
    sent_at: float
    soon: float  # for so many seconds nobody who shares the limit can have been admitted


class _Trial:
    def __init__(
        self, runner: CooldownScope, paused: list[CooldownScope], rate: float, now: float, until: float
    ) -> None:
        self.runner = runner
        self.paused = paused  # all that may share with it
        self.rate_before = rate
        self.since = now
        self.until = until
        self.admitted = 0


class _Flow:
    """How much was admitted lately, of one group. Not what was learned about it: a hint tells the rate of the whole
    limit to each of those who share it."""

    def __init__(self, now: float) -> None:
        self._admitted = 0.0
        self._since = now

    def count(self, now: float) -> None:
        self._admitted += 1.0
        if now - self._since > FLOW_SECONDS and self._admitted > 2 * LEAST_FLOW:
            self._admitted /= 2.0
            self._since = (self._since + now) / 2.0

    @property
    def is_known(self) -> bool:
        return self._admitted >= LEAST_FLOW

    def rate(self, now: float) -> float:
        return self._admitted / max(1e-3, now - self._since)


class _Suspicions:
    """Of one provider, in one scope."""

    def __init__(self) -> None:
        self.refusals: deque[_Refusal] = deque(maxlen=REMEMBERED)
        self.coincidences: dict[frozenset[str], int] = {}
        self.disproved: dict[frozenset[str], int] = {}  # how often; the next time takes twice as much
        self.flows: dict[CooldownScope, _Flow] = {}  # of those that were refused
        self.trial: _Trial | None = None

    def has_met(self, one: CooldownScope, other: CooldownScope, share: float = 1.0) -> bool:
        """Whether two were refused at the same moments, again and again, or this share of it."""
        pair = _pair(one, other)
        return self.coincidences.get(pair, 0) >= share * OFTEN * 2.0 ** self.disproved.get(pair, 0)


class Sharing:
    """Who seems to share a limit with whom. `events` is where that is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.changed: dict[str, CredentialRecord] = {}  # may be usable from now on
        self.cooling: list[tuple[CooldownScope, str | None, float]] = []  # groups that go on cooling alone
        # By the names of provider and scope. While there is none, there is nothing to learn from a success.
        self.suspicions: dict[tuple[str | None, str | None], _Suspicions] = {}

    def refused(self, credential: CredentialRecord, record: LeaseRecord, wait: float, now: float) -> None:
        provider, scope = credential.provider, record.scope
        if len(provider.members) < 2:
            return
        known = self.suspicions.get((provider.name, scope))
        if known is None:
            if len(self.suspicions) >= MOST_SUSPICIONS:
                self.suspicions.clear()
            known = self.suspicions[provider.name, scope] = _Suspicions()
        cooldown_scope = credential.paced_as
        self._end_trial_if_late(known, scope, now)
        if known.trial is not None:
            if known.trial.runner is cooldown_scope and record.granted_at > known.trial.since:
                for other in known.trial.paused:
                    pair = _pair(cooldown_scope, other)
                    known.disproved[pair] = known.disproved.get(pair, 0) + 1
                self._end_trial(known, scope, now)
        else:
            self._count(known, cooldown_scope, record.granted_at, scope, now)
        rate = cooldown_scope.pace.learned_rate(scope)
        soon = SOON * min(wait, wait if rate is None else 1.0 / rate)
        known.refusals.append(_Refusal(cooldown_scope, credential, record.granted_at, soon))

    def admitted(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> None:
        known = self.suspicions.get((credential.provider.name, record.scope))
        if known is None:
            return
        self._end_trial_if_late(known, record.scope, now)
        trial, cooldown_scope = known.trial, credential.paced_as
        if trial is None and cooldown_scope in known.flows:
            known.flows[cooldown_scope].count(now)
        if trial is not None and trial.runner is cooldown_scope and record.granted_at > trial.since:
            trial.admitted += 1
            if trial.admitted >= TRIAL_REQUESTS:
                known.trial = None
                known.flows = {other: flow for other, flow in known.flows.items() if other not in trial.paused}
                self._join([trial.runner, *trial.paused], record.scope, now)
        elif credential.shared is not None:
            for refusal in known.refusals:
                is_soon = 0.0 < record.granted_at - refusal.sent_at < refusal.soon
                if (
                    is_soon
                    and refusal.cooldown_scope is cooldown_scope
                    and refusal.credential.group is not credential.group
                ):
                    self._part(credential.shared, now)
                    return

    def _count(
        self, known: _Suspicions, cooldown_scope: CooldownScope, sent_at: float, scope: str | None, now: float
    ) -> None:
        known.flows.setdefault(cooldown_scope, _Flow(now))
        rate = cooldown_scope.pace.learned_rate(scope)
        moment = min(MOST_MOMENT, max(SAME_MOMENT, 1.0 / rate)) if rate else SAME_MOMENT
        # In their order, as all else here: processes that share a pool must come to the same conclusions.
        met = dict.fromkeys(r.cooldown_scope for r in known.refusals if sent_at - r.sent_at <= moment)
        if cooldown_scope in met:  # the same episode
            return
        for other in met:
            pair = _pair(cooldown_scope, other)
            known.coincidences[pair] = known.coincidences.get(pair, 0) + 1
        if any(known.has_met(cooldown_scope, other) for other in met if other.members):
            others = dict.fromkeys(
                refusal.cooldown_scope for refusal in known.refusals if refusal.cooldown_scope.members
            )
            suspects = [other for other in others if known.has_met(cooldown_scope, other, HALF_AS_OFTEN)]
            if all(known.flows[suspect].is_known for suspect in (cooldown_scope, *suspects)):
                self._try(known, [cooldown_scope, *suspects], scope, now)

    # --- trials ---------------------------------------------------------------------------------------------------

    def _try(self, known: _Suspicions, suspects: list[CooldownScope], scope: str | None, now: float) -> None:
        rates = {suspect: known.flows[suspect].rate(now) for suspect in suspects}
        runner = min(suspects, key=rates.__getitem__)
        before = runner.pace.learned_rate(scope)
        if before is None:
            return
        rate = TRIAL_SHARE * sum(rates.values())
        paused = [suspect for suspect in suspects if suspect is not runner]
        known.trial = _Trial(runner, paused, before, now, until=now + 2.0 * TRIAL_REQUESTS / rate)
        for other in paused:
            other.pace.pause(known.trial.until)
        runner.pace.start_with(scope, rate, now)
        self.changed.update(runner.members)

    def _end_trial_if_late(self, known: _Suspicions, scope: str | None, now: float) -> None:
        if known.trial is not None and now >= known.trial.until:  # there was too little to do to tell
            self._end_trial(known, scope, now)

    def _end_trial(self, known: _Suspicions, scope: str | None, now: float) -> None:
        trial, known.trial = known.trial, None
        assert trial is not None
        for other in trial.paused:
            known.coincidences.pop(_pair(trial.runner, other), None)
            other.pace.pause(0.0)
            self.changed.update(other.members)
        trial.runner.pace.start_with(scope, trial.rate_before, now)
        self.changed.update(trial.runner.members)

    # --- joining and parting --------------------------------------------------------------------------------------

    def _join(self, cooldown_scopes: list[CooldownScope], scope: str | None, now: float) -> None:
        """They count as one from now on."""
        rates = [cooldown_scope.pace.learned_rate(scope) or 0.0 for cooldown_scope in cooldown_scopes]
        members = {
            member.id: member for cooldown_scope in cooldown_scopes for member in cooldown_scope.members.values()
        }
        groups = tuple(sorted({member.group.name or "" for member in members.values()}))
        shared = CooldownScope("shared", " + ".join(groups))
        for member in members.values():
            self.leave(member, now)
            shared.members[member.id] = member
            shared.pace.max_concurrent += member.max_concurrent
            member.shared = shared
            member.cooldown_scopes = (*member.cooldown_scopes, shared)
            member.group.pace.stop_learning()
        self.changed.update(members)
        shared.pace.start_with(scope, max(rates), now)  # the one of the trial's runner has just been kept up
        self.events.append(LimitShared(shared.name, groups, is_shared=True))

    def _part(self, shared: CooldownScope, now: float) -> None:
        groups = tuple(sorted({member.group.name or "" for member in shared.members.values()}))
        for member in tuple(shared.members.values()):
            self.leave(member, now)
        self.events.append(LimitShared(shared.name, groups, is_shared=False))

    def leave(self, member: CredentialRecord, now: float) -> None:
        """Counts by itself again, and goes on with its part of what was learned together."""
        shared, member.shared = member.shared, None
        if shared is None:
            return
        part = member.max_concurrent / (shared.pace.max_concurrent or 1)
        member.group.pace.is_learning = True
        for scope in shared.pace.estimators:
            rate = shared.pace.learned_rate(scope)
            if rate is not None:
                member.group.pace.start_with(scope, rate * part, now)
        del shared.members[member.id]
        self.changed[member.id] = member
        self.cooling += [(member.group, scope, until) for scope, until in shared.cooling.items()]
        member.cooled -= len(shared.cooling)
        member.cooldown_scopes = tuple(
            cooldown_scope for cooldown_scope in member.cooldown_scopes if cooldown_scope is not shared
        )


def _pair(one: CooldownScope, other: CooldownScope) -> frozenset[str]:
    return frozenset((one.name or "", other.name or ""))
