"""The contract with users: public names, module paths, and the names that are only strings in the source."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest

from agentos import cli
from agentos.workflows import parallel

PUBLIC_NAMES = {
    *("ParallelCoordinator", "ProgressStats", "WorkflowResult", "Command", "Pattern", "CurrentItem", "current_item"),
    *("Budget", "BudgetExceeded", "Price"),
    *("Ledger", "CredentialCoordinator", "Credential", "CredentialState", "Lease", "Limits", "Window", "Verdict"),
    *("AuthFailed", "Interrupted", "Overloaded", "Permanent", "QuotaExhausted", "RateLimited", "Transient"),
    *(
        "AgentosError",
        "AmbiguousRelease",
        "AttemptTimeout",
        "CommandFailed",
        "CredentialError",
        "GatewayError",
        "StoreError",
    ),
    *("InvalidItemId", "LeaseTimeout", "LedgerError", "NoUsableCredential", "RequestTooLarge", "RunBusy"),
    *("UnknownCredential", "UnrecordableValue", "WorkerDied", "WorkerStartError"),
    *("JsonReporter", "OutputPrefixer", "PlainReporter", "Reporter", "sanitize_identifier"),
    *("RecordedItem", "RunPlan"),
}
# Module -> names that programs import from it.
MODULES = {
    "agentos.workflows.parallel.coordinator": ("ParallelCoordinator", "ProgressStats", "WorkflowResult"),
    "agentos.workflows.parallel.credential_coordinator": ("CredentialCoordinator", "CredentialState"),
    "agentos.workflows.parallel.output_prefixer": ("OutputPrefixer", "prefix_lines"),
    "agentos.workflows.parallel.input_sanitizer": ("sanitize_identifier",),
    "agentos.testing": ("FakeClock", "SimulatedProvider"),
}


def test_public_names_are_the_contract() -> None:
    assert set(parallel.__all__) == PUBLIC_NAMES
    assert len(parallel.__all__) == len(PUBLIC_NAMES)


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_public_name_can_be_imported(name: str) -> None:
    """Each name is loaded when it is first used: a wrong path in the table would show only then."""
    assert getattr(parallel, name) is not None
    assert name in dir(parallel)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in MODULES.items() for name in names])
def test_module_of_the_contract_has_its_names(module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    if name in PUBLIC_NAMES:
        assert value is getattr(parallel, name)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_command_of_the_table_can_be_imported(name: str) -> None:
    command = cli.main.get_command(click.Context(cli.main), name)
    assert isinstance(command, click.Command)
    assert command.name == name


def test_type_checkers_see_the_lazy_names() -> None:
    """The imports under `TYPE_CHECKING` and the table of lazy names lead to the same objects."""
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


def test_package_has_no_other_public_attribute() -> None:
    for name in PUBLIC_NAMES:
        getattr(parallel, name)
    attributes = {
        name
        for name, value in vars(parallel).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert attributes == PUBLIC_NAMES
    assert not hasattr(parallel, "ParalelCoordinator")


def test_submodules_are_attributes_without_an_import() -> None:
    code = """
import agentos.workflows.parallel as p
p.verdicts.from_output, p.errors.RunBusy, p.Ledger
from agentos.workflows.parallel import verdicts
assert verdicts is p.verdicts
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_results_and_states_keep_their_attributes() -> None:
    coordinator = importlib.import_module("agentos.workflows.parallel.coordinator")
    assert coordinator.WorkflowResult("id", True).metadata == {}
    assert coordinator.ProgressStats(total=4, completed=1).completion_rate == 25.0
    assert coordinator.ProgressStats(total=0).completion_rate == 0.0
    assert coordinator.ProgressStats(total=4).elapsed >= 0
    credentials = importlib.import_module("agentos.workflows.parallel.credential_coordinator")
    assert credentials.CredentialState(key_id="x").is_available
    assert parallel.CredentialCoordinator.RATE_LIMIT_BACKOFF_SECONDS == 60


def test_old_method_names_reserve_and_release() -> None:
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
