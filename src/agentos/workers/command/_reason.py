"""Finds, in the output of a command that failed, the line that says why: often not the last one."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Bytes at the end of an output that are searched, and characters of a reason.
MAX_SEARCHED = 8 * 1024
MAX_REASON = 300
# The last line of a traceback: the name of an exception, alone or before a colon.
_EXCEPTION = re.compile(
    r"(?:Uncaught )?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::.*)?$"
)
# A message with its level in front, after a place or a time: `x.c:3:5: error: …`, `error[E0432]: …`, `[ERROR] …`.
_LEVEL = re.compile(
    r"(?:^|.*?[\s:\[(])(?:(?:fatal |internal )?error|fatal|panic|critical|exception)(?:\[\w+\])?[\]):!]+ ?\S",
    re.IGNORECASE,
)


def reason_of(*outputs: bytes) -> str:
    """Return why a command failed, by what it has printed; the outputs in order of preference. The last exception wins;
    else the first line that states an error; else the last line."""
    texts = [_lines(output) for output in outputs]
    for find in (_last_exception, _first_error):
        for lines in texts:
            if (line := find(lines)) is not None:
                return line[:MAX_REASON]
    return next((lines[-1][:MAX_REASON] for lines in texts if lines), "")


def _lines(output: bytes) -> list[str]:
    text = output[-MAX_SEARCHED:].decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _last_exception(lines: list[str]) -> str | None:
    return _first(reversed(lines), _EXCEPTION)


def _first_error(lines: list[str]) -> str | None:
    return _first(lines, _LEVEL)


def _first(lines: Iterable[str], pattern: re.Pattern[str]) -> str | None:
    return next((line for line in lines if pattern.match(line[:MAX_REASON])), None)
