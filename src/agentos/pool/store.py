"""Store and LeaseHandle: what a pool needs of the place where its state lives, and how stores are made from URLs.

`memory:` is for one process, `sqlite:///` for a machine, `redis://` for several machines.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentos.clock import Clock
from agentos.errors import StoreError
from agentos.events import PoolWaiting
from agentos.limits.amounts import Detail
from agentos.verdict import Verdict

from ._memory import MemoryStore
from ._rules.order import LEAST_LOADED
from ._rules.wait_reasons import NO_RESTS, Need, Rests
from .credential import Credential
from .states import CredentialForecast, CredentialState
from .store_url import FILE, SERVERS, StoreAt, check_server

if TYPE_CHECKING:
    from .shared.transport import Gate

H = TypeVar("H")


class LeaseHandle(Protocol):
    """A lease as its caller holds it: what was requested, and its state.

    The store makes it (`make_handle`) and writes it. The rules have a record of the same lease, which may be in another
    process.
    """

    requester: str | None
    requests: int  # reserved; after `settle`: used
    tokens: int
    detail: Detail | None  # its tokens by direction, and its cost
    scope: str | None
    prefer: str | None  # a credential id
    for_provider: str | None  # only credentials of this provider may serve it; None: any
    only: str | None  # id of the one credential that may serve it; None: any
    waits_for_probe: bool  # may wait until the probe of a new credential has succeeded
    deliver: Callable[[], None]  # called when the lease is live, or never can be
    state: str  # a state of `_rules.lease_states`
    fence: int
    too_large: str | None  # why no credential can ever serve it

    @property
    def is_refused(self) -> bool: ...  # no credential can serve it unless a person changes the pool

    @property
    def credential_id(self) -> str | None: ...

    @property
    def provider(self) -> str | None: ...


class Store(Protocol[H]):
    """The state of a pool, and the one place that changes it. `H`: the class of its handles."""

    @property
    def make_handle(self) -> type[H]: ...

    def open(self) -> None:
        """Join the pool. Raises `StoreError` if the store cannot be used."""

    def close(self) -> None:
        """Leave the pool: leases of this process end."""

    def arrive(self) -> None:
        """Block until all members know what this one has done, or the store is lost."""

    def request(self, handle: H, wait: bool = True, front: bool = False, idle_until: float = 0.0, /) -> bool:
        """Return True if the caller has the lease; else look at its state: `handle.deliver` is called when that
        changes. `idle_until`: the instant until which the caller's thread has nothing else to do than to wait for it;
        the call may block as long."""

    def request_now(self, handle: H, timeout: float | None = None, /) -> bool:
        """Return True if the lease is live at once; else nothing has changed.

        `timeout`: how long the caller would wait after that. A store for which a request costs a round trip may return
        False if it is not 0: the request that waits follows anyway.
        """

    def avoid(self, handle: H, excluded_ids: frozenset[str], later_ids: frozenset[str], /) -> None:
        """Before the request: never grant it `excluded_ids`, and not now `later_ids`. It is refused if nothing but
        excluded credentials could serve it; for the others it waits."""

    def end(self, handle: H, verdict: Verdict | None, success: bool = False, /) -> None: ...

    def cool_and_end(self, handle: H, seconds: float, address: str | None = None, /) -> None:
        """End a lease and cool its credential's group. `address`: of the provider, if it could not be reached."""

    def use_more(self, handle: H, requests: int, tokens: int, detail: Detail | None = None, /) -> None: ...

    def observed(self, handle: H, verdict: Verdict, /) -> None: ...

    def settle(self, handle: H, requests: int | None, tokens: int | None, detail: Detail | None = None, /) -> bool: ...

    def withdraw(self, handle: H, /) -> None: ...

    def expire(self, handle: H, /) -> None: ...

    def confirm(self, handle: H, /) -> bool: ...

    def add(self, credential: Credential, /) -> None: ...

    def redeclare(self, credential: Credential, /) -> None:
        """Change what is declared about a credential of the pool. Its leases and its usage stay."""

    def remove(self, credential_id: str, /) -> None: ...

    def quarantine(self, credential_id: str, reason: str, /) -> None: ...

    def restore(self, credential_id: str, /) -> None: ...

    def clear(self, credential_id: str, /) -> None:
        """End the quarantine of a credential, and the cool-downs of itself, its group and its provider."""

    def cool(self, credential_id: str, seconds: float, /) -> None: ...

    def live_leases(self, credential_id: str, /) -> list[H]: ...

    def waiting_for(self, scope: str | None, need: Need | None = None, for_provider: str | None = None,
                    only: str | None = None, rests: Rests = NO_RESTS, /) -> PoolWaiting: ...  # fmt: skip

    def reasons(self, scope: str | None, for_provider: str | None = None, only: str | None = None, /
                ) -> dict[str, str]: ...  # fmt: skip

    def is_proven(self, credential_id: str, /) -> bool: ...

    def waiters(self) -> int: ...

    def first_waiting(self) -> H | None:
        """Return the request of this process that waits longest; None if none waits."""

    def available(self) -> int: ...

    def states(self) -> list[CredentialState]: ...

    def snapshot(self, scope: str | None, need: Need | None = None, for_provider: str | None = None,
                 only: str | None = None, rests: Rests = NO_RESTS, /
                 ) -> tuple[list[CredentialState], PoolWaiting]:  # fmt: skip
        """Return the states, and why a request of a scope would wait, at one instant."""

    def fastest(self) -> tuple[float | None, float]: ...

    def forecasts(self) -> list[CredentialForecast]: ...


MEMORY = "memory:"
_KINDS = "'memory:', 'sqlite:///PATH', 'redis://HOST:PORT/DB', 'rediss://…' or 'unix://…'"


def make_store(at: str | StoreAt | None, clock: Clock, on_event: Callable[[Any], None], ttl: float,
               redact: Callable[[str], str], order: str = LEAST_LOADED) -> Store[Any]:  # fmt: skip
    """Make the store that a URL names; nothing is opened yet. `redact` takes secrets out of texts that other processes
    will see. Raises `ValueError` for a URL of no store, and `StoreError` if a library for it is not installed."""
    store_at = at if isinstance(at, StoreAt) else StoreAt(MEMORY if at is None else str(at))
    if store_at.url == MEMORY:
        return MemoryStore(clock, on_event, order)
    from .shared.copied_store import CopiedStore
    from .shared.shared_store import SharedStore  # imported where it is needed: a pool in memory must start quickly
    from .shared.transport import StoreLost, StoreRefused

    gate = make_gate(store_at.url)
    if not store_at.is_copy:
        return SharedStore(gate, clock, on_event, ttl, redact, store_at.run, order)
    try:
        return CopiedStore(gate.look(), clock, on_event)
    except (StoreLost, StoreRefused) as error:
        raise StoreError(f"the pool's store {gate.name} cannot be used: {error}") from None


def make_gate(url: str) -> Gate:
    """Return where the owner of a shared pool is found. Nothing is opened. Raises as `make_store`."""
    if url.startswith(FILE) and url != FILE:
        from .shared.gates import file_gate

        return file_gate(Path(url.removeprefix(FILE)).expanduser())
    if url.startswith(SERVERS):
        check_server(url)
        from .shared.gates import server_gate

        return server_gate(url)
    scheme, colon, _ = url.partition("://")  # the rest may be a secret; without a scheme all of it
    found_scheme = f", not {scheme[:16]!r}" if colon and scheme.isalnum() else ""
    if scheme == "sqlite":
        raise ValueError("write the path of a store after three slashes: sqlite:///PATH, or sqlite:////ABSOLUTE/PATH")
    raise ValueError(f"store must be one of {_KINDS}{found_scheme}")
