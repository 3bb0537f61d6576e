"""docs/display.svg shows the words of the present display."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from agentos.terminal.display import STATES

from .display_picture import take_picture, words_of

PICTURE = Path(__file__).parents[2] / "docs" / "display.svg"


def test_committed_picture_has_the_words_of_the_display() -> None:
    picture = take_picture()
    assert words_of(PICTURE.read_text()) == words_of(picture), "run `make docs`"
    assert {"running", "credentials", "in", "use", "failed"} <= words_of(picture)


def test_page_of_the_display_explains_every_state() -> None:
    page = (PICTURE.parent / "display.md").read_text()
    assert not [state for state in STATES if f"| `{state}" not in page]


def test_committed_picture_is_valid_svg_without_keys() -> None:
    root = ElementTree.fromstring(PICTURE.read_text())
    assert root.tag.endswith("svg")
    assert "sk-" not in PICTURE.read_text()
