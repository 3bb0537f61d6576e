"""Splits the bytes of a stream of server-sent events into events, for any division into chunks."""

from __future__ import annotations

import re
from typing import NamedTuple

# Bytes of a line, and of the data of an event. Longer ones are dropped: a line without end must not fill the memory.
# The last event of a Responses stream repeats the whole answer, so it is long.
MAX_EVENT_BYTES = 8 * 1024 * 1024

_LINE_ENDS = b"\r\n"
# An event as providers write them. Others (several lines of data, comments, other line ends) are read line by line.
_USUAL_EVENT = re.compile(rb"(?:event:([^\r\n]*)\n)?data: ?([^\r\n]*)\n\n")


class Event(NamedTuple):
    """One event: its name (empty if it has none) and its data, whose lines are joined by a line feed."""

    name: bytes
    data: bytes


class EventReader:
    """Reads events from chunks of bytes. An event is complete with the empty line after it."""

    __slots__ = (
        "_data", "_is_after_cr", "_is_event_dropped", "_is_line_dropped", "_line", "_max_bytes", "_name", "_size",
    )  # fmt: skip

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()  # of a line whose end has not arrived
        self._is_line_dropped = False
        self._is_after_cr = False  # a line feed that comes next belongs to the line before
        self._name = b""
        self._data: list[bytes] = []  # lines of the present event
        self._size = 0  # bytes of `_data`
        self._is_event_dropped = False

    @property
    def is_between_events(self) -> bool:
        """Whether all bytes so far were part of complete events."""
        return not (
            self._line
            or self._data
            or self._name
            or self._is_after_cr
            or self._is_line_dropped
            or self._is_event_dropped
        )

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that are complete with this chunk."""
        if not chunk:
            return []
        usual = _USUAL_EVENT.fullmatch(chunk)
        if usual is not None and self.is_between_events and len(chunk) <= self._max_bytes:
            return [Event((usual[1] or b"").strip(), usual[2])]
        if self._is_after_cr and chunk[0] == _LINE_ENDS[1]:
            chunk = chunk[1:]
        events: list[Event] = []
        for line in chunk.splitlines(keepends=True):  # of bytes: at CR, LF and CR LF only
            if line[-1] in _LINE_ENDS:
                self._end_line(line.rstrip(_LINE_ENDS), events)
            else:
                self._keep(line)
        self._is_after_cr = chunk[-1:] == b"\r"
        return events

    def _keep(self, part: bytes) -> None:
        if self._is_line_dropped or len(self._line) + len(part) > self._max_bytes:
            self._is_line_dropped = True
            self._line.clear()
        else:
            self._line += part

    def _end_line(self, end: bytes, events: list[Event]) -> None:
        line = end
        if self._line or self._is_line_dropped or len(end) > self._max_bytes:
            self._keep(end)
            line, is_dropped = bytes(self._line), self._is_line_dropped
            self._line.clear()
            self._is_line_dropped = False
            if is_dropped:
                self._is_event_dropped = True
                return
        if not line:
            self._end_event(events)
        elif line.startswith(b"data:"):
            self._add(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()

    def _add(self, data: bytes) -> None:
        self._size += len(data) + 1
        if self._is_event_dropped or self._size > self._max_bytes:
            self._is_event_dropped = True
            self._data.clear()
        else:
            self._data.append(data)

    def _end_event(self, events: list[Event]) -> None:
        if self._data and not self._is_event_dropped:
            events.append(Event(self._name, b"\n".join(self._data)))
        self._data.clear()
        self._size = 0
        self._name = b""
        self._is_event_dropped = False
