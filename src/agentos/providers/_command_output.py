"""Reads a verdict from the output of a command, above all of coding agents: text, JSON, or lines of JSON.

Only errors count. An agent may talk about rate limits: its messages are events that are skipped. Of plain text, only
lines that look like an error of an API are read (`_error_lines`). A command that exits with 0 has succeeded, unless its
output ends in the failure of a known agent (`_silent_failures`) or is nothing but events of which the last is an error.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from agentos.verdict import (
    AUTH_FAILED,
    NO_VERDICT,
    PERMANENT,
    QUOTA_EXHAUSTED,
    RATE_LIMITED,
    RETRY_ON_OTHER_KEY,
    Verdict,
)

from . import _agent_talk as agent_talk
from . import _bodies as bodies
from . import _error_lines as error_lines
from . import _evidence as evidence
from . import _phrases as phrases
from . import _printed_objects as printed_objects
from . import _silent_failures as silent_failures
from ._dates import wait_of
from ._http_lines import names_other_host

# Characters, and lines, at the end of the output that are read: errors come last.
_MAX_TEXT = 256 * 1024
_MAX_LINES = 400
# Objects of one line that are read, and the text after them.
_MAX_OF_LINE = 20
# Lines that are read with a line about a limit: the time of its reset may follow in the next one.
_LINES_TOGETHER = 3
# Lines of an exception of an SDK, whose message may be broken at the width of the terminal.
_LINES_OF_EXCEPTION = 8
# Characters of a message.
_MAX_MESSAGE = 4000

EX_TEMPFAIL = 75  # of sysexits.h: a command reports a limit with it
_GEMINI_LIMIT = 429 & 0xFF  # it exits with the HTTP status, of which the system keeps the last byte
_GEMINI_AUTH = 41

_DONE = frozenset({"turn.completed", "task_complete"})
# Messages and actions of an agent.
_TALK = frozenset({"assistant", "user", "system", "message", "init", "tool_use", "tool_result", "thread.started"})
_TOOLS = frozenset({"tool_use", "tool_result"})
_TERMINAL_CODE = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\))")
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
    verdict = _with_exit_status(verdict, exit_status, provider, text if isinstance(text, str) else "")
    return verdict if verdict.kind is None else verdict._replace(is_printed=True)


def _with_exit_status(verdict: Verdict, exit_status: int | None, provider: str, text: str) -> Verdict:
    if verdict.kind in RETRY_ON_OTHER_KEY:
        return verdict
    if exit_status in (EX_TEMPFAIL, _GEMINI_LIMIT):
        wait = verdict.retry_after if verdict.kind is not None else phrases.wait(text[-2000:])
        message = verdict.message or f"exit {exit_status}"
        return verdict._replace(kind=RATE_LIMITED, retry_after=wait, message=message, is_loose=True)
    if exit_status == _GEMINI_AUTH and ("gemini" in provider or re.search(r"gemini|\bauth", text[-5000:], re.I)):
        return verdict._replace(kind=AUTH_FAILED, message=verdict.message or f"exit {exit_status}", is_loose=True)
    return verdict


def _read_text(text: str, exit_status: int | None, provider: str, now: float) -> Verdict:
    tail = text[-_MAX_TEXT:]
    plain_text = _TERMINAL_CODE.sub("", error_lines.with_marks(tail))
    reader = _Reader(provider, now)
    if exit_status != 0:
        reader.read(plain_text)
        return reader.verdict
    failure = silent_failures.find(plain_text)
    if failure is not None:
        return reader.read_message(failure)
    message = silent_failures.lone_message(plain_text)
    if message is not None:
        reader.read(message)
        return reader.verdict
    reader.read(plain_text, is_success=True)
    is_only_events = all(silent_failures.is_noise(line) for line in reader.other_lines)
    return reader.verdict if is_only_events and reader.verdict.kind in RETRY_ON_OTHER_KEY else NO_VERDICT


class _Piece(NamedTuple):
    """A line, or the lines of a JSON object."""

    start: int
    line: str
    prefix: str  # before the object
    events: list[dict[str, Any]]
    end: int  # of the last object

    @property
    def is_event_of_agent(self) -> bool:
        return not self.prefix.strip() and all(isinstance(event.get("type"), str) for event in self.events)


def _pieces_of(text: str) -> list[_Piece]:
    pieces = []
    position = 0
    unread = 2 * _MAX_TEXT  # characters of objects after stacks that may still be read: these objects may overlap
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for start in starts[-_MAX_LINES:]:
        end_of_line = _end_of_line(text, start)
        position = max(position, start)
        for _ in range(_MAX_OF_LINE):
            if position > end_of_line:
                break  # inside an object that spans lines
            line = text[position:end_of_line]
            is_frame = line.endswith("{") and error_lines.is_frame(line[:-1])
            events, prefix, end = (
                _events_in(text, position, line) if unread > 0 or not is_frame else ([], line, position)
            )
            pieces.append(_Piece(position, line, prefix, events, end))
            if is_frame:
                unread -= end - position
                end = end_of_line  # lines of this object count, too: they may have the error that caused it
            position = end if events and text[end:end_of_line].strip(" ,]") else max(end, end_of_line + 1)
    return pieces


class _Reader:
    """Reads an output from its beginning; keeps the last and most specific verdict."""

    def __init__(self, provider: str, now: float) -> None:
        self._provider = provider
        self._now = now
        self._is_structured = False
        self.verdict = NO_VERDICT
        self.other_lines: list[str] = []  # empty in the place of events

    def read(self, text: str, *, is_success: bool = False, is_error: bool = False) -> None:
        """Read events and lines.

        `is_success`: the command exited with 0; lines are not read, and only the last event counts. `is_error`: the
        text is the message of an error.
        """
        pieces = _pieces_of(text)
        self.other_lines = ["" if each.events and not each.prefix.strip() else each.line for each in pieces]
        first = 0 if is_error else agent_talk.end_of_talk(self.other_lines)
        end_of_other = 0
        for at, piece in enumerate(pieces):
            if piece.start < end_of_other:
                continue
            if piece.events and error_lines.is_frame(piece.prefix) and self._is_of_other_host(piece.events[0]):
                end_of_other = piece.end
                if self.verdict.is_loose and self.verdict.kind in (AUTH_FAILED, QUOTA_EXHAUSTED):
                    self._forget()  # the class and message before the stack named no host
            elif piece.events:
                is_talk = (at < first and not piece.is_event_of_agent) or agent_talk.is_listing(piece.prefix)
                if not (is_talk or error_lines.is_about_errors(piece.prefix)):
                    for event in piece.events:
                        if is_success and event.get("type") != "result":
                            self._forget()
                        if not is_success or "type" in event or not isinstance(event.get("error"), str):
                            self.read_event(event, piece.prefix)
            elif not is_success and at >= first and piece.line.strip():
                rest = text[piece.start : piece.start + 2 * _MAX_MESSAGE]
                self._take(self._of_text(piece.line, rest, is_error=is_error))

    def read_message(self, text: str) -> Verdict:
        """Read a text that is known to be an error."""
        self.read(text, is_error=True)
        return self.verdict

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
        elif not (isinstance(kind, str) and (kind in _TOOLS or (kind in _TALK and not event.get("error")))):
            status = phrases.status(prefix)
            is_error = status is not None or error_lines.ends_in_error(prefix)
            is_error = is_error or error_lines.introduces(prefix) or _is_of_request(event, prefix)
            self._take_object(event, status, is_error=is_error)
        return self.verdict

    def _read_result(self, event: dict[str, Any]) -> None:
        is_failure = event.get("is_error") or event.get("error") or event.get("status") == "error"
        message = event.get("result")
        is_failure = is_failure or (isinstance(message, str) and silent_failures.is_message_of_error(message))
        has_own_limit = str(event.get("subtype", "")).startswith("error_max_")  # of its turns, of its budget
        if has_own_limit or not (is_failure or event.get("exitCode")):
            self._forget()  # an earlier error was retried with success
            return
        if event.get("error"):
            self._take_object(event, None, is_error=True)
        if isinstance(message, str):
            verdict = _Reader(self._provider, self._now).read_message(message)
            if verdict.kind is None:
                facts = bodies.BodyFacts()
                facts.texts.append(message[:_MAX_MESSAGE])
                verdict = evidence.judge(_status_of(event), {}, facts, self._provider, self._now)
            self._take(verdict)

    def _take_object(self, event: dict[str, Any], status: int | None, *, is_error: bool) -> None:
        facts = bodies.read(event, self._now, is_error=is_error)
        if facts is None or not (facts.codes or facts.texts or facts.status or status):
            return
        verdict = evidence.judge(status, {}, facts, self._provider, self._now)
        if verdict.kind is None or verdict.kind not in RETRY_ON_OTHER_KEY:
            by_text = self._of_text(facts.text, facts.text, is_error=True)
            verdict = by_text if by_text.kind in RETRY_ON_OTHER_KEY or verdict.kind is None else verdict
        self._take(verdict, is_structured=True)

    def _of_text(self, line: str, rest: str, *, is_error: bool) -> Verdict:
        """Return the verdict of a line. `rest` is the text from the line on."""
        line = line[:_MAX_MESSAGE]
        message = error_lines.introduced_message(line)
        if message is not None:  # in the form of other errors, in which a number at the beginning is a status
            line, rest, is_error = f"Error: {message}", f"Error: {rest[rest.find(message) :]}", True
        of_exception = self._of_exception(line, rest) if is_error or error_lines.is_of_api(line) else NO_VERDICT
        if of_exception.kind in RETRY_ON_OTHER_KEY or of_exception.kind == PERMANENT:
            return of_exception
        meaning = evidence.by_text(line)
        if meaning is None or not (is_error or error_lines.is_believed(line, meaning[0], self._provider)):
            return of_exception
        facts = bodies.BodyFacts()
        facts.texts.append(_first_lines(rest, _LINES_TOGETHER) if meaning[0] in RETRY_ON_OTHER_KEY else line)
        epoch = re.search(r"\|(\d{10,13})\b", line)  # "usage limit reached|1794776400"
        if epoch is not None:
            facts.wait = wait_of(epoch[1], self._now)
        verdict = evidence.verdict_of(meaning, None, {}, facts, self._provider, self._now)
        is_loose = not (is_error or error_lines.is_of_api(line))
        return verdict._replace(message=evidence.one_line(line), is_loose=is_loose)

    def _of_exception(self, line: str, rest: str) -> Verdict:
        """Return the verdict of an exception of an SDK by its class and message."""
        name = error_lines.error_class(line)
        if name is None:
            return NO_VERDICT
        facts = bodies.BodyFacts()
        facts.codes.append(name)
        facts.status = phrases.status(line)
        facts.texts.append(" ".join(_first_lines(rest, _LINES_OF_EXCEPTION).split()))
        verdict = evidence.judge(None, {}, facts, self._provider, self._now)
        meaning = evidence.by_text(facts.text)
        if verdict.kind not in RETRY_ON_OTHER_KEY and meaning is not None and meaning[0] in RETRY_ON_OTHER_KEY:
            verdict = evidence.verdict_of(meaning, None, {}, facts, self._provider, self._now)
        return verdict._replace(message=evidence.one_line(line))

    def _take(self, verdict: Verdict, *, is_structured: bool = False) -> None:
        """Keep a verdict: a later one replaces an earlier one, except text an event, free text a known
        format, and no wait a wait."""
        if verdict.kind is None:
            return
        current = self.verdict
        if current.kind in RETRY_ON_OTHER_KEY:
            is_weaker = (self._is_structured and not is_structured) or (verdict.is_loose and not current.is_loose)
            if verdict.kind not in RETRY_ON_OTHER_KEY or is_weaker:
                if is_structured and verdict.kind == PERMANENT and phrases.is_too_large(verdict.message):
                    self.verdict = verdict  # the status alone was read as a rate limit before
                return
            has_wait = current.retry_after is not None or current.cool_down is not None
            if verdict.kind == current.kind and has_wait and verdict.retry_after is None and verdict.cool_down is None:
                return
        if current.kind == PERMANENT and self._is_structured and verdict.kind == AUTH_FAILED and verdict.is_loose:
            return  # the status of the error whose message is known
        self.verdict = verdict
        self._is_structured = is_structured

    def _is_of_other_host(self, event: dict[str, Any]) -> bool:
        return names_other_host(_address(event), self._provider)

    def _forget(self) -> None:
        self.verdict = NO_VERDICT
        self._is_structured = False


def _events_in(text: str, start: int, line: str) -> tuple[list[dict[str, Any]], str, int]:
    """Return the objects that begin in a line (one, or a list), the text before them and the position after them."""
    if line.startswith("["):
        value, end = _decoded(text, start)
        if isinstance(value, list):
            return [event for event in value[-_MAX_LINES:] if isinstance(event, dict)], "", end
    brace = line.find("{")
    if brace < 0:
        return [], "", start
    value, end = _decoded(text, start + brace)
    if value is None and error_lines.has_object(line[:brace], line[brace:]):
        value, end = printed_objects.read(text, start + brace)
    return ([value] if isinstance(value, dict) else []), line[:brace], end


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value at a position (None if there is none) and the position after it."""
    try:
        return _decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start


def _is_of_request(event: dict[str, Any], prefix: str) -> bool:
    """Return whether the fields that Node prints after a stack are those of a failed request, with its answer."""
    if not error_lines.is_frame(prefix) or not any(name in event for name in ("response", "responseBody", "data")):
        return False
    return any(isinstance(status := event.get(name), int) and status >= 400 for name in ("status", "statusCode"))


def _address(event: dict[str, Any]) -> str:
    """Return the address of the request of an error that Node printed; "" if it names none."""
    settings = event.get("config")  # of axios
    holders = (event, settings if isinstance(settings, dict) else {})
    return " ".join(str(holder[name]) for holder in holders for name in ("url", "baseURL") if name in holder)


def _status_of(event: dict[str, Any]) -> int | None:
    status = event.get("api_error_status")
    return status if isinstance(status, int) else None


def _first_lines(text: str, count: int) -> str:
    return text[: _end_of_line(text, 0, count)][:_MAX_MESSAGE]


def _end_of_line(text: str, start: int, lines: int = 1) -> int:
    end = start
    for _ in range(lines):
        newline = text.find("\n", end)
        if newline < 0:
            return len(text)
        end = newline + 1
    return end - 1
