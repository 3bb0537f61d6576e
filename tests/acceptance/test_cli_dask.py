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

from .program import Place

SECRETS = {f"TEAM_{i}_KEY": f"sk-cluster-{i}-0123456789" for i in range(6)}
KEYS = "".join(f'[[credential]]\nid = "{name}"\nsecret = "env:{name}"\n' for name in SECRETS)
# Each says that it has begun; they go on when so many others have, too.
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
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.environ.update(SECRETS)
    place.write("keys.toml", KEYS)
    place.write("meeting.py", WORKERS)
    return place


def items(place: Place, count: int, many: int) -> list[str]:
    folder = place.path / f"met-{count}"
    folder.mkdir()
    item = '{{"id": "{}", "folder": "{}", "many": {}}}'
    return [argument for i in range(count) for argument in ("--item", item.format(i, folder, many))]


def test_run_on_a_lost_cluster_is_resumed_locally(place: Place, tmp_path: Path) -> None:
    more = {**SECRETS, "PYTHONPATH": f"{place.path}:{place.environ['PYTHONPATH']}"}
    with cluster(tmp_path / "dask", 2, **more) as nodes:
        where = ("--keys", "keys.toml", "--on", nodes.address.replace("tcp", "dask"))
        threads = 2 * THREADS  # as many meet: more than the usual 3, because the cluster has them
        done = place.agentos("run", "--run-id", "one", *items(place, 8, threads), *where, "meeting:meet")
        assert done.returncode == 0, done.stderr
        exported = place.agentos("export", "one", "--format", "jsonl").stdout
        assert all(f'"value":{pid}' in exported.replace(" ", "") for pid in nodes.workers.values()), exported
        with place.started("run", "--run-id", "two", *items(place, 6, 6), *where, "meeting:meet") as program:
            eventually(lambda: len(list((place.path / "met-6").glob("*.begun"))) == threads, timeout=30)
            nodes.kill(nodes.scheduler)
            _, told = program.communicate(timeout=60)
        assert program.returncode == 4, told
        assert "the executor is broken: the cluster has dropped an attempt (scheduler-connection-lost)" in told
        assert "agentos resume two" in told
        assert "Traceback" not in told
    again = place.agentos("resume", "two", "--on", "threads", "--parallel", "6")
    assert again.returncode == 0, again.stderr
    kept = b"".join(path.read_bytes() for path in place.home.rglob("*") if path.is_file())
    shown = kept + told.encode() + again.stdout.encode()
    assert not any(secret.encode() in shown for secret in SECRETS.values())


def test_unsendable_work_is_refused_before_connecting(place: Place) -> None:
    where = ("--item", "a", "--on", "dask://127.0.0.1:1")
    place.write("plain.toml", KEYS.replace("env:TEAM_0_KEY", SECRETS["TEAM_0_KEY"]), mode=0o600)
    statuses, done = place.each(
        ["run", *where, "--", "echo", "{id}"],
        ["run", *where, "--keys", "plain.toml", "meeting:meet"],
        ["run", "--item", "a", "--on", "spark://127.0.0.1:1", "meeting:meet"],
    )
    assert statuses == [2, 2, 2]
    assert "a command is run on this machine, and not by a cluster" in done.stderr
    assert (
        "these keys are written in plain and are not sent to a cluster, which may keep them: TEAM_0_KEY" in done.stderr
    )
    assert "--on is threads or dask://HOST:PORT" in done.stderr
    assert SECRETS["TEAM_0_KEY"] not in done.stderr
    assert not place.runs.exists()


def test_unreachable_cluster_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.2)
    with pytest.raises(EngineUnavailable, match=r"the cluster at dask://127\.0\.0\.1:1 cannot be reached"):
        connect_engine("dask://127.0.0.1:1", None, None)


def test_missing_dask_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(click.UsageError, match=r"pip install 'agentos-parallel\[dask\]'"):
        connect_engine("dask://127.0.0.1:1", None, None)
