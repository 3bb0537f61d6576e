"""Floors: a package imports packages on lower floors only, and itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import exceptions
from .imports import Module, Violation, read_modules

# Lowest first. A package (or module) directly below `agentos` imports neither upwards nor from its own floor. Reasons:
# packages can then not form an import cycle, and each can be read, tested and replaced with nothing but what is below.
FLOORS = (
    {"verdict", "clock", "durations", "identifiers"},  # vocabulary that needs nothing
    {"errors", "events"},  # vocabulary: an error of a worker carries a verdict
    {"limits", "redaction", "testing"},  # calculations, and fakes for the tests of users
    {"items", "providers", "costs"},  # data that everything above passes on
    {"reporters", "output"},  # data as text
    {"pool"},  # credentials and leases
    {"ledger", "workers", "plans", "gateway", "workspaces"},  # users of leases that know nothing of a run
    {"runs", "home", "agents"},  # one run, and its files
    {"keys", "terminal", "control"},  # tools around runs: must work without the command line
    {"workflows", "ui"},  # the contract with users
    {"cli"},  # imports anything; nothing imports it
)
FLOOR_OF = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}


def package_of(name: str) -> str:
    """Return the first name below the root; empty for the root, which holds the version and imports nothing."""
    return ".".join(name.split(".")[1:2])


def floor_violations(modules: dict[str, Module]) -> set[Violation]:
    """Return imports of packages that are not on a lower floor. A package without a floor breaks the rule both ways."""
    found = set()
    for module in modules.values():
        importer = package_of(module.name)
        for imported in module.imports:
            package = package_of(imported)
            if not package or package == importer or imported.split(".")[0] != module.name.split(".")[0]:
                continue
            if FLOOR_OF.get(package, len(FLOORS)) >= FLOOR_OF.get(importer, -1):
                found.add((module.name, imported))
    return found


def test_packages_import_lower_floors_only() -> None:
    exceptions.assert_only_listed(floor_violations(read_modules()), exceptions.FLOORS)


def test_every_package_has_a_floor() -> None:
    """Without this, a new package that imports nothing yet would have no place in the plan."""
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
