"""One process of several that share a pool: `python -m tests.pool.conformance.member`.

It is told what to do by lines of JSON on stdin, and says what happens by lines of JSON on stdout. What the pool prints
goes to stderr. When stdin ends, so does it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import agentos
from agentos import errors
from agentos.events import StoreReached, StoreUnreachable
from agentos.pool.lease import Lease
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits

_real_time = time.time
_write_lock = threading.Lock()
_messages = sys.stdout


def say(about: str, **fields: Any) -> None:
    line = json.dumps({"about": about, **fields, "at": time.monotonic()}) + "\n"
    with _write_lock:
        _messages.write(line)
        _messages.flush()


def limits_of(fields: dict[str, Any]) -> Limits:
    if "windows" in fields:
        from agentos.workflows.parallel import Window  # an older version has none

        fields = {**fields, "windows": [Window(*window) for window in fields["windows"]]}
    return Limits(**fields)


def open_pool(keys: list[dict[str, Any]], store: str, ttl: float) -> CredentialCoordinator:
    credentials = [
        Credential(key["secret"], id=key["id"], quota_group=key.get("group"), limits=limits_of(key.get("limits", {})))
        for key in keys
    ]
    pool = CredentialCoordinator(credentials, store=store, lease_ttl=ttl)
    pool.listen(tell)
    return pool


def tell(event: Any) -> None:
    if isinstance(event, StoreReached | StoreUnreachable):
        say(type(event).__name__, store=event.store, reason=getattr(event, "reason", ""))


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


class LoggedWork:
    """Threads that lease one key after another and write every lease to a file, for a judge: a line when it begins, and
    one when it ends or is found to be lost."""

    def __init__(self, pool: CredentialCoordinator, log: str, threads: int, hold: float) -> None:
        self.pool = pool
        self.hold = hold
        self.should_end = threading.Event()
        self.errors: list[str] = []
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def _write(self, what: str, lease: Lease) -> None:
        line = f"{what} {lease.credential_id} {lease.fence} {time.monotonic():.6f} {os.getpid()}\n"
        os.write(self._log, line.encode())  # one write: lines of processes do not mix

    def _run(self) -> None:
        while not self.should_end.is_set():
            try:
                with self.pool.lease(timeout=0.5) as lease:
                    self._write("begin", lease)
                    begun_at = time.monotonic()
                    time.sleep(self.hold)
                    # A process that was stopped meanwhile may not know yet that its lease has expired. A lease has at
                    # least 0.9 of its time to live when it is delivered: below 0.8 it cannot have expired.
                    may_be_lost = time.monotonic() - begun_at > 0.8 * self.pool.lease_ttl
                    self._write("lost" if may_be_lost or lease._handle.state != "live" else "end", lease)
            except errors.LeaseTimeout:
                continue
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    def end(self) -> list[str]:
        self.should_end.set()
        for thread in self.threads:
            thread.join()
        os.close(self._log)
        return self.errors


class Member:
    def __init__(self) -> None:
        self.pool: CredentialCoordinator | None = None
        self.held: dict[str, HeldLease] = {}
        self.logged: LoggedWork | None = None

    def do(self, command: str, order: dict[str, Any]) -> Any:
        if command == "open":
            self.held = {}
            self.pool = open_pool(**order)
            return None
        if command == "step_clock":
            time.time = lambda: _real_time() + order["seconds"]
            return None
        if command == "set":  # a constant of a module, in this process
            setattr(importlib.import_module(order["module"]), order["name"], order["value"])
            return None
        if command == "package":
            return agentos.__file__
        assert self.pool is not None
        if command == "lease":
            name = order.pop("name")
            self.held[name] = HeldLease(self.pool, name, order)
        elif command == "end":
            self.held[order["name"]].end(order.get("error"), order.get("options", {}))
        elif command == "unreachable":
            lease = self.held[order["name"]].lease
            assert lease is not None
            self.pool.cool_and_end(lease._handle, 60.0, order["address"])
        elif command == "settle":
            lease = self.held[order["name"]].lease
            assert lease is not None
            lease.settle(tokens=order["tokens"])
        elif command == "reserve_now":
            return self.pool.reserve_credential() is not None
        elif command == "work":
            threading.Thread(target=work, args=(self.pool,), kwargs=order, daemon=True).start()
        elif command == "log_work":
            self.logged = LoggedWork(self.pool, **order)
        elif command == "end_work":
            assert self.logged is not None
            return self.logged.end()
        elif command == "owner_pid":
            owner = self.pool._store._member.owner  # type: ignore[attr-defined]
            return None if owner is None else owner.pid
        elif command == "fork":
            return self.fork()
        elif command == "fork_and_stay":
            return self.fork_and_stay()
        elif command == "interrupt":
            return self.interrupt(**order)
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

    def fork_and_stay(self) -> int:
        """Fork a child that does nothing for a minute; return its process id."""
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        return child

    def interrupt(self, method: str, timeout: float | None) -> str:
        """Wait for a lease in this, the main thread, until Ctrl-C comes; return the name of the exception."""
        assert self.pool is not None
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            if method == "lease":
                with self.pool.lease(timeout=timeout):
                    return "granted"
            self.pool.reserve(timeout=timeout)
        except KeyboardInterrupt as error:
            return type(error).__name__
        return "returned"


def vars_of(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in type(state).__slots__}


def main() -> None:
    sys.stdout = sys.stderr  # a pool prints its events until the test listens to them
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
