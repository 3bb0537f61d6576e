"""One process of several that share a pool: `python -m tests.pool.conformance.member`.

It is told what to do by lines of JSON on stdin, and says what happens by lines of JSON on stdout. When stdin ends, so
does it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from agentos import errors
from agentos.events import StoreReached, StoreUnreachable
from agentos.pool.lease import Lease
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits

_real_time = time.time
_write_lock = threading.Lock()


def say(about: str, **fields: Any) -> None:
    line = json.dumps({"about": about, **fields, "at": time.monotonic()}) + "\n"
    with _write_lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def open_pool(keys: list[dict[str, Any]], store: str, ttl: float) -> CredentialCoordinator:
    credentials = [
        Credential(key["secret"], id=key["id"], quota_group=key.get("group"), limits=Limits(**key.get("limits", {})))
        for key in keys
    ]
    pool = CredentialCoordinator(credentials, store=store, lease_ttl=ttl)
    pool.listen(tell)
    return pool


def tell(event: Any) -> None:
    if isinstance(event, StoreReached | StoreUnreachable):
        say(type(event).__name__, store=event.store)


class HeldLease:
    """A lease that a thread requests and holds until the test ends it."""

    def __init__(self, pool: CredentialCoordinator, name: str, options: dict[str, Any]) -> None:
        self.pool = pool
        self.name = name
        self.options = options
        self.should_end = threading.Event()
        self.error: Exception | None = None
        self.lease: Lease | None = None
        threading.Thread(target=self._hold, daemon=True).start()

    def _hold(self) -> None:
        asked_at = time.monotonic()
        try:
            with self.pool.lease(self.name, **self.options) as lease:
                self.lease = lease
                granted_at = lease._handle.granted_at
                say("granted", name=self.name, key=lease.credential_id, fence=lease.fence, granted_at=granted_at)
                self.should_end.wait()
                if self.error is not None:
                    raise self.error
            say("ended", name=self.name)
        except Exception as error:
            say("failed", name=self.name, error=type(error).__name__, text=str(error),
                waited=time.monotonic() - asked_at)  # fmt: skip

    def end(self, kind: str | None, options: dict[str, Any]) -> None:
        if kind is not None:
            self.error = getattr(errors, kind)(**options)
        self.should_end.set()


def work(pool: CredentialCoordinator, threads: int, seconds: float, hold: float) -> None:
    """Lease one key after another in many threads; report all grants and the longest wait."""
    granted: list[tuple[str, int, float]] = []
    longest = 0.0
    end = time.monotonic() + seconds
    lock = threading.Lock()

    def run() -> None:
        nonlocal longest
        while (asked_at := time.monotonic()) < end:
            try:
                with pool.lease(timeout=seconds) as lease:
                    wait_seconds = time.monotonic() - asked_at
                    with lock:
                        granted.append((lease.credential_id, lease.fence, lease._handle.granted_at))
                        longest = max(longest, wait_seconds)
                    time.sleep(hold)
            except errors.LeaseTimeout:
                with lock:
                    longest = max(longest, time.monotonic() - asked_at)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    say("worked", granted=granted, longest=longest)


class Member:
    def __init__(self) -> None:
        self.pool: CredentialCoordinator | None = None
        self.held: dict[str, HeldLease] = {}

    def do(self, command: str, order: dict[str, Any]) -> Any:
        if command == "open":
            self.held = {}
            self.pool = open_pool(**order)
            return None
        if command == "step_clock":
            time.time = lambda: _real_time() + order["seconds"]
            return None
        assert self.pool is not None
        if command == "lease":
            name = order.pop("name")
            self.held[name] = HeldLease(self.pool, name, order)
        elif command == "end":
            self.held[order["name"]].end(order.get("error"), order.get("options", {}))
        elif command == "settle":
            lease = self.held[order["name"]].lease
            assert lease is not None
            lease.settle(tokens=order["tokens"])
        elif command == "reserve_now":
            return self.pool.reserve_credential() is not None
        elif command == "work":
            threading.Thread(target=work, args=(self.pool,), kwargs=order, daemon=True).start()
        elif command == "fork":
            return self.fork()
        elif command == "close":
            time.time = _real_time
            self.pool.close()
        else:
            result = getattr(self.pool, command)(*order.get("arguments", ()))
            return [vars_of(state) for state in result] if command == "states" else result
        return None

    def fork(self) -> bool:
        """Return whether a forked child gets a lease of its own and gives it back."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert self.pool is not None
                with self.pool.lease(timeout=20):
                    status = 0
                self.pool.close()
            finally:
                os._exit(status)
        return os.waitpid(child, 0)[1] == 0


def vars_of(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in type(state).__slots__}


def main() -> None:
    member = Member()
    say("ready", pid=os.getpid())
    for line in sys.stdin:
        order = json.loads(line)
        number = order.pop("number")
        try:
            say("done", number=number, result=member.do(order.pop("do"), order))
        except Exception as error:
            say("done", number=number, error=type(error).__name__, text=str(error))


if __name__ == "__main__":
    main()
