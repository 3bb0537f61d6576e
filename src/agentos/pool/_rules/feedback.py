"""ProviderFeedback: applies the answers of providers to the pool, by cool-downs, quarantine and learned limits."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from agentos.events import LimitLearned
from agentos.limits import backoff
from agentos.limits.concurrency import LearnedConcurrency
from agentos.limits.cool_downs import DEFAULT_COOL_DOWN, MAX_COOL_DOWN, cool_down, hint_of
from agentos.limits.pace import NO_CHARGE
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, RETRY_ON_OTHER_KEY, Verdict

from .cooldown_scope import CooldownScope
from .lease_states import LIVE
from .records import CredentialRecord, LeaseRecord

if TYPE_CHECKING:
    from .allocator import Allocator

# Refusals in a row that quarantine a credential even if all of them came from one requester.
MAX_AUTH_FAILURES = 3


class ProviderFeedback:
    """Applies answers to the credentials of an allocator."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def apply(self, credential: CredentialRecord, record: LeaseRecord | None, verdict: Verdict | None, now: float,
                 jitter: float = 0.5) -> None:  # fmt: skip
        """Apply an answer to a credential; a verdict of None is a success. Cools or quarantines; frees no lease."""
        # The scope of the lease, not the model that the answer names: requests are held back by the scope they name.
        scope = record.scope if record is not None else verdict.scope if verdict is not None else None
        if verdict is None:
            credential.is_proven = True
            credential.auth_failures = 0
            credential.auth_failed_by = None
            credential.provider.overloads.pop(scope, None)
            if credential.group.guesses:
                self._allocator.guessed.succeeded(record, credential.group, now)
            credential.is_healthy = credential.is_in_use and not (
                credential.provider.overloads or credential.group.guesses
            )
            return
        has_limits = False
        if record is not None:
            self.mark_answered(record)
            if verdict.kind != AUTH_FAILED:  # limits in the answer to a refused key are not its own
                has_limits = self._read_limits(credential, record, verdict, now)
        is_too_many = record is not None and self._learn_concurrency(credential, record, verdict, now)
        if is_too_many and verdict.kind == RATE_LIMITED:
            self._allocator.cool(credential.group, scope, hint_of(verdict) or 0.0, RATE_LIMITED, now)
        elif verdict.kind == RATE_LIMITED and record is not None:
            self._rate_limited(credential, record, verdict, now)
        elif verdict.kind in (RATE_LIMITED, QUOTA_EXHAUSTED):
            sent_at = now if record is None else record.granted_at
            seconds = self._allocator.guessed.seconds(credential.group, scope, verdict, sent_at, now)
            self._allocator.cool(credential.group, scope, seconds, verdict.kind, now)
            credential.group.pace.ramp_up(scope, now + min(seconds, MAX_COOL_DOWN), now)
        elif verdict.kind == OVERLOADED:
            sent_at = now if record is None else record.granted_at
            self._overloaded(credential.provider, verdict, scope, sent_at, now, jitter)
        elif verdict.kind == AUTH_FAILED:
            self._auth_failed(credential, record.requester if record is not None else None, verdict, now)
        if has_limits:  # after the cool-down: no waiter must be granted what the same answer forbids
            self._allocator.serve_all((credential.group,), now)

    def apply_verdict(self, record: LeaseRecord, verdict: Verdict, now: float, jitter: float) -> None:
        """Apply the verdict on an answer to a lease. Kinds that another credential cannot help with change no
        credential; only the limits in their headers count."""
        if verdict.kind not in RETRY_ON_OTHER_KEY:
            if verdict.is_printed:
                self.mark_answered(record)  # it may have been refused: no limit is learned from it
            self.observe(record, verdict, now)
        elif record.credential is not None:
            self.apply(record.credential, record, verdict, now, jitter)

    def observe(self, record: LeaseRecord, verdict: Verdict, now: float) -> None:
        """Read the limits in the headers of an answer, whether it was a success or not."""
        if record.credential is not None and self._read_limits(record.credential, record, verdict, now):
            self._allocator.serve_all((record.credential.group,), now)

    def _read_limits(self, credential: CredentialRecord, record: LeaseRecord, verdict: Verdict, now: float) -> bool:
        """Read the limits in an answer; return whether it has any."""
        if verdict.windows:
            group, charge = record.charge or (None, None)
            credential.group.pace.report(record, charge if group is credential.group else None, verdict.windows, now)
        if verdict.limit_requests is None and verdict.limit_tokens is None:
            return bool(verdict.windows)
        members = credential.group.members.values()
        tokens_in_flight = sum(
            lease.tokens for member in members for lease in member.leases.values() if lease is not record
        )
        credential.group.pace.observe(record, verdict, tokens_in_flight, now)
        self.announce_learned(credential.group, record.scope)
        return True

    def mark_answered(self, record: LeaseRecord) -> None:
        """Note that a live lease has its answer: its request is not in flight any more."""
        if record.state == LIVE and not record.is_answered:
            record.is_answered = True
            estimator = None if record.charge is None else record.charge[1].estimator
            if estimator is not None:
                estimator.answer(record.granted_at)

    def _learn_concurrency(
        self, credential: CredentialRecord, record: LeaseRecord, verdict: Verdict, now: float
    ) -> bool:
        """Lower the learned number of requests at once if the provider refused one because of it, or of overload.
        Return whether other requests in flight explain the refusal: then no rate is learned from it."""
        concurrency = credential.concurrency
        if concurrency is None or verdict.kind not in (RATE_LIMITED, OVERLOADED):
            return False
        # Requests that were sent at the same time may arrive in any order.
        refused = max(record.at_once, len(credential.leases))
        if verdict.kind == OVERLOADED:
            concurrency.record_overload(record.granted_at, now)
        else:
            if verdict.window != "concurrency":
                refused = self._explain(credential, concurrency, record, refused, verdict, now)
            if refused:
                concurrency.record_refusal(record.granted_at, refused, hint_of(verdict) or 0.0, now)
        credential.follow_concurrency()
        return refused > 1

    def _explain(self, credential: CredentialRecord, concurrency: LearnedConcurrency, record: LeaseRecord,
                 at_once: int, verdict: Verdict, now: float) -> int:  # fmt: skip
        """Return how many requests at once explain a refusal that does not give that as its reason; 0 if that is not
        its reason."""
        if verdict.window is not None or len(credential.group.members) > 1:  # others of the group are in flight
            return 0
        if concurrency.explains(at_once):
            return at_once
        refused = concurrency.suspect(record.granted_at, at_once, now)
        if refused:
            credential.group.pace.forget_rate(record.scope, now)
        return refused

    def _rate_limited(self, credential: CredentialRecord, record: LeaseRecord, verdict: Verdict, now: float) -> None:
        """Cool the group for the time in the answer, or for the time of one request at the learned rate."""
        group = credential.group
        leases = [lease for member in group.members.values() for lease in member.leases.values()]
        others = [lease for lease in leases if lease is not record and lease.scope == record.scope]
        earlier = sum(lease.granted_at < record.granted_at for lease in others)
        charge = NO_CHARGE if record.charge is None else record.charge[1]
        hint = hint_of(verdict)
        known_hint = None if hint is None else min(hint, MAX_COOL_DOWN)
        wait = group.pace.refuse(record, charge, len(others) - earlier, earlier, known_hint, now)
        self._allocator.cool(group, record.scope, max(wait, hint or 0.0), RATE_LIMITED, now)
        self.announce_learned(group, record.scope)

    def announce_learned(self, group: CooldownScope, scope: str | None) -> None:
        """Announce an undeclared limit once, when it has become known."""
        learned = group.pace.newly_learned(scope)
        if learned is not None:
            self._allocator.events.append(LimitLearned(group.kind, group.name, scope, learned))

    def _overloaded(self, provider: CooldownScope, verdict: Verdict, scope: str | None, sent_at: float, now: float,
                    jitter: float) -> None:  # fmt: skip
        """Cool the whole provider, longer with each overload in a row."""
        in_a_row, since = provider.overloads.get(scope, (0, -inf))
        hint = hint_of(verdict)
        if sent_at < since:  # sent before the last one was counted: not counted again; its hint is obeyed
            if hint is not None:
                self._allocator.cool(provider, scope, hint, OVERLOADED, now)
            return
        provider.overloads[scope] = in_a_row + 1, now
        in_a_row += 1
        for member in provider.members.values():
            member.is_healthy = False
        seconds = backoff.delay(in_a_row, jitter, base=DEFAULT_COOL_DOWN[OVERLOADED])
        if hint is not None:
            seconds = max(seconds, hint)
        self._allocator.cool(provider, scope, seconds, OVERLOADED, now)
        for member in provider.members.values():
            member.group.pace.ramp_up(scope, now + seconds, now)

    def _auth_failed(self, credential: CredentialRecord, requester: str | None, verdict: Verdict, now: float) -> None:
        """Cool a refused credential; quarantine it after a refusal of a second requester, or after MAX_AUTH_FAILURES.

        One refusal may be a blip, or the fault of the item itself. A quarantine keeps its reason and its count, which
        were announced: requests that are in flight are refused, too."""
        if credential.removed or credential.quarantine is not None:
            return
        credential.is_healthy = False
        if credential.count_refusal(requester, now) or credential.auth_failures >= MAX_AUTH_FAILURES:
            reason = f"refused by the provider {credential.auth_failures} times in a row"
            self._allocator.quarantine(
                credential.id, f"{reason}: {verdict.message}" if verdict.message else reason, now
            )
        else:
            self._allocator.cool(credential.cooldown_scopes[0], None, cool_down(verdict), AUTH_FAILED, now)
            credential.probe_deadline = 0.0  # the next request is a probe, too
