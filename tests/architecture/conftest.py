"""A fixture that writes small source trees, so that tests can show that each rule reports a violation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Return a function that writes the given files below a package `agentos`, each folder with a docstring file."""

    def make(files: dict[str, str]) -> Path:
        root = tmp_path / "agentos"
        for name, source in {"__init__.py": "", **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in [path.parent, *path.parent.parents]:
                if folder.is_relative_to(root) and not (folder / "__init__.py").exists():
                    (folder / "__init__.py").write_text('"""A package."""\n')
            path.write_text(source)
        return root

    return make
