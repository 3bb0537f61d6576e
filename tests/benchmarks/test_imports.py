"""Benchmarks and examples import the public contract; a benchmark of an inner part also imports that part.

The peers are installed in another environment, so not every benchmark can be imported here: the imports are read from
the syntax trees.
"""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
CONTRACT = {"agentos.workflows.parallel", "agentos.testing"}
# Files that measure an inner part, and the packages that they import for it.
INNER_PARTS = {
    "benchmarks/ledger.py": {"clock", "items", "ledger", "runs"},  # writes rows of the ledger without a run
    "benchmarks/commands.py": {"output"},  # the peer prefixes lines, and does nothing else
    "benchmarks/proxies/bare.py": {"pool"},  # the peer of the gateway takes and gives back one lease
    "benchmarks/store_workers.py": {"pool"},  # asks for the process of a pool's owner, whose CPU time is measured
}


def imports(path: Path) -> list[tuple[str, str]]:
    """Return the modules of `agentos` that a file imports, each with the imported name."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, alias.name)
        for node in nodes
        if node.module and node.module.split(".")[0] == "agentos"
        for alias in node.names
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_imports_contract_or_measured_part_only(path):
    allowed = INNER_PARTS.get(path.relative_to(ROOT).as_posix(), set())
    for module, name in imports(path):
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")
        assert module in CONTRACT or module.split(".")[1] in allowed, f"{module} is not part of the contract"
