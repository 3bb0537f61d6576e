"""Bounds the time to read an output: any program may print long rows of anything."""

from __future__ import annotations

import json
import time

import pytest

from agentos.providers.verdicts import from_output

from .test_client_outputs import DATA

# Seconds of CPU time to read one output.
MAX_SECONDS = 1.0
SIZE = 1_000_000
# A row that a rule tried at each of its lengths took up to ten seconds.
ROWS = ("1", "1 ", "1:", "1.", "a", "a ", "a: ", "[x] ", "- ", "error: ", "your ", "{", "[{", "(", '"')
HEADS = ("", "Error: ", "Error: Error code: 429 - ", "[API Error: ", '{"error": ')


def seconds_to_read(text: str, exit_status: int) -> float:
    """Return the CPU time that the reader needs for a text."""
    start = time.process_time()
    from_output(text, exit_status, provider="openai", now=1794772800.0)
    return time.process_time() - start


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("row", ROWS)
def test_long_lines_of_one_word_are_read_in_a_second(row: str, head: str) -> None:
    for width in (640, 4000):
        line = head + (row * width)[:width] + "\n"
        assert seconds_to_read(line * (SIZE // len(line)), 1) < MAX_SECONDS


def test_megabyte_of_each_clients_output_is_read_in_a_second() -> None:
    lines = (DATA / "captured_outputs.jsonl").read_text().split("\n")
    texts = {row["cli"]: row["stdout"] + row["stderr"] for row in map(json.loads, filter(None, lines))}
    for client, text in texts.items():
        for exit_status in (0, 1):
            repeated = (text + "\n") * (SIZE // (len(text) + 1))
            assert seconds_to_read(repeated, exit_status) < MAX_SECONDS, client
