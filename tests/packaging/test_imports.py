"""Importing the library and asking for help load little. Modules are counted: times depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys

# Modules that take long to load, and that only runs, ledgers or commands need.
SLOW = {"asyncio", "ssl", "sqlite3", "msgspec", "multiprocessing", "socket", "http", "urllib.request", "tomllib"}
# Modules of this package: patterns, workers and the driver of runs are loaded by the first pool or run.
MAX_LIBRARY_MODULES = 100
MAX_HELP_MODULES = 5


def loaded_by(code: str) -> set[str]:
    """Return the modules that a new Python has loaded after this code."""
    code += "\nimport json, sys\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "agentos"}


def test_library_import_loads_neither_runs_nor_clients() -> None:
    bare = loaded_by("")
    modules = loaded_by("from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator") - bare
    assert modules & (SLOW | {"click"}) == set()
    assert not [name for name in modules if name.startswith(("agentos.runs._driver", "agentos.providers._"))]
    assert len(ours(modules)) <= MAX_LIBRARY_MODULES


def test_package_import_loads_only_itself() -> None:
    modules = ours(loaded_by("import agentos.workflows.parallel"))
    assert modules == {"agentos", "agentos.workflows", "agentos.workflows.parallel"}


def test_help_loads_click_and_the_command_table() -> None:
    code = "import sys\nfrom agentos.cli import main\nmain(['--help'], standalone_mode=False)"
    modules = loaded_by(code) - loaded_by("")
    assert modules & SLOW == set()
    assert len(ours(modules)) <= MAX_HELP_MODULES, sorted(ours(modules))
