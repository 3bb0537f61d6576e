"""Replaces texts that differ between two runs of the same program, such as times and process ids.

Most masks have the width of the text that they replace, so that the columns of a table stay aligned.
"""

from __future__ import annotations

import re

# JSON fields that hold a time, a duration, or a count that depends on when the run's thread looked.
_VARYING_FIELDS = (
    "created_at|started_at|ended_at|start_time|end_time|duration|waited|fastest|not_before|pid|waiting|running"
)

_MASKS = [
    # Run ids that the program chose, and the instant of a start: 2026-11-16 09:30:12.
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{6}\b"), "<RUN-ID>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "YYYY-MM-DD hh:mm:ss"),
    (re.compile(rf'("(?:{_VARYING_FIELDS})": )-?\d[\d.e+-]*'), r"\1<n>"),
    # Epoch seconds, and durations with the full precision of a clock.
    (re.compile(r"\b1[6-9]\d{8}(\.\d+)?\b"), "<epoch>"),
    (re.compile(r"\b\d+\.\d{5,}\b|\b\d+(\.\d+)?e-\d\d\b"), "<seconds>"),
    # Durations for people.
    (re.compile(r"Duration: \d+\.\d\ds"), "Duration: #.##s"),
    (re.compile(r"\b\d\.\d s\b"), "#.# s"),
    (re.compile(r"\b\d:\d\d\b(?!:)"), "#:##"),
    (re.compile(r"\babout \d+ s to go\b"), "about # s to go"),
    (re.compile(r"\busable in \d+(\.\d)? s\b"), "usable in ### s"),
    (re.compile(r"\brate-limited for \d+ s\b"), "rate-limited for ## s"),
    (re.compile(r"\b(at|by) \d\d:\d\d(?::\d\d)?(?: tomorrow| on [A-Z][a-z]{2} \d\d(?: \d{4})?)?"), r"\1 hh:mm"),
    # What binds a run depends on how its time was spent.
    # A run of more than a second has the line, so on a busy machine any run may.
    (re.compile(r"((?:Duration:|hh:mm:ss) .*)\n(?:(?:out|err|end):)? +Bound by: .*"), r"\1"),
    (re.compile(r'("bound_by": )(?:"[^"]+"|null)'), r'\1"<...>"'),
    (re.compile(r'("slowest": )\[[^]]*\]'), r"\1[<...>]"),
    (re.compile(r"\b\d+\.\d [KM]iB\b"), "<size>"),
    (re.compile(r'("traceback": )"(?:[^"\\]|\\.)*"'), r'\1"<...>"'),
    # Where a class of this package is defined.
    (re.compile(r"\bagentos\.workflows\.parallel\.[\w.]+\.([A-Z])"), r"agentos.<module>.\1"),
    # The frames of a traceback that are in this package, with their lines of source.
    (re.compile(r'(?:( *)File "<source>/[^"]+", line \d+, in \S+\n(?:\1  .*\n)*)+'), r'\1File "<source>"\n'),
    # Processes and machines.
    (re.compile(r"\bpid([ =])\d+"), r"pid\1<pid>"),
    (re.compile(r"""("host": |host=)["'][^"']+["']"""), r"\1<host>"),
    (re.compile(r"[^ ]+, pid <pid>"), "<host>, pid <pid>"),
    # Without any network, not even the machine itself can be reached.
    (re.compile(r"no answer: (?:Connection refused|Network is unreachable)"), "no answer: <not reachable>"),
    # Versions of this program, of Python and of SQLite.
    (re.compile(r"\b\d+\.\d+\.\d+\w*\b"), "<version>"),
]
# Lines of items and messages of a run, one after the other.
_LINES = re.compile(r"(?:^\[.*\n)+", re.MULTILINE)
# The slowest items of a run, each with its duration.
_SLOWEST = re.compile(r"(?:^  #\.# s  .*\n)+", re.MULTILINE)


def normalised(text: str, folder: str, source: str) -> str:
    """Return `text` without times, process ids, random ids, versions, and the paths of the case and of the source."""
    text = text.replace(folder, "<tmp>").replace(source, "<source>")
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    text = _SLOWEST.sub(lambda match: "".join(sorted(match[0].splitlines(keepends=True))), text)
    return _events_in_order(_LINES.sub(lambda match: _messages_last(match[0]), text))


def _messages_last(lines: str) -> str:
    """Move messages of the run behind the lines that items printed: two threads write them, in an order not fixed."""
    return "".join(sorted(lines.splitlines(keepends=True), key=lambda line: line.startswith("[COORDINATOR]")))


def _events_in_order(text: str) -> str:
    """Move the `Output` events of `--json` behind the other events.

    One thread prints what items print and another one prints the events of the run: their relative order is not fixed.
    """
    if not text.startswith('{"event": '):
        return text
    return "".join(sorted(text.splitlines(keepends=True), key=lambda line: line.startswith('{"event": "Output"')))
