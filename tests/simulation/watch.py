"""What a pool has promised, counted independently of how it keeps it: own windows, own cool-downs, own order."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import CredentialRecord, LeaseRecord
from agentos.pool.lease_states import LIVE, WAITING
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

from .situations import Situations

DAY = 86_400.0
# Sums of floats.
ROUNDING = 1e-6


class Used:
    """So much, from an instant on."""

    __slots__ = ("at", "requests", "tokens")

    def __init__(self, at: float, requests: float, tokens: float) -> None:
        self.at, self.requests, self.tokens = at, requests, tokens


class Place(NamedTuple):
    """In the order of asking. Those in front had their turn before."""

    number: int
    is_front: bool


class GroupUse:
    """What the requests of one quota group have used, and since when each of its limits has been declared."""

    def __init__(self) -> None:
        self.entries: deque[Used] = deque()
        self.days: Counter[int] = Counter()
        self.since: dict[str, float] = {}
        self.before: dict[str, dict[int, Used]] = {}  # what was used when a limit became known

    def total(self, what: str, limit: float | None, now: float) -> float:
        """Within the last minute, as far as the limit was known then."""
        if limit is None:
            self.since.pop(what, None)
            return 0.0
        if what not in self.since:  # from the last one on; others of the same instant came before the limit was known
            self.since[what] = now
            self.before[what] = {id(used): used for used in self.entries if used is not self.entries[-1]}
        while self.entries and self.entries[0].at + 60.0 <= now:
            self.entries.popleft()
        since, before = self.since[what], self.before[what]
        return sum(getattr(used, what) for used in self.entries if used.at >= since and id(used) not in before)


class Watch:
    """Of one pool."""

    def __init__(self, situations: Situations) -> None:
        self.situations = situations
        self.fences: dict[str, int] = {}
        self.is_replaying = False  # what was decided before is decided again, by a copy that is made anew
        self.not_before = -math.inf  # leases of a lost log may live until then
        self.granted_count = self.released_count = 0
        self.groups: dict[str | None, GroupUse] = {}
        self.uses: dict[LeaseRecord, tuple[GroupUse, list[Used], int]] = {}  # of live leases
        self.cooling: dict[tuple[str, str | None, str | None], float] = {}
        self.in_quarantine: set[str] = set()
        self.places: dict[LeaseRecord, Place] = {}  # of those who have ever waited, until they are served
        self.dead_sessions: set[str] = set()
        self.lapsed: Counter[str] = Counter()  # offers to dead sessions
        self.lent_before: dict[str, int] = {}
        self._described_anew: str | None = None
        self._numbers = 0

    def note(self, situation: str) -> None:
        if not self.is_replaying:
            self.situations.note(situation)

    # --- asking and granting --------------------------------------------------------------------------------------

    def comes_first(self, record: LeaseRecord) -> None:
        self.places[record] = Place(0, is_front=True)

    def queued(self, record: LeaseRecord, front: bool) -> None:
        known = self.places.get(record)
        if known is None:
            self._numbers += 1
        number = self._numbers if known is None else known.number
        self.places[record] = Place(number, front or (known is not None and known.is_front))

    def refused(self, record: LeaseRecord) -> None:
        self.places.pop(record, None)
        self.note("too large" if record.too_large else "nobody can serve")

    def granted(self, pool: Allocator, record: LeaseRecord, credential: CredentialRecord, now: float) -> None:
        self.granted_count += 1
        what = f"{credential.id} to {record.requester} at {now:.6f}"
        assert len(credential.leases) <= credential.max_concurrent, f"too many leases: {what}"  # invariant 1
        assert credential.id not in self.in_quarantine, f"granted in quarantine: {what}"  # invariant 5
        assert credential.serves(record.request_class), f"granted to somebody who does not want it: {what}"
        until = self.cooled_until(credential, record.scope)
        assert until <= now + ROUNDING, f"granted {until - now:.3f} s before a cool-down ends: {what}"  # invariant 4
        assert record.fence > self.fences.get(credential.id, 0), f"a fence that was there before: {what}"  # 13
        self.fences[credential.id] = record.fence
        self._check_order(record, credential, what)
        self._count(pool, record, credential, what, now)
        if credential.group.pace.paused_until > now:
            assert credential.shared is not None or not credential.group.pace.is_learning, f"granted in a pause: {what}"

    def _check_order(self, record: LeaseRecord, credential: CredentialRecord, what: str) -> None:  # invariant 6
        place = self.places.get(record)
        if place is not None:
            self.note("waiter served")
            if place.is_front:
                return
        for other, its_place in self.places.items():
            if (
                other.request_class == record.request_class
                and other.state == WAITING
                and not its_place.is_front
                and not _is_aside(other)
                and (place is None or its_place.number < place.number)
            ):
                too_large = credential.group.pace.too_large(other.requests, other.tokens)
                assert too_large, f"{other.requester} was overtaken: {what}"

    def _count(self, pool: Allocator, record: LeaseRecord, credential: CredentialRecord, what: str, now: float) -> None:
        """Invariants 2 and 3."""
        group = self.groups.setdefault(credential.group.name, GroupUse())
        used = Used(now, record.requests, record.tokens)
        group.entries.append(used)
        day = int(now // DAY)
        group.days[day] += record.requests
        self.uses[record] = (group, [used], day)
        declared = [c.limits for c in credential.group.members.values()]
        for name, figures in (
            ("requests", [limits.requests_per_minute for limits in declared]),
            ("tokens", [limits.tokens_per_minute for limits in declared]),
        ):
            limit = min((figure for figure in figures if figure is not None), default=None)
            total = group.total(name, limit, now)
            most = math.inf if limit is None else max(1.0, limit)
            assert total <= most + ROUNDING, f"{total:g} {name} of {limit:g} within a minute: {what}"
        per_day = [limits.requests_per_day for limits in declared if limits.requests_per_day is not None]
        if per_day:
            if "day" not in group.since:
                group.since["day"] = now
                group.days[day] = record.requests
            assert group.days[day] <= min(per_day), f"{group.days[day]} of {min(per_day)} in a day: {what}"
            if group.days[day] == min(per_day):
                self.note("day limit")
        else:
            group.since.pop("day", None)

    def corrected(self, record: LeaseRecord, requests: float, tokens: float, now: float) -> None:
        """What a live lease has really used. More counts from now on; less is given back where it was taken."""
        known = self.uses.get(record)
        if known is None:
            return
        group, entries, day = known
        more = Used(now, 0.0, 0.0)
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
            self.note("debt")
            entries.append(more)
            group.entries.append(more)
        today = int(now // DAY)
        change = requests - record.requests
        if change > 0 or today == day:
            group.days[today] = max(0, group.days[today] + int(change))

    def released(self, record: LeaseRecord) -> None:
        self.released_count += 1
        self.uses.pop(record, None)

    # --- answers --------------------------------------------------------------------------------------------------

    def answered(self, pool: Allocator, credential: CredentialRecord, record: LeaseRecord | None,
                 verdict: Verdict | None, now: float) -> None:  # fmt: skip
        if verdict is None or record is None:
            return
        hint = next((h for h in (verdict.cool_down, verdict.retry_after) if h is not None and not math.isnan(h)), None)
        hint = 1.0 if hint is not None and hint <= 0 else hint
        if verdict.kind == QUOTA_EXHAUSTED:
            self.cooled(("group", credential.group.name), record.scope, 3600.0 if hint is None else hint, now)
        elif verdict.kind == RATE_LIMITED and hint is not None:
            self.cooled(("group", credential.group.name), record.scope, hint, now)
        elif verdict.kind == OVERLOADED and hint is not None:
            self.cooled(("provider", credential.provider.name), record.scope, hint, now)
        elif verdict.kind == AUTH_FAILED and not credential.removed:
            self.cooled(("credential", credential.id), None, 5.0 if hint is None else hint, now)
        if verdict.kind in (RATE_LIMITED, QUOTA_EXHAUSTED, OVERLOADED) and credential.group.pace.most > 1:
            self.note("ramp after cool-down")

    def cooled(self, cooldown_scope: tuple[str, str | None], scope: str | None, seconds: float, now: float) -> None:
        """Of two cool-downs the later end holds."""
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
        if id_ == self._described_anew:
            return
        self.in_quarantine.discard(id_)
        self.cooling.pop(("credential", id_, None), None)

    def forget_places(self) -> None:
        """Of those who will not wait any more."""
        self.places = {r: p for r, p in self.places.items() if r.state in (WAITING, LIVE)}

    def most_leases(self, credential: CredentialRecord) -> int:
        """What was lent before its limit was lowered may stay so."""
        before = self.lent_before.get(credential.id, 0)
        if before:
            self.lent_before[credential.id] = before = min(before, len(credential.leases))
        return max(before, credential.max_concurrent)

    @contextmanager
    def keeping(self, id_: str, leases: int) -> Iterator[None]:
        """To describe a credential anew changes nothing of what is known about it."""
        self.note("credential redeclared")
        self._described_anew = id_
        self.lent_before[id_] = leases
        yield
        self._described_anew = None

    def passed_over(self, session_id: str) -> None:
        self.note("offer lapsed")
        if session_id in self.dead_sessions and not self.is_replaying:  # what is replayed was before it died
            self.lapsed[session_id] += 1
            assert self.lapsed[session_id] <= 1, "a dead waiter delayed others twice"  # invariant 12


def _is_aside(record: LeaseRecord) -> bool:
    owner: Any = record.owner
    return owner is not None and owner.aside is not None and any(record is other for other in owner.aside)
