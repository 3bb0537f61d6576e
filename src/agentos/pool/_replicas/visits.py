"""For those who have no credentials: what a store says about all of them, and to take one out of use or put it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from agentos.clock import SYSTEM_CLOCK

from .._memory import MemoryStore
from ..states import CredentialSnapshot
from ..store import make_store
from ..store_url import StoreAt

if TYPE_CHECKING:
    from .shared import SharedStore

# Whoever comes for a moment holds nothing that could outlive it.
VISIT_SECONDS = 30.0


def look(url: str) -> list[CredentialSnapshot]:
    """Without joining; a store that is not there is not made. Raises `StoreError` and `ValueError`."""
    with _visiting(StoreAt(url, is_copy=True)) as store:
        return [] if store is None else store.snapshot(everybody=True)


def set_quarantine(url: str, reasons: Mapping[str, str | None]) -> list[str]:
    """Those of these credentials that the store knows are out of use for these reasons from now on, for all who share
    it; None: they are in use again. Returns whose state has changed. Raises `StoreError` and `ValueError`."""
    known = {found.id: found.quarantine for found in look(url)}
    changed = [id_ for id_, reason in reasons.items() if id_ in known and known[id_] != reason]
    if changed:
        with _visiting(StoreAt(url)) as store:
            assert store is not None  # it has just said something
            for id_ in changed:
                store.set_quarantine(id_, reasons[id_])
            store.snapshot()  # when this is answered, the rest has arrived
    return changed


@contextmanager
def _visiting(place: StoreAt) -> Iterator[SharedStore | None]:
    store = make_store(place, SYSTEM_CLOCK, _nobody_cares, VISIT_SECONDS, str)  # no secret is known here
    if isinstance(store, MemoryStore):
        yield None
        return
    try:
        store.open()
        yield cast("SharedStore", store)
    finally:
        store.close()


def _nobody_cares(_event: object) -> None:
    pass
