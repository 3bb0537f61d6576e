"""`Attempt`: one attempt at one item, used by the run that tracks it and by the worker that carries it out."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, SupportsIndex

from agentos.clock import Timer
from agentos.redaction.mask import MASK
from agentos.verdict import Verdict

from .access import AttemptAccess, AttemptEnd, AttemptUsage
from .context import CurrentItem, LeaseBlock
from .item import Item

_creation_lock = threading.Lock()  # guards the creation of `Attempt._own_lease`


class ClientToken(str):
    """A client token, as a string for any SDK: what a worker gets in place of a key in a run with a gateway.

    `base_url` is the address of the gateway, so that a worker needs no change: `OpenAI(api_key=key,
    base_url=key.base_url)`. Only its `repr` is masked. A copy or pickle of it is a plain string.
    """

    __slots__ = ("base_url",)

    base_url: str
    headers: Mapping[str, str] = MappingProxyType({})  # the gateway adds those of the credential

    def __new__(cls, token: str, base_url: str) -> ClientToken:
        client_token = super().__new__(cls, token)
        client_token.base_url = base_url
        return client_token

    def __repr__(self) -> str:
        return f"<client token {MASK}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return str, (str(self),)


class AttemptContext(Protocol):
    """The services of a run that its attempts use."""

    run_id: str
    access: AttemptAccess | None  # the gateway through which attempts send their requests; None: they have leases
    is_recorded: bool  # the run has a ledger
    has_files: bool  # some item may have files, which are removed when it succeeds

    def workflow_db(self, item_id: str, /) -> Path:
        """Return the path of the item's own SQLite file, and record that the item uses it."""

    def lease(self, attempt: Attempt, requests: int, tokens: int, scope: str | None, timeout: float | None, /
              ) -> LeaseBlock:  # fmt: skip
        """Return a lease for a `with` block: the attempt's own first, else one from the pool."""

    def observe(self, attempt: Attempt, response: Any, /) -> None:
        """Read a response that raised no exception, and report its verdict to the pool."""

    def observed(self, attempt: Attempt, verdict: Verdict, /) -> None:
        """Report the verdict on a response that another process has read to the pool."""

    def end_access(self, attempt: Attempt, /) -> AttemptEnd:
        """End the attempt's client token, once, and return what is known of its requests. Only with `access`."""

    def load(self, attempt: Attempt, /) -> Any:
        """Return the item's checkpoint."""

    def save(self, attempt: Attempt, obj: Any, /) -> None:
        """Replace the item's checkpoint."""

    def save_encoded(self, attempt: Attempt, encoded: Any, /) -> None:
        """Replace the item's checkpoint by one that a worker process sent: JSON if the run has a ledger."""

    def database_path(self, item_id: str, /) -> str:
        """Return the path of the item's own SQLite file, without recording that the item uses it."""

    def checkpoint_dir(self, item_id: str, /) -> str:
        """Return the folder for the checkpoint files of a command. It need not exist."""

    def process_ended(self, attempt: Attempt, pid: int, /) -> None:
        """Record that the attempt's process group has ended."""


class Attempt(CurrentItem):
    """One attempt at one item: its lease, its times, and how far it is."""

    __slots__ = (
        "_own_lease",
        "access_end",
        "context",
        "credential",
        "ended_at",
        "has_lent",
        "is_abandoned",
        "is_on_record",
        "is_preparing",
        "is_timed_out",
        "item",
        "lease_handle",
        "meter",
        "process_group",
        "started_at",
        "task",
        "timer",
        "waited",
    )

    def __init__(self, item: Item, context: AttemptContext, now: float, key: Any = None) -> None:
        """`key`: the credential as the worker sees it (the pool's `LeasedKey`); None without a pool."""
        self.item = item
        self.id = item.id
        self.attempt = item.attempts
        self.context = context
        self.credential = key
        self.lease_handle: Any = None if key is None else key.handle
        self.credential_id = None if key is None else key.credential_id
        self.started_at = now
        self.should_stop = False
        self.usage = None
        self.access_end: AttemptEnd | None = None  # set when its client token has ended
        self.meter: Any = None  # counts what it spends (a `runs._parts.spending.AttemptMeter`), if the run does
        self.is_abandoned = False  # the run no longer waits for it: its end only returns its lease
        self.is_preparing = False  # its worker process or task has not begun, so its timeout does not count yet
        self.is_timed_out = False
        self.ended_at = 0.0
        self.timer: Timer | None = None
        self.task: Any = None  # the task, future or process of the workers that carries it out
        self._own_lease: threading.Lock | None = None
        self.has_lent = False  # the worker has used the attempt's own lease once
        if context.is_recorded:
            self.prepare_record()

    def prepare_record(self) -> None:
        """Set the fields that only a run with a ledger needs."""
        waiting_since = self.item.waiting_since
        self.waited = 0.0 if waiting_since is None else self.started_at - waiting_since  # seconds, for the credential
        self.is_on_record = False  # its start was given to the ledger
        self.process_group: int | None = None  # killed by the next launch if this process dies

    @property
    def run_id(self) -> str:
        return self.context.run_id

    @property
    def workflow_db(self) -> Path:
        return self.context.workflow_db(self.id)

    @property
    def provider(self) -> str | None:
        """Return the provider of the attempt's credential; None without one."""
        return None if self.lease_handle is None else self.lease_handle.provider

    @property
    def gateway_url(self) -> str | None:
        access = self.context.access
        return None if access is None else access.url

    @property
    def client_token(self) -> str | None:
        return self.credential if type(self.credential) is ClientToken else None

    @property
    def request_usage(self) -> AttemptUsage | None:
        """Return what the attempt's requests have used so far; None in a run without a gateway."""
        access, end = self.context.access, self.access_end
        if end is not None:
            return end.usage
        return None if access is None or self.credential is None else access.usage(self.credential)

    @property
    def own_lease(self) -> threading.Lock:
        """Return the lock that is held while the worker uses the attempt's own lease. Created on first use: few workers
        need it."""
        with _creation_lock:
            if self._own_lease is None:
                self._own_lease = threading.Lock()
        return self._own_lease

    def report_usage(self, *, requests: int = 0, tokens: int = 0, cost: float = 0.0) -> None:
        self.add_usage(requests=requests, tokens=tokens, cost=cost)
        if self.meter is not None and self.context.access is None:
            self.meter.reported()

    def observe(self, response: Any) -> None:
        self.context.observe(self, response)

    def observed(self, verdict: Verdict) -> None:
        self.context.observed(self, verdict)

    def lease(
        self, *, requests: int = 1, tokens: int = 0, scope: str | None = None, timeout: float | None = None
    ) -> LeaseBlock:
        return self.context.lease(self, requests, tokens, scope, timeout)

    def _load(self) -> Any:
        return self.context.load(self)

    def _save(self, obj: Any) -> None:
        self.context.save(self, obj)
