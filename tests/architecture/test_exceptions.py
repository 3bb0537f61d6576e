"""The lists of exceptions can only shrink."""

from __future__ import annotations

import pytest

from .exceptions import assert_only_listed


def test_listed_violation_passes() -> None:
    assert_only_listed({("importer", "imported")}, {("importer", "imported")})


def test_violation_that_is_not_listed_fails() -> None:
    with pytest.raises(AssertionError, match="not allowed"):
        assert_only_listed({("importer", "imported")}, set())


def test_listed_exception_without_violation_fails() -> None:
    with pytest.raises(AssertionError, match="remove from exceptions"):
        assert_only_listed(set(), {("importer", "imported")})
