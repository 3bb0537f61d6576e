"""A pool in memory is this process alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys

started = []
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
sys.addaudithook(lambda event, _: started.append(event) if event in STARTS else None)

from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator

pool = CredentialCoordinator(["sk-memory-000001"], store=sys.argv[1])
stats, results = ParallelCoordinator(2, pool).execute_parallel(["a", "b"], lambda item, key: item)
pool.close()
print(len(list(results)), len(started), any(name.startswith("agentos.pool.shared.") for name in sys.modules))
"""


@pytest.mark.parametrize(("store", "starts"), [("memory:", "2 0 False"), ("sqlite", "2 1 True")])
def test_run_starts_owner_for_shared_pool_only(store: str, starts: str, tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/pool.db" if store == "sqlite" else store
    run = subprocess.run([sys.executable, "-c", PROGRAM, url], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1:] == [starts], run.stderr
