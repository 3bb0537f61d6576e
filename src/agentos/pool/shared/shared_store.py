"""SharedStore: the state of a pool that several processes share, as a `Store`. Its decisions are made by the owner."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import msgspec

from agentos.clock import Clock
from agentos.errors import UnknownCredential
from agentos.events import STORE_LOST, PoolWaiting
from agentos.limits.amounts import Detail
from agentos.limits.declaration import Calendar, Limits
from agentos.limits.usage_state import UsageRow, UsageState
from agentos.verdict import Verdict

from .._rules.lease_states import ENDED, LIVE, WAITING
from .._rules.wait_reasons import NO_RESTS, Need, Rests
from ..credential import Credential
from ..states import CredentialForecast, CredentialState, Holder
from . import message_values as values
from . import messages as wire
from ._member.handles import MemberHandle
from ._member.member import Member
from ._member.receiving import NoAnswer
from .transport import Gate

# Seconds to wait for the store when the pool is opened: longer than it takes to replace an owner that does not answer.
OPEN_SECONDS = 10.0
# Seconds to wait for the answer to a request that does not wait.
SYNC_SECONDS = 5.0
# Seconds to wait for the answer to a query: what was known last is better than nothing.
LOOK_SECONDS = 1.0
_DAY_SECONDS = 86_400.0

# Fields of a state that this version knows.
_STATE_FIELDS = frozenset(field.name for field in fields(CredentialState))


class SharedStore:
    """A `Store` that a member process has."""

    def __init__(self, gate: Gate, clock: Clock, on_event: Callable[[Any], None], ttl: float,
                 redact: Callable[[str], str], run: str | None = None, order: str = "") -> None:  # fmt: skip
        self._redact = redact
        self._clock = clock
        self._member = Member(gate, clock, on_event, ttl, None if run is None else wire.plain_text(run, 1000), order)
        self._known: dict[str, Any] = {}  # last answers to queries
        self.make_handle = MemberHandle

    def open(self) -> None:
        self._member.open(OPEN_SECONDS)

    def close(self) -> None:
        self._member.close()

    def arrive(self) -> None:
        self._ask("nothing", None)

    # --- leases ---------------------------------------------------------------------------------------------------

    def request(self, handle: MemberHandle, wait: bool = True, front: bool = False, idle_until: float = 0.0) -> bool:
        if handle.requester is not None:
            handle.requester = wire.plain_text(self._redact(str(handle.requester)), wire.MAX_NAME)
        member = self._member
        if not wait:
            return self._request_at_once(handle)
        if idle_until > 0.0:
            return member.request_and_receive(handle, front, idle_until)
        with member.lock:
            member.request_later(handle, front)
        return False

    def _request_at_once(self, handle: MemberHandle) -> bool:
        member = self._member
        handle.deliver = member.wake_callers
        handle.waits = False
        with member.lock:
            try:
                member.request_later(handle, False)
                member.changed.wait_for(lambda: handle.state != WAITING or member.lost_since is not None, SYNC_SECONDS)
                handle.is_delivered = handle.state == LIVE
            finally:  # also after a Ctrl-C: a lease that its caller does not get must not stay live
                if not handle.is_delivered:
                    self._withdraw(handle)
            return handle.is_delivered

    def request_now(self, handle: MemberHandle, timeout: float | None = None) -> bool:
        """Return False for a request that may wait: it is not sent twice."""
        return timeout is not None and timeout <= 0 and self.request(handle, False)

    def avoid(self, handle: MemberHandle, excluded_ids: frozenset[str], later_ids: frozenset[str]) -> None:
        handle.excluded, handle.later = sorted(excluded_ids), sorted(later_ids)

    def end(self, handle: MemberHandle, verdict: Verdict | None, success: bool = False) -> None:
        self._end(handle, wire.End(handle.id, None if verdict is None else _verdict_fields(verdict), success))

    def cool_and_end(self, handle: MemberHandle, seconds: float, address: str | None = None) -> None:
        address = None if address is None else wire.plain_text(address, 1000)
        self._end(handle, wire.End(handle.id, None, False, _seconds(seconds), address))

    def _end(self, handle: MemberHandle, message: wire.End) -> None:
        member = self._member
        with member.lock:
            if member.end(handle):
                member.release(handle, message)

    def use_more(self, handle: MemberHandle, requests: int, tokens: int, detail: Detail | None = None) -> None:
        requests, tokens = min(requests, wire.MAX_COUNT), min(tokens, wire.MAX_COUNT)  # a provider may say anything
        what = (requests, tokens, handle.credential_id, values.detail_fields(detail), handle.scope)
        self._report_usage(handle, wire.UseMore(handle.id, *what), requests, tokens, detail)

    def observed(self, handle: MemberHandle, verdict: Verdict) -> None:
        member = self._member
        with member.lock:
            if handle.state == LIVE and member.has(handle):
                member.say(wire.Observed(handle.id, _verdict_fields(verdict)))

    def settle(
        self, handle: MemberHandle, requests: int | None, tokens: int | None, detail: Detail | None = None
    ) -> bool:
        if handle.settled:
            return False
        requests = None if requests is None else min(requests, wire.MAX_COUNT)
        tokens = None if tokens is None else min(tokens, wire.MAX_COUNT)
        more_requests = 0 if requests is None else max(0, requests - handle.requests)
        more_tokens = 0 if tokens is None else max(0, tokens - handle.tokens)
        more_detail = None if detail is None else _excess(detail, handle)
        settle = wire.Settle(
            handle.id, requests, tokens, handle.credential_id, more_requests, more_tokens, values.detail_fields(detail),
            values.detail_fields(more_detail), handle.scope,
        )  # fmt: skip
        handle.settled = self._report_usage(handle, settle, more_requests, more_tokens, more_detail)
        if handle.settled:
            handle.requests = handle.requests if requests is None else requests
            handle.tokens = handle.tokens if tokens is None else tokens
            handle.detail = handle.detail if detail is None else detail
        return handle.settled

    def _report_usage(
        self, handle: MemberHandle, message: wire.Message, requests: int, tokens: int, detail: Detail | None
    ) -> bool:
        """Send usage of a live lease, or of one that was lost: the owner counts the excess as debt (invariant 14)."""
        member = self._member
        with member.lock:
            if not handle.is_lost and (handle.state != LIVE or not member.has(handle)):
                return False
            if handle.credential_id is not None and (requests or tokens or (detail is not None and any(detail))):
                member.count_used(handle.credential_id, requests, tokens, detail)
            member.say(message)
            return True

    # --- waiting --------------------------------------------------------------------------------------------------

    def withdraw(self, handle: MemberHandle) -> None:
        with self._member.lock:
            self._withdraw(handle)

    def _withdraw(self, handle: MemberHandle) -> None:
        member = self._member
        if member.has(handle):
            member.forget(handle, ENDED)
            member.say(wire.Withdraw(handle.id))

    def expire(self, handle: MemberHandle) -> None:
        with self._member.lock:
            is_late = handle.state == WAITING and self._member.has(handle)
            if is_late:
                self._withdraw(handle)
        if is_late:
            handle.deliver()

    def confirm(self, handle: MemberHandle) -> bool:
        """Return True if a caller may use its granted lease. False: the owner is asked again, because the credential
        was cooled since the grant, or because this process was stopped and its leases may have expired."""
        member = self._member
        with member.lock:
            if handle.state != LIVE or not member.has(handle):
                return False
            if member.hand_over(handle):
                return True
            member.request_again(handle, wire.Confirm(handle.id))
            return False

    # --- the pool -------------------------------------------------------------------------------------------------

    def add(self, credential: Credential) -> None:
        declaration = wire.Declaration(
            credential.id, credential.quota_group, credential.provider, sorted(credential.scopes),
            values.limits_fields(credential.limits), credential.fingerprint,
        )  # fmt: skip
        wire.check(declaration)
        with self._member.lock:
            self._member.declare(declaration)

    redeclare = add  # the owner knows whether a credential is new

    def remove(self, credential_id: str) -> None:
        self._check(credential_id)
        with self._member.lock:
            self._member.declare(wire.Drop(credential_id))

    def quarantine(self, credential_id: str, reason: str) -> None:
        self._check(credential_id)
        self.set_quarantine(credential_id, reason)

    def restore(self, credential_id: str) -> None:
        self._check(credential_id)
        self.set_quarantine(credential_id, None)

    def set_quarantine(self, credential_id: str, reason: str | None) -> None:
        """Quarantine any credential of the pool, also one that only other members have; None: restore it."""
        reason = None if reason is None else wire.plain_text(reason, wire.MAX_TEXT)
        with self._member.lock:
            self._member.say(wire.SetQuarantine(credential_id, reason))

    def clear(self, credential_id: str) -> None:
        """End the quarantine and the cool-downs of any credential of the pool, also one that only others have."""
        with self._member.lock:
            self._member.say(wire.Clear(credential_id))

    def cool(self, credential_id: str, seconds: float) -> None:
        self._check(credential_id)
        with self._member.lock:
            self._member.say(wire.Cool(credential_id, _seconds(seconds)))

    def _check(self, credential_id: str) -> None:
        if credential_id not in self._member.declared:
            raise UnknownCredential("no credential with this id is in the pool")

    # --- queries --------------------------------------------------------------------------------------------------

    def live_leases(self, credential_id: str) -> list[MemberHandle]:
        """Return the leases of this process: no other can be given back here."""
        with self._member.lock:
            return [handle for handle in self._member.live() if handle.credential_id == credential_id]

    def waiting_for(self, scope: str | None, need: Need | None = None, for_provider: str | None = None,
                    only: str | None = None, rests: Rests = NO_RESTS) -> PoolWaiting:  # fmt: skip
        lost = PoolWaiting(STORE_LOST, len(self._member.declared), 0, 0, None)
        if self._member.lost_since is not None:
            return lost
        question = scope, need, for_provider, only
        answer = self._ask("explain", None, *question, *([dict(rests)] if rests else ()), is_kept=False)
        if answer is None and rests:  # an owner of protocol 4, which does not know `rests`
            answer = self._ask("explain", None, *question, is_kept=False)
        return lost if answer is None else _waiting(answer)

    def reasons(self, scope: str | None, for_provider: str | None = None, only: str | None = None) -> dict[str, str]:
        self._member.check_open()  # else that is the reason
        return dict(self._ask("reasons", {}, scope, for_provider, only))

    def is_proven(self, credential_id: str) -> bool:
        return bool(self._ask("is_proven", False, credential_id, is_kept=False))

    def waiters(self) -> int:
        """Return the number of requests of this process that wait."""
        return self._member.waiting

    def first_waiting(self) -> MemberHandle | None:
        with self._member.lock:
            return self._member.first_waiting()

    def available(self) -> int:
        return int(self._ask("available", 0))

    def states(self) -> list[CredentialState]:
        epoch = self._clock.epoch()
        return [read_state(state, epoch) for state in self._ask("states", [])]

    def snapshot(self, scope: str | None, need: Need | None = None, for_provider: str | None = None,
                 only: str | None = None, rests: Rests = NO_RESTS
                 ) -> tuple[list[CredentialState], PoolWaiting]:  # fmt: skip
        epoch = self._clock.epoch()
        answer = None
        if self._member.lost_since is None:
            answer = self._ask("snapshot", None, scope, need, for_provider, only, dict(rests), is_kept=False)
        if answer is None:  # the owner does not answer
            return self.states(), self.waiting_for(scope, need, for_provider, only, rests)
        states, waiting = answer
        return [self._with_own_leases(read_state(state, epoch)) for state in states], _waiting(waiting)

    def _with_own_leases(self, state: CredentialState) -> CredentialState:
        """Return a state with the leases that this process has by now: the owner learns up to a second later that one
        has ended."""
        process = wire.plain_text(socket.gethostname(), 200), os.getpid()
        counted = sum(1 for holder in state.held_by if (holder.host, holder.pid) == process)
        leases = state.live_leases - counted + len(self.live_leases(state.key_id))
        if leases == state.live_leases:
            return state
        is_usable = state.quarantined is None and state.rate_limited_until is None
        has_room = is_usable and leases < state.max_concurrent
        return replace(state, live_leases=leases, in_use=leases > 0, is_available=has_room)

    def fastest(self) -> tuple[float | None, float]:
        rate, seconds = self._ask("fastest", (None, 0.0))
        return rate, seconds

    def forecasts(self) -> list[CredentialForecast]:
        return [_forecast(*fields) for fields in self._ask("forecasts_with_usage", [])]

    def _ask(self, what: str, default: Any, *arguments: Any, is_kept: bool = True) -> Any:
        try:
            answer = self._member.ask(what, *arguments, seconds=LOOK_SECONDS)
        except NoAnswer:
            return self._known.get(what, default)
        if is_kept:
            self._known[what] = answer
        return answer


def _waiting(fields: list[Any]) -> PoolWaiting:
    return PoolWaiting(*fields[: len(PoolWaiting._fields)])  # a newer owner may send more


def read_state(values: dict[str, Any], epoch: float) -> CredentialState:
    """Return the state of a credential that an owner has sent, with instants as epoch seconds."""
    instants = ("rate_limited_until", "cooled_until", "limited_until")
    changed = {name: None if values[name] is None else values[name] + epoch for name in instants}
    known = {name: value for name, value in values.items() if name in _STATE_FIELDS}  # a newer owner may send more
    return CredentialState(
        **known
        | changed
        | {
            "cooling": {scope: end + epoch for scope, end in values["cooling"].items()},
            "used": {name: tuple(used) for name, used in values["used"].items()},
            "holders": tuple(values["holders"]),
            "held_by": tuple(Holder(*holder) for holder in values["held_by"]),
            "scopes": tuple(values["scopes"]),
        }
    )


def _forecast(id_: str, group: str, provider: str | None, scopes: list[str], limits: Any, cooling: float,
              learned: float | None, is_learned: bool, _: None, used: list[list[Any]], ends_in: dict[str, float],
              usage: list[Any] | None, *more: Any) -> CredentialForecast:  # fmt: skip
    """Return the forecast that an owner has sent."""
    state = None
    if usage is not None:
        rows, bucket = usage
        state = UsageState([UsageRow(*row) for row in rows], None if bucket is None else tuple(bucket))
    return CredentialForecast(
        id_, group, provider, frozenset(scopes), msgspec.convert(limits, Limits), cooling, learned,
        tuple(map(tuple, used)), _repeating(ends_in) if ends_in else None, is_learned, state, *more,
    )  # fmt: skip


def _repeating(ends_in: dict[str, float]) -> Calendar:
    """Return a calendar in which each window ends in some seconds, and then after whole days, weeks or months."""

    def ends_after(resets: str, then: float) -> float:
        days = 30 if resets.startswith("month") else 1 if resets[0].isdecimal() else 7
        first = ends_in.get(resets, days * _DAY_SECONDS)
        periods = max(0, math.floor((then - first) / (days * _DAY_SECONDS)) + 1)
        return float(first + periods * days * _DAY_SECONDS)

    return ends_after


def _excess(detail: Detail, handle: MemberHandle) -> Detail:
    """Return what exceeds the reservation of a lease."""
    reserved = Detail(handle.tokens, handle.tokens) if handle.detail is None else handle.detail
    return Detail(
        max(0, detail.input_tokens - reserved.input_tokens),
        max(0, detail.output_tokens - reserved.output_tokens),
        max(0.0, detail.cost - reserved.cost),
    )


def _verdict_fields(verdict: Verdict) -> list[Any]:
    """Return the fields of a verdict as the owner accepts them: providers send numbers of any size."""
    fields = verdict._replace(scope=None if verdict.scope is None else wire.plain_text(verdict.scope, wire.MAX_NAME))
    windows = [[_plain(value) for value in window] for window in fields.windows[:50] if window.seconds >= 1]
    return [*(_plain(value) for value in fields[:-1]), windows]


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return wire.plain_text(value, wire.MAX_TEXT)
    if isinstance(value, bool):
        return value
    if value is None or value != value:
        return None
    return float(min(max(value, -wire.MAX_SECONDS), wire.MAX_SECONDS))


def _seconds(seconds: float) -> float:
    return min(max(float(seconds), -1e9), 1e9)
