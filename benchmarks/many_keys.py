"""Reserve and release when all keys but one are busy: 10,000 keys against 8, and for reference a linear scan."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from agentos.workflows.parallel import CredentialCoordinator

from .measuring import Row, above, at_most, measure, per_operation

FEW = 8
MANY = 10_000
# Many short rounds: one takes only milliseconds.
ROUNDS = 25
OPERATIONS = 5_000
SCANS = 50


class ScanningPool:
    """The obvious implementation: a dictionary of states that is scanned for a free key."""

    def __init__(self, keys: int) -> None:
        self._lock = threading.Lock()
        self._is_busy = {f"key-{number}": False for number in range(keys)}

    def reserve(self) -> str:
        with self._lock:
            for key, is_busy in self._is_busy.items():
                if not is_busy:
                    self._is_busy[key] = True
                    return key
        raise LookupError("all keys are busy")

    def release(self, key: str) -> None:
        with self._lock:
            self._is_busy[key] = False


def use(pool: CredentialCoordinator | ScanningPool, operations: int) -> None:
    for _ in range(operations):
        pool.release(pool.reserve())


def ours(keys: int) -> CredentialCoordinator:
    pool = CredentialCoordinator([f"key-{number}" for number in range(keys)])
    for _ in range(keys - 1):
        pool.reserve()
    return pool


def scanning(keys: int) -> ScanningPool:
    pool = ScanningPool(keys)
    for _ in range(keys - 1):
        pool.reserve()
    return pool


def rows() -> Iterator[Row]:
    few, many, scanned_few, scanned_many = ours(FEW), ours(MANY), scanning(FEW), scanning(MANY)
    of_many, of_few, scan_of_many, scan_of_few = measure(
        {
            "ours, 10,000 keys": per_operation(lambda: use(many, OPERATIONS), OPERATIONS),
            "itself with 8 keys": per_operation(lambda: use(few, OPERATIONS), OPERATIONS),
            "scan, 10,000 keys": per_operation(lambda: use(scanned_many, SCANS), SCANS),
            "the scan with 8 keys": per_operation(lambda: use(scanned_few, OPERATIONS), OPERATIONS),
        },
        ROUNDS,
    )
    yield at_most(1.5, "reserve + release, 10,000 keys, all but one busy", of_many, of_few)
    yield above(100, "for reference: the same by a linear scan", scan_of_many, scan_of_few)
