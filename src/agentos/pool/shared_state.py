"""Look at a shared store and change it without having its credentials: for commands, not for runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentos.clock import SYSTEM_CLOCK

from .states import CredentialState
from .store import MEMORY, make_shared_store
from .store_url import StoreAt

if TYPE_CHECKING:
    from ._replicas.shared import SharedStore

# Seconds after which a store ends the session of a command that was killed. It holds no lease.
SESSION_TTL = 30.0


def read_states(url: str) -> list[CredentialState]:
    """Return the state of every credential that a store knows, without joining it; a missing store is not created.

    Raises `StoreError` and `ValueError`.
    """
    with _open(StoreAt(url, is_copy=True)) as store:
        return [] if store is None else store.states(everybody=True)


def set_quarantine(url: str, reasons: Mapping[str, str | None]) -> list[str]:
    """Quarantine credentials for all processes that share a store, or restore them where the reason is None.

    Returns the ids whose state has changed; ids that the store does not know are left out. Raises `StoreError` and
    `ValueError`.
    """
    quarantines = {state.key_id: state.quarantined for state in read_states(url)}
    changed = [id_ for id_, reason in reasons.items() if id_ in quarantines and quarantines[id_] != reason]
    if changed:
        with _open(StoreAt(url)) as store:
            assert store is not None  # it has just returned states
            for id_ in changed:
                store.set_quarantine(id_, reasons[id_])
            store.states()  # the answer to this comes after the changes have arrived
    return changed


@contextmanager
def _open(store_at: StoreAt) -> Iterator[SharedStore | None]:
    """Yield an open store; None for a store in memory, which has no state outside its process."""
    if store_at.url == MEMORY:
        yield None
        return
    store = make_shared_store(store_at, SYSTEM_CLOCK, _ignore, SESSION_TTL, str)  # `str`: no secret is known here
    try:
        store.open()
        yield store
    finally:
        store.close()


def _ignore(_event: object) -> None:
    """No-op: the command shows states, not events."""
