"""Attempts on executors of the caller: a pool of processes, loky, threads. For clusters see test_dask."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import loky
import pytest

from agentos.limits import backoff
from agentos.workflows.parallel import (
    Command,
    Credential,
    CredentialCoordinator,
    CredentialError,
    Ledger,
    ParallelCoordinator,
    WorkerStartError,
    WorkflowResult,
)
from tests.conftest import BUSY, eventually
from tests.support import workers

SECRET = "sk-executor-0123456789"
OTHER_SECRET = "sk-another-9876543210"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECUTOR_KEY", SECRET)


def make(kind: str) -> Executor:
    if kind == "loky":
        return loky.ProcessPoolExecutor(2)
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module", params=["processes", "loky"])
def engine(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """Yield an executor for the whole module: each of its processes starts only once."""
    before = os.environ.get("EXECUTOR_KEY")
    os.environ["EXECUTOR_KEY"] = SECRET
    with make(request.param) as executor:
        yield executor
    if before is None:
        del os.environ["EXECUTOR_KEY"]


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def pool_of(*secrets: str | Credential) -> CredentialCoordinator:
    return CredentialCoordinator(secrets or [Credential("env:EXECUTOR_KEY", id="team-a")])


def on(executor: Executor, max_workers: int = 2, pool: Any = None, **options: Any) -> ParallelCoordinator:
    return ParallelCoordinator(max_workers, pool, workers=executor, reporter=None, **options)


def by_id(results: list[WorkflowResult]) -> dict[str, WorkflowResult]:
    assert len({result.item_id for result in results}) == len(results)
    return {result.item_id: result for result in results}


def test_executor_process_resolves_credentials(engine: Executor) -> None:
    pool = pool_of()
    stats, results = on(engine, 2, pool).execute_parallel(["a", "b", "c"], workers.answer_for, run_id="r")
    assert stats.success_count == 3, results
    first = by_id(results)["a"].value
    assert os.getpid() != first.pop("pid")
    assert first == {"id": "a", "attempt": 1, "run_id": "r", "credential_id": "team-a", "credential": SECRET}
    assert pool.get_stats()["reserved"] == 0


def test_executor_outcomes_equal_those_of_worker_processes(engine: Executor) -> None:
    items = ["unpicklable", "loses", "value", "limited", "transient", "flaky", "fine"]
    _, results = on(engine, 2, pool_of(), retry_on=workers.Flaky).execute_parallel(items, workers.fail_with)
    results_by_id = by_id(results)
    assert results_by_id["unpicklable"].error == "the text of it"
    assert results_by_id["unpicklable"].metadata["error_type"] == "Unpicklable"
    assert "in fail_with" in results_by_id["unpicklable"].metadata["traceback"]
    assert results_by_id["loses"].error == "lost arguments"
    assert "a function, cannot leave its process: return plain data" in (results_by_id["value"].error or "")
    tried = {i: results_by_id[i].attempts for i in ("limited", "transient", "flaky", "fine")}
    assert tried == {"limited": 2, "transient": 2, "flaky": 2, "fine": 1}
    _, (mute,) = on(engine).execute_parallel(["mute"], workers.raise_mute)
    assert mute.error == "Mute, str() raised ValueError"


def test_executor_runs_async_and_local_functions(engine: Executor) -> None:
    _, (result,) = on(engine).execute_parallel([3], workers.async_double)
    assert result.value == 6
    _, (result,) = on(engine).execute_parallel([3], lambda item, _: item + 1)
    assert result.value == 4


def test_executor_worker_reports_usage_but_has_no_checkpoint(engine: Executor) -> None:
    pool = pool_of()
    _, (result,) = on(engine, 1, pool).execute_parallel(["a"], workers.report_and_observe)
    assert result.value is not None, result
    assert [text.split(":")[0] for text in result.value] == [
        "a worker behind an executor has no checkpoint",
        "a worker behind an executor has no checkpoint",
        "a worker behind an executor has no workflow_db",
    ]
    assert (pool.states()[0].requests, pool.states()[0].tokens) == (2, 35)


def test_unpicklable_item_fails_alone(engine: Executor) -> None:
    items = [threading.Lock(), 2]
    _, results = on(engine).execute_parallel(items, workers.double, lambda i: type(i).__name__)
    results_by_id = by_id(results)
    assert "the item cannot be sent to a worker process" in (results_by_id["lock"].error or "")
    assert results_by_id["int"].value == 4


def test_unpicklable_worker_is_refused_before_start(threads: Executor) -> None:
    lock = threading.Lock()
    with pytest.raises(WorkerStartError, match="top level of a module"):
        on(threads).execute_parallel([1], lambda item, _: lock)


# --- secrets ------------------------------------------------------------------------------------------------------


class Watched(ThreadPoolExecutor):
    """Keeps the arguments of all calls, as engines do."""

    def __init__(self) -> None:
        super().__init__(2)
        self.received = b""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs
        self.received += b"".join(args)
        return super().submit(fn, *args)


def test_plain_secret_is_refused_before_start(tmp_path: Path) -> None:
    with Watched() as executor:
        for plain in (SECRET, Credential(SECRET, id="team-a"), Credential(f"cmd:echo {SECRET}", id="team-a")):
            with pytest.raises(CredentialError, match="pass send_secrets=True") as error:
                on(executor, 1, pool_of(plain), ledger=tmp_path / "l.db").execute_parallel(["a"], workers.answer_for)
            assert SECRET not in str(error.value)
        assert not executor.received
        assert not (tmp_path / "l.db").exists()


def test_plain_secret_is_sent_only_with_send_secrets() -> None:
    with Watched() as executor:
        _, (result,) = on(executor, 1, pool_of()).execute_parallel(["a"], workers.answer_for)
        assert result.value["credential"] == SECRET
        assert b"env:EXECUTOR_KEY" in executor.received
        assert SECRET.encode() not in executor.received
        _, (result,) = on(executor, 1, pool_of(OTHER_SECRET), send_secrets=True).execute_parallel(
            ["a"], workers.answer_for
        )
        assert result.value["credential"] == OTHER_SECRET
        assert OTHER_SECRET.encode() in executor.received


def key_file(folder: Path) -> tuple[Path, Credential]:
    """Yield a key file that a credential refers to: read by the pool, and again where the attempts run."""
    path = folder / "key"
    path.write_text(OTHER_SECRET)
    path.chmod(0o600)
    return path, Credential(f"file:{path}", id="team-a")


def test_unreadable_reference_stops_the_run_without_failures(engine: Executor, tmp_path: Path) -> None:
    path, credential = key_file(tmp_path)
    coordinator = on(engine, 1, pool_of(credential), ledger=tmp_path / "ledger.db")
    path.unlink()
    with pytest.raises(WorkerStartError, match="where the executor runs the worker: cannot read the key file"):
        coordinator.execute_parallel(["a", "b"], workers.answer_for)
    assert coordinator.get_checkpoints() == ["a", "b"]
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.counts().failed == 0


def test_differing_key_is_neither_shown_nor_recorded(engine: Executor, tmp_path: Path) -> None:
    path, credential = key_file(tmp_path)
    coordinator = on(engine, 1, pool_of(credential), ledger=tmp_path / "ledger.db", retries=0)
    path.write_text(SECRET)
    _, results = coordinator.execute_parallel(["value", "error"], workers.blurt)
    path.unlink()
    results_by_id = by_id(results)
    assert "the worker's result contains its key" in (results_by_id["value"].error or "")
    assert results_by_id["error"].error == "401 for ****"
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET.encode() not in repr(results).encode() + files


def test_next_launch_reads_a_replaced_key(engine: Executor, tmp_path: Path) -> None:
    path, _ = key_file(tmp_path)
    for secret in (OTHER_SECRET, SECRET):
        path.write_text(secret)
        pool = pool_of(Credential(f"file:{path}", id="team-a"))
        _, (result,) = on(engine, 1, pool).execute_parallel(["a"], workers.answer_for, run_id="same")
        assert result.value["credential"] == secret


def test_key_in_a_result_is_not_recorded(engine: Executor, tmp_path: Path) -> None:
    on(engine, 1, pool_of(), ledger=tmp_path / "ledger.db").execute_parallel(["value"], workers.blurt)
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert next(iter(ledger.items())).value == {"key": "****"}


class Twice(ThreadPoolExecutor):
    """Runs every call twice, as an engine does that suspects a lost node."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(lambda: (fn(*args), fn(*args))[1])


def test_task_repeated_by_the_engine_is_recorded_once(tmp_path: Path) -> None:
    done, pool = tmp_path / "done", pool_of()
    with Twice(2) as executor:
        coordinator = on(executor, 2, pool, ledger=tmp_path / "ledger.db")
        stats, results = coordinator.execute_parallel([f"{done}-{i}" for i in range(5)], workers.append_mark)
    assert stats.success_count == len(results) == 5
    assert all(Path(result.item_id).read_text() == "xx" for result in results)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert len(list(ledger.attempts())) == ledger.counts().succeeded == 5
    assert pool.get_stats()["reserved"] == 0


# --- stopping -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["processes", "loky"])
def test_broken_executor_stops_the_run_resumably(kind: str, tmp_path: Path) -> None:
    pool = pool_of()
    with make(kind) as executor:
        broken = on(executor, 1, pool, ledger=tmp_path / "ledger.db")
        stats, results = broken.execute_parallel(["a", "exit", "b"], workers.die_of)
    assert stats.stopped is not None
    assert stats.stopped.startswith("the executor is broken: ")
    assert {result.item_id for result in results} == {"a"}
    assert broken.get_checkpoints() == ["exit", "b"]
    assert pool.get_stats()["reserved"] == 0
    with ThreadPoolExecutor(1) as executor:
        again = on(executor, 1, pool, ledger=tmp_path / "ledger.db")
        stats, results = again.execute_parallel(["a", "exit", "b"], workers.name_of)
    assert stats.success_count == 3
    assert {i: r.attempts for i, r in by_id(results).items()} == {"a": 1, "exit": 1, "b": 1}


def test_closed_executor_stops_the_run(threads: Executor) -> None:
    threads.shutdown()
    stats, results = on(threads).execute_parallel([1, 2], workers.double)
    assert stats.stopped is not None
    assert "cannot schedule new futures after shutdown" in stats.stopped
    assert results == []


def test_shutdown_cancels_pending_and_abandons_running_attempts(threads: Executor, tmp_path: Path) -> None:
    go, pool = tmp_path / "go", pool_of(Credential("env:EXECUTOR_KEY"), Credential("env:OTHER_KEY"))
    items = [{"id": name, "begun": str(tmp_path / name), "go": str(go)} for name in "abc"]
    coordinator = on(threads, 2, pool, grace_seconds=0.2, ledger=tmp_path / "ledger.db")
    results = coordinator.stream(items, workers.touch_and_wait, lambda item: item["id"])
    eventually((tmp_path / "a-1").exists)
    coordinator.request_shutdown()
    assert list(results) == []
    assert coordinator.get_checkpoints() == ["a", "b", "c"]
    assert not (tmp_path / "b-1").exists()
    assert pool.get_stats()["reserved"] == 1  # the abandoned attempt still uses it
    go.touch()
    eventually(lambda: pool.get_stats()["reserved"] == 0)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.counts().succeeded == 0


@pytest.fixture(autouse=True)
def _other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", OTHER_SECRET)


def test_timed_out_attempt_frees_its_credential_when_it_ends(tmp_path: Path) -> None:
    go, pool = tmp_path / "go", pool_of()
    item = {"begun": str(tmp_path / "a"), "go": str(go)}
    with ThreadPoolExecutor(1) as executor:
        stats, (result,) = on(executor, 1, pool, timeout=0.2).execute_parallel(
            [item], workers.touch_and_wait, lambda _: "a"
        )
        assert result.metadata["error_type"] == "AttemptTimeout"
        assert stats.elapsed < 0.2 + BUSY
        assert pool.get_stats()["reserved"] == 1
        go.touch()
        eventually(lambda: pool.get_stats()["reserved"] == 0)


# --- options ------------------------------------------------------------------------------------------------------


def test_options_unfit_for_an_executor_are_refused(threads: Executor) -> None:
    with pytest.raises(ValueError, match="'threads', 'processes' or an Executor"):
        ParallelCoordinator(1, workers=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="send_secrets is only for an Executor"):
        ParallelCoordinator(1, send_secrets=True)
    with pytest.raises(ValueError, match="no pool to lease from"):
        on(threads, 1, pool_of(), admission="none")
    with pytest.raises(TypeError, match="an executor cannot run a Command"):
        on(threads).execute_parallel(["a"], Command(["echo", "{id}"]))
