"""`docs/events.md` lists every event as the program prints it."""

from __future__ import annotations

import re
from pathlib import Path

from agentos import events

from .events_reference import page

ROOT = Path(__file__).parents[2]


def test_events_page_is_generated_from_the_code() -> None:
    assert (ROOT / "docs" / "events.md").read_text() == page(), "run `make docs`"


def test_every_event_field_has_a_meaning() -> None:
    events_part, _, _ = page().partition("## The object")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", events_part, re.MULTILINE)
    assert not [name for name, kind, meaning in rows if not meaning and "#the-object-" not in kind]


def test_command_line_page_links_to_events_page() -> None:
    assert "(events.md)" in (ROOT / "docs" / "cli.md").read_text()
    assert events.JSON_VERSION == 1  # a new version needs an entry in the changelog
