"""Attempts on a real Dask cluster: a scheduler and workers in processes of their own, some of which are killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.limits import backoff
from agentos.workflows.parallel import Credential, CredentialCoordinator, Ledger, Limits, ParallelCoordinator
from tests.conftest import eventually
from tests.providers.sdk_clients import LazyModule
from tests.support import workers

from .dask_cluster import THREADS, Cluster, cluster, drop_worker, pickled_tasks

distributed: Any = LazyModule("distributed")
KEYS = {"CLUSTER_KEY_A": "sk-cluster-a-0123456789", "CLUSTER_KEY_B": "sk-cluster-b-0123456789"}


@pytest.fixture(autouse=True)
def _keys_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)
    for name, secret in KEYS.items():
        monkeypatch.setenv(name, secret)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster for the whole module, because a start takes two seconds. Tests kill or remove four of its eight
    workers."""
    with cluster(tmp_path_factory.mktemp("dask"), 8, **KEYS) as running:
        yield running


@pytest.fixture
def client(nodes: Cluster) -> Iterator[distributed.Client]:
    with distributed.Client(nodes.address, set_as_default=False) as connected:
        yield connected


def pool_of() -> CredentialCoordinator:
    limits = Limits(max_concurrent=3)
    return CredentialCoordinator([Credential(f"env:{name}", id=name, limits=limits) for name in KEYS])


def on(client: distributed.Client, max_workers: int = 6, pool: Any = None, **options: Any) -> ParallelCoordinator:
    return ParallelCoordinator(max_workers, pool, workers=client.get_executor(), reporter=None, **options)


def test_nodes_resolve_keys_and_share_the_items(client: distributed.Client, nodes: Cluster) -> None:
    pool = pool_of()
    stats, results = on(client, 6, pool).execute_parallel([f"item-{i}" for i in range(30)], workers.answer_for)
    assert stats.success_count == 30, results
    assert {result.value["pid"] for result in results} <= set(nodes.workers.values())
    assert all(result.value["credential"] == KEYS[result.value["credential_id"]] for result in results)
    assert pool.get_stats()["reserved"] == 0
    # The scheduler holds no task that it could compute again.
    eventually(lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0)


def test_no_secret_reaches_the_scheduler(client: distributed.Client, tmp_path: Path) -> None:
    items = [{"begun": str(tmp_path / "a"), "go": str(tmp_path / "go")}]
    results = on(client, 1, pool_of()).stream(items, workers.touch_and_wait, lambda _: "a")
    eventually((tmp_path / "a-1").exists)
    sent = client.run_on_scheduler(pickled_tasks)
    assert b"env:CLUSTER_KEY_" in sent
    assert not any(secret.encode() in sent for secret in KEYS.values())
    (tmp_path / "go").touch()
    assert [result.success for result in results] == [True]


def test_nodes_return_outcomes_and_run_local_functions(
    client: distributed.Client,
) -> None:
    items = ["unpicklable", "value", "limited", "transient", "fine"]
    _, results = on(client, 3, pool_of()).execute_parallel(items, workers.fail_with)
    results_by_id = {result.item_id: result for result in results}
    assert results_by_id["unpicklable"].error == "the text of it"
    assert "a function, cannot leave its process" in (results_by_id["value"].error or "")
    assert [results_by_id[i].attempts for i in ("limited", "transient", "fine")] == [2, 2, 1]
    _, (result,) = on(client).execute_parallel([20], lambda item, _: item + 1)
    assert result.value == 21
    _, (result,) = on(client).execute_parallel([20], workers.async_double)
    assert result.value == 40


def test_shutdown_waits_for_nodes_within_the_grace(client: distributed.Client, tmp_path: Path) -> None:
    go, threads = tmp_path / "go", sum(client.nthreads().values())
    items = [{"id": str(i), "begun": str(tmp_path / str(i)), "go": str(go)} for i in range(threads + 2)]
    # One attempt more than the cluster has threads: it waits, and is cancelled.
    coordinator = on(client, threads + 1, max_parallelism=threads + 1, grace_seconds=60)
    results = coordinator.stream(items, workers.touch_and_wait, lambda item: item["id"])
    eventually(lambda: len(list(tmp_path.glob("*-1"))) == threads)
    coordinator.request_shutdown()
    go.touch()
    assert len(list(results)) == threads
    assert len(coordinator.get_checkpoints()) == 2
    assert len(list(tmp_path.glob("*-1"))) == threads


def test_asynchronous_client_runs_attempts(nodes: Cluster) -> None:
    async def run() -> int:
        async with distributed.Client(nodes.address, asynchronous=True, set_as_default=False) as client:
            stats, _ = await on(client, 3, pool_of()).execute_parallel_async(range(10), workers.double)
            return stats.success_count

    assert asyncio.run(run()) == 10


def test_executor_with_options_is_refused(client: distributed.Client) -> None:
    coordinator = ParallelCoordinator(1, workers=client.get_executor(retries=2), reporter=None)
    with pytest.raises(ValueError, match="without retries"):
        coordinator.execute_parallel([1], workers.double)


# --- lost nodes ---------------------------------------------------------------------------------------------------


def test_killed_node_loses_and_repeats_no_item(tmp_path: Path) -> None:
    pool, path, pid_file = pool_of(), tmp_path / "ledger.db", tmp_path / "pid"
    items = [{"id": f"item-{i}"} for i in range(300)]
    items[150]["tell"] = str(pid_file)
    with cluster(tmp_path, 3, **KEYS) as nodes, distributed.Client(nodes.address, set_as_default=False) as client:
        results = on(client, 6, pool, ledger=path).stream(items, workers.short, lambda item: item["id"])
        eventually(lambda: pid_file.exists() and pid_file.read_text() != "", timeout=60)
        assert int(pid_file.read_text()) in nodes.workers.values()
        nodes.kill(int(pid_file.read_text()))
        ended = {result.item_id: result for result in results}
    assert len(ended) == 300
    assert all(result.success for result in ended.values())
    with Ledger.open(path) as ledger:
        assert ledger.counts().succeeded == 300
        attempts = Counter((attempt.item_id, attempt.verdict) for attempt in ledger.attempts())
    assert sum(verdict == "succeeded" for _, verdict in attempts.elements()) == 300
    died = {item for item, verdict in attempts if verdict == "worker_died"}
    assert "item-150" in died
    assert len(died) <= THREADS  # only attempts that ran on that node
    assert all(ended[item].value == ended[item].attempts == 2 for item in died)
    assert pool.get_stats()["reserved"] == 0
    assert sum(state.live_leases for state in pool.states()) == 0


def test_late_outcome_of_a_lost_node_is_ignored(  # invariant 23
    client: distributed.Client, nodes: Cluster, tmp_path: Path
) -> None:
    item = {"begun": str(tmp_path / "a"), "go": str(tmp_path / "go")}
    coordinator = on(client, 1, pool_of(), ledger=tmp_path / "ledger.db")
    results = coordinator.stream([item], workers.touch_and_wait, lambda _: "a")
    eventually(lambda: (tmp_path / "a-1").exists() and (tmp_path / "a-1").read_text() != "")
    pid = int((tmp_path / "a-1").read_text())
    address = next(at for at, of in nodes.workers.items() if of == pid)
    client.run_on_scheduler(drop_worker, address=address)
    eventually((tmp_path / "a-2").exists)
    (tmp_path / "go-1").touch()  # the first attempt continues on the node that was removed
    eventually((tmp_path / "a-1-ended").exists)
    (tmp_path / "go-2").touch()
    (result,) = results
    assert (tmp_path / "a-1").read_text().split() == [str(pid)]  # no other process has run attempt 1
    assert (result.value, result.attempts) == (2, 2)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.counts().succeeded == 1
        assert [(a.n, a.verdict) for a in ledger.attempts("a")] == [(1, "worker_died"), (2, "succeeded")]


def test_item_that_kills_three_nodes_fails_alone(  # invariant 24
    client: distributed.Client,
) -> None:
    pool = pool_of()
    # One at a time: an item on the same node would be retried, too.
    stats, results = on(client, 1, pool).execute_parallel(["a", "kill", "b"], workers.die_of)
    results_by_id = {result.item_id: result for result in results}
    assert stats.stopped is None
    assert results_by_id["a"].success
    assert results_by_id["b"].success
    assert results_by_id["kill"].attempts == 3
    assert results_by_id["kill"].metadata["error_type"] == "WorkerDied"
    assert "was lost during an attempt" in (results_by_id["kill"].error or "")
    assert pool.get_stats()["reserved"] == 0


def test_lost_cluster_stops_the_run_resumably(client: distributed.Client, tmp_path: Path) -> None:
    items = [{"id": str(i), "begun": str(tmp_path / str(i)), "go": str(tmp_path / "go")} for i in range(4)]
    pool = pool_of()
    with cluster(tmp_path, 1, **KEYS) as nodes:
        doomed = distributed.Client(nodes.address, set_as_default=False, timeout=1)
        coordinator = on(doomed, 2, pool, ledger=tmp_path / "ledger.db")
        results = coordinator.stream(items, workers.touch_and_wait, lambda item: item["id"])
        eventually((tmp_path / "1-1").exists)
        nodes.kill(nodes.scheduler)
        assert list(results) == []
        assert results.stats.stopped is not None
        assert results.stats.stopped.startswith("the executor is broken: ")
        assert coordinator.get_checkpoints() == ["0", "1", "2", "3"]
        assert pool.get_stats()["reserved"] == 0
        doomed.close()
    (tmp_path / "go").touch()
    stats, ended = on(client, 2, pool, ledger=tmp_path / "ledger.db").execute_parallel(
        items, workers.touch_and_wait, lambda item: item["id"]
    )
    assert (stats.success_count, len(ended)) == (4, 4)
