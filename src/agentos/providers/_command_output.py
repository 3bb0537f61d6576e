"""What the output of a command says: of coding agents first of all, in text, JSON and lines of JSON.

Only what is printed as an error counts. An agent's own words may well be about rate limits: they stand in events that
are passed over, and a command that succeeded is believed, whatever it printed, unless it printed nothing else. Of plain
text, only lines that look like an API's error are read (`lines`).
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from agentos.verdict import AUTH_FAILED, NO_VERDICT, RATE_LIMITED, RETRY_ON_OTHER_KEY, Verdict

from . import _bodies as bodies
from . import _error_lines as lines
from . import _evidence as rules
from . import _phrases as texts
from ._dates import wait_of

# Failures are told at the end.
_MOST_TEXT = 256 * 1024
_MOST_LINES = 400
# A sentence about a limit and the time of its end may stand on different lines.
_LINES_TOGETHER = 3
_MOST_PRINTED = 20_000

EX_TEMPFAIL = 75  # sysexits.h: try again later; what a command of ours uses to report a limit
_GEMINI_LIMIT = 429 & 0xFF  # its exit status is an HTTP status, of which the system keeps the last byte
_GEMINI_AUTH = 41

_DONE = frozenset({"turn.completed", "task_complete"})
# An agent's words and doings.
_TALK = frozenset({"assistant", "user", "system", "message", "init", "tool_use", "tool_result", "thread.started"})
_ALONE = r"\W*(?:you.ve|you.re|claude|sorry, you|api error|your)\b"
_decoder = json.JSONDecoder()


def read(text: Any, exit_status: int | None, provider: str, now: float) -> Verdict:
    if isinstance(text, bytes | bytearray):
        text = bytes(text[-_MOST_TEXT:]).decode("utf-8", "replace")
    if isinstance(text, dict | list):
        verdict = _Reader(provider, now).read_event(text)
    elif isinstance(text, str):
        verdict = _read_text(text, exit_status, provider, now)
    else:
        verdict = NO_VERDICT
    return _with_exit_status(verdict, exit_status, provider, text if isinstance(text, str) else "")


def _with_exit_status(verdict: Verdict, exit_status: int | None, provider: str, text: str) -> Verdict:
    if verdict.kind in RETRY_ON_OTHER_KEY:
        return verdict
    if exit_status in (EX_TEMPFAIL, _GEMINI_LIMIT):
        wait = verdict.retry_after if verdict.kind is not None else texts.wait(text[-2000:])
        return verdict._replace(kind=RATE_LIMITED, retry_after=wait, message=verdict.message or f"exit {exit_status}")
    if exit_status == _GEMINI_AUTH and ("gemini" in provider or re.search(r"gemini|\bauth", text[-5000:], re.I)):
        return verdict._replace(kind=AUTH_FAILED, message=verdict.message or f"exit {exit_status}")
    return verdict


def _read_text(text: str, exit_status: int | None, provider: str, now: float) -> Verdict:
    reader = _Reader(provider, now)
    tail = text[-_MOST_TEXT:]
    is_alone = len(tail) < 500 and re.match(_ALONE, tail, re.IGNORECASE) is not None
    reader.read(tail, reads_text=exit_status != 0 or is_alone)
    if exit_status == 0 and reader.verdict.kind not in RETRY_ON_OTHER_KEY:
        return NO_VERDICT
    return reader.verdict


class _Reader:
    """Goes through an output from its beginning; what is told last and most clearly remains."""

    def __init__(self, provider: str, now: float, *, is_error: bool = False) -> None:
        self._provider = provider
        self._is_error = is_error  # an event has told that what is read is an error
        self._now = now
        self._is_structured = False
        self.verdict = NO_VERDICT

    def read(self, text: str, *, reads_text: bool) -> None:
        position = 0
        starts = [0, *(found.end() for found in re.finditer("\n", text))]
        for start in starts[-_MOST_LINES:]:
            if start < position:
                continue  # inside an object that was read as a whole
            line = text[start : _end_of_line(text, start)]
            brace = line.find("{")
            if brace >= 0:
                prefix = line[:brace]
                try:
                    event, position = _decoder.raw_decode(text, start + brace)
                except (ValueError, RecursionError):
                    event, position = _printed_object(line[brace:]) if lines.is_of_api(prefix) else None, 0
                if isinstance(event, dict):
                    if not lines.is_about_errors(prefix):
                        self.read_event(event, prefix)
                    continue
            if reads_text and line.strip():
                together = text[start : _end_of_line(text, start, _LINES_TOGETHER)]
                self._take(self._of_text(line, together, is_error=self._is_error))

    def read_event(self, event: Any, prefix: str = "") -> Verdict:
        event = bodies.unfold(event)
        if not isinstance(event, dict):
            return self.verdict
        kind = event.get("type")
        message = event.get("msg")
        if isinstance(message, dict) and message.get("type") in ("error", "stream_error"):
            event, kind = message, "error"  # an older form of Codex
        if kind == "result":
            self._read_result(event)
        elif isinstance(kind, str) and kind in _DONE:
            self._forget()
        elif not (isinstance(kind, str) and kind in _TALK and not event.get("error")):
            is_error = bool(prefix.strip()) and texts.status(prefix) is not None
            self._take_object(event, texts.status(prefix), is_error=is_error)
        return self.verdict

    def _read_result(self, event: dict[str, Any]) -> None:
        if not (event.get("is_error") or event.get("error") or event.get("status") == "error"):
            self._forget()  # it went on, and came to an end
            return
        if event.get("error"):
            self._take_object(event, None, is_error=True)
        told = event.get("result")
        if isinstance(told, str):
            inner = _Reader(self._provider, self._now, is_error=True)
            inner.read(told, reads_text=True)
            self._take(inner.verdict)

    def _take_object(self, event: dict[str, Any], status: int | None, *, is_error: bool) -> None:
        said = bodies.read(event, self._now, is_error=is_error)
        if said is None or not (said.codes or said.texts or said.status or status):
            return
        verdict = rules.judge(status, {}, said, self._provider, self._now)
        if verdict.kind is None or verdict.kind not in RETRY_ON_OTHER_KEY:
            spoken = self._of_text(said.text, said.text, is_error=True)
            verdict = spoken if spoken.kind in RETRY_ON_OTHER_KEY or verdict.kind is None else verdict
        self._take(verdict, is_structured=True)

    def _of_text(self, line: str, together: str, *, is_error: bool) -> Verdict:
        line = line[:4000]
        meant = rules.by_text(line)
        if meant is None or not (is_error or lines.is_believed(line, meant[0])):
            return NO_VERDICT
        said = bodies.Said()
        said.texts.append(together[:4000] if meant[0] in RETRY_ON_OTHER_KEY else line)
        epoch = re.search(r"\|(\d{10,13})\b", line)  # "usage limit reached|1794776400"
        if epoch is not None:
            said.wait = wait_of(epoch[1], self._now)
        return rules.concluded(meant, None, {}, said, self._provider, self._now)._replace(message=rules.one_line(line))

    def _take(self, verdict: Verdict, *, is_structured: bool = False) -> None:
        """A later word counts more than an earlier one, an event more than a text, a wait more than none."""
        if verdict.kind is None:
            return
        known = self.verdict
        if known.kind in RETRY_ON_OTHER_KEY:
            if verdict.kind not in RETRY_ON_OTHER_KEY or (self._is_structured and not is_structured):
                return
            has_wait = known.retry_after is not None or known.cool_down is not None
            if verdict.kind == known.kind and has_wait and verdict.retry_after is None and verdict.cool_down is None:
                return
        self.verdict = verdict
        self._is_structured = is_structured

    def _forget(self) -> None:
        self.verdict = NO_VERDICT
        self._is_structured = False


def _printed_object(text: str) -> Any:
    """The object at the beginning of a text as Python prints it: so the SDKs' exceptions show a body."""
    try:
        return ast.literal_eval(text[: text.rfind("}") + 1][:_MOST_PRINTED])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _end_of_line(text: str, start: int, lines: int = 1) -> int:
    end = start
    for _ in range(lines):
        found = text.find("\n", end)
        if found < 0:
            return len(text)
        end = found + 1
    return end - 1
