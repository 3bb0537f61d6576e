"""Read the modules of a source tree and the names of the modules that each of them imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

import agentos

SOURCE = Path(agentos.__file__).parent

# (importing module, imported module); for a rule about one module: (module, description of the fault).
Violation = tuple[str, str]


class Module(NamedTuple):
    """One Python file of the tree."""

    name: str  # dotted, for example "agentos.pool.lease"; a package's `__init__.py` has the name of the package
    path: Path
    tree: ast.Module
    imports: frozenset[str]  # dotted names of modules, of this tree and of others

    @property
    def folder(self) -> str:
        """Return the dotted name of the folder that contains the file."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@cache
def read_modules(root: Path = SOURCE) -> dict[str, Module]:
    """Parse every Python file below `root`, whose own name is the first part of all module names."""
    files = {_dotted(root, path): path for path in sorted(root.rglob("*.py"))}
    names = set(files) | {name.rpartition(".")[0] for name in files}
    modules = {}
    for name, path in files.items():
        module = Module(name, path, ast.parse(path.read_text(encoding="utf-8")), frozenset())
        imported = {target for node in ast.walk(module.tree) for target in _imported(node, module.folder, names)}
        modules[name] = module._replace(imports=frozenset(imported))
    return modules


def _dotted(root: Path, path: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node: ast.AST, folder: str, names: Set[str]) -> Iterator[str]:
    """Yield the modules that one statement imports. Statements inside functions and under `TYPE_CHECKING` count, too: a
    name that only a type checker needs is still a dependency for the reader."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        levels = folder.split(".")
        parents = levels[: len(levels) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:  # `from package import name`: a module of that package, or a name in its `__init__.py`
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in names else base
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))
