"""ProviderFeedback: applies the answers of providers to the pool, by cool-downs, quarantine and learned limits."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from agentos.events import LimitLearned
from agentos.limits import backoff
from agentos.limits.cool_downs import DEFAULT_COOL_DOWN, MAX_COOL_DOWN, cool_down, hint_of
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, RETRY_ON_OTHER_KEY, Verdict

from .cooldown_scope import CooldownScope
from .lease_states import LIVE
from .records import CredentialRecord, LeaseRecord
from .shared_limits import Sharing

if TYPE_CHECKING:
    from .allocator import Allocator

# Refusals in a row that quarantine a credential even if all of them came from one requester.
MAX_AUTH_FAILURES = 3


class ProviderFeedback:
    """Applies answers to the credentials of an allocator."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self.sharing = Sharing()

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
            credential.success_is_noop = not (credential.provider.overloads or credential.group.guesses)
            return
        has_limits = False
        if record is not None:
            self.mark_answered(record)
            if verdict.kind != AUTH_FAILED:  # limits in the answer to a refused key are not its own
                has_limits = self._read_limits(credential, record, verdict, now)
        if verdict.kind == RATE_LIMITED and record is not None:
            self._rate_limited(credential, record, verdict, now)
        elif verdict.kind in (RATE_LIMITED, QUOTA_EXHAUSTED):
            sent_at = now if record is None else record.granted_at
            seconds = self._allocator.guessed.seconds(credential.group, scope, verdict, sent_at, now)
            self._allocator.cool(credential.group, scope, seconds, verdict.kind, now)
            credential.paced_as.pace.ramp_up(scope, now + min(seconds, MAX_COOL_DOWN), now)
        elif verdict.kind == OVERLOADED:
            sent_at = now if record is None else record.granted_at
            self._overloaded(credential.provider, verdict, scope, sent_at, now, jitter)
        elif verdict.kind == AUTH_FAILED:
            self._auth_failed(credential, record.requester if record is not None else None, verdict, now)
        if has_limits:  # after the cool-down: no waiter must be granted what the same answer forbids
            self._allocator.serve_all((credential.paced_as,), now)

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
            self._allocator.serve_all((record.credential.paced_as,), now)

    def admitted(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> None:
        """Count a success while groups are suspected to share a limit."""
        self.sharing.admitted(credential, record, now)
        self._follow_sharing(now)

    def _read_limits(self, credential: CredentialRecord, record: LeaseRecord, verdict: Verdict, now: float) -> bool:
        """Read the limits in an answer; return whether it has any."""
        if verdict.windows:
            charges = [charge for cooldown_scope, charge in record.charges if cooldown_scope is credential.group]
            credential.group.pace.report(record, charges[0] if charges else None, verdict.windows, now)
        if verdict.limit_requests is None and verdict.limit_tokens is None:
            return bool(verdict.windows)
        members = credential.paced_as.members.values()
        tokens_in_flight = sum(
            lease.tokens for member in members for lease in member.leases.values() if lease is not record
        )
        credential.paced_as.pace.observe(record, verdict, tokens_in_flight, now)
        self._announce_learned(credential, record.scope)
        return True

    def mark_answered(self, record: LeaseRecord) -> None:
        """Note that a live lease has its answer: its request is not in flight any more."""
        if record.state == LIVE and not record.is_answered:
            record.is_answered = True
            for _, charge in record.charges:
                if charge.estimator is not None:
                    charge.estimator.in_flight -= 1

    def _rate_limited(self, credential: CredentialRecord, record: LeaseRecord, verdict: Verdict, now: float) -> None:
        """Cool the group for the time in the answer, or for the time of one request at the learned rate."""
        cooldown_scope = credential.paced_as
        others_in_flight = sum(len(member.leases) for member in cooldown_scope.members.values()) - 1
        hint = hint_of(verdict)
        wait = cooldown_scope.pace.refuse(
            record, max(0, others_in_flight), None if hint is None else min(hint, MAX_COOL_DOWN), now
        )
        self._allocator.cool(cooldown_scope, record.scope, max(wait, hint or 0.0), RATE_LIMITED, now)
        self._announce_learned(credential, record.scope)
        self.sharing.refused(credential, record, wait, now)
        self._follow_sharing(now)

    def _follow_sharing(self, now: float) -> None:
        """Announce what `sharing` has found out, and apply it to cool-downs and waiters."""
        if self.sharing.events:
            self._allocator.events.extend(self.sharing.events)
            self.sharing.events.clear()
        cooling, self.sharing.cooling = self.sharing.cooling, []
        for group, scope, until in cooling:
            self._allocator.cool(group, scope, until - now, RATE_LIMITED, now)
        changed, self.sharing.changed = self.sharing.changed, {}
        for member in changed.values():
            self._allocator.serve(member, now)

    def _announce_learned(self, credential: CredentialRecord, scope: str | None) -> None:
        for cooldown_scope in credential.paced_by:
            learned = cooldown_scope.pace.newly_learned(scope)
            if learned is not None:
                self._allocator.events.append(LimitLearned(cooldown_scope.kind, cooldown_scope.name, scope, learned))

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
            member.success_is_noop = False
        seconds = backoff.delay(in_a_row, jitter, base=DEFAULT_COOL_DOWN[OVERLOADED])
        if hint is not None:
            seconds = max(seconds, hint)
        self._allocator.cool(provider, scope, seconds, OVERLOADED, now)
        for member in provider.members.values():
            member.group.pace.ramp_up(scope, now + seconds, now)

    def _auth_failed(self, credential: CredentialRecord, requester: str | None, verdict: Verdict, now: float) -> None:
        """Cool a refused credential; quarantine it after a refusal of a second requester, or after MAX_AUTH_FAILURES.

        One refusal may be a blip, or the fault of the item itself."""
        if credential.removed:
            return
        credential.success_is_noop = False
        credential.auth_failures += 1
        by_another = credential.auth_failures > 1 and (requester is None or requester != credential.auth_failed_by)
        credential.auth_failed_by = requester
        if by_another or credential.auth_failures >= MAX_AUTH_FAILURES:
            reason = f"refused by the provider {credential.auth_failures} times in a row"
            self._allocator.quarantine(
                credential.id, f"{reason}: {verdict.message}" if verdict.message else reason, now
            )
        else:
            self._allocator.cool(credential.cooldown_scopes[0], None, cool_down(verdict), AUTH_FAILED, now)
            credential.probe_deadline = 0.0  # the next request is a probe, too
