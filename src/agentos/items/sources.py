"""Reads the items of a run, no further ahead than the run requests.

A collection (an object with a length) is checked for duplicate ids before the run starts, and then read on the run's
own thread. Any other iterable may block or be endless: a reader thread reads it, and the run can end without it. An
iterator that is bound to the thread that created it, such as an SQLite cursor, must therefore be opened inside a
generator, or read into a list first.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from agentos.errors import InvalidItemId, UnrecordableValue
from agentos.foreign_exceptions import representation

from .duplicates import MAX_REMEMBERED, RecentIds, find_duplicate
from .item import Item

# Types whose iteration is fast, repeatable and does not raise; other collections are copied into a list first.
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

# Upper bound of the tokens of an item: more than any request can have.
MAX_TOKENS = 10**15

# `error_type` of an item whose row in the ledger does not match its checksum.
DAMAGED_RECORD = "DamagedRecord"

IdFunc = Callable[[Any], str]


class Problem(NamedTuple):
    """Why an item fails without being started."""

    text: str
    error_type: str = "ValueError"
    is_unrecorded: bool = False  # the failure is not recorded: its id belongs to another item, or contains a secret

    @classmethod
    def repeated(cls, item_id: str) -> Problem:
        """Return the problem of an item whose id an earlier item of the input has."""
        return cls(f"another item already has the id {item_id!r}: ids must be unique", is_unrecorded=True)

    @classmethod
    def secret(cls) -> Problem:
        """Return the problem of an item whose id contains a secret."""
        text = "the item's id contains a secret of the pool, and ids are recorded: return another id"
        return cls(f"{text} (item_id_func)", is_unrecorded=True)

    @classmethod
    def damaged(cls, item_id: str) -> Problem:
        """Return the problem of an item whose row in the ledger is damaged."""
        return cls(
            f"the record of item {item_id!r} is damaged: restore the ledger from a copy, or pass retry_failed=True "
            "(agentos retry) to run the item again",
            DAMAGED_RECORD,
            is_unrecorded=True,
        )

    @classmethod
    def changed(cls, item_id: str) -> Problem:
        """Return the problem of an item whose input differs from the recorded one."""
        return cls(
            f"the input of item {item_id!r} differs from the recorded one: give it another id, or pass "
            "on_changed='rerun' to run it again",
            "ChangedInput",
            is_unrecorded=True,
        )


ReadItem = tuple[Item, Problem | None]


class Receiver(Protocol):
    """The receiver of the items that a source reads: a run, or a `ResumeFilter`."""

    def items_read(self, read_items: list[ReadItem]) -> None:
        """Receive items, in the order of the input. May be called on the reader thread."""

    def source_ended(self, error: BaseException | None) -> None:
        """Receive the end of the input, with the exception that the iterable or a user function raised."""


class ItemMaker:
    """Makes `Item` objects from the elements of the input."""

    def __init__(
        self,
        id_func: IdFunc,
        tokens_func: Callable[[Any], int] | None,
        scope_func: Callable[[Any], str | None] | None,
        encode: Callable[[Any], tuple[str, bytes | None]] | None = None,
        hides_secret: Callable[[str], bool] = lambda _: False,
        shortest_secret: int = sys.maxsize,
        read_ids: list[str] | None = None,
    ) -> None:
        """For a run with a ledger: `encode` returns the input as JSON and its digest; `hides_secret` says whether an id
        contains a secret, and is called for ids of at least `shortest_secret` characters. The id of each item that is
        made is appended to `read_ids`."""
        self._id_func = id_func
        self._tokens_func = tokens_func
        self._scope_func = scope_func
        self._encode = encode
        self._hides_secret = hides_secret
        self._shortest_secret = shortest_secret
        self._read_ids = read_ids
        self.has_more = tokens_func is not None or scope_func is not None  # than `make_bare` sets
        self.has_scopes = scope_func is not None

    def id_of(self, payload: Any, number: int) -> str:
        """Return the id of an element; raise `InvalidItemId` if there is none."""
        try:
            item_id = self._id_func(payload)
        except Exception as error:
            raise InvalidItemId(f"item_id_func failed for item number {number}: {representation(error)}") from error
        if not isinstance(item_id, str):
            kind = type(item_id).__name__
            raise InvalidItemId(f"item_id_func must return a string; for item number {number} it returned {kind}")
        return item_id

    def make(self, payload: Any, number: int, item_id: str | None = None) -> ReadItem:
        """Return an item that can be started, or the problem. `item_id`: None if it is not known yet."""
        item, problem = self.make_bare(payload, number, item_id)
        if problem is None and self.has_more:
            problem = self.complete(item)
        return item, problem

    def make_bare(self, payload: Any, number: int, item_id: str | None = None) -> ReadItem:
        """Return an item without tokens and scope: enough to find it in the ledger."""
        item = Item(self.id_of(payload, number) if item_id is None else item_id, payload)
        if self._read_ids is not None:
            self._read_ids.append(item.id)
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
        """Set the tokens and the scope of an item; return the problem if a user function fails."""
        try:
            if self._tokens_func is not None:
                item.tokens = _checked_tokens(self._tokens_func(item.payload))
            if self._scope_func is not None:
                item.scope = self._scope_func(item.payload)
        except (Exception, SystemExit) as error:
            return Problem(f"tokens_func or scope_func failed: {representation(error)}")
        return None


def _checked_tokens(tokens: Any) -> int:
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= MAX_TOKENS:
        raise ValueError(f"the number of tokens must be a whole number from 0, not {tokens!r}")
    return tokens


class CollectionSource:
    """A source of a known number of items, read on the thread that requests them."""

    has_reader_thread = False

    def __init__(self, items: Any, maker: ItemMaker) -> None:
        self._items = items if type(items) in _COLLECTIONS else list(items)
        self._maker = maker
        self.has_scopes = maker.has_scopes
        self.total: int | None = len(self._items)
        ids: Iterable[str | None] = itertools.repeat(None)  # too many to keep: each is found again when it is read
        if self.total <= MAX_REMEMBERED:
            ids = known_ids = list(self._ids())
            duplicate = find_duplicate(lambda: known_ids, self.total)
        else:
            duplicate = find_duplicate(self._ids, self.total)
        if duplicate is not None:
            raise ValueError(f"two items have the id {duplicate!r}: ids must be unique (see item_id_func)")
        self._rest = zip(itertools.count(1), self._items, ids)
        self._is_closed = False
        self.make = maker.make if maker.has_more else maker.make_bare  # a `ResumeFilter` replaces it by `make_bare`
        self.is_ended = False
        self.error: BaseException | None = None

    def _ids(self) -> Iterator[str]:
        return (self._maker.id_of(payload, number) for number, payload in enumerate(self._items, start=1))

    def read(self, count: int) -> list[ReadItem]:
        """Return up to `count` items; set `is_ended` and `error` at the end of the input."""
        read_items: list[ReadItem] = []
        try:
            for number, payload, item_id in itertools.islice(self._rest, count):
                read_items.append(self.make(payload, number, item_id))
                if self._is_closed:
                    return read_items
        except Exception as error:
            self.error = error
        self.is_ended = self.error is not None or len(read_items) < count
        return read_items

    def request(self, count: int, receiver: Receiver) -> None:
        """Read up to `count` items and pass them to the receiver, before this returns."""
        receiver.items_read(self.read(count))
        if self.is_ended:
            receiver.source_ended(self.error)

    def unread_ids(self) -> Iterator[str]:
        """Yield the ids of the items that were not read."""
        return (item_id or self._maker.id_of(payload, number) for number, payload, item_id in self._rest)

    def unread(self) -> Iterator[ReadItem]:
        """Yield the items that were not read, as `make_bare` makes them."""
        return (self._maker.make_bare(payload, number, item_id) for number, payload, item_id in self._rest)

    def close(self) -> None:
        """Stop a `read` that is under way, after its current item."""
        self._is_closed = True


class StreamSource:
    """A source of an unknown number of items, read on a reader thread. An item with a repeated id fails."""

    has_reader_thread = True
    total = None

    def __init__(self, items: Iterable[Any], maker: ItemMaker) -> None:
        self._iterator = iter(items)
        self.has_scopes = maker.has_scopes
        self.make = maker.make  # a `ResumeFilter` replaces it by `make_bare`
        self._recent = RecentIds()
        self._requests: SimpleQueue[int] = SimpleQueue()  # numbers of items to read; 0: stop
        self._thread: threading.Thread | None = None

    def request(self, count: int, receiver: Receiver) -> None:
        """Let the reader thread read `count` more items. Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, args=(receiver,), name="agentos-reader", daemon=True)
            self._thread.start()
        self._requests.put(count)

    def _read(self, receiver: Receiver) -> None:
        number = 0
        try:
            while count := self._requests.get():
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
        """No-op: reading the rest of an endless input would not end."""

    unread = unread_ids

    def close(self) -> None:
        """Let the reader thread end after the item that it is reading. Does not wait for it."""
        self._requests.put(0)


def source_of(items: Iterable[Any], maker: ItemMaker) -> CollectionSource | StreamSource:
    """Return a source for the items; raise `TypeError` if they are not iterable."""
    if hasattr(items, "__len__") and hasattr(items, "__iter__"):
        return CollectionSource(items, maker)
    try:
        return StreamSource(items, maker)
    except TypeError:
        raise TypeError(f"items must be iterable: a list, a generator, …, not {type(items).__name__}") from None
