"""Endpoint, Gate and Link: what an owner needs of its journal and its members, and what a member needs of its owner.

`_machine` implements them with an SQLite file and unix sockets, `_server` with Redis or Valkey.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple, Protocol

from ._owner.clocks import PoolClock


class StoreLost(Exception):
    """The store or its owner cannot be reached, or the journal cannot be written. Says why, without secrets."""


class StoreRefused(Exception):
    """The store does not serve this program: it says what a person must do."""


class Deposed(Exception):
    """Another owner has taken over: this one may neither write nor send anything."""


class JournalMissing(Exception):
    """The journal was removed or emptied under its owner, which knows its whole content: `rewrite` repairs it."""


class OwnerStart(NamedTuple):
    """An owner in the history of a journal."""

    nonce: str
    position: int  # of the journal when it became the writer


# Owners in the history of a journal. A member that has seen none of them must have been silent during more take-overs.
MAX_OWNERS = 100


class Loaded(NamedTuple):
    """The content of a journal."""

    identity: str  # chosen when the journal was created
    position: int  # number of commits
    snapshot: bytes | None
    batches: list[tuple[float, bytes]]  # after the snapshot: instant of the pool's clock, and entries
    now: float  # the pool's clock
    hold_seconds: float = 0.0  # during which nothing must be granted, because grants may have been forgotten
    owners: Sequence[OwnerStart] = ()  # the last owners, oldest first; the last one is the owner that loads the journal


class Endpoint(Protocol):
    """The owner's side. One thread uses it. Methods that write raise `Deposed`."""

    def load(self) -> Loaded:
        """Read the journal, and make sure that no other owner can write to it. Raises `StoreLost` and
        `StoreRefused`."""

    @property
    def clock(self) -> PoolClock: ...

    def receive(self, timeout: float) -> list[tuple[Hashable, bytes | None]]:
        """Wait for frames of members. None instead of a frame: the link is closed."""

    def commit(self, at: float, entries: bytes | None, frames: list[tuple[Hashable, bytes]]) -> None:
        """Append entries to the journal; then send frames. Raises `StoreLost` if the journal cannot be written and
        `JournalMissing` if it is gone: nothing was sent then, and the same call must be repeated."""

    def send(self, frames: list[tuple[Hashable, bytes]]) -> None:
        """Send frames that depend on no entry."""

    def save(self, at: float, snapshot: bytes, position: int) -> None:
        """Replace all entries up to a position by a snapshot. Raises `StoreLost` and `JournalMissing`."""

    def rewrite(self, at: float, snapshot: bytes, position: int) -> None:
        """Write the journal anew, from the owner's memory. Raises `StoreLost`."""

    def is_current(self) -> bool:
        """Return whether members still find this owner."""

    def has_ended(self, session_id: str) -> bool:
        """Return whether the process of a session has ended. False: it lives, or that is not known."""

    def disconnect_strangers(self, members: Container[Hashable]) -> None:
        """Close links that have had time to greet the owner, and are not among those of its members."""

    def disconnect(self, connection: Hashable) -> None:
        """Close a link."""

    def close(self) -> None:
        """Release the journal and the lock, and leave no file behind but the journal."""


class Link(Protocol):
    """A member's link to its owner."""

    def send(self, frame: bytes, is_flushed: bool = False) -> None:
        """Send a frame; does not block. Any thread, one at a time. `is_flushed`: the caller will `flush`. Raises
        `StoreLost`."""

    def flush(self, receives: bool = False) -> None:
        """Send on this thread what `send` left to it; may block for a round trip. `receives`: the same thread calls
        `receive` next."""

    def receive(self, timeout: float) -> list[bytes]:
        """Wait for frames at most `timeout` seconds. One thread. Raises `StoreLost` if the link is broken."""

    @property
    def has_unsent(self) -> bool:
        """Return whether `receive` must be called to send the rest of a frame."""

    def wake(self) -> None:
        """Make a `receive` of another thread return."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Close the copies of descriptors in a forked child, without touching the link of the parent."""


class Gate(Protocol):
    """Where a member finds its owner."""

    name: str  # for people: the URL without its password

    def connect(self, seconds: float) -> Link:
        """Return a link to the owner; start one if there is none. Raises `StoreLost` and `StoreRefused`."""

    def new_session(self) -> str:
        """Return an id for a session of this process, by which `Endpoint.has_ended` may find out its end. Called after
        `connect`."""

    def visit(self) -> Link | None:
        """Return a link to the owner, to ask it something without joining; None if there is none. Raises
        `StoreLost` and `StoreRefused`."""

    def depose(self) -> None:
        """Replace an owner that does not answer. Raises `StoreLost`."""

    def look(self) -> Loaded | None:
        """Return what the journal holds, without changing anything; None if there is no pool."""

    def has_ended(self, session_id: str) -> bool:
        """Return whether the process of a session in a journal without an owner has ended. Called after `look`."""

    def close(self) -> None:
        """End the session, if there is one."""

    def abandon(self) -> None:
        """Close the copies of descriptors in a forked child: the session is that of the parent."""
