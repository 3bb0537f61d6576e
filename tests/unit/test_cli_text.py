"""How things are written on a terminal."""

from __future__ import annotations

import pytest

from agentos.cli._text import duration, one_line, table


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (12.4, "12 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (18_630, "5 h 10 min"),
        (86_400 * 2 + 3 * 3600, "2 d 3 h"),
    ],
)
def test_a_duration_has_the_units_that_matter(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_a_table_is_aligned_and_has_no_trailing_spaces() -> None:
    assert table(("A", "LONG"), [("one", "x"), ("b", "")]) == "A    LONG\none  x\nb"
    assert table(("A", "B"), []) == "A  B"


def test_text_of_others_stays_on_its_line() -> None:
    assert one_line("a\nb\x1b[2J\u202e", 20) == "a b [2J"
    assert one_line("0123456789", 5) == "0123…"
