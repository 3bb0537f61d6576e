"""Workers in processes: they crash, exit, hang, and raise exceptions that cannot be pickled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentos.limits import backoff
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator, WorkerStartError, WorkflowResult
from tests.conftest import BUSY, eventually
from tests.support import workers


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)


def processes(max_workers: int = 2, pool: CredentialCoordinator | None = None, **options: Any) -> ParallelCoordinator:
    return ParallelCoordinator(max_workers, pool, workers="processes", reporter=None, **options)


def by_id(results: list[WorkflowResult]) -> dict[str, WorkflowResult]:
    assert len({result.item_id for result in results}) == len(results)
    return {result.item_id: result for result in results}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie does not count as alive.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile, or the system has no /proc
        return not Path("/proc/self/stat").exists()


def test_worker_processes_are_reused() -> None:
    pool = CredentialCoordinator(["sk-process-key-1", "sk-process-key-2"])
    stats, results = processes(2, pool).execute_parallel(range(12), workers.tell, lambda i: f"item-{i}", run_id="r")
    assert stats.success_count == 12
    pids = {result.value["pid"] for result in results}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    first = by_id(results)["item-0"]
    assert first.value["credential"] in ("sk-process-key-1", "sk-process-key-2")
    assert first.value["credential_id"] == first.credential_id
    assert (first.value["id"], first.value["attempt"], first.value["run_id"]) == ("item-0", 1, "r")
    assert pool.get_stats()["reserved"] == 0
    eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_worker_processes_run_async_functions() -> None:
    _, results = processes(1).execute_parallel([3], workers.async_double)
    assert results[0].value == 6


def test_item_that_kills_three_workers_fails_alone() -> None:  # invariant 24
    items = ["segfault", "a", "exit", "b", "kill", "c", "sys.exit", "d"]
    pool = CredentialCoordinator(["sk-process-key-1", "sk-process-key-2"])
    stats, results = processes(2, pool).execute_parallel(items, workers.die_of)
    results_by_id = by_id(results)
    assert {i for i, r in results_by_id.items() if r.success} == set("abcd")
    assert stats.failed == 4
    assert results_by_id["segfault"].attempts == results_by_id["exit"].attempts == results_by_id["kill"].attempts == 3
    assert results_by_id["segfault"].metadata["error_type"] == "WorkerDied"
    assert "SIGSEGV" in (results_by_id["segfault"].error or "")
    assert "exit status 3" in (results_by_id["exit"].error or "")
    assert "SIGKILL" in (results_by_id["kill"].error or "")
    assert results_by_id["sys.exit"].metadata["error_type"] == "SystemExit"  # its worker lives on
    assert pool.get_stats()["reserved"] == 0


def test_system_exit_of_a_worker_function_is_not_retried() -> None:
    _, results = processes(1).execute_parallel(["sys.exit"], workers.die_of)
    assert (results[0].success, results[0].attempts) == (False, 1)


def test_item_of_a_dead_worker_is_retried() -> None:
    _, results = processes(1).execute_parallel(["a", "b"], workers.die_once)
    assert {i: r.value for i, r in by_id(results).items()} == {"a": 2, "b": 2}


def test_time_out_kills_the_process_and_retries() -> None:
    stats, results = processes(2, timeout=0.5, retries=20).execute_parallel(["slow", "quick"], workers.hang_first)
    assert stats.success_count == 2, results
    assert by_id(results)["slow"].value >= 2  # a busy machine may cause further time-outs


def test_time_out_uses_up_retries() -> None:
    _, results = processes(1, timeout=0.3, retries=0).execute_parallel(["slow"], workers.hang)
    assert results[0].metadata["error_type"] == "AttemptTimeout"
    assert results[0].attempts == 1


def test_killed_worker_process_takes_its_children_along(tmp_path: Path) -> None:
    for timeout in (0.3, 3.0, 30.0):  # until the worker had time to start a child
        processes(1, timeout=timeout, retries=0).execute_parallel([str(tmp_path)], workers.hang_with_a_child)
        if (tmp_path / "pids").exists():
            break
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_unpicklable_exceptions_and_values_arrive_as_errors() -> None:
    pool = CredentialCoordinator(["sk-process-key-1"])
    items = ["unpicklable", "loses", "value", "limited", "transient", "flaky", "fine"]
    coordinator = processes(2, pool, retry_on=workers.Flaky)
    _, results = coordinator.execute_parallel(items, workers.fail_with)
    results_by_id = by_id(results)
    assert results_by_id["unpicklable"].error == "the text of it"
    assert results_by_id["unpicklable"].metadata["error_type"] == "Unpicklable"
    assert "in fail_with" in results_by_id["unpicklable"].metadata["traceback"]
    assert results_by_id["loses"].error == "lost arguments"
    assert "a function, cannot leave its process: return plain data" in (results_by_id["value"].error or "")
    assert {i: results_by_id[i].attempts for i in ("limited", "transient", "flaky", "fine")} == {
        "limited": 2,
        "transient": 2,
        "flaky": 2,
        "fine": 1,
    }
    assert all(results_by_id[i].success for i in ("limited", "transient", "flaky", "fine"))


def test_unpicklable_item_fails_with_a_clear_error() -> None:
    _, results = processes(1).execute_parallel([lambda: None, 2], workers.double, lambda i: str(type(i).__name__))
    results_by_id = by_id(results)
    assert "cannot be sent to a worker process" in (results_by_id["function"].error or "")
    assert results_by_id["int"].value == 4


def test_checkpoint_of_a_worker_process_reaches_the_next_attempt() -> None:
    pool = CredentialCoordinator(["sk-process-key-1"])
    _, results = processes(1, pool).execute_parallel(["a"], workers.remember)
    assert results[0].value == {"step": 1}
    assert pool.states()[0].requests == 3  # two reported by the first attempt, one reserved by the second
    assert pool.states()[0].tokens == 30


def test_worker_process_can_lease_only_its_credential() -> None:
    pool = CredentialCoordinator(["sk-process-key-1"])
    _, results = processes(1, pool).execute_parallel(["a"], workers.lease_twice)
    assert results[0].value is not None, results
    is_own, text = results[0].value
    assert is_own
    assert "at most one credential" in text
    assert pool.states()[0].tokens == 7


def test_unpicklable_worker_is_refused_before_start() -> None:
    with pytest.raises(WorkerStartError, match="top level of a module"):
        processes().execute_parallel([1], lambda item, _: item)


def test_missing_main_guard_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from agentos.workflows.parallel import ParallelCoordinator\n"
        "def work(item, credential): return item\n"
        "ParallelCoordinator(1, workers='processes', reporter=None).execute_parallel([1, 2], work)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr


def test_shutdown_sets_should_stop_in_the_process(tmp_path: Path) -> None:
    flag = tmp_path / "running"
    coordinator = processes(1, grace_seconds=60)
    results = coordinator.stream([str(flag), "never"], workers.until_told)
    eventually(flag.exists)
    coordinator.request_shutdown()
    start = time.monotonic()
    assert list(results) == []
    assert time.monotonic() - start < 1 + BUSY
    assert coordinator.get_checkpoints() == [str(flag), "never"]


def test_stubborn_worker_process_is_killed_after_the_grace(tmp_path: Path) -> None:  # invariant 25
    coordinator = processes(1, grace_seconds=0.2)
    results = coordinator.stream([str(tmp_path)], workers.hang_with_a_child)
    eventually((tmp_path / "pids").exists)
    eventually(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    start = time.monotonic()
    coordinator.request_shutdown()
    assert list(results) == []
    assert time.monotonic() - start < 0.2 + 1 + BUSY
    eventually(lambda: not any(is_alive(pid) for pid in pids))
