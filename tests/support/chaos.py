"""The whole program under faults: two runs that share a pool in a server, and a provider that logs every request.

Two `agentos run`, each with its own items, ledger and proxy, share keys through a Valkey server. A plan of faults from
one seed hits them while they work; a program that has died is started again with `agentos resume`, until
both are done. Then the provider's log and the ledgers are checked.

What is promised, and which deviations a fault explains:

- **Leases.** A program that is stopped, or cut off, for longer than the lease expiry loses its leases without knowing
  it, and still sends the requests that it was about to send: at most `max_concurrent` per key and fault. Other faults
  explain none: the requests of a killed program end with its connections, another owner continues with the journal
  of one that was killed or stopped, and a pool that has lost its data grants nothing until all earlier leases must have
  expired.
- **Rates.** The token bucket holds under every fault if it fills within a lease's life, as it does here. Clients report
  the usage of the minute to a server that has lost its data. If all of them are dead, its minute has one more burst.
- **Refusals.** A request may arrive later than it was admitted. After a pause (a start, a fault) keys have a full
  bucket, and a delayed request may push one of the following requests over the limit. So each pause explains as many
  refusals as a program has requests in flight.
- **Items.** Executed twice are at most the items in flight when a program or its ledger died, and the items that had
  ended and waited for their commit. Here a commit takes less time than an item, so the latter are at most as many.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentos.errors import StoreError
from agentos.pool.shared_state import look
from agentos.testing import Concurrency
from tests.acceptance.program import AGENTOS, Sandbox

from .patience import eventually
from .proxy import Proxy
from .valkey import Valkey, settle

LEASE_TTL = 2.0
# Seconds for which a program is stopped, or cut off: longer than the lease expiry, also on a slow machine.
OUTAGE = LEASE_TTL + 1.0
POLL_SECONDS = 0.02
# Bytes of each file that can be written on a full disk: enough for notes and a few transactions.
ROOM = 65_536
# Sends one request with its key. No SDK, which could retry or delay it.
WORKER = """
import os, urllib.request

def work(item, key):
    request = urllib.request.Request(os.environ["PROVIDER"], item["id"].encode(), {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return len(answer.read())
"""

# Faults of a program, of the pool's owner, and of the server.
KILLED, STOPPED, CUT, DROPPED, DISK_FULL = "killed", "stopped", "cut off", "connections dropped", "disk full"
OWNER_KILLED, OWNER_STOPPED = "owner killed", "owner stopped"
RESTARTED, EMPTIED, FLUSHED = "server restarted", "server restarted empty", "server flushed"
KINDS = (KILLED, STOPPED, CUT, DROPPED, DISK_FULL, OWNER_KILLED, OWNER_STOPPED, RESTARTED, EMPTIED, FLUSHED)
OF_NO_PROGRAM = (OWNER_KILLED, OWNER_STOPPED, RESTARTED, EMPTIED, FLUSHED)
# Owners are killed this many times as often as other faults happen: every few seconds.
OWNER_KILLS = 4


@dataclass(frozen=True)
class Limits:
    """Limits per key: declared to the programs, and enforced by the provider."""

    keys: int
    per_minute: int
    burst: int
    max_concurrent: int

    @property
    def rate(self) -> float:
        return self.per_minute / 60

    def keys_file(self) -> str:
        return "".join(
            f'[[credential]]\nid = "key-{n}"\nsecret = "env:KEY_{n}"\nrequests_per_minute = {self.per_minute}\n'
            f"burst = {self.burst}\nmax_concurrent = {self.max_concurrent}\n\n"
            for n in range(self.keys)
        )


@dataclass(frozen=True)
class Fault:
    after: int  # items that both runs together have finished by then
    kind: str
    run: int  # index of the program, for a fault of a program
    seconds: float  # duration, for a fault that ends


def plan(seed: int, items: int, rounds: int) -> list[Fault]:
    """Return each kind of fault `rounds` times, at random points between 2 % and 90 % of the items."""
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS for _ in range(rounds * (OWNER_KILLS if kind == OWNER_KILLED else 1))]
    chance.shuffle(kinds)
    places = sorted(chance.randint(items // 50, items * 9 // 10) for _ in kinds)
    return [
        Fault(
            after,
            kind,
            chance.randrange(2),
            OUTAGE if kind in (STOPPED, CUT, OWNER_STOPPED) else chance.uniform(0.0, LEASE_TTL),
        )
        for after, kind in zip(places, kinds, strict=True)
    ]


class Provider:
    """The simulated provider, in a process of its own."""

    def __init__(self, limits: Limits, latency: float, sigma: float) -> None:
        self.keys = [f"sk-chaos-{n}-{secrets.token_hex(12)}" for n in range(limits.keys)]
        options = {
            "--rate": limits.rate, "--burst": limits.burst, "--sliding": f"{limits.per_minute}/60",
            "--concurrent": limits.max_concurrent, "--latency": latency, "--sigma": sigma,
        }  # fmt: skip
        words = [str(word) for option in options.items() for word in option]
        words += [word for key in self.keys for word in ("--key", key)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentos.testing", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        where = json.loads(self._process.stdout.readline())
        self.url: str = where["url"]
        self._stats_url = f"{where['base_url']}/_stats"

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(self._stats_url, timeout=60) as answer:
            return json.load(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Program:
    """One run with all its launches."""

    def __init__(self, sandbox: Sandbox, run_id: str, items: int, parallel: int, proxy: Proxy) -> None:
        self.run_id = run_id
        self.proxy = proxy
        self.ledger = sandbox.runs / run_id / "ledger.db"
        self.ids = {f"{run_id}-{n}" for n in range(items)}
        lines = (json.dumps({"id": id_, "text": "x" * 200}) for id_ in sorted(self.ids))
        sandbox.write(f"{run_id}.jsonl", "\n".join(lines) + "\n")
        self._begin = (
            "run", "--run-id", run_id, "--items", f"{run_id}.jsonl", "--keys", "keys.toml", "--json",
            "--store", proxy.url("chaos"), "--parallel", str(parallel), "chaos_worker:work",
        )  # fmt: skip
        self._sandbox = sandbox
        self.reported: set[str] = set()  # items that a launch has reported as done
        self.output: list[str] = []  # lines printed by all launches
        self.statuses: list[int] = []
        self.failures: list[str] = []  # stderr of launches that ended with status 3
        self.process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        words = self._begin if not (self.ledger.parent / "run.json").exists() else ("resume", self.run_id, "--json")
        self.process = subprocess.Popen(
            [*AGENTOS, *words],
            cwd=self._sandbox.path,
            env=self._sandbox.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
            for pipe, lines in ((self.process.stdout, self.output), (self.process.stderr, errors))
        ]
        self._errors = errors
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, lines: list[str]) -> None:
        with pipe:
            for line in pipe:
                lines.append(line)
                if line.startswith('{"event": "ItemEnded"'):
                    result = json.loads(line)["result"]
                    assert result["success"], line
                    self.reported.add(result["item_id"])

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ended(self) -> int | None:
        """Return the exit status of a launch that has just ended, after its output was read; else None."""
        if self.process is None or self.process.poll() is None:
            return None
        status = self.process.returncode
        for reader in self._readers:
            reader.join(60)
        self.output += self._errors
        self.statuses.append(status)
        if status not in (0, -signal.SIGKILL):
            self.failures.append("".join(self._errors))
        self.process = None
        return status

    def signal(self, number: int) -> None:
        if self.is_running:
            assert self.process is not None
            self.process.send_signal(number)

    def fill_disk(self) -> bool:
        """From now on no file of it can be written but for its beginning, so that the ledger soon finds no space (the
        error has another name). What grows alone is not enough to stop: a log that has begun anew has room for long.
        False where the system offers no such thing, or nothing runs that has a ledger."""
        if not (hasattr(resource, "prlimit") and self.is_running and self.ledger.exists()):
            return False
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (ROOM, ROOM))
        return True

    def outcomes(self) -> list[tuple[str, str | None]]:
        if not self.ledger.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as ledger:
            return ledger.execute("SELECT id, outcome FROM items").fetchall()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for reader in self._readers:
                reader.join(60)


@dataclass
class Chaos:
    """All participants. `run` executes the plan of faults, `judge` checks the result."""

    sandbox: Sandbox
    server: Valkey
    provider: Provider
    limits: Limits
    parallel: int
    programs: list[Program]
    bystanders: set[int]  # children of this process that other tests have started
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    _began_at: float = 0.0
    # When each running fault ends, and the call that ends it.
    _ends: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _is_server_down: bool = False
    _full: set[str] = field(default_factory=set)  # runs whose disk is full
    _starts_at: dict[str, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(len(program.reported) for program in self.programs)

    def run(self, faults: list[Fault], limit: float) -> None:
        """Inflict the faults; block until both runs have ended with status 0. Fail after `limit` seconds."""
        began = self._began_at = time.monotonic()
        pause = threading.Event()
        remaining = list(faults)
        try:
            while self._restart_programs() or self._ends:
                now = time.monotonic()
                assert now - began < limit, f"{self.done} items are done after {limit} s: {self.summary()}"
                for end in [end for end in self._ends if end[0] <= now]:
                    self._ends.remove(end)
                    end[1]()
                while remaining and self.done >= remaining[0].after:
                    self._inflict(remaining.pop(0))
                pause.wait(POLL_SECONDS)
        finally:
            self.seconds = time.monotonic() - began
            for _, end in self._ends:
                end()

    # --- faults -----------------------------------------------------------------------------------------------------

    def _inflict(self, fault: Fault) -> None:
        program = self.programs[fault.run]
        if fault.kind not in OF_NO_PROGRAM and not program.is_running:
            program = self.programs[1 - fault.run]
            if not program.is_running:
                return
        if fault.kind in (RESTARTED, EMPTIED) and self._is_server_down:
            return
        hit = getattr(self, f"_{fault.kind.replace(' ', '_')}")(program, fault.seconds)
        if hit is not False:
            self.faults[fault.kind] += 1
            print(f"{time.monotonic() - self._began_at:6.1f} s, {self.done} done: {fault.kind}, {program.run_id}")

    def _later(self, seconds: float, end: Callable[[], None]) -> None:
        self._ends.append((time.monotonic() + seconds, end))

    def _killed(self, program: Program, _: float) -> None:
        program.signal(signal.SIGKILL)

    def _stopped(self, program: Program, seconds: float) -> None:
        program.signal(signal.SIGSTOP)
        self._later(seconds, lambda: program.signal(signal.SIGCONT))

    def _cut_off(self, program: Program, seconds: float) -> None:
        program.proxy.cut()
        self._later(seconds, program.proxy.heal)

    def _connections_dropped(self, program: Program, _: float) -> None:
        program.proxy.drop()

    def _disk_full(self, program: Program, _: float) -> bool:
        is_full = program.fill_disk()
        if is_full:
            self._full.add(program.run_id)
        return is_full

    def _owner(self) -> int | None:
        """Return the process id of the pool's owner; None if there is none, or the server is down."""
        if self._is_server_down:
            return None
        with contextlib.suppress(StoreError):
            owner = look(self.server.url("chaos")).owner
            return None if owner is None else owner.pid
        return None

    def _owner_killed(self, _: Program, __: float) -> bool:
        owner = self._owner()
        if owner is not None:
            _signal(owner, signal.SIGKILL)
        return owner is not None

    def _owner_stopped(self, _: Program, seconds: float) -> bool:
        owner = self._owner()
        if owner is not None:
            _signal(owner, signal.SIGSTOP)
            self._later(seconds, lambda: _signal(owner, signal.SIGCONT))
        return owner is not None

    def _server_restarted(self, _: Program, seconds: float, *, keeps_data: bool = True) -> None:
        self.server.kill()
        self._is_server_down = True

        def end() -> None:
            self.server.restart(keeps_data=keeps_data)
            self._is_server_down = False

        self._later(seconds, end)

    def _server_restarted_empty(self, program: Program, seconds: float) -> None:
        self._server_restarted(program, seconds, keeps_data=False)

    def _server_flushed(self, _: Program, __: float) -> bool:
        if not self._is_server_down:
            with self.server.client() as client:
                client.flushall()
        return not self._is_server_down

    # --- launches ---------------------------------------------------------------------------------------------------

    def _restart_programs(self) -> bool:
        """Restart programs that have died, after 0.1 s. Return whether a run has not ended."""
        for program in self.programs:
            status = program.ended()
            if status is not None:
                self._check_launch(program, status)
                self._starts_at[program.run_id] = time.monotonic() + 0.1
            is_done = bool(program.statuses) and program.statuses[-1] == 0
            if program.process is None and not is_done and self._starts_at.get(program.run_id, 0) <= time.monotonic():
                program.start()
        return any(program.process is not None or program.statuses[-1] != 0 for program in self.programs)

    def _check_launch(self, program: Program, status: int) -> None:
        remaining = {path.name for path in program.ledger.parent.glob("*") if path.is_file()}
        assert status != 0 or remaining == {"run.json", "ended.json", "ledger.db"}, (
            remaining
        )  # checked before the ledger is opened here
        on_record = {id_ for id_, outcome in program.outcomes() if outcome == "succeeded"}
        assert program.reported <= on_record, "reported as done, and not recorded"  # invariants 20, 28
        if status == 3:
            errors = program.failures[-1]
            is_full = program.run_id in self._full and "ledger" in errors
            assert is_full or "cannot be used" in errors or "is lost" in errors, errors
        else:
            assert status in (0, -signal.SIGKILL), (status, "".join(program.output[-20:]))
        self._full.discard(program.run_id)

    # --- the end ----------------------------------------------------------------------------------------------------

    def judge(self) -> dict[str, Any]:
        stats = self.provider.stats()
        for program in self.programs:
            self._judge_ledger(program)
        self._judge_provider(stats)
        self._judge_what_is_left()
        return stats

    def _judge_ledger(self, program: Program) -> None:
        rows = program.outcomes()
        assert Counter(id_ for id_, _ in rows) == Counter(program.ids)  # invariant 19
        assert {outcome for _, outcome in rows} == {"succeeded"}
        with contextlib.closing(sqlite3.connect(program.ledger)) as ledger:
            assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]  # invariant 20

    def _judge_provider(self, stats: dict[str, Any]) -> None:
        """Check rates over all requests, refused ones included: the admitted ones cannot exceed the limits."""
        losses = self.faults[STOPPED] + self.faults[CUT]
        unfenced = losses * self.limits.max_concurrent  # per key; see the module docstring
        forgets = self.faults[EMPTIED] + self.faults[FLUSHED]
        by_key = {key: [at for at, of, *_ in stats["log"] if of == key] for key in self.provider.keys}
        for key, times in by_key.items():
            assert times == sorted(times)
            per_minute = self.limits.per_minute + self.limits.max_concurrent + (self.limits.burst if forgets else 0)
            assert max_within(times, 60.0) <= per_minute + unfenced, stats["counts"][key]  # invariant 2
            beyond = max_excess(times, self.limits.rate) - self.limits.burst - self.limits.max_concurrent
            assert beyond <= unfenced, stats["counts"][key]
        assert set(itertools.chain(*stats["counts"].values())) <= {"200", "429"}
        deaths = sum(status != 0 for program in self.programs for status in program.statuses)
        refused = Counter(reason for _, _, _, code, reason, *_ in stats["log"] if code == 429)
        # The provider may notice a closed connection later than a program notices a dead one.
        assert refused.pop(Concurrency.name, 0) <= (losses + deaths) * self.parallel  # invariant 1
        # See "Refusals" in the module docstring.
        pauses = sum(self.faults.values()) + sum(len(program.statuses) for program in self.programs)
        assert refused.total() <= pauses * self.parallel, self.summary(stats)
        items = sum(len(program.ids) for program in self.programs)
        repeated = stats["answered"] - items
        assert 0 <= repeated <= deaths * 2 * self.parallel, self.summary(stats)  # invariant 21

    def _judge_what_is_left(self) -> None:
        status = ("keys", "status", "--json", "--keys", "keys.toml", "--store", self.server.url("chaos"))

        def held() -> list[Any]:
            done = self.sandbox.agentos(*status)
            assert done.returncode == 0, done.stderr
            return [holder for key in json.loads(done.stdout)["pool"] for holder in key["holders"]]

        eventually(lambda: not held(), 5 * LEASE_TTL)  # invariants 12, 16
        assert not children_of(os.getpid()) - self.bystanders - {self.server.pid, self.provider._process.pid}
        printed = "".join(itertools.chain.from_iterable(program.output for program in self.programs))
        files = [path for top in (self.sandbox.home, self.server.folder) for path in top.rglob("*") if path.is_file()]
        for key in self.provider.keys:  # invariant 29
            assert key not in printed
            assert not [path for path in files if key.encode() in path.read_bytes()]
        assert "Traceback" not in printed

    def summary(self, stats: dict[str, Any] | None = None) -> str:
        stats = stats or self.provider.stats()
        launches = sum(len(program.statuses) for program in self.programs)
        statuses = Counter(status for program in self.programs for status in program.statuses)
        legal = self.limits.keys * self.limits.rate
        reasons = Counter(reason for _, _, _, code, reason, *_ in stats["log"] if code == 429)
        return (
            f"{sum(self.faults.values())} faults {dict(self.faults)}; {launches} launches, ends {dict(statuses)}; "
            f"{self.done} items in {self.seconds:.0f} s, {stats['answered']} requests served, "
            f"{stats['answered'] / max(self.seconds, 0.1):.1f} a second of {legal:g} that are legal; "
            f"{stats['limited']} times 429 {dict(reasons)}; peaks {sorted(stats['peak_concurrency'].values())}"
        )


@contextlib.contextmanager
def chaos(
    folder: Path, server: Valkey, limits: Limits, *, items: int, parallel: int, latency: float, sigma: float = 0.0
) -> Iterator[Chaos]:
    """Yield two runs with `items` items each."""
    bystanders = children_of(os.getpid())
    sandbox = Sandbox(folder)
    sandbox.write("chaos_worker.py", WORKER)
    sandbox.write("keys.toml", limits.keys_file())
    settle(server.url("chaos"))
    proxies = [Proxy(server.socket) for _ in range(2)]
    provider = Provider(limits, latency, sigma)
    sandbox.environ.update({f"KEY_{n}": key for n, key in enumerate(provider.keys)})
    sandbox.environ.update(PROVIDER=provider.url, AGENTOS_LEASE_TTL=str(LEASE_TTL))
    programs = [Program(sandbox, f"run-{n}", items, parallel, proxy) for n, proxy in enumerate(proxies)]
    try:
        yield Chaos(sandbox, server, provider, limits, parallel, programs, bystanders)
    finally:
        for end in (*programs, *proxies, provider):
            end.close()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def max_within(times: list[float], seconds: float) -> int:
    """Return the maximum number of sorted instants in any half-open window of `seconds`."""
    maximum = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        maximum = max(maximum, last - first + 1)
    return maximum


def max_excess(times: list[float], rate: float) -> float:
    """Return the maximum excess of sorted instants over a rate, in any window."""
    maximum = least = 0.0
    for number, at in enumerate(times):
        least = min(least, number - rate * at) if number else -rate * at
        maximum = max(maximum, number + 1 - rate * at - least)
    return maximum


def children_of(pid: int) -> set[int]:
    """Return the ids of child processes; empty without /proc."""
    pids = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                pids.add(int(path.parent.name))
    return pids
