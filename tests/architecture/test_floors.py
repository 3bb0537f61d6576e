"""Floors: a package imports packages on lower floors only, and itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import exceptions
from .imports import Module, Violation, read_modules

FLOOR_RULE = """\
Rule: a package or module directly below `agentos` imports lower floors only: neither its own floor nor a higher one.
Reasons: packages cannot form an import cycle, and each can be read, tested and replaced with the floors below it alone.
To repair it: move the name that is needed to a lower floor, or pass it in as an argument."""
# Lowest floor first.
FLOORS = (
    {
        "verdict",
        "clock",
        "durations",
        "identifiers",
        "money",
        "plurals",
        "wakeup",
        "foreign_exceptions",
        "child_status",
    },  # vocabulary without imports
    {"errors", "events"},  # vocabulary that carries a verdict
    {"limits", "redaction", "testing"},  # calculations; fakes for tests of users
    {"bounds", "items", "providers", "costs"},  # data that all higher floors pass on; what binds a run
    {"reporters", "output"},  # data as text
    {"pool"},  # credentials and leases
    {"ledger", "workers", "plans", "gateway"},  # users of leases that do not know runs
    {"runs", "home"},  # one run, and its files
    {"keys", "terminal"},  # tools around runs: must work without the command line
    {"workflows"},  # the contract with users
    {"cli"},  # imports anything; nothing imports it
)
FLOOR_OF = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}


def package_of(name: str) -> str:
    """Return the first name below the root; empty for the root, which holds the version and imports nothing."""
    return ".".join(name.split(".")[1:2])


def floor_violations(modules: dict[str, Module]) -> set[Violation]:
    """Return the imports that break FLOOR_RULE. A package without a floor may import nothing and not be imported."""
    violations = set()
    for module in modules.values():
        importer = package_of(module.name)
        for imported in module.imports:
            package = package_of(imported)
            if not package or package == importer or imported.split(".")[0] != module.name.split(".")[0]:
                continue
            if FLOOR_OF.get(package, len(FLOORS)) >= FLOOR_OF.get(importer, -1):
                violations.add((module.name, imported))
    return violations


def test_packages_import_lower_floors_only() -> None:
    exceptions.assert_only_listed(floor_violations(read_modules()), exceptions.FLOORS, FLOOR_RULE)


def test_every_package_has_a_floor() -> None:
    """A new package without imports breaks no other rule, so it would be missing in FLOORS."""
    assert {package_of(name) for name in read_modules()} - {""} <= set(FLOOR_OF)


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("from agentos.runs.start import start_run", "agentos.runs.start"),
        ("from ..runs import start", "agentos.runs.start"),
        ("import agentos.runs.start as start", "agentos.runs.start"),
        ("def later():\n    from agentos.runs import start", "agentos.runs.start"),
        ("if TYPE_CHECKING:\n    from ..runs.start import start_run", "agentos.runs.start"),
        ("importlib.import_module('agentos.runs.start')", "agentos.runs.start"),
        ("from .. import limits, ledger", "agentos.ledger"),  # its own floor
        ("from agentos.nowhere import name", "agentos.nowhere"),
    ],
)
def test_import_upwards_is_reported(make_tree: Callable[..., Path], source: str, imported: str) -> None:
    files = {"workers/base.py": source, "runs/start.py": "", "ledger/reader.py": "", "limits/pace.py": ""}
    assert floor_violations(read_modules(make_tree(files))) == {("agentos.workers.base", imported)}


def test_imports_downwards_and_inside_are_not_reported(make_tree: Callable[..., Path]) -> None:
    source = (
        "import os, agentos.errors\nfrom agentos import __version__\nfrom ..limits import pace\nfrom . import threads"
    )
    files = {"workers/base.py": source, "workers/threads.py": "", "limits/pace.py": "", "errors.py": ""}
    assert floor_violations(read_modules(make_tree(files))) == set()
