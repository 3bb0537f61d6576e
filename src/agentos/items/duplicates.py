"""An item is its id: how two items with one id are found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

# Up to so many ids are simply remembered; about 10 MB.
REMEMBERED = 100_000
# Past that, one slot in a bitmap of this many bits per id: few ids share one, and only those are looked at again.
BITS_PER_ID = 64


def find_duplicate(ids: Callable[[], Iterable[str]], count: int) -> str | None:
    """The first id that stands twice in `ids()`, in little memory also for millions: past `REMEMBERED`, eight bytes
    per id. Then `ids` is called twice and must give the same ids both times."""
    if count <= REMEMBERED:
        return _repeated(ids())
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
    return _repeated(item_id for item_id in ids() if hash(item_id) % size in shared)


def _repeated(ids: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for item_id in ids:
        if item_id in seen:
            return item_id
        seen.add(item_id)
    return None


class RecentIds:
    """The last so many ids of an input that has no end in sight."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._known: set[str] = set()
        self._order: deque[str] = deque()

    def add(self, item_id: str) -> bool:
        """False: it was among them already."""
        if item_id in self._known:
            return False
        self._known.add(item_id)
        self._order.append(item_id)
        if len(self._order) > self._most:
            self._known.discard(self._order.popleft())
        return True
