"""CredentialChanges: credentials join and leave a pool, are declared anew, taken out of use, and cool down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentos.events import CoolDownStarted, CredentialQuarantined
from agentos.limits.cool_downs import MAX_COOL_DOWN
from agentos.limits.declaration import Calendar, Limits

from .cooldown_scope import CooldownScope
from .guessed_cool_downs import GuessedCoolDowns
from .membership import Membership
from .records import CredentialRecord
from .wake_ups import WakeUps


def without_calendar(resets: str, now: float) -> float:
    """Return an end of a calendar period, for pools that know no calendar: a whole day, week or month from now."""
    days = 31 if resets.startswith("month") else 1 if resets[0].isdecimal() else 7
    return now + days * 86_400.0


class CredentialChanges:
    """Base of `Allocator`, which sets the attributes and serves the requests that wait."""

    members: Membership
    credentials: dict[str, CredentialRecord]
    events: list[Any]
    wake_ups: WakeUps
    guessed: GuessedCoolDowns

    def serve(self, credential: CredentialRecord, now: float) -> None:
        raise NotImplementedError

    def serve_all(self, cooldown_scopes: Iterable[CooldownScope], now: float) -> None:
        raise NotImplementedError

    def _refuse_unservable(self) -> None:
        raise NotImplementedError

    def _next_use(self) -> int:
        raise NotImplementedError

    def add(self, id: str, group: str, provider: str | None, scopes: frozenset[str], limits: Limits,  # noqa: A002
            now: float, calendar: Calendar = without_calendar) -> None:  # fmt: skip
        """Add a credential."""
        credential = self.members.join(id, group, provider, scopes, limits, self._next_use())
        credential.group.pace.declare(limits, calendar, now)
        self._refuse_unservable()
        self.serve(credential, now)

    def redeclare(self, id: str, group: str, provider: str | None, scopes: frozenset[str], limits: Limits,  # noqa: A002
                  now: float, calendar: Calendar = without_calendar) -> None:  # fmt: skip
        """Change what is declared about a credential. Its live leases stay live, and count."""
        old = self.members.leave(id)  # not `remove()`: waiters must not be refused during the swap
        credential = self.members.join(id, group, provider, scopes, limits, self._next_use())
        self.members.take_over(old, credential)
        for group_ in dict.fromkeys((old.group, credential.group)):
            group_.pace.restate([member.limits for member in group_.members.values()], calendar, now)
            group_.pace.max_concurrent = sum(member.max_concurrent for member in group_.members.values())
        self._refuse_unservable()
        self.serve_all((old.group, credential.group), now)

    def remove(self, id: str, now: float) -> None:  # noqa: A002
        """Grant a credential no more. Its live leases stay valid until they end."""
        self.members.leave(id)
        self._refuse_unservable()

    def quarantine(self, id: str, reason: str, now: float) -> None:  # noqa: A002
        """Grant a credential no more until `restore`."""
        credential = self.credentials[id]
        if credential.quarantine is None:
            self.events.append(CredentialQuarantined(id, reason))
        credential.quarantine = reason
        credential.is_proven = credential.is_healthy = False
        self._refuse_unservable()

    def restore(self, id: str, now: float) -> None:  # noqa: A002
        """End the quarantine of a credential."""
        credential = self.credentials[id]
        credential.quarantine = None
        credential.auth_failures = 0
        credential.auth_failed_by = None
        self.serve(credential, now)

    def clear(self, id: str, now: float) -> None:  # noqa: A002
        """End the quarantine of a credential, and all cool-downs of itself, its group and its provider."""
        credential = self.credentials[id]
        for cooldown_scope in credential.cooldown_scopes:
            if cooldown_scope.kind != "store":
                for scope in tuple(cooldown_scope.cooling):
                    cooldown_scope.end_cooldown(scope)
                    for member in cooldown_scope.members.values():
                        member.group.pace.ramp_up(scope, now, now)  # else it would begin at the old end
                cooldown_scope.guesses.clear()
                cooldown_scope.overloads.clear()
        self.restore(id, now)
        self.serve_all(credential.cooldown_scopes[:3], now)

    def cool(self, cooldown_scope: CooldownScope, scope: str | None, seconds: float, verdict: str, now: float) -> None:
        """Start a cool-down of `seconds`; of two cool-downs the later end holds."""
        requested = seconds if seconds > MAX_COOL_DOWN else None
        seconds = min(seconds, MAX_COOL_DOWN)
        until = now + seconds
        if until <= max(cooldown_scope.cooling.get(scope, 0.0), now):
            if cooldown_scope.guesses:
                self.guessed.named(cooldown_scope, scope, until)
            return
        cooldown_scope.start_cooldown(scope, until, verdict)
        self.wake_ups.at_cooldown_end(until, cooldown_scope, scope)
        kind, name = cooldown_scope.kind, cooldown_scope.name
        self.events.append(CoolDownStarted(kind, name, scope, seconds, verdict, requested))
