"""`agentos run --on dask://…`, with a real cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from agentos.cli.launch.engine import connect_engine
from agentos.errors import EngineUnavailable
from agentos.workers.engines import connect
from tests.conftest import eventually
from tests.workers.dask_cluster import THREADS, cluster

from .program import Sandbox

SECRETS = {f"TEAM_{i}_KEY": f"sk-cluster-{i}-0123456789" for i in range(6)}
KEYS = "".join(f'[[credential]]\nid = "{name}"\nsecret = "env:{name}"\n' for name in SECRETS)
# Each attempt reports its start and waits until `many` attempts have started.
WORKERS = """
import os, time
from pathlib import Path

def meet(item, credential):
    folder = Path(item["folder"])
    (folder / (item["id"] + ".begun")).write_text(str(os.getpid()))
    while len(list(folder.glob("*.begun"))) < item["many"]:
        time.sleep(0.01)
    return credential.startswith("sk-cluster-") and os.getpid()
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    sandbox = Sandbox(tmp_path)
    sandbox.environ.update(SECRETS)
    sandbox.write("keys.toml", KEYS)
    sandbox.write("meeting.py", WORKERS)
    return sandbox


def items(sandbox: Sandbox, count: int, many: int) -> list[str]:
    folder = sandbox.path / f"met-{count}"
    folder.mkdir()
    item = '{{"id": "{}", "folder": "{}", "many": {}}}'
    return [argument for i in range(count) for argument in ("--item", item.format(i, folder, many))]


def test_run_on_a_lost_cluster_is_resumed_locally(sandbox: Sandbox, tmp_path: Path) -> None:
    environ = {**SECRETS, "PYTHONPATH": f"{sandbox.path}:{sandbox.environ['PYTHONPATH']}"}
    with cluster(tmp_path / "dask", 2, **environ) as nodes:
        where = ("--keys", "keys.toml", "--on", nodes.address.replace("tcp", "dask"))
        threads = 2 * THREADS  # the default on a cluster is its number of threads, not 3
        done = sandbox.agentos("run", "--run-id", "one", *items(sandbox, 8, threads), *where, "meeting:meet")
        assert done.returncode == 0, done.stderr
        exported = sandbox.agentos("export", "one", "--format", "jsonl").stdout
        assert all(f'"value":{pid}' in exported.replace(" ", "") for pid in nodes.workers.values()), exported
        with sandbox.start("run", "--run-id", "two", *items(sandbox, 6, 6), *where, "meeting:meet") as program:
            eventually(lambda: len(list((sandbox.path / "met-6").glob("*.begun"))) == threads, timeout=30)
            nodes.kill(nodes.scheduler)
            _, errors = program.communicate(timeout=60)
        assert program.returncode == 4, errors
        assert "the executor is broken: the cluster has dropped an attempt (scheduler-connection-lost)" in errors
        assert "agentos resume two" in errors
        assert "Traceback" not in errors
    resumed = sandbox.agentos("resume", "two", "--on", "threads", "--parallel", "6")
    assert resumed.returncode == 0, resumed.stderr
    state = b"".join(path.read_bytes() for path in sandbox.home.rglob("*") if path.is_file())
    output = state + errors.encode() + resumed.stdout.encode()
    assert not any(secret.encode() in output for secret in SECRETS.values())


def test_unsendable_work_is_refused_before_connecting(sandbox: Sandbox) -> None:
    where = ("--item", "a", "--on", "dask://127.0.0.1:1")
    sandbox.write("plain.toml", KEYS.replace("env:TEAM_0_KEY", SECRETS["TEAM_0_KEY"]), mode=0o600)
    statuses, done = sandbox.run_each(
        ["run", *where, "--", "echo", "{id}"],
        ["run", *where, "--keys", "plain.toml", "meeting:meet"],
        ["run", "--item", "a", "--on", "spark://127.0.0.1:1", "meeting:meet"],
    )
    assert statuses == [2, 2, 2]
    assert "a cluster cannot run a command" in done.stderr
    assert "plain-text keys are not sent to a cluster, which may store them: TEAM_0_KEY" in done.stderr
    assert "--on is threads or dask://HOST:PORT" in done.stderr
    assert SECRETS["TEAM_0_KEY"] not in done.stderr
    assert not sandbox.runs.exists()


def test_unreachable_cluster_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.2)
    with pytest.raises(EngineUnavailable, match=r"the cluster at dask://127\.0\.0\.1:1 cannot be reached"):
        connect_engine("dask://127.0.0.1:1", None, None)


def test_missing_dask_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(click.UsageError, match=r"pip install 'agentos-parallel\[dask\]'"):
        connect_engine("dask://127.0.0.1:1", None, None)
