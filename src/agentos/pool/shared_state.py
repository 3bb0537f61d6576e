"""Look at a shared pool and change it without having its credentials: for commands, not for runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentos.clock import SYSTEM_CLOCK
from agentos.errors import StoreError

from .states import CredentialState, credential_state
from .store import MEMORY, make_gate
from .store_url import FILE

if TYPE_CHECKING:
    from .shared.shared_store import SharedStore
    from .shared.transport import Gate

# Seconds to wait for the answer of an owner. After that the journal is read.
ANSWER_SECONDS = 2.0
# Seconds after which an owner ends the session of a command that was killed. It holds no lease.
SESSION_TTL = 30.0


class OwnerView(NamedTuple):
    """The process that decides for a shared pool."""

    pid: int
    host: str
    since: float  # epoch


class MemberView(NamedTuple):
    """A process that shares a pool."""

    host: str
    pid: int
    run: str | None  # the name of the run in that process
    seconds: float  # since it joined
    leases: int  # live
    waiting: int  # requests that wait


class PoolView(NamedTuple):
    """A shared pool at one instant."""

    states: list[CredentialState]
    owner: OwnerView | None  # None: no process uses the pool now
    members: list[MemberView]


EMPTY_VIEW = PoolView([], None, [])


def look(url: str) -> PoolView:
    """Return the state of every credential that a store knows, and its members, without joining it. The owner is asked;
    if there is none, the journal is read. A missing store is not created. Raises `StoreError` and `ValueError`."""
    if url == MEMORY:
        return EMPTY_VIEW
    from .shared.transport import StoreLost, StoreRefused

    gate = make_gate(url)
    try:
        return _ask_owner(gate) or _read_journal(gate)
    except (StoreLost, StoreRefused) as error:
        raise StoreError(f"the pool's store {gate.name} cannot be used: {error}") from None
    finally:
        gate.close()


def _ask_owner(gate: Gate) -> PoolView | None:
    """Return what the owner answers; None if there is no owner, or it does not answer."""
    from .shared import messages as wire
    from .shared.shared_store import read_state
    from .shared.transport import StoreLost

    link = gate.visit()
    if link is None:
        return None
    answers: dict[int, Any] = {}
    try:
        queries = [(n, wire.Query(n, what)) for n, what in ((1, "states"), (2, "members"))]
        link.send(wire.encode(queries))
        end = time.monotonic() + ANSWER_SECONDS
        while len(answers) < 2 and (left := end - time.monotonic()) > 0:
            for data in link.receive(left):
                replies = wire.decode_replies(data).replies
                answers |= {reply.number: reply.value for reply in replies if isinstance(reply, wire.Answer)}
    except StoreLost:
        return None
    finally:
        link.close()
    if len(answers) < 2:
        return None
    epoch = SYSTEM_CLOCK.epoch()
    owner, members = answers[2]["owner"], answers[2]["members"]
    states = [read_state(state, epoch) for state in answers[1]]
    # An owner without members ends in a moment.
    return PoolView(states, OwnerView(*owner) if members else None, [MemberView(*member) for member in members])


def _read_journal(gate: Gate) -> PoolView:
    from .shared.copied_store import owner_of

    loaded = gate.look()
    if loaded is None:
        return EMPTY_VIEW
    owner = owner_of(loaded)
    owner.end_absent(gate.has_ended, loaded.now)
    epoch = SYSTEM_CLOCK.epoch()
    states = [credential_state(credential, loaded.now, epoch) for credential in owner.allocator.credentials.values()]
    return PoolView(states, None, [])


def set_quarantine(url: str, reasons: Mapping[str, str | None]) -> list[str]:
    """Quarantine credentials for all processes that share a store, or restore them where the reason is None.

    Returns the ids whose state has changed; ids that the store does not know are left out. Raises `StoreError` and
    `ValueError`.
    """
    quarantines = {state.key_id: state.quarantined for state in look(url).states}
    changed = [id_ for id_, reason in reasons.items() if id_ in quarantines and quarantines[id_] != reason]
    if changed:
        with _joined(url) as store:
            for id_ in changed:
                store.set_quarantine(id_, reasons[id_])
    return changed


def clear(url: str, id_: str) -> bool:
    """End the quarantine and the cool-downs of a credential for all processes that share a store. Return whether it had
    any. Raises `StoreError` and `ValueError`."""
    states = {state.key_id: state for state in look(url).states}
    state = states.get(id_)
    if state is None or not (state.quarantined or state.cooled_by):
        return False
    with _joined(url) as store:
        store.clear(id_)
    return True


@contextlib.contextmanager
def _joined(url: str) -> Iterator[SharedStore]:
    """Join a pool for a block. At its end all members know what it has changed."""
    from .shared.shared_store import SharedStore

    store = SharedStore(make_gate(url), SYSTEM_CLOCK, _ignore, SESSION_TTL, str)  # `str`: no secret is known here
    store.open()
    try:
        yield store
        store.arrive()
    finally:
        store.close()


def repair(url: str) -> Path:
    """Move the damaged file of a pool aside and return its new path. Raises `StoreError` if it is in use or not
    damaged, and `ValueError` for a store that is no file."""
    if not url.startswith(FILE):
        raise ValueError("only a pool in a file (sqlite:///PATH) can be repaired")
    from .shared import repair as repair_module
    from .shared.transport import StoreLost, StoreRefused

    try:
        return repair_module.repair(Path(url.removeprefix(FILE)).expanduser())
    except (StoreLost, StoreRefused) as error:
        raise StoreError(str(error)) from None
    except OSError as error:
        raise StoreError(f"the pool's file cannot be moved: {error.strerror}") from None


def _ignore(_event: object) -> None:
    """No-op: the command shows states, not events."""
