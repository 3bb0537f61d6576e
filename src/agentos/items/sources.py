"""Where a run's items come from: read no further ahead than there is room.

A collection (anything that knows its length) is checked for duplicate ids before anything starts, and then read by the
run itself. Any other iterable may block, and may never end: it is read on a thread of its own, which can be left behind
when the run has to stop. So an iterator that is bound to the thread that made it (an SQLite cursor) must be opened
inside a generator, or read into a list first.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from agentos.errors import InvalidItemId, UnrecordableValue

from .duplicates import RecentIds, find_duplicate
from .item import Item

# Their iteration is safe, quick and repeatable; anything else that knows its length is copied into a list first.
_COLLECTIONS: tuple[type, ...] = (
    list,
    tuple,
    range,
    set,
    frozenset,
    dict,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)

# More than any request can have.
MOST_TOKENS = 10**15

IdFunc = Callable[[Any], str]


class Problem(NamedTuple):
    """Why an item cannot be started as given."""

    text: str
    error_type: str = "ValueError"
    is_unrecorded: bool = False  # its id belongs to another item, or cannot be written down

    @classmethod
    def repeated(cls, item_id: str) -> Problem:
        return cls(f"another item has the id {item_id!r} already: an id names one item", is_unrecorded=True)

    @classmethod
    def secret(cls) -> Problem:
        text = "the item's id contains a secret of the pool, and ids are written down: name items by something else"
        return cls(f"{text} (item_id_func)", is_unrecorded=True)

    @classmethod
    def changed(cls, item_id: str) -> Problem:
        return cls(
            f"the input of item {item_id!r} is not the one that is on record for this id: give it another id, or pass "
            "on_changed='rerun' to run it again",
            "ChangedInput",
            is_unrecorded=True,
        )


ReadItem = tuple[Item, Problem | None]


class Receiver(Protocol):
    """Who is told what was read."""

    def items_read(self, read: list[ReadItem]) -> None: ...

    def source_ended(self, error: BaseException | None) -> None: ...


class ItemMaker:
    """From what the input gives to an `Item`."""

    def __init__(
        self,
        id_func: IdFunc,
        tokens_func: Callable[[Any], int] | None,
        scope_func: Callable[[Any], str | None] | None,
        encode: Callable[[Any], tuple[str, bytes | None]] | None = None,
        hides_secret: Callable[[str], bool] = lambda _: False,
        shortest_secret: int = sys.maxsize,
    ) -> None:
        """For a run with a ledger: `encode` gives the input as it is recorded, and its digest; `hides_secret` says
        whether an id, if it is long enough, must not be written down."""
        self._id_func = id_func
        self._tokens_func = tokens_func
        self._scope_func = scope_func
        self._encode = encode
        self._hides_secret = hides_secret
        self._shortest_secret = shortest_secret
        self._has_more = tokens_func is not None or scope_func is not None
        self.has_scopes = scope_func is not None

    def id_of(self, payload: Any, number: int) -> str:
        try:
            item_id = self._id_func(payload)
        except Exception as error:
            raise InvalidItemId(f"item_id_func failed for item number {number}: {error!r}") from error
        if not isinstance(item_id, str):
            kind = type(item_id).__name__
            raise InvalidItemId(f"item_id_func must return a string; for item number {number} it returned {kind}")
        return item_id

    def make(self, payload: Any, number: int) -> ReadItem:
        item, problem = self.make_bare(payload, number)
        if problem is None and self._has_more:
            problem = self.complete(item)
        return item, problem

    def make_bare(self, payload: Any, number: int) -> ReadItem:
        """What is needed to find the item on record."""
        item = Item(self.id_of(payload, number), payload)
        if self._encode is not None:
            try:
                item.prepare_record(*self._encode(payload))
            except UnrecordableValue as error:
                item.prepare_record()
                return item, Problem(str(error), "UnrecordableValue")
            if len(item.id) >= self._shortest_secret and self._hides_secret(item.id):
                return item, Problem.secret()
        return item, None

    def complete(self, item: Item) -> Problem | None:
        """What is needed to start it."""
        try:
            if self._tokens_func is not None:
                item.tokens = _checked_tokens(self._tokens_func(item.payload))
            if self._scope_func is not None:
                item.scope = self._scope_func(item.payload)
        except Exception as error:
            return Problem(f"tokens_func or scope_func failed: {error!r}")
        return None


def _checked_tokens(tokens: Any) -> int:
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= MOST_TOKENS:
        raise ValueError(f"the number of tokens must be a whole number from 0, not {tokens!r}")
    return tokens


class CollectionSource:
    """Items of a known number, read on the thread that asks for them."""

    has_reader_thread = False

    def __init__(self, items: Any, maker: ItemMaker) -> None:
        self._items = items if type(items) in _COLLECTIONS else list(items)
        self._maker = maker
        self.has_scopes = maker.has_scopes
        self.total: int | None = len(self._items)
        duplicate = find_duplicate(self._ids, self.total)
        if duplicate is not None:
            raise ValueError(f"two items have the id {duplicate!r}: an id names one item (see item_id_func)")
        self._rest = enumerate(self._items, start=1)
        self._is_closed = False
        self.make = maker.make  # a `ResumeFilter` replaces it by `make_bare`
        self.is_ended = False
        self.error: BaseException | None = None

    def _ids(self) -> Iterator[str]:
        return (self._maker.id_of(payload, number) for number, payload in enumerate(self._items, start=1))

    def read(self, count: int) -> list[ReadItem]:
        """Up to so many items, each with the reason why it cannot be started, if there is one."""
        made: list[ReadItem] = []
        try:
            for number, payload in itertools.islice(self._rest, count):
                made.append(self.make(payload, number))
                if self._is_closed:
                    return made
        except Exception as error:
            self.error = error
        self.is_ended = self.error is not None or len(made) < count
        return made

    def request(self, count: int, receiver: Receiver) -> None:
        """What a stream does on another thread, done on this one."""
        receiver.items_read(self.read(count))
        if self.is_ended:
            receiver.source_ended(self.error)

    def unread_ids(self) -> Iterator[str]:
        """The ids of what was never read."""
        return (self._maker.id_of(payload, number) for number, payload in self._rest)

    def unread(self) -> Iterator[ReadItem]:
        return (self._maker.make_bare(payload, number) for number, payload in self._rest)

    def close(self) -> None:
        self._is_closed = True


class StreamSource:
    """Items of an unknown number, read on a thread of their own. A repeated id makes that item fail."""

    has_reader_thread = True
    total = None

    def __init__(self, items: Iterable[Any], maker: ItemMaker) -> None:
        self._iterator = iter(items)
        self.has_scopes = maker.has_scopes
        self.make = maker.make  # a `ResumeFilter` replaces it by `make_bare`
        self._recent = RecentIds()
        self._wanted: SimpleQueue[int] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def request(self, count: int, receiver: Receiver) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, args=(receiver,), name="agentos-reader", daemon=True)
            self._thread.start()
        self._wanted.put(count)

    def _read(self, receiver: Receiver) -> None:
        number = 0
        try:
            while count := self._wanted.get():
                for _ in range(count):
                    payload = next(self._iterator)
                    number += 1
                    item, problem = self.make(payload, number)
                    if not self._recent.add(item.id):
                        problem = Problem.repeated(item.id)
                    receiver.items_read([(item, problem)])
        except StopIteration:
            receiver.source_ended(None)
        except BaseException as error:
            receiver.source_ended(error)

    def unread_ids(self) -> None:
        """Not to be had: reading on could take for ever."""

    unread = unread_ids

    def close(self) -> None:
        self._wanted.put(0)


def source_of(items: Iterable[Any], maker: ItemMaker) -> CollectionSource | StreamSource:
    if hasattr(items, "__len__") and hasattr(items, "__iter__"):
        return CollectionSource(items, maker)
    try:
        return StreamSource(items, maker)
    except TypeError:
        raise TypeError(f"items must be iterable: a list, a generator, …, not {type(items).__name__}") from None
