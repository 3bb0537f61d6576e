"""Detects groups of one provider that were declared apart and yet share a limit.

Groups that are refused at the same moments, repeatedly, may share a limit, or may have equal limits and have started
together. A *trial* decides: all groups but one pause, and that one runs faster than it ever could alone. If it is not
refused, the groups share a limit and are paced as one. A later success disproves that: a request of one group that was
sent right after another group was refused, and admitted although a common limit would have been used up.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from agentos.events import LimitShared

from .cooldown_scope import CooldownScope
from .records import CredentialRecord, LeaseRecord

# Two refusals coincide if they are at most MIN_MOMENT seconds apart, or the time of one request, up to MAX_MOMENT.
MIN_MOMENT = 0.25
MAX_MOMENT = 1.0
# MIN_COINCIDENCES of two groups start a trial; groups with SUSPECT_SHARE of that many join it.
MIN_COINCIDENCES = 4
SUSPECT_SHARE = 0.5
# The admitted rate of a group is known after MIN_FLOW requests. Every FLOW_SECONDS its history counts half.
MIN_FLOW = 3
FLOW_SECONDS = 10.0
# In a trial the slowest group runs at TRIAL_SHARE of the sum of all rates, at least 1.6 times its own, and passes after
# TRIAL_REQUESTS. If its limit were its own, it would be refused after two or three.
TRIAL_SHARE = 0.8
TRIAL_REQUESTS = 12
# A request that is admitted after a refusal, within this share of the time of one request, disproves a common limit.
DISPROOF_SHARE = 0.125
# Refusals that are remembered per provider and scope, and the number of such pairs.
MAX_REFUSALS = 64
MAX_SUSPICIONS = 256


class _Refusal(NamedTuple):
    """One refusal of a group."""

    cooldown_scope: CooldownScope
    credential: CredentialRecord
    sent_at: float
    disproof_seconds: float  # after it, in which a group with the same limit cannot be admitted


class _Trial:
    """One group runs while the others pause."""

    def __init__(
        self, runner: CooldownScope, paused: list[CooldownScope], rate: float, now: float, until: float
    ) -> None:
        self.runner = runner
        self.paused = paused
        self.rate_before = rate
        self.since = now
        self.until = until
        self.admitted = 0


class _Flow:
    """The rate at which requests of one group were admitted. Not its learned rate: a hint in an answer tells each
    group the rate of the whole common limit."""

    def __init__(self, now: float) -> None:
        self._admitted = 0.0
        self._since = now

    def count(self, now: float) -> None:
        """Count an admitted request."""
        self._admitted += 1.0
        if now - self._since > FLOW_SECONDS and self._admitted > 2 * MIN_FLOW:
            self._admitted /= 2.0
            self._since = (self._since + now) / 2.0

    @property
    def is_known(self) -> bool:
        return self._admitted >= MIN_FLOW

    def rate(self, now: float) -> float:
        return self._admitted / max(1e-3, now - self._since)


class _Suspicions:
    """What is known about the groups of one provider in one scope."""

    def __init__(self) -> None:
        self.refusals: deque[_Refusal] = deque(maxlen=MAX_REFUSALS)
        self.coincidences: dict[frozenset[str], int] = {}
        self.disproved: dict[frozenset[str], int] = {}  # times; each doubles the coincidences that the next trial needs
        self.flows: dict[CooldownScope, _Flow] = {}  # of groups that were refused
        self.trial: _Trial | None = None

    def has_coincided(self, first: CooldownScope, second: CooldownScope, share: float = 1.0) -> bool:
        """Return whether two groups have enough coincidences for a trial, or `share` of them."""
        pair = _pair(first, second)
        return self.coincidences.get(pair, 0) >= share * MIN_COINCIDENCES * 2.0 ** self.disproved.get(pair, 0)


class Sharing:
    """Finds groups that share a limit. Its owner takes `events`, `changed` and `cooling` after each call."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.changed: dict[str, CredentialRecord] = {}  # credentials that may be usable from now on
        self.cooling: list[tuple[CooldownScope, str | None, float]] = []  # groups that go on cooling alone
        # By names of provider and scope. If empty, nothing is learned from a success.
        self.suspicions: dict[tuple[str | None, str | None], _Suspicions] = {}

    def refused(self, credential: CredentialRecord, record: LeaseRecord, wait: float, now: float) -> None:
        """Count a refusal, which makes the group wait for `wait` seconds."""
        provider, scope = credential.provider, record.scope
        if len(provider.members) < 2:
            return
        suspicions = self.suspicions.get((provider.name, scope))
        if suspicions is None:
            if len(self.suspicions) >= MAX_SUSPICIONS:
                self.suspicions.clear()
            suspicions = self.suspicions[provider.name, scope] = _Suspicions()
        cooldown_scope = credential.paced_as
        self._end_trial_if_late(suspicions, scope, now)
        if suspicions.trial is not None:
            if suspicions.trial.runner is cooldown_scope and record.granted_at > suspicions.trial.since:
                for group in suspicions.trial.paused:
                    pair = _pair(cooldown_scope, group)
                    suspicions.disproved[pair] = suspicions.disproved.get(pair, 0) + 1
                self._end_trial(suspicions, scope, now)
        else:
            self._count(suspicions, cooldown_scope, record.granted_at, scope, now)
        rate = cooldown_scope.pace.learned_rate(scope)
        disproof_seconds = DISPROOF_SHARE * min(wait, wait if rate is None else 1.0 / rate)
        suspicions.refusals.append(_Refusal(cooldown_scope, credential, record.granted_at, disproof_seconds))

    def admitted(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> None:
        """Count a success: for a trial, or against a common limit."""
        suspicions = self.suspicions.get((credential.provider.name, record.scope))
        if suspicions is None:
            return
        self._end_trial_if_late(suspicions, record.scope, now)
        trial, cooldown_scope = suspicions.trial, credential.paced_as
        if trial is None and cooldown_scope in suspicions.flows:
            suspicions.flows[cooldown_scope].count(now)
        if trial is not None and trial.runner is cooldown_scope and record.granted_at > trial.since:
            trial.admitted += 1
            if trial.admitted >= TRIAL_REQUESTS:
                suspicions.trial = None
                suspicions.flows = {
                    group: flow for group, flow in suspicions.flows.items() if group not in trial.paused
                }
                self._join([trial.runner, *trial.paused], record.scope, now)
        elif credential.shared is not None:
            for refusal in suspicions.refusals:
                is_soon = 0.0 < record.granted_at - refusal.sent_at < refusal.disproof_seconds
                if (
                    is_soon
                    and refusal.cooldown_scope is cooldown_scope
                    and refusal.credential.group is not credential.group
                ):
                    self._part(credential.shared, now)
                    return

    def _count(
        self, suspicions: _Suspicions, cooldown_scope: CooldownScope, sent_at: float, scope: str | None, now: float
    ) -> None:
        suspicions.flows.setdefault(cooldown_scope, _Flow(now))
        rate = cooldown_scope.pace.learned_rate(scope)
        moment = min(MAX_MOMENT, max(MIN_MOMENT, 1.0 / rate)) if rate else MIN_MOMENT
        # In the order of refusals, not a set: the same history must come to the same result.
        coincident = dict.fromkeys(r.cooldown_scope for r in suspicions.refusals if sent_at - r.sent_at <= moment)
        if cooldown_scope in coincident:  # the same episode of refusals
            return
        for group in coincident:
            pair = _pair(cooldown_scope, group)
            suspicions.coincidences[pair] = suspicions.coincidences.get(pair, 0) + 1
        if any(suspicions.has_coincided(cooldown_scope, group) for group in coincident if group.members):
            refused_groups = dict.fromkeys(
                refusal.cooldown_scope for refusal in suspicions.refusals if refusal.cooldown_scope.members
            )
            suspects = [
                group for group in refused_groups if suspicions.has_coincided(cooldown_scope, group, SUSPECT_SHARE)
            ]
            if all(suspicions.flows[suspect].is_known for suspect in (cooldown_scope, *suspects)):
                self._try(suspicions, [cooldown_scope, *suspects], scope, now)

    # --- trials ---------------------------------------------------------------------------------------------------

    def _try(self, suspicions: _Suspicions, suspects: list[CooldownScope], scope: str | None, now: float) -> None:
        rates = {suspect: suspicions.flows[suspect].rate(now) for suspect in suspects}
        runner = min(suspects, key=rates.__getitem__)
        rate_before = runner.pace.learned_rate(scope)
        if rate_before is None:
            return
        rate = TRIAL_SHARE * sum(rates.values())
        paused = [suspect for suspect in suspects if suspect is not runner]
        suspicions.trial = _Trial(runner, paused, rate_before, now, until=now + 2.0 * TRIAL_REQUESTS / rate)
        for group in paused:
            group.pace.pause(suspicions.trial.until)
        runner.pace.start_with(scope, rate, now)
        self.changed.update(runner.members)

    def _end_trial_if_late(self, suspicions: _Suspicions, scope: str | None, now: float) -> None:
        if suspicions.trial is not None and now >= suspicions.trial.until:  # too few requests for a result
            self._end_trial(suspicions, scope, now)

    def _end_trial(self, suspicions: _Suspicions, scope: str | None, now: float) -> None:
        trial, suspicions.trial = suspicions.trial, None
        assert trial is not None
        for group in trial.paused:
            suspicions.coincidences.pop(_pair(trial.runner, group), None)
            group.pace.pause(0.0)
            self.changed.update(group.members)
        trial.runner.pace.start_with(scope, trial.rate_before, now)
        self.changed.update(trial.runner.members)

    # --- joining and parting --------------------------------------------------------------------------------------

    def _join(self, cooldown_scopes: list[CooldownScope], scope: str | None, now: float) -> None:
        """Pace groups as one from now on."""
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
        shared.pace.start_with(scope, max(rates), now)  # the rate that the trial has just confirmed
        self.events.append(LimitShared(shared.name, groups, is_shared=True))

    def _part(self, shared: CooldownScope, now: float) -> None:
        """Pace groups separately again."""
        groups = tuple(sorted({member.group.name or "" for member in shared.members.values()}))
        for member in tuple(shared.members.values()):
            self.leave(member, now)
        self.events.append(LimitShared(shared.name, groups, is_shared=False))

    def leave(self, member: CredentialRecord, now: float) -> None:
        """Pace a credential by its own group again, from its share of the rate that was learned together."""
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


def _pair(first: CooldownScope, second: CooldownScope) -> frozenset[str]:
    return frozenset((first.name or "", second.name or ""))
