"""The end of a lease: one rule for every way in which a lease or a waiting request can end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentos.events import UNREACHABLE
from agentos.limits.concurrency import LearnedConcurrency
from agentos.limits.pace import Charge
from agentos.verdict import RATE_LIMITED, Verdict

from .cooldown_scope import CooldownScope
from .lease_states import ENDED, LIVE, WAITING
from .records import CredentialRecord, LeaseRecord

if TYPE_CHECKING:
    from .allocator import Allocator


class LeaseEnd:
    """Ends the leases of an allocator."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def end(self, record: LeaseRecord, now: float, verdict: Verdict | None = None, success: bool = False,
            jitter: float = 0.5, *, next_state: str = ENDED) -> bool:  # fmt: skip
        """End a live lease; return False, and change nothing, if it is not live.

        Every end of a lease comes here. The order matters: the provider's answer (a verdict, a success or nothing) is
        applied first, so that a credential that it cools is not granted to the next waiter; then the usage is counted
        and limits learn from it; then the credential serves its waiters. A failed request is not refunded: providers
        count it.
        """
        if record.state != LIVE:
            return False
        allocator, credential = self._allocator, record.credential
        assert credential is not None
        if verdict is not None:
            allocator.feedback.apply_verdict(record, verdict, now, jitter)
        elif success and not credential.is_healthy:
            allocator.feedback.apply(credential, record, None, now)
        if allocator.due and allocator.due[0][0] <= now:
            allocator.advance(now)
        if credential.concurrency is not None and verdict is None and not (record.is_unused or record.is_answered):
            in_flight = len(credential.leases)
            if credential.concurrency.record_success(record.granted_at, record.at_once, in_flight, now):
                self._raise_limit(credential, credential.concurrency, record.scope, now)
        record.state = next_state
        del credential.leases[record.fence]
        allocator.sequence = credential.last_used = allocator.sequence + 1
        if not credential.is_healthy and credential.group.guesses:
            allocator.guessed.ended(record, credential.group, now)
        credential.used_requests += record.requests
        if record.tokens:
            credential.used_tokens += record.tokens
        if record.charge is not None:
            self._learn_from_end(record, *record.charge, now, has_verdict=verdict is not None)
        if allocator.waiting or not credential.is_healthy:
            allocator.serve(credential, now)
            allocator.advance(now)
        elif len(credential.leases) < credential.max_concurrent:  # else its limit was lowered while it was leased
            allocator.ready.push(credential, now)
        return True

    def _raise_limit(
        self, credential: CredentialRecord, concurrency: LearnedConcurrency, scope: str | None, now: float
    ) -> None:
        """Raise the learned number of requests at once, unless the rate would hold the next request back anyway."""
        pace = credential.group.pace
        if pace.is_free or pace.binding(scope, 1, 0, now).at <= now:
            concurrency.grow(now)
            credential.follow_concurrency()
        else:
            concurrency.hold()

    def _learn_from_end(
        self, record: LeaseRecord, group: CooldownScope, charge: Charge, now: float, *, has_verdict: bool
    ) -> None:
        is_slow = charge.estimator is not None and charge.estimator.slow_start is not None
        if group.pace.end(charge, record, now, has_verdict=has_verdict):
            self._allocator.feedback.announce_learned(group, record.scope)
        if is_slow and len(group.members) > 1:  # after a success of one member the others may start more
            self._allocator.wake_ups.look_again(group, 0.0)

    def cool_and_end(self, record: LeaseRecord, seconds: float, now: float, address: str | None = None) -> None:
        """End a live lease and cool its credential's group on the caller's word, from which no limit is learned.
        `address`: of the provider, if it could not be reached."""
        if record.state == LIVE and record.credential is not None:
            reason = RATE_LIMITED if address is None else UNREACHABLE + address
            self._allocator.cool(record.credential.group, None, seconds, reason, now)
            self._allocator.feedback.mark_answered(record)
            self.end(record, now)

    def withdraw(self, record: LeaseRecord, now: float) -> bool:
        """End a request whose caller gives up; return whether it was waiting. A lease that it was granted counts as
        unused."""
        if record.state == WAITING and record.sequence:
            self._allocator.queue.remove(record)
            record.state = ENDED
            return True
        if record.state == LIVE:
            self._end_unused(record, now, ENDED)
        return False

    def lose(self, record: LeaseRecord, now: float) -> None:
        """End a lease or request whose process is gone. Its reservation counts as used, and nothing is learned from it:
        how far it came is unknown."""
        if record.state == LIVE:
            self._allocator.feedback.mark_answered(record)
            self.end(record, now)
        else:
            self.withdraw(record, now)

    def set_aside(self, record: LeaseRecord, now: float) -> None:
        """Take a request out of its queue until `put_back`; a grant that it was offered goes to the next waiter."""
        if record.state == WAITING:
            self._allocator.queue.remove(record)
            return
        requests, tokens, detail = record.requests, record.tokens, record.detail
        self._end_unused(record, now, WAITING)
        record.requests, record.tokens, record.detail = requests, tokens, detail
        record.is_unused = record.is_answered = record.settled = False
        record.charge = None
        record.credential = record.credential_id = None

    def _end_unused(self, record: LeaseRecord, now: float, next_state: str) -> None:
        self._allocator.correct(record, 0, 0, None, now)
        record.is_unused = True
        self.end(record, now, next_state=next_state)
