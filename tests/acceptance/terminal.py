"""A pseudo-terminal for the program, and an emulator of its screen.

Only what the program uses is understood; anything else is an error. Real terminals differ in what they do to lines when
their width changes: some wrap them anew, some cut them off. This one does either.
"""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import termios
import threading
from typing import IO

from wcwidth import wcwidth

_PIECE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b\]mark(\d+)\x07|([\r\n])|([^\x00-\x1f\x7f-\x9f]+)")
PATIENCE = 20  # seconds until missing output fails a test


class Row:
    def __init__(self) -> None:
        self.cells: list[str] = []
        self.is_wrapped = False  # continues in the next row

    @property
    def text(self) -> str:
        return "".join(cell or " " for cell in self.cells).rstrip(" ") if not self.is_wrapped else "".join(self.cells)


class Emulator:
    def __init__(self, columns: int = 80, rows: int = 24, *, reflows: bool = True) -> None:
        self.columns, self.height = columns, rows
        self.reflows = reflows
        self.rows = [Row()]  # scrollback, then the screen
        self.top = 0
        self.row, self.column = 0, 0  # the cursor; its row counts from the start of the scrollback
        self.is_cursor_visible = True
        self.wraps = True
        self.is_out_of_reach = False  # the text at the cursor left the screen when it became narrower
        self.drawn = 0  # number of drawn regions: each switches wrapping off once
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._incomplete = ""

    def feed(self, data: bytes) -> None:
        text = self._incomplete + self._decode(data)
        position = 0
        while position < len(text):
            piece = _PIECE.match(text, position)
            if piece is None:
                assert text[position] == "\x1b", f"not understood: {text[position : position + 20]!r}"
                break  # the rest of the sequence has not come yet
            position = piece.end()
            private, numbers, letter, _mark, control, printed = piece.groups()
            if printed:
                self._print(printed)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self._down()
            elif letter:
                self._sequence(private, numbers, letter)
        self._incomplete = text[position:]

    def _sequence(self, private: str, numbers: str, letter: str) -> None:
        row = self.rows[self.row]
        match private, numbers, letter:
            case "?", "25", "l" | "h":
                self.is_cursor_visible = letter == "h"
            case "?", "7", "l" | "h":
                self.wraps = letter == "h"
                self.drawn += letter == "l"
            case "", _, "m":
                pass
            case "", "", "K":
                del row.cells[self.column :]
                row.is_wrapped = False
            case "", "", "J":
                if (self.row, self.column) == (self.top, 0) and any(row.cells for row in self.rows[self.top :]):
                    self.row = self.top = len(self.rows)  # erased rows stay in the scrollback, as in tmux
                    self.rows.append(row := Row())
                del row.cells[self.column :]
                row.is_wrapped = False
                del self.rows[self.row + 1 :]
            case "", _, "A":
                self.row = max(self.top, self.row - int(numbers or 1))
                self.column = min(self.column, self.columns - 1)
            case "", "", "C":
                self.column = min(self.column + 1, self.columns - 1)
            case _:
                raise AssertionError(f"not understood: CSI {private}{numbers}{letter}")

    def _print(self, text: str) -> None:
        for char in text:
            cells = wcwidth(char)
            row = self.rows[self.row]
            if not cells:
                continue
            if self.column + cells > self.columns:
                if not self.wraps:
                    self.column = self.columns - cells
                else:
                    row.is_wrapped = True
                    self._down()
                    self.column = 0
                    row = self.rows[self.row]
            row.cells += [" "] * (self.column - len(row.cells))
            row.cells[self.column : self.column + cells] = [char] + [""] * (cells - 1)
            self.column += cells
            if not self.wraps:
                self.column = min(self.column, self.columns - 1)

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append(Row())
        self.top = max(self.top, self.row - self.height + 1)

    def resize(self, columns: int, rows: int) -> None:
        # What is below the cursor goes first; then the top scrolls away.
        self.top = max(0, min(self.top, self.row), self.row - rows + 1)
        del self.rows[max(self.top + rows, self.row + 1) :]
        if self.reflows:
            self._reflow(columns)
            # The end stays on the screen, and the cursor too: at its top, if its own row has left it.
            self.top = max(0, len(self.rows) - rows)
            self.is_out_of_reach |= self.row < self.top
            self.row = max(self.row, self.top)
        else:
            for row in self.rows[self.top :]:
                del row.cells[columns:]
                row.is_wrapped = False
        self.columns, self.height = columns, rows
        self.column = min(self.column, columns - 1)

    def _reflow(self, columns: int) -> None:
        made: list[Row] = []
        old_row, at = self.row, (0, 0)
        index = 0
        while index < len(self.rows):
            start, cells = index, []
            while True:
                if index == old_row:
                    offset = len(cells) + self.column
                cells += self.rows[index].cells
                index += 1
                if not self.rows[index - 1].is_wrapped or index == len(self.rows):
                    break
            if start <= old_row < index:
                at = len(made) + offset // columns, offset % columns
            pieces = [cells[i : i + columns] for i in range(0, len(cells), columns)] or [[]]
            while len(pieces) <= at[0] - len(made) and start <= old_row < index:
                pieces.append([])
            for number, piece in enumerate(pieces):
                row = Row()
                row.cells, row.is_wrapped = piece, number < len(pieces) - 1
                made.append(row)
        self.rows = made
        self.row, self.column = at

    def lines(self) -> list[str]:
        """Return all lines that were written and not erased, with wrapped lines joined."""
        lines, part = [], ""
        for row in self.rows:
            part += row.text
            if not row.is_wrapped:
                lines.append(part)
                part = ""
        return lines + ([part] if part else [])


class Terminal:
    """A pseudo-terminal with an emulator behind it. `stream`: the stderr of a program on it."""

    def __init__(self, columns: int = 80, rows: int = 24, *, reflows: bool = True) -> None:
        self.master, self.slave = pty.openpty()
        self.emulator = Emulator(columns, rows, reflows=reflows)
        termios.tcsetwinsize(self.slave, (rows, columns))
        self.stream: IO[str] = open(self.slave, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        self._changed = threading.Condition()  # held while using the attributes below
        self._read = bytearray()
        self._marks = 0
        self._stop_reader, self._stop_writer = os.pipe()
        self._reader = threading.Thread(target=self._run, daemon=True)
        self._reader.start()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self.master, self._stop_reader], [], [])
            if self.master not in ready:
                return
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            with self._changed:
                self._read += data
                self._changed.notify_all()

    def resize(self, columns: int, rows: int) -> None:
        self.update()
        self.emulator.resize(columns, rows)
        termios.tcsetwinsize(self.slave, (rows, columns))

    def update(self) -> Emulator:
        """Return the emulator with all that was written before this call."""
        self._marks += 1
        mark = f"\x1b]mark{self._marks}\x07".encode()
        os.write(self.slave, mark)
        self.wait_for(mark)
        return self.emulator

    def wait_for(self, expected: bytes) -> Emulator:
        """Return the emulator with all output up to this text, and maybe more."""
        with self._changed:
            assert self._changed.wait_for(lambda: expected in self._read, PATIENCE), (expected, bytes(self._read))
            data = bytes(self._read)
            self._read.clear()
        self.emulator.feed(data)
        return self.emulator

    def close(self) -> None:
        self.stream.close()
        os.close(self.slave)
        os.close(self._stop_writer)  # not by the end of the slave: a screen may still hold a descriptor of it
        self._reader.join(PATIENCE)
        os.close(self._stop_reader)
        os.close(self.master)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
