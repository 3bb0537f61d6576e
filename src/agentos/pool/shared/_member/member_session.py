"""MemberSession: the protocol of a member of a shared pool, without a thread, a lock or real time.

It knows what this process holds, waits for and has sent. It sends messages on a link, and is told the replies and
the breaks of the link. `Member` drives it on a thread; `now` is any clock that passes evenly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from agentos.errors import StoreError
from agentos.events import CoolDownStarted, CredentialQuarantined
from agentos.limits.amounts import Detail

from ..._rules.lease_states import ENDED, LIVE, REFUSED, WAITING
from .. import message_values as values
from .. import messages as wire
from ..transport import StoreLost, StoreRefused
from .handles import NO_ANSWER, MemberHandle
from .member_messages import MemberMessages


class MemberSession(MemberMessages):
    """One session. Callbacks (deliveries and events) are collected; `take_calls` returns them."""

    __slots__ = ()

    # --- what callers do ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self._is_closing:
            raise StoreError("this pool is closed: create a new one")

    @property
    def lost_since(self) -> float | None:
        """The instant since which the store is lost."""
        return self.outage.lost_since

    def request(self, handle: MemberHandle, front: bool, is_flushed: bool = False) -> None:
        """Send a request. `is_flushed`: the caller flushes the link."""
        if self._is_closing:
            self.check_open()
        handle.id = self._lease_numbers = self._lease_numbers + 1
        self._handles[handle.id] = handle
        self.waiting += 1
        due_at = self._now() + self._beat_waiting
        if self._beat_at > due_at:
            self._beat_at = due_at
        self._send(handle.request(front), is_flushed)

    def request_again(self, handle: MemberHandle, message: wire.Message) -> None:
        """Let a granted lease that was not delivered wait again."""
        handle.state = WAITING
        handle.is_doubtful = False
        self.waiting += 1
        self._send(message)

    def declare(self, message: wire.Declaration | wire.Drop) -> None:
        """Send a declaration; a greeting repeats all of them."""
        if isinstance(message, wire.Declaration):
            self.declared[message.id] = message
        else:
            del self.declared[message.id]
        if self._link is not None:
            self._send(message)

    def forget(self, handle: MemberHandle, state: str) -> None:
        """Take a handle out of the session."""
        if handle.state == WAITING and self._handles.get(handle.id) is handle:
            self.waiting -= 1
        handle.state = state
        self._handles.pop(handle.id, None)

    def end(self, handle: MemberHandle) -> bool:
        """Take a live lease out of the session; return False if it is not live, or not of this session."""
        if handle.state != LIVE or self._handles.get(handle.id) is not handle:
            return False
        handle.state = ENDED
        del self._handles[handle.id]
        return True

    def has(self, handle: MemberHandle) -> bool:
        """Return whether a handle belongs to this session: not to another one, nor to the parent of a fork."""
        return self._handles.get(handle.id) is handle

    def hand_over(self, handle: MemberHandle) -> bool:
        """Hand a granted lease to its caller. Return False if the owner must be asked again before, because its
        credential was cooled or dropped since the grant, or because this process was stopped and its leases may have
        expired."""
        if handle.is_doubtful or handle.credential_id not in self.declared or not self.is_fresh():
            return False
        handle.is_delivered = True
        return True

    def live(self) -> list[MemberHandle]:
        """Return the live leases of this process."""
        return [handle for handle in self._handles.values() if handle.state == LIVE]

    def first_waiting(self) -> MemberHandle | None:
        """Return the request of this process that waits longest; None if none waits."""
        return next((handle for handle in self._handles.values() if handle.state == WAITING), None)

    def count_used(self, credential_id: str, requests: int, tokens: int, detail: Detail | None = None) -> None:
        """Remember usage beyond a reservation."""
        self.used.add(credential_id, requests, tokens, detail, self._now())

    # --- replies --------------------------------------------------------------------------------------------------

    def take(self, frame: wire.ReplyFrame) -> None:
        """Carry out replies. Raises `StoreRefused`, and `StoreLost` if the link breaks."""
        self._asked_at = None
        if self._timed_number <= frame.heard and self._timed_number:
            self._on_heard()
        unkept = self._unkept
        while unkept and unkept[0][0] <= frame.kept:
            unkept.popleft()
        self._position = frame.position
        for reply in frame.replies:
            _TAKE[type(reply)](self, reply)
        if self._has_joined:
            if frame.position > self._seen_position:
                self._seen_position = frame.position
        elif self._wants_usage and not self._seen_journal:
            self._greet()  # after all replies: else it asks again for what was granted in the same frame

    def _welcomed(self, welcome: wire.Welcome) -> None:
        self.owner = welcome
        self._wants_usage, self._kept = welcome.wants_usage, welcome.kept
        if welcome.wants_usage:
            self._seen_journal = ""  # the owner has noticed the loss, and need not notice it again
            return
        self._seen_journal, self._seen_position = welcome.identity, welcome.position
        self._seen_owner = welcome.nonce
        self._has_joined = True
        self._heard_at = max(self._heard_at, self._greeted_at)
        self._beaten_at = self._now()
        self._beat_at = self._beaten_at + self._beat_seconds()
        for number in welcome.lost:
            self._lose(number)
        self.outage.end()

    def _lose(self, number: int) -> None:
        """End a lease that the owner does not know any more. If its caller did not have it yet, it waits again."""
        handle = self._handles.get(number)
        if handle is None or handle.state != LIVE:
            return
        if handle.is_delivered:
            handle.is_lost = True
            self.forget(handle, ENDED)
        else:
            handle.fence = 0
            self.request_again(handle, handle.request())

    def _granted(self, granted: wire.Granted) -> None:
        handle = self._handles.get(granted.lease)
        if handle is None or handle.state != WAITING:
            return  # it was withdrawn, and the owner will hear of that; or the reply was repeated
        self.waiting -= 1
        handle.state = LIVE
        handle.credential_id, handle.provider = granted.credential, granted.provider
        handle.fence, handle.granted_at = granted.fence, granted.at
        handle.is_doubtful = False
        handle.was_queued = granted.was_queued
        what = handle.requests, handle.tokens, handle.detail
        self.used.add(granted.credential, *what, self._now(), self._position)
        if handle is not self._receiver:
            self._calls.append((handle.deliver, ()))

    def _denied(self, denied: wire.Denied) -> None:
        self._settle_request(denied.lease, ENDED, None)

    def _refused(self, refused: wire.Refused) -> None:
        self._settle_request(refused.lease, REFUSED, refused.too_large)

    def _settle_request(self, number: int, state: str, too_large: str | None) -> None:
        handle = self._handles.get(number)
        if handle is not None and handle.state == WAITING:
            handle.too_large = too_large
            self.forget(handle, state)
            self._calls.append((handle.deliver, ()))

    def _lost_lease(self, lost: wire.Lost) -> None:
        handle = self._handles.get(lost.lease)
        if handle is not None and handle.state == WAITING:
            handle.fence = 0
            self._send(handle.request())
        else:
            self._lose(lost.lease)

    def _event(self, reply: wire.Event) -> None:
        event = values.read_event(reply)
        if event is None:
            return
        if isinstance(event, CoolDownStarted | CredentialQuarantined):
            for handle in self._handles.values():
                handle.is_doubtful = handle.is_doubtful or (handle.state == LIVE and not handle.is_delivered)
        self._announce(event)

    def _answered(self, answer: wire.Answer) -> None:
        question = self._queries.pop(answer.number, None)
        if question is not None:
            question.answer(answer.value)

    def _rejected(self, rejected: wire.Rejected) -> None:
        """A message of ours was invalid: it is not repeated, and its request ends."""
        self._unkept = deque((number, message) for number, message in self._unkept if number != rejected.number)
        if rejected.lease is not None:
            self._settle_request(rejected.lease, REFUSED, rejected.reason)

    def _dismissed(self, dismissed: wire.Dismissed) -> None:
        raise StoreRefused(dismissed.reason)

    def _expired(self, _expired: wire.Expired) -> None:
        """The owner has ended this session: greet it again."""
        if self._has_joined and not self._is_closing:
            self._has_joined = False
            self._greet()

    def _unavailable(self, unavailable: wire.Unavailable) -> None:
        if unavailable.reason:
            self.outage.begin(unavailable.reason, self.owner is not None)
        else:
            self.outage.end()

    # --- lost and found -------------------------------------------------------------------------------------------

    def on_lost(self, error: StoreLost) -> None:
        """Continue without a link. Waiting requests go on waiting."""
        self._drop_link()
        self.outage.on_break(str(error), self.owner is not None)

    def on_refused(self, error: StoreRefused) -> None:
        """Continue without a link, until a person has changed something."""
        self._drop_link()
        self.outage.on_refusal(str(error), self.owner is not None)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._has_joined = False
        self._end_queries()

    def _end_queries(self) -> None:
        for question in self._queries.values():
            question.answer(NO_ANSWER)

    def take_calls(self) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Take the callbacks that replies have led to, with their arguments."""
        calls, self._calls = self._calls, []
        return calls

    def refuse_waiters(self) -> None:
        """Refuse what still waits: nothing comes any more."""
        self._has_joined = False
        for handle in list(self._handles.values()):
            if handle.state == WAITING:
                self.forget(handle, REFUSED)
                self._calls.append((handle.deliver, ()))
        self._end_queries()


_TAKE: dict[Any, Callable[[MemberSession, Any], None]] = {
    wire.Welcome: MemberSession._welcomed,
    wire.Granted: MemberSession._granted,
    wire.Denied: MemberSession._denied,
    wire.Refused: MemberSession._refused,
    wire.Lost: MemberSession._lost_lease,
    wire.Event: MemberSession._event,
    wire.Answer: MemberSession._answered,
    wire.Rejected: MemberSession._rejected,
    wire.Dismissed: MemberSession._dismissed,
    wire.Expired: MemberSession._expired,
    wire.Unavailable: MemberSession._unavailable,
}
