"""Doors: modules without an underscore, which other packages may import. All other modules are private."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import exceptions
from .imports import Module, Violation, read_modules

DOOR_RULE = """\
Rule: a module or folder whose name begins with an underscore is imported only inside the folder that contains it.
Reason: a private module can be changed or removed after reading one package.
To repair it: import a door of that package, or move the name that is needed into a door."""
DOCSTRING_RULE = """\
Rule: a door has a docstring that says what other packages use it for.
Reason: readers of other packages see the door first, and often nothing else of the package."""
PACKAGE_FILE_RULE = """\
Rule: an `__init__.py` holds a docstring and nothing else.
Reasons: importing one door must not load the others, re-exports turn an acyclic graph of modules into a cyclic graph of
packages, and every name has one home."""
DOOR_LIST_RULE = """\
Rule: the docstring of a package names each of its doors after the word `Door` or `Doors`.
Reason: it is the first text that a reader of another package opens."""
# Exempt from PACKAGE_FILE_RULE: the version, the table of commands, and the names that users import.
PACKAGE_FILES_WITH_CODE = {"agentos", "agentos.cli", "agentos.testing", "agentos.workflows.parallel"}
# Exempt from DOOR_LIST_RULE, like private packages: the same, and the parts of the command line, which no other package
# may import.
WITHOUT_DOOR_LIST = PACKAGE_FILES_WITH_CODE | {"agentos.cli.commands", "agentos.cli.launch"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def owners(name: str) -> Iterator[str]:
    """Yield the folder that contains each private module or folder in a dotted name."""
    parts = name.split(".")
    yield from (".".join(parts[:index]) for index, part in enumerate(parts) if is_private(part))


def door_violations(modules: dict[str, Module]) -> set[Violation]:
    """Return the imports that break DOOR_RULE."""
    root = next(iter(modules)).split(".")[0]
    return {
        (module.name, imported)
        for module in modules.values()
        for imported in module.imports
        if imported.split(".")[0] == root
        if not all(f"{module.folder}.".startswith(f"{owner}.") for owner in owners(imported))
    }


def docstring_violations(modules: dict[str, Module]) -> set[Violation]:
    """Return the doors that break DOCSTRING_RULE."""
    doors = (module for module in modules.values() if not module.name.rpartition(".")[2].startswith("_"))
    return {(door.name, "no docstring") for door in doors if not ast.get_docstring(door.tree)}


def package_file_violations(modules: dict[str, Module]) -> set[Violation]:
    """Return the packages that break PACKAGE_FILE_RULE."""
    packages = (module for module in modules.values() if module.path.name == "__init__.py")
    return {
        (package.name, "more or less than a docstring")
        for package in packages
        if package.name not in PACKAGE_FILES_WITH_CODE
        if len(package.tree.body) != 1 or not ast.get_docstring(package.tree)
    }


def door_list_violations(modules: dict[str, Module]) -> set[Violation]:
    """Return the packages and doors that break DOOR_LIST_RULE."""
    violations = set()
    for package in modules.values():
        if package.path.name != "__init__.py" or package.name in WITHOUT_DOOR_LIST or any(owners(package.name)):
            continue
        doors = {path.stem for path in package.path.parent.glob("*.py") if not path.stem.startswith("_")}
        _, _, listed = (ast.get_docstring(package.tree) or "").partition("Door")
        violations |= {(package.name, door) for door in doors if f"`{door}`" not in listed}
    return violations


def test_private_modules_are_imported_by_their_package_only() -> None:
    exceptions.assert_only_listed(door_violations(read_modules()), exceptions.DOORS, DOOR_RULE)


def test_doors_have_docstrings() -> None:
    exceptions.assert_only_listed(docstring_violations(read_modules()), exceptions.DOCSTRINGS, DOCSTRING_RULE)


def test_package_docstrings_list_their_doors() -> None:
    exceptions.assert_only_listed(door_list_violations(read_modules()), set(), DOOR_LIST_RULE)


def test_package_files_hold_docstrings_only() -> None:
    exceptions.assert_only_listed(package_file_violations(read_modules()), exceptions.PACKAGE_FILES, PACKAGE_FILE_RULE)


@pytest.mark.parametrize(
    ("importer", "source", "imported"),
    [
        ("runs/start.py", "from agentos.pool._memory import Memory", "agentos.pool._memory"),
        ("runs/start.py", "from ..pool import lease, _memory", "agentos.pool._memory"),
        ("runs/start.py", "def later():\n    import agentos.pool._rules.allocator", "agentos.pool._rules.allocator"),
        ("runs/start.py", "from ..pool import _rules", "agentos.pool._rules"),
        ("pool/lease.py", "from ._rules import _queue", "agentos.pool._rules._queue"),
        ("pool_tools.py", "from .pool import _memory", "agentos.pool._memory"),
    ],
)
def test_private_import_from_outside_is_reported(
    make_tree: Callable[..., Path], importer: str, source: str, imported: str
) -> None:
    files = dict.fromkeys(["pool/_memory.py", "pool/lease.py", "pool/_rules/allocator.py", "pool/_rules/_queue.py"], "")
    modules = read_modules(make_tree({**files, importer: source}))
    assert door_violations(modules) == {("agentos." + importer[:-3].replace("/", "."), imported)}


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("pool/lease.py", "from ._rules.allocator import Allocator\nfrom . import _memory"),
        ("pool/__init__.py", "from ._memory import Memory"),
        ("pool/shared/_owner/owner.py", "from .._memory import Memory"),
        ("pool/_rules/_queue.py", "from .._memory import Memory"),
        ("runs/start.py", "from ..pool.lease import _name\nimport _thread\nfrom __future__ import annotations"),
    ],
)
def test_private_import_from_inside_is_not_reported(make_tree: Callable[..., Path], importer: str, source: str) -> None:
    files = dict.fromkeys(["pool/_memory.py", "pool/lease.py", "pool/_rules/allocator.py", "pool/_rules/_queue.py"], "")
    assert door_violations(read_modules(make_tree({**files, importer: source}))) == set()


def test_missing_docstring_is_reported_for_doors_only(make_tree: Callable[..., Path]) -> None:
    files = {
        "pool/lease.py": "x = 1",
        "pool/_memory.py": "x = 1",
        "pool/store.py": '"""Open stores."""',
        "__init__.py": '"""A."""',
    }
    assert docstring_violations(read_modules(make_tree(files))) == {("agentos.pool.lease", "no docstring")}


def test_code_in_package_file_is_reported(make_tree: Callable[..., Path]) -> None:
    source = '"""A package."""\nfrom .lease import Lease'
    files = {"pool/__init__.py": source, "cli/__init__.py": source, "runs/__init__.py": '"""A package."""'}
    assert package_file_violations(read_modules(make_tree(files))) == {
        ("agentos.pool", "more or less than a docstring")
    }


def test_door_missing_in_package_docstring_is_reported(make_tree: Callable[..., Path]) -> None:
    files = {
        "pool/__init__.py": '"""Credentials. Doors: `lease`."""',
        "pool/lease.py": "",
        "pool/store.py": "",
        "pool/_memory.py": "",
        "pool/_rules/allocator.py": "",
    }
    assert door_list_violations(read_modules(make_tree(files))) == {("agentos.pool", "store")}
