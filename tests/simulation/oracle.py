"""Test oracle for the pool: an independent model of its promises, with windows, cool-downs and order of its own."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE, WAITING
from agentos.pool._rules.records import CredentialRecord, LeaseRecord
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

from .situations import Situations

DAY = 86_400.0
# Tolerance for sums of floats.
ROUNDING = 1e-6


class Usage:
    """Requests and tokens that count from an instant on."""

    __slots__ = ("at", "requests", "tokens")

    def __init__(self, at: float, requests: float, tokens: float) -> None:
        self.at, self.requests, self.tokens = at, requests, tokens


class QueuePosition(NamedTuple):
    """Position of a request in the order of arrival. A request in front was refused by a provider and waits again."""

    number: int
    is_front: bool


class GroupUsage:
    """Usage of one quota group, and since when each of its limits has been declared."""

    def __init__(self) -> None:
        self.entries: deque[Usage] = deque()
        self.days: Counter[int] = Counter()
        self.since: dict[str, float] = {}
        self.before: dict[str, dict[int, Usage]] = {}  # usage from before a limit was declared

    def total(self, name: str, limit: float | None, now: float) -> float:
        """Return the usage of the last minute since the limit was declared."""
        if limit is None:
            self.since.pop(name, None)
            return 0.0
        if name not in self.since:  # the newest entry counts; older ones of the same instant do not
            self.since[name] = now
            self.before[name] = {id(used): used for used in self.entries if used is not self.entries[-1]}
        while self.entries and self.entries[0].at + 60.0 <= now:
            self.entries.popleft()
        since, before = self.since[name], self.before[name]
        return sum(getattr(used, name) for used in self.entries if used.at >= since and id(used) not in before)


class PoolOracle:
    """Checks every decision of one pool against the model. Raises `AssertionError` for a broken promise."""

    def __init__(self, situations: Situations) -> None:
        self.situations = situations
        self.fences: dict[str, int] = {}
        self.is_replaying = False  # a new owner repeats what the journal holds: nothing is decided
        self.has_other_days = False  # the wall clock was set: days do not end when the oracle thinks
        self.granted_count = self.released_count = 0
        self.groups: dict[str | None, GroupUsage] = {}
        self.uses: dict[LeaseRecord, tuple[GroupUsage, list[Usage], int]] = {}  # of live leases
        self.cooling: dict[tuple[str, str | None, str | None], float] = {}
        self.in_quarantine: set[str] = set()
        self.positions: dict[LeaseRecord, QueuePosition] = {}  # of requests that have waited, until they end
        # The lease that is being set aside: what it gives back may serve a later request before it is queued again.
        self.set_aside: LeaseRecord | None = None
        self.leases_at_redeclaration: dict[str, int] = {}
        self._redeclared_id: str | None = None
        self._sequence = 0

    def note(self, situation: str) -> None:
        if not self.is_replaying:
            self.situations.note(situation)

    # --- requests and grants --------------------------------------------------------------------------------------

    def queued_in_front(self, record: LeaseRecord) -> None:
        self.positions[record] = QueuePosition(0, is_front=True)

    def queued(self, record: LeaseRecord, front: bool) -> None:
        position = self.positions.get(record)
        if position is None:
            self._sequence += 1
        number = self._sequence if position is None else position.number
        self.positions[record] = QueuePosition(number, front or (position is not None and position.is_front))

    def refused(self, record: LeaseRecord) -> None:
        self.positions.pop(record, None)
        self.note("too large" if record.too_large else "no credential can serve")

    def granted(self, pool: Allocator, record: LeaseRecord, credential: CredentialRecord, now: float) -> None:
        self.granted_count += 1
        if self.is_replaying:
            self._count_usage(record, credential, now)
            self.fences[credential.id] = max(record.fence, self.fences.get(credential.id, 0))
            return
        grant = f"{credential.id} to {record.requester} at {now:.6f}"
        assert len(credential.leases) <= credential.max_concurrent, f"too many leases: {grant}"  # invariant 1
        assert credential.id not in self.in_quarantine, f"granted in quarantine: {grant}"  # invariant 5
        assert credential.serves(record.request_class), f"granted to a request that it cannot serve: {grant}"
        until = self.cooled_until(credential, record.scope)
        assert until <= now + ROUNDING, f"granted {until - now:.3f} s before a cool-down ends: {grant}"  # invariant 4
        assert record.fence > self.fences.get(credential.id, 0), f"reused fence: {grant}"  # 13
        self.fences[credential.id] = record.fence
        self._check_order(record, credential, grant)
        self._count(pool, record, credential, grant, now)

    def _check_order(self, record: LeaseRecord, credential: CredentialRecord, grant: str) -> None:  # invariant 6
        position = self.positions.get(record)
        if position is not None:
            self.note("waiter served")
            if position.is_front:
                return
        for other, other_position in self.positions.items():
            if (
                other.request_class == record.request_class
                and other.state == WAITING
                and not other_position.is_front
                and other is not self.set_aside
                and (position is None or other_position.number < position.number)
            ):
                too_large = credential.group.pace.too_large(other.requests, other.tokens)
                assert too_large, f"{other.requester} was overtaken: {grant}"

    def _count(
        self, pool: Allocator, record: LeaseRecord, credential: CredentialRecord, grant: str, now: float
    ) -> None:
        """Invariants 2 and 3."""
        group, day = self._count_usage(record, credential, now)
        declared = [c.limits for c in credential.group.members.values()]
        for name, figures in (
            ("requests", [limits.requests_per_minute for limits in declared]),
            ("tokens", [limits.tokens_per_minute for limits in declared]),
        ):
            limit = min((figure for figure in figures if figure is not None), default=None)
            total = group.total(name, limit, now)
            maximum = math.inf if limit is None else max(1.0, limit)
            assert total <= maximum + ROUNDING, f"{total:g} {name} of {limit:g} within a minute: {grant}"
        per_day = [limits.requests_per_day for limits in declared if limits.requests_per_day is not None]
        if per_day:
            if "day" not in group.since:
                group.since["day"] = now
                group.days[day] = record.requests
            assert self.has_other_days or group.days[day] <= min(per_day), (
                f"{group.days[day]} of {min(per_day)} in a day: {grant}"
            )
            if group.days[day] == min(per_day):
                self.note("day limit")
        else:
            group.since.pop("day", None)

    def _count_usage(self, record: LeaseRecord, credential: CredentialRecord, now: float) -> tuple[GroupUsage, int]:
        group = self.groups.setdefault(credential.group.name, GroupUsage())
        used = Usage(now, record.requests, record.tokens)
        group.entries.append(used)
        day = int(now // DAY)
        group.days[day] += record.requests
        self.uses[record] = (group, [used], day)
        return group, day

    def corrected(self, record: LeaseRecord, requests: float, tokens: float, now: float) -> None:
        """Correct the usage of a live lease. Additional usage counts from now on; unused amounts are taken off the
        first entry."""
        usage = self.uses.get(record)
        if usage is None:
            return
        group, entries, day = usage
        more = Usage(now, 0.0, 0.0)
        for name, amount in (("requests", requests), ("tokens", tokens)):
            before = sum(getattr(used, name) for used in entries)
            if amount > before:
                setattr(more, name, amount - before)
            else:
                first = entries[0]
                setattr(first, name, max(0.0, getattr(first, name) - (before - amount)))
        if requests < record.requests or tokens < record.tokens:
            self.note("less used than reserved")
        if more.requests or more.tokens:
            self.note("more used than reserved")
            entries.append(more)
            group.entries.append(more)
        today = int(now // DAY)
        change = requests - record.requests
        if change > 0 or today == day:
            group.days[today] = max(0, group.days[today] + int(change))

    def released(self, record: LeaseRecord) -> None:
        self.released_count += 1
        self.uses.pop(record, None)

    # --- feedback -------------------------------------------------------------------------------------------------

    def answered(self, pool: Allocator, credential: CredentialRecord, record: LeaseRecord | None,
                 verdict: Verdict | None, now: float) -> None:  # fmt: skip
        if verdict is None or record is None:
            return
        hint = next((h for h in (verdict.cool_down, verdict.retry_after) if h is not None and not math.isnan(h)), None)
        hint = 1.0 if hint is not None and hint <= 0 else hint
        if verdict.kind == QUOTA_EXHAUSTED:
            if hint is None or verdict.is_guess:  # only an end that we guessed may be probed early
                hint = max(min(60.0, 3600.0 if hint is None else hint), verdict.retry_after or 0.0)
            self.cooled(("group", credential.group.name), record.scope, hint, now)
        elif verdict.kind == RATE_LIMITED and hint is not None:
            self.cooled(("group", credential.group.name), record.scope, hint, now)
        elif verdict.kind == OVERLOADED and hint is not None:
            self.cooled(("provider", credential.provider.name), record.scope, hint, now)
        elif verdict.kind == AUTH_FAILED and not credential.removed:
            self.cooled(("credential", credential.id), None, 5.0 if hint is None else hint, now)
        if verdict.kind in (RATE_LIMITED, QUOTA_EXHAUSTED, OVERLOADED) and credential.group.pace.max_concurrent > 1:
            self.note("slow start after cool-down")

    def cooled(self, cooldown_scope: tuple[str, str | None], scope: str | None, seconds: float, now: float) -> None:
        """Record a cool-down; if two overlap, the later end counts."""
        key = (*cooldown_scope, scope)
        self.cooling[key] = max(self.cooling.get(key, 0.0), now + min(seconds, DAY))

    def cooled_until(self, credential: CredentialRecord, scope: str | None) -> float:
        cooldown_scopes = (
            ("credential", credential.id),
            ("group", credential.group.name),
            ("provider", credential.provider.name),
            ("store", None),
        )
        return max(
            self.cooling.get((*cooldown_scope, s), 0.0) for cooldown_scope in cooldown_scopes for s in {None, scope}
        )

    # --- credentials ----------------------------------------------------------------------------------------------

    def quarantined(self, id_: str) -> None:
        self.note("quarantined")
        self.in_quarantine.add(id_)
        self.cooling.pop(("credential", id_, None), None)

    def restored(self, id_: str) -> None:
        if id_ in self.in_quarantine:
            self.note("restored")
        self.in_quarantine.discard(id_)

    def removed(self, id_: str) -> None:
        if id_ == self._redeclared_id:
            return
        self.in_quarantine.discard(id_)
        self.cooling.pop(("credential", id_, None), None)

    def drop_ended_requests(self) -> None:
        """Forget the positions of requests that neither wait nor hold a lease."""
        self.positions = {r: p for r, p in self.positions.items() if r.state in (WAITING, LIVE)}

    def max_leases(self, credential: CredentialRecord) -> int:
        """Return the limit of leases: those granted before `max_concurrent` was lowered may stay."""
        before = self.leases_at_redeclaration.get(credential.id, 0)
        if before:
            self.leases_at_redeclaration[credential.id] = before = min(before, len(credential.leases))
        return max(before, credential.max_concurrent)

    @contextmanager
    def redeclaring(self, id_: str, leases: int) -> Iterator[None]:
        """Keep quarantine and cool-downs of a credential while the pool removes and adds it again."""
        self.note("credential redeclared")
        self._redeclared_id = id_
        self.leases_at_redeclaration[id_] = leases
        yield
        self._redeclared_id = None
