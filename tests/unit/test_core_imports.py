"""The core has rules only: what it may import is a short list."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from agentos.workflows.parallel import _core

# No clock, no I/O, no lock, no random, no logging, and nothing of ours outside the core.
ALLOWED = {"__future__", "collections", "collections.abc", "dataclasses", "enum", "heapq", "itertools"}
ALLOWED |= {"math", "operator", "typing"}
MODULES = sorted(Path(_core.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_the_core_imports_nothing_but_rules(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 or node.module in ALLOWED, ast.unparse(node)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_the_core_does_not_open_print_or_read_the_environment(path: Path) -> None:
    names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    assert not names & {"open", "print", "input", "__import__", "exec", "eval"}
