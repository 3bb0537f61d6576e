"""Durations and numbers as texts."""

from __future__ import annotations

import math

import pytest

from agentos.durations import format_duration, parse_duration, parse_number, sum_amounts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5h", 18_000.0),
        ("7m12s", 432.0),
        (" 250 ms ", 0.25),
        ("1 day, 3 hours and 5 minutes", 97_500.0),
        ("an hour", 3600.0),
        ("2 WEEKS", 1_209_600.0),
        ("12", None),  # no unit
        ("5h ago", None),
        ("5 horses", None),
        ("", None),
        ("1s" * 60, None),  # longer than any real duration
    ],
)
def test_parse_duration_accepts_amounts_with_units_only(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


def test_sum_amounts_ignores_words_between_amounts() -> None:
    assert sum_amounts("try again in 2m or after 30s, please") == 150.0


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("1.5", 1.5),
        (7, 7.0),
        ("1_000", None),
        (True, None),
        ("nan", None),
        (math.inf, None),
        (10**400, None),
        ("five", None),
        (None, None),
    ],
)
def test_parse_number_accepts_finite_numbers_only(value: object, number: float | None) -> None:
    assert parse_number(value) == number


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.23, "1.2 s"),
        (300, "5.0 minutes"),
        (9000, "2.5 hours"),
        (400_000, "4.6 days"),
        (math.inf, "forever"),
        (None, ""),
    ],
)
def test_format_duration_chooses_the_largest_fitting_unit(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text
