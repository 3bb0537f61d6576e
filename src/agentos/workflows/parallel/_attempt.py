"""One attempt at one item, in this process: what the driver tracks and what its worker sees are the same object."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from . import verdicts
from ._clock import Timer
from ._core.events import Verdict
from ._core.records import LeaseRecord
from ._core.run import Item
from .context import CurrentItem
from .credential_coordinator import CredentialCoordinator
from .credentials import LeasedKey
from .leases import Lease, LeaseContext

_making = threading.Lock()  # guards the making of an attempt's `own_lease`


class Workspace:
    """The files of a run without a ledger: made when first asked for, gone with the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _folder
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def workflow_db(self, item_id: str) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="agentos-", ignore_cleanup_errors=True)
        # Item ids may be anything, so they never become part of a path.
        return Path(self._folder.name) / (hashlib.sha256(item_id.encode("utf-8", "surrogatepass")).hexdigest() + ".db")

    def forget(self, item_id: str) -> None:
        """The item has succeeded: nothing of it is needed any more."""
        if self._folder is not None:
            path = self.workflow_db(item_id)
            for suffix in ("", "-wal", "-shm", "-journal"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None


class Attempt(CurrentItem):
    __slots__ = (
        "_own_lease",
        "credential",
        "ended_at",
        "is_abandoned",
        "is_preparing",
        "is_timed_out",
        "item",
        "payload",
        "pool",
        "record",
        "started_at",
        "task",
        "timer",
        "workspace",
    )

    def __init__(self, item: Item, run_id: str, pool: CredentialCoordinator | None, record: LeaseRecord | None,
                 credential: LeasedKey | None, workspace: Workspace) -> None:  # fmt: skip
        self.id = item.id
        self.attempt = item.attempts
        self.run_id = run_id
        self.credential = credential
        self.credential_id = None if credential is None else credential.credential_id
        self.should_stop = False
        self.usage = None
        self.item = item
        self.payload = item.payload
        self.pool = pool
        self.record = record
        self.workspace = workspace
        self.started_at = self.ended_at = 0.0
        self.is_abandoned = False  # nobody waits for it any more: its end changes nothing but its lease
        self.is_preparing = False  # its worker process is starting: its time does not run yet
        self.is_timed_out = False
        self.timer: Timer | None = None
        self.task: Any = None  # for the workers: what carries it out
        self._own_lease: threading.Lock | None = None

    @property
    def workflow_db(self) -> Path:
        return self.workspace.workflow_db(self.id)

    @property
    def own_lease(self) -> threading.Lock:
        """Held while the worker has borrowed the attempt's own lease. Few do, so it is made when first asked for."""
        if self._own_lease is None:
            with _making:
                if self._own_lease is None:
                    self._own_lease = threading.Lock()
        return self._own_lease

    def observe(self, response: Any) -> None:
        self.observed(verdicts.from_observed(response))

    def observed(self, verdict: Verdict) -> None:
        if self.pool is not None and self.record is not None:
            self.pool._observed(self.record, verdict)

    def lease(self, *, tokens: int = 0, scope: str | None = None, timeout: float | None = None) -> LeaseContext:
        if self.pool is None:
            raise RuntimeError("this run has no credentials: pass credential_coordinator= to ParallelCoordinator")
        wished = LeaseRecord(self.id, 1, tokens, scope, self.credential_id)
        return AttemptLease(self, self.pool, wished, timeout)

    def _load(self) -> Any:
        return self.item.saved

    def _save(self, obj: Any) -> None:
        self.item.saved = obj


class AttemptLease(LeaseContext):
    """A lease inside a worker. The attempt has one already: that is lent first, so that workers which all want to lease
    never wait for each other in a circle. Only a second one at the same time, or another scope, comes from the pool."""

    __slots__ = ("_attempt", "_is_own")

    def __init__(
        self, attempt: Attempt, pool: CredentialCoordinator, wished: LeaseRecord, timeout: float | None
    ) -> None:
        super().__init__(pool, wished, timeout)
        self._attempt = attempt
        self._is_own = False

    def _borrow(self) -> Lease | None:
        attempt = self._attempt
        own = attempt.record
        if own is None or self._record.scope not in (None, own.scope) or not attempt.own_lease.acquire(blocking=False):
            return None
        self._is_own = True
        return self._pool._lease_of(own)

    def __enter__(self) -> Lease:
        return self._borrow() or super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_own:
            self._attempt.own_lease.release()  # it ends with the attempt, and is judged there
        else:
            super().__exit__(kind, exc, tb)

    async def __aenter__(self) -> Lease:
        return self._borrow() or await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, exc, tb)
