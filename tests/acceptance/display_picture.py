"""Draw docs/display.svg from a real run in a pseudo-terminal: `python -m tests.acceptance.display_picture FILE`.

The run sends requests to the simulated provider and then stands still: its last items wait for the end of the program.
Ages and rates differ from run to run, so a committed picture is replaced only if the words of the display have changed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from html import escape
from itertools import groupby
from pathlib import Path

from agentos.testing import SimulatedProvider

from .program import Sandbox, TerminalSession
from .terminal import Emulator

COLUMNS, ROWS = 100, 34
OUTPUT_ROWS = 4  # lines of items above the display that the picture shows
KEYS = [f"sk-picture-{number}-0123456789" for number in range(3)]
KEYS_FILE = """
[[credential]]
id = "team-a"
secret = "env:TEAM_A_KEY"
requests_per_minute = 60
burst = 60
max_concurrent = 4
[[credential]]
id = "team-b"
secret = "env:TEAM_B_KEY"
requests_per_day = 50
burst = 60
max_concurrent = 4
[[credential]]
id = "team-c"
secret = "env:TEAM_C_KEY"
max_concurrent = 4
"""
ITEMS = 120
DONE = 47
FAILING = 31
# The first items send a request and end; the others send one and run until the program is killed.
WORKER = f"""
import os, time
import httpx


def review(item, key):
    number = int(item.removeprefix("issue-"))
    if number == {FAILING}:
        raise ValueError("the repository has no tests")
    url, headers = os.environ["ADDRESS"] + "/v1/chat/completions", {{"Authorization": "Bearer " + key}}
    httpx.post(url, json={{"model": "m", "messages": []}}, headers=headers).raise_for_status()
    if number > {DONE}:
        time.sleep(600)
    print("reviewed: nothing to change")
"""
COLOURS = {"": "#d6d9de", "1": "#ffffff", "2": "#7d8590", "31": "#ff7b72", "32": "#56d364"}
COLOURS |= {"33": "#e3b341", "36": "#6cb6ff"}
CELL, LINE, MARGIN = 8.0, 18, 16  # pixels: width of a character, height of a line, space around the text


class Cell(str):
    """A character on the screen, with the SGR parameter of its style."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: str, style: str) -> Cell:
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


class StyledEmulator(Emulator):
    """An emulator whose cells remember their styles."""

    _style = ""

    def _sequence(self, private: str, numbers: str, letter: str) -> None:
        if letter == "m":
            self._style = numbers
        super()._sequence(private, numbers, letter)

    def _print(self, text: str) -> None:
        super()._print(text)
        row = self.rows[self.row]
        for column in range(max(0, self.column - len(text)), self.column):
            row.cells[column] = Cell(row.cells[column], self._style)


def take_picture() -> str:
    """Run the program until its display stands still, and return its screen as SVG."""
    with tempfile.TemporaryDirectory() as folder, SimulatedProvider(KEYS, limits=[], latency=0.3) as provider:
        provider.script(["quota"], key=KEYS[2])
        sandbox = Sandbox(Path(folder))
        sandbox.write("keys.toml", KEYS_FILE)
        sandbox.write("workers.py", WORKER)
        sandbox.write("issues.txt", "".join(f"issue-{number:03d}\n" for number in range(1, ITEMS + 1)))
        variables = {f"TEAM_{team}_KEY": key for team, key in zip("ABC", KEYS, strict=True)}
        arguments = ("run", "--run-id", "nightly", "--items", "issues.txt", "--keys", "keys.toml", "--parallel", "6")
        with sandbox.in_terminal(
            *arguments, "workers:review", columns=COLUMNS, rows=ROWS, ADDRESS=provider.base_url, **variables
        ) as session:
            session.emulator = StyledEmulator(COLUMNS, ROWS)
            session.until(stands_still)
            return svg(screen_of(session))


def stands_still(text: str) -> bool:
    """Return whether the last six items have been running for two seconds or more."""
    last = text.rpartition("run nightly")[2]
    ages = re.findall(r"^  (\d+):(\d\d)  issue-", last, re.MULTILINE)
    has_waited = len(ages) == 6 and all((int(minutes), int(seconds)) >= (0, 2) for minutes, seconds in ages)
    return has_waited and f"{DONE}/{ITEMS} done" in last


def screen_of(session: TerminalSession) -> list[list[str]]:
    """Return the rows of the display, and a few lines above it."""
    rows = session.emulator.rows
    first = max(number for number, row in enumerate(rows) if row.text.startswith("run nightly"))
    return [row.cells for row in rows[first - OUTPUT_ROWS :] if row.cells]


def svg(rows: list[list[str]]) -> str:
    """Return rows of cells as a picture."""
    width, height = COLUMNS * CELL + 2 * MARGIN, len(rows) * LINE + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        "<title>The live display of a run in a terminal</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#14181f"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="13">',
    ]
    for number, cells in enumerate(rows):
        y = MARGIN + number * LINE + 13
        column = 0
        for style, group in groupby(cells, key=lambda cell: getattr(cell, "style", "")):
            text = "".join(group)
            if text.strip():
                lines.append(_text(text, MARGIN + column * CELL, y, style))
            column += len(text)
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _text(text: str, x: float, y: float, style: str) -> str:
    shown = text.rstrip(" ")
    x += (len(shown) - len(shown.lstrip(" "))) * CELL
    shown = shown.lstrip(" ")
    weight = ' font-weight="bold"' if style == "1" else ""
    length = f'textLength="{len(shown) * CELL:g}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"'
    return f'<text x="{x:g}" y="{y:g}" {length} fill="{COLOURS[style]}"{weight}>{escape(shown)}</text>'


def words_of(picture: str) -> set[str]:
    """Return the words in a picture, without figures and names of items."""
    texts = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))
    return set(re.findall(r"[a-z]+(?:-[a-z]+)*", re.sub(r"issue-\d+", "", texts)))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    picture = take_picture()
    if not path.exists() or words_of(path.read_text()) != words_of(picture):
        path.write_text(picture)
