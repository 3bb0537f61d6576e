"""RunContext: gives the attempts of a run access to its pool, its ledger and the files of their items."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentos.items.access import AttemptAccess, AttemptEnd, AttemptUsage
from agentos.items.attempt import Attempt, ClientToken
from agentos.items.file_names import database_name, folder_name, remove_database
from agentos.items.item import Item
from agentos.limits.amounts import detail_of
from agentos.pool.lease import Lease, LeaseContext
from agentos.pool.lease_pool import LeasePool
from agentos.pool.store import LeaseHandle
from agentos.verdict import Verdict

from .spending import AttemptMeter, RunSpending

if TYPE_CHECKING:
    from agentos.ledger.record import RunRecord


class RunContext:
    """The `AttemptContext` of all attempts of a run. With a ledger the files of an item are beside it until the item
    succeeds; without one they are in a temporary folder that is removed with the run."""

    def __init__(
        self,
        run_id: str,
        pool: LeasePool | None,
        run_record: RunRecord | None = None,
        checkpoints: Path | None = None,
        access: AttemptAccess | None = None,
        spending: RunSpending | None = None,
    ) -> None:
        """`checkpoints`: the folder of the checkpoint folders of commands. `access`: the gateway of the attempts, which
        then have a client token in place of a lease. `spending`: of the run, if it is counted by item."""
        self._spending = spending
        self.run_id = run_id
        self.pool = pool
        self.access = access
        self._access_lock = threading.Lock()  # guards _open_tokens and `access_end` of attempts
        self._open_tokens: dict[Attempt, str] = {}
        self.run_record = run_record
        self.is_recorded = run_record is not None
        self._checkpoints = checkpoints
        self._lock = threading.Lock()  # guards _folder
        self._folder: Path | None = None
        self._remove: weakref.finalize[..., RunContext] | None = None
        self.has_files = run_record is not None and run_record.has_files
        if checkpoints is not None and checkpoints.is_dir() and any(checkpoints.iterdir()):
            self.has_files = True

    def make_attempt(self, item: Item, handle: LeaseHandle | None, now: float) -> Attempt:
        """Return the next attempt at an item: with its live lease or, in a run with a gateway, with a client token."""
        if self.access is not None:
            return self._open_access(item, now, self.access)
        key = None if handle is None or self.pool is None else self.pool.key_of(handle)
        attempt = Attempt(item, self, now, key)
        if self._spending is not None:
            attempt.meter = AttemptMeter(self._spending, attempt)
        return attempt

    def end_lease(self, attempt: Attempt, verdict: Verdict | None, *, success: bool = False) -> None:
        """End the attempt's lease, with the verdict on the provider's answer."""
        handle, pool = attempt.lease_handle, self.pool
        if handle is None or pool is None:
            return
        if attempt.usage is not None:
            # Zero means not reported: the reservation stays.
            requests, tokens = int(attempt.usage["requests"]) or None, int(attempt.usage["tokens"]) or None
            cost = float(attempt.usage["cost"])
            detail = detail_of(handle.tokens if tokens is None else tokens, None, None, cost) if cost else None
            pool.settle(handle, requests, tokens, detail)
        pool.end(handle, verdict, success)

    def _open_access(self, item: Item, now: float, access: AttemptAccess) -> Attempt:
        attempt = Attempt(item, self, now)
        if self._spending is not None:
            attempt.meter = AttemptMeter(self._spending, attempt)
        token = access.open(self.run_id, item.id, item.attempts, attempt.meter)
        with self._access_lock:
            self._open_tokens[attempt] = token
        if self.pool is not None:
            self.pool.hide_token(token)
        attempt.credential = ClientToken(token, access.url)
        return attempt

    def end_access(self, attempt: Attempt) -> AttemptEnd:
        """End the attempt's client token, once, and return what is known of its requests. Called from any thread: the
        attempt may end while the run abandons it or shuts down."""
        assert self.access is not None
        with self._access_lock:
            token = self._open_tokens.pop(attempt, None)
            if token is not None:
                end = attempt.access_end = self.access.close(token)
                attempt.usage = _counted_usage(end.usage, attempt.usage)
        assert attempt.access_end is not None
        return attempt.access_end

    def end_all_access(self) -> None:
        """End the client tokens of all attempts: the run is over."""
        for attempt in list(self._open_tokens):
            self.end_access(attempt)

    def is_proven(self, attempt: Attempt) -> bool:
        """Return whether other attempts use the same credential successfully."""
        return (
            self.pool is not None and attempt.credential_id is not None and self.pool.is_proven(attempt.credential_id)
        )

    # --- for the worker of an attempt -----------------------------------------------------------------------------

    def lease(
        self, attempt: Attempt, requests: int, tokens: int, scope: str | None, timeout: float | None
    ) -> LeaseContext:
        """Return a lease for a `with` block: the attempt's own first, else one from the pool."""
        if self.pool is None:
            raise RuntimeError("this run has no credentials: pass credential_coordinator= to ParallelCoordinator")
        request = self.pool.make_handle(attempt.id, requests, tokens, scope, attempt.credential_id)
        return AttemptLease(attempt, self.pool, request, timeout)

    def observe(self, attempt: Attempt, response: Any) -> None:
        """Read an answer that raised nothing."""
        if self.pool is not None and attempt.lease_handle is not None:
            self.pool.observe(attempt.lease_handle, response)

    def observed(self, attempt: Attempt, verdict: Verdict) -> None:
        """Apply the verdict on an answer that was read elsewhere."""
        if self.pool is not None and attempt.lease_handle is not None:
            self.pool.observed(attempt.lease_handle, verdict)

    def load(self, attempt: Attempt) -> Any:
        """Return the item's checkpoint."""
        return attempt.item.checkpoint if self.run_record is None else self.run_record.load(attempt.item)

    def save(self, attempt: Attempt, obj: Any) -> None:
        """Replace the item's checkpoint."""
        self.save_encoded(attempt, obj if self.run_record is None else _encoded(obj))

    def save_encoded(self, attempt: Attempt, encoded: Any) -> None:
        """Replace the item's checkpoint by one that is JSON already if the run has a ledger."""
        if self.run_record is None:
            attempt.item.checkpoint = encoded
        else:
            self.run_record.save(attempt, encoded)

    def process_ended(self, attempt: Attempt, pid: int) -> None:
        """Remove an attempt's process group from the ledger."""
        if self.run_record is not None and attempt.is_on_record:
            self.run_record.process_ended(pid)

    def redact(self, text: str) -> str:
        return text if self.pool is None else self.pool.redact(text)

    def workflow_db(self, item_id: str) -> Path:
        """Return the path of the item's own SQLite file, in a folder that exists."""
        path = Path(self.database_path(item_id))
        self.has_files = True
        if self.run_record is not None:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            self.run_record.file_requested(item_id, path.name)
        return path

    # Two paths that every command needs, as strings: making `Path` objects would take longer than the system calls.

    def database_path(self, item_id: str) -> str:
        """Return the path of the item's own SQLite file, which need not exist."""
        folder = self._temporary_folder() if self.run_record is None else self.run_record.folder
        return f"{folder}/{database_name(item_id)}"

    def _temporary_folder(self) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="agentos-"))
                # An abandoned attempt may still use the folder when the run ends. Then the folder is removed when the
                # last attempt is garbage, or at the end of the program.
                self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder

    def checkpoint_dir(self, item_id: str) -> str:
        """Return the folder in which a command can save its progress on this item. It need not exist."""
        return f"{self._checkpoints or self._temporary_folder()}/{folder_name(item_id)}"

    def forget(self, item_id: str) -> None:
        """Remove the files of an item that has succeeded, or whose record was discarded."""
        remove_database(Path(self.database_path(item_id)))
        if self._checkpoints is not None:
            shutil.rmtree(self.checkpoint_dir(item_id), ignore_errors=True)

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._remove is not None:
            self._remove()


def _counted_usage(usage: AttemptUsage, reported: dict[str, float] | None) -> dict[str, Any]:
    """Return the usage of an attempt as results show it: as the gateway counted it. Only a cost that the gateway does
    not know is taken from what the worker has reported."""
    cost = usage.cost
    if cost is None and reported is not None:
        cost = reported["cost"] or None
    return {
        "requests": usage.requests,
        "tokens": usage.input_tokens + usage.output_tokens,
        "cost": cost,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "held_seconds": usage.held_seconds,
        "refusals": usage.refusals,
    }


def _encoded(obj: Any) -> str:
    from agentos.items import codec  # only runs with a ledger need it

    return codec.encode(obj, "checkpoint")


class AttemptLease(LeaseContext):
    """A lease that a worker requests. The attempt's own lease is lent first, so that workers that all lease cannot wait
    for each other in a circle. A second concurrent lease, or one of another scope, comes from the pool."""

    __slots__ = ("_attempt", "_is_own")

    def __init__(self, attempt: Attempt, pool: LeasePool, request: LeaseHandle, timeout: float | None) -> None:
        super().__init__(pool, request, timeout)
        self._attempt = attempt
        self._is_own = False

    def _borrow(self) -> Lease | None:
        attempt, request, pool = self._attempt, self._handle, self._pool
        own: LeaseHandle | None = attempt.lease_handle
        if own is None or request.scope not in (None, own.scope) or not attempt.own_lease.acquire(blocking=False):
            return None
        self._is_own = True
        if attempt.has_lent:  # the attempt's reservation covers the first use only
            pool.use_more(own, request.requests, request.tokens)
        elif request.requests > own.requests or request.tokens > own.tokens:
            pool.use_more(own, max(0, request.requests - own.requests), max(0, request.tokens - own.tokens))
        attempt.has_lent = True
        return pool.lease_of(own)

    def __enter__(self) -> Lease:
        return self._borrow() or super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_own:
            self._attempt.own_lease.release()  # the lease itself ends with the attempt
        else:
            super().__exit__(kind, exc, tb)

    async def __aenter__(self) -> Lease:
        return self._borrow() or await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, exc, tb)
