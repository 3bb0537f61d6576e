"""CopiedStore: a private copy of a shared pool's state, for plans. It joins nothing, and changes nothing outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentos.clock import Clock, Timer

from .._memory import MemoryStore
from .._rules.allocator import Allocator
from ..credential import Credential
from ..states import CredentialForecast, CredentialState
from ._owner.clocks import PoolClock
from ._owner.entries import decode_snapshot
from ._owner.owned_pool import Identity
from ._owner.owner import Owner
from ._owner.restore import read_batches, restore
from .transport import Loaded


def owner_of(loaded: Loaded) -> Owner:
    """Return an owner in the state of a journal. Raises what damaged entries lead to, of any type."""
    clock = PoolClock(loaded.now)
    owner = Owner(Identity(0, "", 0.0), loaded.identity, clock.ends_after, lambda: 0.5, loaded.now)
    saved = None if loaded.snapshot is None else decode_snapshot(loaded.snapshot)
    restore(owner, saved, read_batches(loaded.batches), loaded.now)
    return owner


class CopiedStore(MemoryStore):
    """A `MemoryStore` that begins with the state of a journal."""

    def __init__(self, loaded: Loaded | None, clock: Clock, on_event: Callable[[Any], None]) -> None:
        super().__init__(clock if loaded is None else _ShiftedClock(clock, loaded.now), on_event)
        self._ids: set[str] = set()
        if loaded is not None:
            self._allocator = owner_of(loaded).allocator

    def add(self, credential: Credential) -> None:
        self._ids.add(credential.id)
        is_known = credential.id in self._allocator.credentials
        self._declare(Allocator.redeclare if is_known else Allocator.add, credential)

    def states(self) -> list[CredentialState]:
        return [state for state in super().states() if state.key_id in self._ids]

    def forecasts(self) -> list[CredentialForecast]:
        return [forecast for forecast in super().forecasts() if forecast.id in self._ids]


class _ShiftedClock:
    """A clock whose `now` continues that of the pool."""

    def __init__(self, clock: Clock, pool_now: float) -> None:
        self._clock = clock
        self._offset = pool_now - clock.now()
        self.epoch = clock.epoch
        self.paused = clock.paused

    def now(self) -> float:
        return self._clock.now() + self._offset

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        return self._clock.call_at(at - self._offset, call)
