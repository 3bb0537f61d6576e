"""Reads a verdict from the output of a command, above all of coding agents: text, JSON, or lines of JSON.

Only errors count. An agent may talk about rate limits: its messages are events that are skipped. A command that exits
with 0 has succeeded, unless its only output is a notice about a limit. Of plain text, only lines that look like an
error of an API are read (`_error_lines`).
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from agentos.verdict import AUTH_FAILED, NO_VERDICT, RATE_LIMITED, RETRY_ON_OTHER_KEY, Verdict

from . import _bodies as bodies
from . import _error_lines as error_lines
from . import _evidence as evidence
from . import _phrases as phrases
from ._dates import wait_of

# Characters, and lines, at the end of the output that are read: errors come last.
_MAX_TEXT = 256 * 1024
_MAX_LINES = 400
# Lines that are read with a line about a limit: the time of its reset may follow in the next one.
_LINES_TOGETHER = 3
# Characters of a body that Python printed.
_MAX_PRINTED = 20_000

EX_TEMPFAIL = 75  # of sysexits.h: a command reports a limit with it
_GEMINI_LIMIT = 429 & 0xFF  # it exits with the HTTP status, of which the system keeps the last byte
_GEMINI_AUTH = 41

_DONE = frozenset({"turn.completed", "task_complete"})
# Messages and actions of an agent.
_TALK = frozenset({"assistant", "user", "system", "message", "init", "tool_use", "tool_result", "thread.started"})
_ALONE = r"\W*(?:you.ve|you.re|claude|sorry, you|api error|your)\b"
_decoder = json.JSONDecoder()


def read(text: Any, exit_status: int | None, provider: str, now: float) -> Verdict:
    """Return the verdict of an output, which may be text, bytes or a parsed object."""
    if isinstance(text, bytes | bytearray):
        text = bytes(text[-_MAX_TEXT:]).decode("utf-8", "replace")
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
        wait = verdict.retry_after if verdict.kind is not None else phrases.wait(text[-2000:])
        return verdict._replace(kind=RATE_LIMITED, retry_after=wait, message=verdict.message or f"exit {exit_status}")
    if exit_status == _GEMINI_AUTH and ("gemini" in provider or re.search(r"gemini|\bauth", text[-5000:], re.I)):
        return verdict._replace(kind=AUTH_FAILED, message=verdict.message or f"exit {exit_status}")
    return verdict


def _read_text(text: str, exit_status: int | None, provider: str, now: float) -> Verdict:
    reader = _Reader(provider, now)
    tail = text[-_MAX_TEXT:]
    is_alone = len(tail) < 500 and re.match(_ALONE, tail, re.IGNORECASE) is not None
    reader.read(tail, reads_text=exit_status != 0 or is_alone)
    if exit_status == 0 and reader.verdict.kind not in RETRY_ON_OTHER_KEY:
        return NO_VERDICT
    return reader.verdict


class _Reader:
    """Reads an output from its beginning; keeps the last and most specific verdict."""

    def __init__(self, provider: str, now: float, *, is_error: bool = False) -> None:
        self._provider = provider
        self._is_error = is_error  # the text is part of an event that is an error
        self._now = now
        self._is_structured = False
        self.verdict = NO_VERDICT

    def read(self, text: str, *, reads_text: bool) -> None:
        position = 0
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        for start in starts[-_MAX_LINES:]:
            if start < position:
                continue  # inside an object that spans lines
            line = text[start : _end_of_line(text, start)]
            brace = line.find("{")
            if brace >= 0:
                prefix = line[:brace]
                try:
                    event, position = _decoder.raw_decode(text, start + brace)
                except (ValueError, RecursionError):
                    event, position = _printed_object(line[brace:]) if error_lines.is_of_api(prefix) else None, 0
                if isinstance(event, dict):
                    if not error_lines.is_about_errors(prefix):
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
            is_error = bool(prefix.strip()) and phrases.status(prefix) is not None
            self._take_object(event, phrases.status(prefix), is_error=is_error)
        return self.verdict

    def _read_result(self, event: dict[str, Any]) -> None:
        if not (event.get("is_error") or event.get("error") or event.get("status") == "error"):
            self._forget()  # an earlier error was retried with success
            return
        if event.get("error"):
            self._take_object(event, None, is_error=True)
        message = event.get("result")
        if isinstance(message, str):
            inner = _Reader(self._provider, self._now, is_error=True)
            inner.read(message, reads_text=True)
            self._take(inner.verdict)

    def _take_object(self, event: dict[str, Any], status: int | None, *, is_error: bool) -> None:
        facts = bodies.read(event, self._now, is_error=is_error)
        if facts is None or not (facts.codes or facts.texts or facts.status or status):
            return
        verdict = evidence.judge(status, {}, facts, self._provider, self._now)
        if verdict.kind is None or verdict.kind not in RETRY_ON_OTHER_KEY:
            by_text = self._of_text(facts.text, facts.text, is_error=True)
            verdict = by_text if by_text.kind in RETRY_ON_OTHER_KEY or verdict.kind is None else verdict
        self._take(verdict, is_structured=True)

    def _of_text(self, line: str, together: str, *, is_error: bool) -> Verdict:
        line = line[:4000]
        meaning = evidence.by_text(line)
        if meaning is None or not (is_error or error_lines.is_believed(line, meaning[0])):
            return NO_VERDICT
        facts = bodies.BodyFacts()
        facts.texts.append(together[:4000] if meaning[0] in RETRY_ON_OTHER_KEY else line)
        epoch = re.search(r"\|(\d{10,13})\b", line)  # "usage limit reached|1794776400"
        if epoch is not None:
            facts.wait = wait_of(epoch[1], self._now)
        verdict = evidence.verdict_of(meaning, None, {}, facts, self._provider, self._now)
        return verdict._replace(message=evidence.one_line(line))

    def _take(self, verdict: Verdict, *, is_structured: bool = False) -> None:
        """Keep a verdict: a later one replaces an earlier one, except text an event, and no wait a wait."""
        if verdict.kind is None:
            return
        current = self.verdict
        if current.kind in RETRY_ON_OTHER_KEY:
            if verdict.kind not in RETRY_ON_OTHER_KEY or (self._is_structured and not is_structured):
                return
            has_wait = current.retry_after is not None or current.cool_down is not None
            if verdict.kind == current.kind and has_wait and verdict.retry_after is None and verdict.cool_down is None:
                return
        self.verdict = verdict
        self._is_structured = is_structured

    def _forget(self) -> None:
        self.verdict = NO_VERDICT
        self._is_structured = False


def _printed_object(text: str) -> Any:
    """Return the Python literal at the beginning of a text, as exceptions of SDKs print a body; None if it is none."""
    try:
        return ast.literal_eval(text[: text.rfind("}") + 1][:_MAX_PRINTED])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _end_of_line(text: str, start: int, lines: int = 1) -> int:
    end = start
    for _ in range(lines):
        newline = text.find("\n", end)
        if newline < 0:
            return len(text)
        end = newline + 1
    return end - 1
