"""The soak tests can be imported. `make test` does not collect them, so a renamed helper would be noticed late."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import tests.soak

MODULES = sorted(path.stem for path in Path(next(iter(tests.soak.__path__))).glob("test_*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_soak_module_is_importable(name: str) -> None:
    importlib.import_module(f"tests.soak.{name}")
