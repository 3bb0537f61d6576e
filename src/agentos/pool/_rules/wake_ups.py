"""The instants at which time alone changes what the pool may grant: ends of cool-downs, and limits that admit more."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import Any

from .cooldown_scope import CooldownScope
from .records import CredentialRecord


class _Paced:
    """Stands in the place of a scope in an entry that is not the end of a cool-down but a look at a paced group."""


_PACED: Any = _Paced  # the class, not an instance: it is the same object in every copy of a pool


class WakeUps:
    """A heap of instants. An entry is a hint: it counts only if it is still the one that its owner refers to."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, CooldownScope, str | None]] = []
        self._pushes = 0  # orders entries of the same instant

    def _push(self, at: float, cooldown_scope: CooldownScope, scope: str | None) -> None:
        self._pushes += 1
        heappush(self.heap, (at, self._pushes, cooldown_scope, scope))

    def at_cooldown_end(self, until: float, cooldown_scope: CooldownScope, scope: str | None) -> None:
        """Wake up when a cool-down of one scope ends."""
        self._push(until, cooldown_scope, scope)

    def look_again(self, group: CooldownScope, at: float) -> None:
        """Wake up when the limits of a group may admit more, unless an earlier wake-up is planned for it."""
        if at < group.pace.wake_at:
            group.pace.wake_at = at
            self._push(at, group, _PACED)

    def pop_due(self, now: float) -> dict[str, CredentialRecord]:
        """End the cool-downs that are due; return the credentials that may have become usable."""
        members: dict[str, CredentialRecord] = {}
        while self.heap and self.heap[0][0] <= now:
            until, _, cooldown_scope, scope = heappop(self.heap)
            if scope is _PACED:
                if cooldown_scope.pace.wake_at == until:  # else it was brought forward since
                    cooldown_scope.pace.wake_at = inf
                    members.update(cooldown_scope.members)
            elif cooldown_scope.cooling.get(scope) == until:  # else it was prolonged since
                cooldown_scope.end_cooldown(scope)
                members.update(cooldown_scope.members)
        return members
