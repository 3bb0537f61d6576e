"""Widths of characters and texts in the cells of a terminal."""

from __future__ import annotations

import sys

import pytest

from agentos.terminal._cells import char_width, head, left_aligned, text_width


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("item-00012", 10),
        ("━─…", 3),
        ("漢字", 4),
        ("한국", 4),
        ("\u1100\u1161\u11a8", 2),  # one syllable from three letters
        ("e\u0301", 1),
        ("漢\u0301", 2),
        ("\u0e01\u0e47", 1),  # Thai, with a mark above
        ("\u0928\u093f", 1),  # Devanagari, with a vowel sign
        ("مرحبا", 5),
        ("ﷺ", 1),
        ("☺", 1),
        ("👍", 2),
        ("👍🏽", 2),
        ("🇩🇪", 2),
        ("🇩", 1),
        ("👩漢a", 5),
    ],
)
def test_text_width(text: str, width: int) -> None:
    assert text_width(text) == width


def test_every_printable_character_takes_zero_to_two_cells() -> None:
    characters = filter(str.isprintable, map(chr, range(sys.maxunicode + 1)))
    assert {char_width(char) for char in characters} == {0, 1, 2}


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abc", 2, "ab"),
        ("abc", -1, ""),
        ("漢字", 3, "漢"),
        ("漢字", 4, "漢字"),
        ("a漢", 1, "a"),
        ("e\u0301e", 1, "e\u0301"),
    ],
)
def test_head_fits_into_width(text: str, width: int, expected: str) -> None:
    assert head(text, width) == expected


def test_left_aligned_texts_end_in_one_column() -> None:
    assert left_aligned(["a", "漢字", "🇩🇪"]) == ["a   ", "漢字", "🇩🇪  "]
