"""One attempt at one item, in this process: what the driver tracks and what its worker sees are the same object."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentos.clock import Timer
from agentos.items.context import CurrentItem
from agentos.items.file_names import file_name, log_name, remove_file
from agentos.items.item import Item
from agentos.pool._rules.records import LeaseRecord
from agentos.pool.lease import Lease, LeaseContext
from agentos.verdict import Verdict
from agentos.workflows.parallel.credential_coordinator import CredentialCoordinator

if TYPE_CHECKING:
    from agentos.ledger.record import RunRecord

_making = threading.Lock()  # guards the making of an attempt's `own_lease`


class RunContext:
    """What all attempts of a run share: its id, its pool, its record, and the items' own files. With a ledger these are
    kept beside it until their item succeeds; else they are made when first asked for and gone with the run."""

    def __init__(
        self,
        run_id: str,
        pool: CredentialCoordinator | None,
        record: RunRecord | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        """`checkpoints`: where commands have a folder for each item."""
        self.run_id = run_id
        self.pool = pool
        self.record = record
        self._checkpoints = checkpoints
        self._lock = threading.Lock()  # guards _folder
        self._folder: Path | None = None
        self._remove: weakref.finalize[..., RunContext] | None = None
        self.has_files = record is not None and record.has_files
        if checkpoints is not None and checkpoints.is_dir() and any(checkpoints.iterdir()):
            self.has_files = True

    def end_lease(self, attempt: Attempt, verdict: Verdict | None, *, success: bool = False) -> None:
        """Ends the attempt's lease together with what the provider answered."""
        record, pool = attempt.record, self.pool
        if record is None or pool is None:
            return
        if success and attempt.usage is None:
            pool._store.end(record, None, True)
            return
        if attempt.usage is not None:
            # What a worker left at zero it did not report: that stays as it was reserved.
            pool._store.settle(record, int(attempt.usage["requests"]) or None, int(attempt.usage["tokens"]) or None)
        pool._store.end(record, None if verdict is None else pool._redacted(verdict), success=success)

    def is_proven(self, attempt: Attempt) -> bool:
        """Whether others use the attempt's credential successfully."""
        return (
            self.pool is not None
            and attempt.credential_id is not None
            and self.pool._store.is_proven(attempt.credential_id)
        )

    def redact(self, text: str) -> str:
        return text if self.pool is None else self.pool.redact(text)

    def workflow_db(self, item_id: str) -> Path:
        path = self.file_of(item_id)
        self.has_files = True
        if self.record is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.record.file_asked(item_id, path.name)
        return path

    def file_of(self, item_id: str) -> Path:
        """Where it is, or would be."""
        return (self._temporary_folder() if self.record is None else self.record.folder) / file_name(item_id)

    def _temporary_folder(self) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="agentos-"))
                # If `close` cannot be called because an abandoned attempt may still use the folder, it goes with the
                # last such attempt, or with the program.
                self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder

    def checkpoint_dir(self, item_id: str) -> Path:
        """Where a command may leave what it needs to go on with this item. The folder need not be there."""
        return (self._checkpoints or self._temporary_folder()) / Path(log_name(item_id)).stem

    def forget(self, item_id: str) -> None:
        """The item has succeeded, or starts anew: its files are not needed any more."""
        remove_file(self.file_of(item_id))
        if self._checkpoints is not None:
            shutil.rmtree(self.checkpoint_dir(item_id), ignore_errors=True)

    def close(self) -> None:
        if self._remove is not None:
            self._remove()


class Attempt(CurrentItem):
    __slots__ = (
        "_own_lease",
        "context",
        "credential",
        "ended_at",
        "has_lent",
        "is_abandoned",
        "is_on_record",
        "is_preparing",
        "is_timed_out",
        "item",
        "process_group",
        "record",
        "started_at",
        "task",
        "timer",
        "waited",
    )

    def __init__(self, item: Item, context: RunContext, record: LeaseRecord | None, now: float) -> None:
        self.item = item
        self.id = item.id
        self.attempt = item.attempts
        self.context = context
        self.record = record
        if record is None or context.pool is None:
            self.credential = self.credential_id = None
        else:
            key = context.pool._key_of(record)
            self.credential = key
            self.credential_id = key.credential_id
        self.started_at = now
        self.should_stop = False
        self.usage = None
        self.is_abandoned = False  # nobody waits for it any more: its end changes nothing but its lease
        self.is_preparing = (
            False  # its worker process is starting, or its task has not begun: its time does not run yet
        )
        self.is_timed_out = False
        self.ended_at = 0.0
        self.timer: Timer | None = None
        self.task: Any = None  # for the workers: what carries it out
        self._own_lease: threading.Lock | None = None
        self.has_lent = False  # its own lease

    def to_be_recorded(self) -> None:
        """Only a run with a ledger needs the rest."""
        asked_at = self.item.asked_at
        self.waited = 0.0 if asked_at is None else self.started_at - asked_at  # for its credential
        self.is_on_record = False  # as started
        self.process_group: int | None = None  # of its own, to be ended by the next launch if this one cannot

    @property
    def run_id(self) -> str:
        return self.context.run_id

    @property
    def workflow_db(self) -> Path:
        return self.context.workflow_db(self.id)

    @property
    def own_lease(self) -> threading.Lock:
        """Held while the worker has borrowed the attempt's own lease. Few do, so it is made when first asked for."""
        with _making:
            if self._own_lease is None:
                self._own_lease = threading.Lock()
        return self._own_lease

    def observe(self, response: Any) -> None:
        if self.context.pool is not None and self.record is not None:
            self.context.pool._observe(self.record, response)

    def observed(self, verdict: Verdict) -> None:
        if self.context.pool is not None and self.record is not None:
            self.context.pool._observed(self.record, verdict)

    def lease(
        self, *, requests: int = 1, tokens: int = 0, scope: str | None = None, timeout: float | None = None
    ) -> LeaseContext:
        pool = self.context.pool
        if pool is None:
            raise RuntimeError("this run has no credentials: pass credential_coordinator= to ParallelCoordinator")
        return AttemptLease(self, pool, LeaseRecord(self.id, requests, tokens, scope, self.credential_id), timeout)

    def _load(self) -> Any:
        record = self.context.record
        return self.item.saved if record is None else record.load(self.item)

    def _save(self, obj: Any) -> None:
        record = self.context.record
        if record is None:
            self.item.saved = obj
        else:
            record.save(self, _encoded(obj))


def _encoded(obj: Any) -> str:
    from agentos.items import codec  # only where there is a ledger

    return codec.encode(obj, "checkpoint")


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
        wished = self._record
        if attempt.has_lent:  # what was reserved for the attempt covers the first use
            self._pool._store.use_more(own, wished.requests, wished.tokens)
        elif wished.requests > own.requests or wished.tokens > own.tokens:
            more = max(0, wished.requests - own.requests), max(0, wished.tokens - own.tokens)
            self._pool._store.use_more(own, *more)
        attempt.has_lent = True
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
