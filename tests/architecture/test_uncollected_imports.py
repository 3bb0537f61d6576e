"""The tests that `make test` does not collect can be imported: a renamed helper would be noticed late."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import tests.clients
import tests.soak

MODULES = sorted(
    f"{package.__name__}.{path.stem}"
    for package in (tests.clients, tests.soak)
    for path in Path(next(iter(package.__path__))).glob("test_*.py")
)


@pytest.mark.parametrize("name", MODULES)
def test_module_outside_the_suite_is_importable(name: str) -> None:
    importlib.import_module(name)
