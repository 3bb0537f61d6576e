"""Admission: when an item may start. An item that waits for a credential holds no worker.

`Admission` requests a lease for each item. `AccessAdmission` is for a run with a gateway, whose items hold no lease of
their own: each of their requests has one.
"""

from __future__ import annotations

from collections.abc import Callable

from agentos.clock import Clock, Timer
from agentos.events import EXHAUSTED, PoolWaiting
from agentos.items.item import Item
from agentos.pool.lease_pool import LeasePool
from agentos.pool.store import LeaseHandle
from agentos.verdict import RATE_LIMITED

from .._rules.circuit_breaker import CircuitBreaker

# Seconds for which the answer of the pool that items of a scope may start is used again: many items may start at once,
# and a shared pool has to ask another process.
ANSWER_SECONDS = 0.1
# Seconds by which a timer may come too early: a credential that is usable this much after the hold counts as within it.
TIMER_SECONDS = 0.001


class Admission:
    """The items of a run that request a lease. Called by the thread that processes the run's messages."""

    hold = 0.0  # seconds before a credential is usable in which an item may start already

    def __init__(self, pool: LeasePool, on_lease: Callable[[Item, LeaseHandle], None], breaker: CircuitBreaker,
                 clock: Clock) -> None:  # fmt: skip
        """`on_lease`: called from any thread when a lease was granted or refused. `breaker`: says which credentials the
        requests leave alone."""
        self._pool = pool
        self._breaker = breaker
        self._now = clock.now
        self._make_handle = pool.make_handle
        self._request_now = pool.request_now
        self._on_lease = on_lease
        self._requests: dict[Item, LeaseHandle] = {}
        self._requested_without: dict[Item, tuple[frozenset[str], frozenset[str]]] = {}  # of open requests
        self.open_by_scope: dict[str | None, int] = {}  # number of open requests per scope, for scopes that have some

    def admit(self, item: Item) -> LeaseHandle | None:
        """Return a live lease if one is available now. Else return None and request one: `on_lease` will be called."""
        handle = self._handle_for(item)
        if self._request_now(handle):
            return handle
        self.open_by_scope[item.scope] = self.open_by_scope.get(item.scope, 0) + 1
        self._request(item, handle)
        return None

    def _handle_for(self, item: Item) -> LeaseHandle:
        handle: LeaseHandle = self._make_handle(item.id, 1, item.tokens, item.scope)
        handle.waits_for_probe = True
        if self._breaker.version:  # else no attempt has failed that may be the fault of a credential
            excluded, resting = self._avoided(item)
            if excluded or resting:
                self._pool.avoid(handle, excluded, resting)
                handle.prefer = self._breaker.preferred(item)
        return handle

    def _avoided(self, item: Item) -> tuple[frozenset[str], frozenset[str]]:
        """Return the credentials that the item does not use at all, and those that it does not use now."""
        excluded = frozenset() if item.trail is None else item.trail.excluded
        return excluded, self._breaker.resting(item.scope, self._now())

    def _request(self, item: Item, handle: LeaseHandle) -> None:
        handle.deliver = lambda: self._on_lease(item, handle)
        self._requests[item] = handle
        self._requested_without[item] = self._avoided(item)
        # Items that a provider refused had their turn before: they wait in front of the others.
        if self._pool.request(handle, True, item.is_sent_back) or handle.is_refused:
            self._on_lease(item, handle)

    def refresh(self) -> None:
        """Replace the open requests of items that leave other credentials alone now than when they were made."""
        for item, handle in tuple(self._requests.items()):
            if self._avoided(item) != self._requested_without[item]:
                self._pool.withdraw(handle)
                self._request(item, self._handle_for(item))

    def forget_answers(self) -> None:
        """No-op: the pool is asked for every item."""

    def is_requesting(self, item: Item, handle: LeaseHandle) -> bool:
        """Return whether this request is still open; if it was withdrawn, its lease went back to the pool."""
        return self._requests.get(item) is handle

    def pick_up(self, item: Item, handle: LeaseHandle) -> bool:
        """Accept a granted lease and close the request. Return False if it is not usable: the request stays open."""
        if not self._pool.confirm(handle):
            return False
        self._forget(item)
        return True

    def first_waiting(self) -> LeaseHandle | None:
        """Return the request that waits longest; None if none waits. Called from any thread."""
        return next(iter(tuple(self._requests.values())), None)

    def withdraw(self, item: Item) -> None:
        """Withdraw the request of an item; the pool keeps neither a waiter nor a lease for it."""
        self._pool.withdraw(self._forget(item))

    def withdraw_all(self) -> list[Item]:
        """Withdraw all requests and return their items, the last one first: each goes to the front of its lane."""
        items = list(reversed(self._requests))
        for item in items:
            self.withdraw(item)
        return items

    def _forget(self, item: Item) -> LeaseHandle:
        count = self.open_by_scope[item.scope] - 1
        if count:
            self.open_by_scope[item.scope] = count
        else:
            del self.open_by_scope[item.scope]
        del self._requested_without[item]
        return self._requests.pop(item)


class AccessAdmission(Admission):
    """Starts an item when some credential is usable now or within the hold of the gateway.

    Else the item requests a lease like any other, and gives it back unused: the pool then reports every change for the
    better (a cool-down ended, a credential was restored) and that no credential can ever serve it. A timer wakes the
    item when the next credential comes within the hold.
    """

    def __init__(
        self, pool: LeasePool, on_lease: Callable[[Item, LeaseHandle], None], breaker: CircuitBreaker, clock: Clock,
        hold: float,
    ) -> None:  # fmt: skip
        super().__init__(pool, on_lease, breaker, clock)
        self.hold = hold
        self._clock = clock
        self._startable_until: dict[str | None, float] = {}
        self._timers: dict[Item, Timer] = {}

    def admit(self, item: Item) -> LeaseHandle | None:
        """Return a handle that was never requested if the item may start now. Else return None and request a lease:
        `on_lease` will be called."""
        handle: LeaseHandle = self._make_handle(item.id, 1, 0, item.scope)
        if self._clock.now() < self._startable_until.get(item.scope, 0.0):
            return handle
        waiting = self._pool.waiting_for(item.scope)
        if self._is_startable(waiting):
            self._startable_until[item.scope] = self._clock.now() + ANSWER_SECONDS
            return handle
        self.open_by_scope[item.scope] = self.open_by_scope.get(item.scope, 0) + 1
        self._request(item, handle)
        self._set_timer(item, handle, waiting)
        return None

    def pick_up(self, item: Item, handle: LeaseHandle) -> bool:
        """Close the request and return True if the item may start: its lease came, which goes back unused, or a
        credential is usable within the hold."""
        waiting = self._pool.waiting_for(item.scope)
        if handle.is_refused or not (self._is_startable(waiting) or self._pool.confirm(handle)):
            self._set_timer(item, handle, waiting)
            return False
        self.withdraw(item)
        return True

    def first_waiting(self) -> LeaseHandle | None:
        """Return the request that waits longest, of all that the pool of the gateway holds in this process. Called from
        any thread."""
        return self._pool.first_waiting()

    def forget_answers(self) -> None:
        """Ask the pool again before the next item starts: it has reported a change."""
        self._startable_until.clear()

    def _is_startable(self, waiting: PoolWaiting) -> bool:
        if waiting.reason == EXHAUSTED:
            return waiting.credentials > 0
        return waiting.reason == RATE_LIMITED and (waiting.usable_in or 0.0) <= self.hold + TIMER_SECONDS

    def _set_timer(self, item: Item, handle: LeaseHandle, waiting: PoolWaiting) -> None:
        if item in self._timers:
            self._timers.pop(item).cancel()
        if waiting.usable_in is not None and item in self._requests:
            at = self._clock.now() + max(0.0, waiting.usable_in - self.hold)
            self._timers[item] = self._clock.call_at(at, lambda: self._on_lease(item, handle))

    def _forget(self, item: Item) -> LeaseHandle:
        if item in self._timers:
            self._timers.pop(item).cancel()
        return super()._forget(item)
