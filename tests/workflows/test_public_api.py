"""The front page: what is exported is listed, what is listed is there, and the module paths of old programs work."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

from agentos.workflows import parallel


def test_every_name_that_is_listed_is_found_where_type_checkers_look_for_it() -> None:
    source = Path(parallel.__file__).read_text()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    homes = {
        alias.name: f"{parallel.__name__}.{node.module}" if node.level else str(node.module)
        for node in imports
        for alias in node.names
    }
    assert sorted(homes) == sorted(parallel.__all__)
    for name, module in homes.items():
        assert getattr(parallel, name) is getattr(importlib.import_module(module), name)
    assert set(parallel.__all__) <= set(dir(parallel))


def test_all_lists_exactly_what_is_public() -> None:
    assert all(hasattr(parallel, name) for name in parallel.__all__)
    public = {
        name
        for name, value in vars(parallel).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(parallel.__all__)
    assert len(set(parallel.__all__)) == len(parallel.__all__)
    assert not hasattr(parallel, "ParalelCoordinator")


def test_modules_are_attributes_although_nobody_has_imported_them() -> None:
    code = "import agentos.workflows.parallel as p; p.verdicts.from_output; p.errors.RunBusy; p.Ledger"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_module_paths_that_programs_already_use() -> None:
    from agentos.workflows.parallel import (  # noqa: F401
        CredentialCoordinator,
        OutputPrefixer,
        ParallelCoordinator,
        sanitize_identifier,
    )

    coordinator = importlib.import_module("agentos.workflows.parallel.coordinator")
    assert coordinator.ParallelCoordinator is ParallelCoordinator
    assert coordinator.WorkflowResult("id", True).metadata == {}
    assert coordinator.ProgressStats(total=4, completed=1).completion_rate == 25.0
    assert coordinator.ProgressStats(total=0).completion_rate == 0.0
    assert coordinator.ProgressStats(total=4).elapsed >= 0
    credentials = importlib.import_module("agentos.workflows.parallel.credential_coordinator")
    assert credentials.CredentialCoordinator is CredentialCoordinator
    assert credentials.CredentialState(key_id="x").is_available
    assert CredentialCoordinator.RATE_LIMIT_BACKOFF_SECONDS == 60


def test_every_spelling_of_reserve_and_release_works() -> None:
    pool = parallel.CredentialCoordinator(["sk-one", "sk-two"])
    for reserve in (pool.reserve, pool.acquire, pool.acquire_credential, lambda: pool.reserve_credential("me")):
        key = reserve()
        assert key in ("sk-one", "sk-two")
        pool.release_credential(key)
    assert pool.acquire(timeout=1) is not None
    assert pool.acquire() is not None
    assert pool.acquire(timeout=0.01) is None
    assert pool.acquire_credential() is None
    assert pool.get_stats() == {
        "total": 2,
        "available": 0,
        "reserved": 2,
        "rate_limited": 0,
        "quarantined": 0,
        "waiting": 0,
    }
