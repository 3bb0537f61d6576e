"""Pure code: calculations and rules without side effects, whose results depend on their arguments only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import exceptions
from .imports import SOURCE, Module, Violation, read_modules

PURE_CODE_RULE = """\
Rule: a module that matches PURE imports pure modules and a short list of the standard library, and reads no clock,
random numbers, environment or files. Time is an argument, `now`.
Reason: code without clocks, locks and input can be simulated in virtual time, replayed from a log and tested with
generated histories."""
# Globs below the source tree, recursive, so that sub-packages are included. The last line is vocabulary that pure code
# may import and that is therefore pure itself.
PURE = (
    *("limits/**/*.py", "**/_rules/**/*.py", "pool/simulation.py", "pool/states.py", "pool/lease_states.py"),
    *("bounds.py", "costs/budget.py"),
    *("verdict.py", "events.py", "errors.py", "durations.py", "plurals.py", "money.py", "items/item.py"),
    "items/parallelism.py",
)
IMPURE = {"limits/reset_times.py"}  # reads the time zone database

# Modules of the standard library without state and without access to anything outside the process.
ALLOWED = {"__future__", "collections", "collections.abc", "dataclasses", "enum", "functools", "heapq", "itertools"}
ALLOWED |= {"fnmatch", "math", "operator", "re", "typing"}
# Input and output, and functions that would bypass the check of imports.
FORBIDDEN_NAMES = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}
# Clocks, random numbers and the environment, also where they come in as an argument: `now` is passed as a number.
FORBIDDEN_ATTRIBUTES = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "perf_counter", "localtime", "sleep"}
FORBIDDEN_ATTRIBUTES |= {"random", "randint", "uniform", "choice", "shuffle", "urandom", "getenv", "environ"}


def pure_modules(modules: dict[str, Module], root: Path) -> list[Module]:
    paths = {path for pattern in PURE for path in root.glob(pattern)} - {root / path for path in IMPURE}
    return [module for module in modules.values() if module.path in paths]


def impure_uses(tree: ast.Module) -> Iterator[str]:
    """Yield forbidden names, and calls of forbidden attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr == "environ":
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", None) in FORBIDDEN_ATTRIBUTES:
            yield ast.unparse(node.func)


def purity_violations(modules: dict[str, Module], root: Path) -> set[Violation]:
    """Return the imports and calls that break PURE_CODE_RULE."""
    pure = pure_modules(modules, root)
    allowed = ALLOWED | {module.name for module in pure}
    violations = {(module.name, name) for module in pure for name in module.imports - allowed}
    return violations | {(module.name, use) for module in pure for use in impure_uses(module.tree)}


def test_pure_code_has_no_side_effects() -> None:
    modules = read_modules()
    assert pure_modules(modules, SOURCE), "no module matches PURE: the rule would check nothing"
    exceptions.assert_only_listed(purity_violations(modules, SOURCE), exceptions.PURE_CODE, PURE_CODE_RULE)


@pytest.mark.parametrize("path", ["limits/pace.py", "pool/_rules/deep/queue.py", "pool/simulation.py"])
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time", "time"),
        ("def later():\n    from random import random", "random"),
        ("from agentos.clock import Clock", "agentos.clock"),
        ("if TYPE_CHECKING:\n    from agentos.pool import lease", "agentos.pool.lease"),
        ("def read(clock):\n    return clock.now()", "clock.now"),
        ("def read(system):\n    return system.environ['HOME']", "system.environ"),
        ("print('hello')", "print"),
    ],
)
def test_side_effect_is_reported(make_tree: Callable[..., Path], path: str, source: str, name: str) -> None:
    root = make_tree({"clock.py": "", "pool/lease.py": "import time", path: source})
    expected = {("agentos." + path[:-3].replace("/", "."), name)}
    assert purity_violations(read_modules(root), root) == expected


def test_pure_imports_are_not_reported(make_tree: Callable[..., Path]) -> None:
    source = "import math\nfrom agentos import verdict\nfrom ...limits.pace import Pace\nfrom . import records"
    files = {"pool/_rules/allocator.py": source, "pool/_rules/records.py": "", "limits/pace.py": "", "verdict.py": ""}
    root = make_tree({**files, "limits/reset_times.py": "import zoneinfo"})
    assert purity_violations(read_modules(root), root) == set()
