"""ObservedPool: one coordinator of a shared pool and its events, for tests of faults."""

from __future__ import annotations

import time
from typing import Any

from agentos.workflows.parallel import Credential, CredentialCoordinator, LeaseTimeout, Limits
from tests.conftest import BUSY

TTL = 1.0


class ObservedPool:
    """One coordinator and its events."""

    def __init__(self, url: str, *, ttl: float = TTL, count: int = 1, **limits: Any) -> None:
        keys = [Credential(f"sk-fault-{n}-secret", id=f"key-{n}", limits=Limits(**limits)) for n in range(count)]
        self.pool = CredentialCoordinator(keys, store=url, lease_ttl=ttl)
        self.events: list[Any] = []
        self.pool.listen(self.events.append)

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def fence(self, timeout: float = 20) -> int:
        with self.pool.lease(timeout=timeout) as lease:
            return lease.fence

    def is_refused(self, seconds: float = 0.2) -> bool:
        """Return whether nothing is granted; a request must time out in time."""
        began = time.monotonic()
        try:
            with self.pool.lease(timeout=seconds):
                return False
        except LeaseTimeout:
            assert time.monotonic() - began < seconds + BUSY  # invariant 10
            return True

    def used(self) -> float:
        return self.pool.states()[0].requests

    @property
    def owner_pid(self) -> int:
        owner = self.pool._store._member.owner  # type: ignore[attr-defined]
        assert owner is not None
        return int(owner.pid)
