"""`assert_only_listed` keeps the lists of exceptions exact, so that they can only shrink."""

from __future__ import annotations

import pytest

from .exceptions import assert_only_listed


def test_listed_violation_passes() -> None:
    assert_only_listed({("importer", "imported")}, {("importer", "imported")}, "A rule.")


def test_unlisted_violation_fails_with_the_rule() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not allowed.*importer.*A rule\."):
        assert_only_listed({("importer", "imported")}, set(), "A rule.")


def test_listed_exception_without_violation_fails() -> None:
    with pytest.raises(AssertionError, match="remove from exceptions"):
        assert_only_listed(set(), {("importer", "imported")}, "A rule.")
