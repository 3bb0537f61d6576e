"""Finds items with the same id. Ids must be unique."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

# Number of ids up to which all are held in memory: about 10 MB.
MAX_REMEMBERED = 100_000
# Bits of the bitmap per id. With 64, few ids share a slot by chance, and only those are examined in the second pass.
BITS_PER_ID = 64


def find_duplicate(ids: Callable[[], Iterable[str]], count: int) -> str | None:
    """Return the first id that `ids()` yields twice; None if all are distinct.

    For more than `MAX_REMEMBERED` ids this takes eight bytes per id, and calls `ids` twice: both calls must yield the
    same ids.
    """
    if count <= MAX_REMEMBERED:
        all_ids = list(ids())
        return None if len(set(all_ids)) == len(all_ids) else _first_repeated(all_ids)
    size = count * BITS_PER_ID
    bits = bytearray(size // 8 + 1)
    shared: set[int] = set()
    for item_id in ids():
        slot = hash(item_id) % size
        byte, bit = slot >> 3, 1 << (slot & 7)
        if bits[byte] & bit:
            shared.add(slot)
        bits[byte] |= bit
    del bits
    return _first_repeated(item_id for item_id in ids() if hash(item_id) % size in shared)


def _first_repeated(ids: Iterable[str]) -> str | None:
    earlier_ids: set[str] = set()
    for item_id in ids:
        if item_id in earlier_ids:
            return item_id
        earlier_ids.add(item_id)
    return None


class RecentIds:
    """The last `capacity` ids of an input of unknown length."""

    def __init__(self, capacity: int = MAX_REMEMBERED) -> None:
        self._capacity = capacity
        self._ids: set[str] = set()
        self._order: deque[str] = deque()

    def add(self, item_id: str) -> bool:
        """Add the id and return True; return False if it is among the recent ids."""
        if item_id in self._ids:
            return False
        self._ids.add(item_id)
        self._order.append(item_id)
        if len(self._order) > self._capacity:
            self._ids.discard(self._order.popleft())
        return True
