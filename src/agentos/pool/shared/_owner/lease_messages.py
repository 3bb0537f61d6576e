"""LeaseMessages: requests, ends and usage of leases, as members send them."""

from __future__ import annotations

from agentos.limits.amounts import Detail

from ..._rules.lease_states import LIVE, REFUSED
from ..._rules.records import LeaseRecord
from .. import message_values as values
from .. import messages as wire
from . import entries as kinds
from .credential_messages import CredentialMessages
from .owned_pool import granted
from .session import OwnedRecord, Session


class LeaseMessages(CredentialMessages):
    """Handlers of the messages about leases."""

    def _request(self, session: Session, request: wire.Request, now: float) -> None:
        known = session.leases.get(request.lease)
        if known is not None:
            known.restrict(session, request.for_provider, request.only)
            return
        record = OwnedRecord(request.requester, request.requests, request.tokens, request.scope, request.prefer,
                             request.for_provider, request.only, values.detail_of(request.detail))  # fmt: skip
        if request.excluded or request.later:
            record.excluded, record.later = frozenset(request.excluded), frozenset(request.later)
        record.join_class(session)
        record.id, record.owner, record.waits_for_probe = request.lease, session, request.waits_for_probe
        if self.allocator.request(record, now, request.wait, request.front):
            session.leases[request.lease] = record
            self._record_grant(session, record, now)
            self._tell(session, granted(record))
        elif record.state == REFUSED:
            self._answer(record, now)
        elif request.wait:
            session.leases[request.lease] = record
        else:
            self._tell(session, wire.Denied(request.lease))

    def _confirm(self, session: Session, confirm: wire.Confirm, now: float) -> None:
        record = session.leases.get(confirm.lease)
        if record is None:
            self._tell(session, wire.Lost(confirm.lease))
            return
        if record.state != LIVE or record.credential is None:
            return  # it waits, and is answered when it is served
        fence, credential_id = record.fence, record.credential.id
        if credential_id in session.credential_ids:
            is_live = self.allocator.confirm(record, now)
        else:  # the member has dropped the credential meanwhile
            self.allocator.lease_end.set_aside(record, now)
            record.join_class(session)
            is_live = self.allocator.request(record, now, front=True)
            if record.state == REFUSED:
                self.allocator.served.append(record)
        if record.state != LIVE or (record.credential_id, record.fence) != (credential_id, fence):
            self._record_unused(credential_id, fence, now)
            if is_live:
                self._record_grant(session, record, now)
        if is_live:
            self._tell(session, granted(record))

    def _withdraw(self, session: Session, withdraw: wire.Withdraw, now: float) -> None:
        record = session.leases.pop(withdraw.lease, None)
        if record is not None:
            if record.state == LIVE:
                self._record_unused(record.credential_id, record.fence, now)
            self.allocator.lease_end.withdraw(record, now)

    def _record_unused(self, credential_id: str | None, fence: int, now: float) -> None:
        """Record the end of a lease that its caller never had: it used nothing."""
        self._record((kinds.CORRECT, credential_id, fence, 0, 0), now)
        self._record((kinds.END, credential_id, fence), now)

    def _end(self, session: Session, end: wire.End, now: float) -> None:
        record = session.leases.get(end.lease)
        verdict = None if end.verdict is None else values.verdict_of(end.verdict)
        if record is None or record.state != LIVE:
            return
        is_plain = end.cool_seconds is None and verdict is None
        arrived = is_plain and not record.is_answered
        self._forget_lease(session, record, now, proves=is_plain and end.success, arrived=arrived)
        if end.cool_seconds is not None:
            self.allocator.lease_end.cool_and_end(record, end.cool_seconds, now, end.address)
        else:
            jitter = 0.5 if verdict is None else self._jitter()
            self.allocator.lease_end.end(record, now, verdict, end.success, jitter)

    def _forget_lease(self, session: Session, record: LeaseRecord, now: float, *, proves: bool = False,
                      arrived: bool = False) -> None:  # fmt: skip
        """Take a live lease that is about to end out of the session, and record its end. `proves`: with a success.
        `arrived`: windows that begin with their first use have begun."""
        assert record.credential_id is not None
        assert record.credential is not None
        session.leases.pop(record.id, None)
        self.seen_at[record.credential_id] = now
        is_first = proves and (not record.credential.is_proven or record.credential.auth_failures > 0)
        limiter = record.credential.group.pace.limiter
        if arrived and limiter is not None and limiter.has_first_use:
            news: tuple[float, ...] = (is_first, now)
        else:
            news = (True,) if is_first else ()
        self._record((kinds.END, record.credential_id, record.fence, *news), now)

    def _observed(self, session: Session, observed: wire.Observed, now: float) -> None:
        record = session.leases.get(observed.lease)
        verdict = values.verdict_of(observed.verdict)
        if record is not None and record.state == LIVE:
            self.allocator.feedback.apply_verdict(record, verdict, now, self._jitter())

    def _settle(self, session: Session, settle: wire.Settle, now: float) -> None:
        record = session.leases.get(settle.lease)
        if record is None:
            detail = values.detail_of(settle.excess_detail)
            self._late_usage(settle.credential, settle.excess_requests, settle.excess_tokens, settle.scope, detail, now)
        elif self.allocator.settle(record, settle.requests, settle.tokens, now, values.detail_of(settle.detail)):
            self._record_usage(record, now)

    def _use_more(self, session: Session, more: wire.UseMore, now: float) -> None:
        record = session.leases.get(more.lease)
        if record is None:
            self._late_usage(
                more.credential, more.requests, more.tokens, more.scope, values.detail_of(more.detail), now
            )
        elif record.state == LIVE:
            if max(record.requests + more.requests, record.tokens + more.tokens) > wire.MAX_COUNT:
                raise ValueError(f"a lease cannot use more than {wire.MAX_COUNT}")
            self.allocator.use_more(record, more.requests, more.tokens, now, values.detail_of(more.detail))
            self._record_usage(record, now)

    def _late_usage(self, credential_id: str | None, requests: int, tokens: int, scope: str | None,
                    detail: Detail | None, now: float) -> None:  # fmt: skip
        """Count usage of a lease that ended before it was reported (invariant 14)."""
        if credential_id is not None and (requests or tokens or detail is not None):
            self.count_debt(credential_id, requests, tokens, now, now, scope, detail)

    def _record_usage(self, record: LeaseRecord, now: float) -> None:
        what = (record.credential_id, record.fence, record.requests, record.tokens)
        self._record((kinds.CORRECT, *what, *self.detail_of(record)), now)

    def count_debt(self, credential_id: str, requests: int, tokens: int, at: float, now: float,
                   scope: str | None = None, detail: Detail | None = None) -> None:  # fmt: skip
        """Count usage that no lease stands for."""
        credential = self.allocator.credentials.get(credential_id)
        if credential is None:
            return
        credential.used_requests += requests
        credential.used_tokens += tokens
        if credential.group.pace.limiter is not None:
            credential.group.pace.limiter.use(requests, tokens, at, now, scope, detail)
        what = (requests, tokens, at, scope, None if detail is None else tuple(detail))
        self._record((kinds.DEBT, credential_id, *what), now)

    def adopt(self, session: Session, lease: int, credential_id: str, fence: int, requests: int, tokens: int,
              scope: str | None, requester: str | None, detail: Detail | None, now: float) -> None:  # fmt: skip
        """Make a lease live that another owner granted."""
        record = OwnedRecord(requester, requests, tokens, scope, None, None, None, detail)
        record.join_class(session)
        record.id, record.owner = lease, session
        self.allocator.grant_again(record, credential_id, fence, now)
        session.leases[lease] = record
