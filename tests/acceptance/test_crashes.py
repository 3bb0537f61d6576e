"""A run that is killed at any instant continues with the same call. Invariants 19 to 23, 25 and 27."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentos.workflows.parallel import Ledger, LedgerError, ParallelCoordinator, RunBusy
from tests.acceptance.forks import Fork, forks
from tests.acceptance.test_signals import script, wait_ready
from tests.conftest import BUSY, eventually
from tests.support import workers
from tests.workers.test_processes import is_alive

ROOT = Path(__file__).parents[2]
Program = subprocess.Popen[str] | Fork
ITEMS = 12
WORKERS = 4


def crashing(
    folder: Path, kind: str = "threads", dies_at: int = 0, items: int = ITEMS, seconds: float = 0.0
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.acceptance.crashing", str(folder), str(items), kind, str(dies_at)],
        cwd=ROOT,
        env={**os.environ, "CRASHING_SECONDS": str(seconds)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


class Account:
    """Checks that hold after every launch, however it ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "run.db"
        self.recorded_before: set[str] = set()  # recorded when the last launch started

    def check(self) -> None:
        on_record = self.on_record()
        executed, reported = lines(self.folder / "executed"), lines(self.folder / "reported")
        assert set(reported) <= on_record  # invariant 20
        assert not self.recorded_before & set(executed)  # invariant 21
        assert max(Counter(executed).values(), default=1) == 1
        assert len(set(executed) - on_record) <= WORKERS + len(executed)
        for name in ("executed", "reported"):
            (self.folder / name).unlink(missing_ok=True)
        self.recorded_before = on_record

    def on_record(self) -> set[str]:
        if not self.path.exists():
            return set()
        connection = sqlite3.connect(self.path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute("SELECT id FROM items WHERE outcome = 'succeeded'").fetchall()
        connection.close()
        assert len(set(rows)) == len(rows)  # invariant 19
        return {row[0] for row in rows}

    def finish(self, launch: Program, items: int = ITEMS) -> None:
        """Check that the last launch finishes all items and leaves no files."""
        output, errors = launch.communicate(timeout=60)
        assert output == "DONE\n", errors
        assert set(lines(self.folder / "reported")) == {str(number) for number in range(items)}
        self.check()
        assert self.on_record() == {str(number) for number in range(items)}
        assert [entry.name for entry in self.folder.iterdir()] == ["run.db"]
        connection = sqlite3.connect(self.path)
        assert connection.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM items WHERE outcome IS NULL").fetchone() == (0,)
        connection.close()


@pytest.fixture
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fork]]:
    """Start `crashing` by fork."""
    with forks(tmp_path_factory.mktemp("forks") / "output", "tests.acceptance.crashing") as made:

        def start(
            folder: Path, kind: str = "threads", dies_at: int = 0, items: int = ITEMS, seconds: float = 0.0
        ) -> Fork:
            assert kind == "threads"
            return made.start("tests.acceptance.crashing", folder, items, kind, dies_at, CRASHING_SECONDS=str(seconds))

        yield start


def test_run_killed_at_any_write_continues(tmp_path: Path, forked: Callable[..., Fork]) -> None:
    """Launch n is killed at its n-th write, until a launch has fewer writes."""
    number, is_done = 0, False
    while not is_done:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        account, program = Account(folder), forked(folder, dies_at=number)
        output, errors = program.communicate()
        assert program.returncode in (0, -signal.SIGKILL), errors
        is_done = output == "DONE\n"
        account.check()
        account.finish(forked(folder))
    assert number > 30  # else writes are no longer counted


def test_repeatedly_killed_run_loses_nothing(tmp_path: Path, forked: Callable[..., Fork]) -> None:
    kill_again_and_again(tmp_path, "threads", 25, random.Random(20261116), forked)


def test_repeatedly_killed_run_with_processes_loses_nothing(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, "processes", 6, random.Random(20261116))


def kill_again_and_again(
    folder: Path, kind: str, rounds: int, chance: random.Random, start: Callable[..., Program] = crashing
) -> int:
    """Kill a run at random instants and continue it, until it ends. Return the number of kills."""
    account = Account(folder)
    items, kills = 60 * rounds, 0
    for _ in range(rounds):
        program = start(folder, kind, items=items, seconds=0.004)
        started = len(lines(folder / "executed"))
        eventually(lambda p=program, s=started: len(lines(folder / "executed")) > s or p.poll() is not None, 60)
        time.sleep(chance.random() * 0.1)
        program.kill()
        program.communicate(timeout=60)
        kills += program.returncode == -signal.SIGKILL
        eventually(lambda: not group_members(folder))
        account.check()
    account.finish(start(folder, kind, items=items), items)
    return kills


def group_members(folder: Path) -> list[int]:
    """Return the ids of running processes that were started for this folder."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = entry.read_bytes()
            state = entry.with_name("stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"CRASHING_FOLDER={folder}\0".encode() in environment and state not in "ZX":
            pids.append(int(entry.parent.name))
    return pids


# --- process groups -----------------------------------------------------------------------------------------------


STOPPED_CHILD = """
from tests.support import workers
if __name__ == "__main__":
    coordinator = ParallelCoordinator(1, ledger=sys.argv[1], workers="processes", reporter=None)
    with coordinator.stream([sys.argv[2]], workers.hang_with_a_child) as results:
        for result in results:
            pass
"""


def test_resume_first_kills_leftover_process_groups(tmp_path: Path) -> None:
    """A stopped worker process cannot notice the end of the run's process."""
    path = script(tmp_path, STOPPED_CHILD)
    ledger = tmp_path / "run.db"
    program = subprocess.Popen([sys.executable, str(path), str(ledger), str(tmp_path)], cwd=ROOT, env=_with_root())
    eventually(lambda: len(lines(tmp_path / "pids")) == 2, 60)
    leader, child = map(int, lines(tmp_path / "pids"))
    eventually(lambda: recorded_groups(ledger) == [leader])
    os.kill(leader, signal.SIGSTOP)
    os.kill(child, signal.SIGSTOP)
    eventually(lambda: is_stopped(leader) and is_stopped(child))  # one of their threads may still run
    program.kill()
    program.wait()
    assert is_alive(leader)
    assert is_alive(child)

    coordinator = ParallelCoordinator(1, ledger=ledger, reporter=None)
    stats, _ = coordinator.execute_parallel([str(tmp_path)], lambda *_: "done")
    assert stats.success_count == 1
    eventually(lambda: not is_alive(leader) and not is_alive(child))
    assert recorded_groups(ledger) == []


def is_stopped(pid: int) -> bool:
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def test_process_with_a_reused_pid_is_spared(tmp_path: Path) -> None:
    ledger = tmp_path / "run.db"
    ParallelCoordinator(1, ledger=ledger, reporter=None).execute_parallel([1], workers.double)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    connection = sqlite3.connect(ledger)
    with connection:
        connection.execute("INSERT INTO processes VALUES (1, ?, 'another boot 123')", (bystander.pid,))
    connection.close()
    ParallelCoordinator(1, ledger=ledger, reporter=None).execute_parallel([2], workers.double)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def _with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def recorded_groups(path: Path) -> list[int]:
    if not path.exists():
        return []
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT pgid FROM processes").fetchall()
    connection.close()
    return [row[0] for row in rows]


# --- two processes ------------------------------------------------------------------------------------------------


HOLDING = """
started = threading.Event()
def worker(item, key):
    ready()
    time.sleep(3600)
with ParallelCoordinator(1, ledger=sys.argv[1], reporter=None).stream([1], worker, run_id="first") as results:
    next(results)
"""


def test_second_process_is_refused_with_the_owner_named(tmp_path: Path) -> None:  # invariant 27
    ledger = tmp_path / "run.db"
    program = start_with(script(tmp_path, HOLDING), ledger)
    wait_ready(program)
    with pytest.raises(RunBusy) as caught:
        ParallelCoordinator(1, ledger=ledger, reporter=None).execute_parallel([1], workers.double, run_id="first")
    error = caught.value
    assert error.pid == program.pid
    assert error.host == os.uname().nodename
    assert error.since is not None
    assert abs(time.time() - error.since) < 60
    assert f"pid {program.pid} on {error.host}, since 20" in str(error)
    assert "with run first" in str(error)
    with Ledger.open(ledger) as readable:
        assert readable.run_id == "first"

    os.kill(program.pid, signal.SIGSTOP)  # a stopped process still owns its run
    with pytest.raises(RunBusy):
        ParallelCoordinator(1, ledger=ledger, reporter=None).execute_parallel([1], workers.double)
    program.kill()
    program.communicate()
    stats, _ = ParallelCoordinator(1, ledger=ledger, reporter=None).execute_parallel([1], workers.double)
    assert stats.success_count == 1


def test_fork_of_the_owner_does_not_own_the_ledger(tmp_path: Path) -> None:
    body = """
    def worker(item, key):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        with open(sys.argv[1] + "-child", "w") as file:
            file.write(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    ParallelCoordinator(1, ledger=sys.argv[1], reporter=None).execute_parallel([1], worker)
    """
    command = [sys.executable, "-W", "ignore", str(script(tmp_path, body)), str(tmp_path / "run.db")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (pid,) = lines(tmp_path / "run.db-child")
    child = int(pid)
    try:
        assert is_alive(child)
        stats, _ = ParallelCoordinator(1, ledger=tmp_path / "run.db", reporter=None).execute_parallel(
            [2], workers.double
        )
        assert stats.success_count == 1
    finally:
        os.kill(child, signal.SIGKILL)


# --- damage between two launches ----------------------------------------------------------------------------------


def killed(folder: Path) -> Path:
    """Return a ledger whose last launch was killed, with data in its -wal file."""
    program = crashing(folder, items=10_000, seconds=0.002)
    eventually(lambda: len(lines(folder / "reported")) > 200)
    program.kill()
    program.communicate()
    assert (folder / "run.db-wal").stat().st_size > 0
    return folder / "run.db"


@pytest.mark.parametrize("kind", ["removed", "cut off", "flipped"])
def test_damaged_wal_file_is_detected(tmp_path: Path, kind: str) -> None:
    path = killed(tmp_path)
    wal = path.with_name("run.db-wal")
    data = wal.read_bytes()
    if kind == "removed":
        wal.unlink()
    elif kind == "cut off":
        wal.write_bytes(data[: len(data) // 2])
    else:
        wal.write_bytes(data[:2000] + bytes([data[2000] ^ 1]) + data[2001:])
    with pytest.raises(LedgerError, match=r"has lost|damaged"):
        ParallelCoordinator(1, ledger=path, reporter=None).execute_parallel(range(5), workers.double)


def test_missing_ledger_after_a_crash_is_refused(tmp_path: Path) -> None:
    path = killed(tmp_path)
    for name in ("run.db", "run.db-wal", "run.db-shm"):
        (tmp_path / name).unlink()
    with pytest.raises(LedgerError, match="is missing, and its last launch did not end properly"):
        ParallelCoordinator(1, ledger=path, reporter=None).execute_parallel(range(5), workers.double)
    assert not path.exists()
    (tmp_path / "run.db-lock").unlink()  # as the message says
    assert (
        ParallelCoordinator(1, ledger=path, reporter=None).execute_parallel(range(5), workers.double)[0].completed == 5
    )


# --- Ctrl-C, and a disk that is really full -------------------------------------------------------------------------


INTERRUPTED = """
def worker(item, key):
    if item < 10:
        return item
    if item == 13:
        ready()
    while True:
        time.sleep(3600)

coordinator = ParallelCoordinator(4, ledger=sys.argv[1], reporter=None, grace_seconds=0.5)
start = time.monotonic()
stats, results = coordinator.execute_parallel(range(30), worker)
report(stats, results, coordinator)
"""


def test_ctrl_c_with_stuck_workers_leaves_a_complete_ledger(tmp_path: Path) -> None:  # invariant 25
    ledger = tmp_path / "run.db"
    program = start_with(script(tmp_path, INTERRUPTED), ledger)
    wait_ready(program)
    before = time.monotonic()
    program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=60)
    assert time.monotonic() - before < 0.5 + 1 + BUSY
    assert "STOPPED interrupted" in output
    with Ledger.open(ledger) as readable:
        assert {item.id for item in readable.items("succeeded")} == {str(number) for number in range(10)}
        assert {item.id for item in readable.items("unfinished")} == {"10", "11", "12", "13"}
    assert not (tmp_path / "run.db-lock").exists()


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # no file may grow past this
coordinator = ParallelCoordinator(4, ledger=sys.argv[1], grace_seconds=5)
try:
    coordinator.execute_parallel(range(100_000), lambda item, key: "x" * 100)
except Exception as error:
    print(type(error).__name__, error, flush=True)
    sys.exit(3)
"""


def test_full_disk_ends_the_program_with_a_message(tmp_path: Path) -> None:  # invariant 28
    ledger = tmp_path / "run.db"
    program = start_with(script(tmp_path, LIMITED), ledger)
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 3, errors
    assert "LedgerError the ledger" in output
    assert "run again to continue" in output
    assert "Execution stopped early" in output
    with Ledger.open(ledger) as readable:
        on_record = readable.counts().succeeded
    stats, _ = ParallelCoordinator(4, ledger=ledger, reporter=None).execute_parallel(
        range(on_record + 10), lambda *_: "x" * 100
    )
    assert (stats.completed, stats.stopped) == (on_record + 10, None)


def start_with(path: Path, ledger: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", str(path), str(ledger)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
