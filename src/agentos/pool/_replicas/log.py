"""What a shared store has to offer: a log, into which batches are written in one order and with one clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

# An entry of the log: its instant, in seconds of the store's clock (since 1970), and the batch as bytes.
Entry = tuple[float, bytes]


class StoreLost(Exception):
    """The store cannot be reached, or cannot be written. Says why, without secrets."""


class StoreRefused(Exception):
    """The store is there and will not have us: a wrong password, or another version's pool that is in use."""


class Answer(NamedTuple):
    epoch: str  # another one: the log that was known is gone
    at: float  # the store's time
    entries: list[Entry] | None  # after the position; None: they are not there any more, `load` anew


class Start(NamedTuple):
    epoch: str
    at: float
    state: bytes | None  # None: the log is empty, and begins at this instant
    position: int
    entries: list[Entry]
    is_doubtful: bool  # leases may have been forgotten: nothing is to be granted until they have run out


class Log(Protocol):
    """One thread at a time. All but `close` raise `StoreLost` or `StoreRefused`."""

    # How often (seconds) to look for news while somebody waits; None: the store tells.
    poll_seconds: float | None

    def look(self) -> Start | None:
        """What is there, without changing anything; None if there is nothing."""

    def load(self, ttl: float) -> Start:
        """What is there; a new log if there is none."""

    def exchange(self, epoch: str, position: int, batch: bytes | None, ttl: float) -> Answer:
        """Appends a batch, if there is one, and returns all entries after `position`, the new one included."""

    def has_news(self) -> bool:
        """A cheap look, for those who poll."""

    def listen(self, heard: Callable[[int, Entry], None] | None, missed: Callable[[], None]) -> None:
        """From now on, until None is given: every entry that anybody appends, on another thread. `missed`: some may
        be missing."""

    def keep(self, epoch: str, position: int, state: bytes) -> None:
        """A state for those who join later. Entries long before it may go."""

    def abandon(self) -> None:
        """In a forked child: what is open belongs to the parent, and is not even closed."""

    def close(self) -> None: ...
