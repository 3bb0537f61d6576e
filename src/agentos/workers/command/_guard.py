"""Ends the process groups of a run whose own process was killed, and could not do it itself.

A shell waits at the other end of a pipe, into which nothing is ever written. When that closes, for whatever reason, the
shell ends the groups that stand in a file which only the two of them have: none, if the run has ended in order. Until
then it sleeps: to write a group down wakes nobody. It is a session of its own, so that a Ctrl-C does not reach it, and
holds nothing else of ours open. A command that was started a moment before the kill, and is not in the file yet, goes
on to its end: what it is called is known only once it runs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from ._files import open_anonymous_file

# The file is the shell's stdout, which it reads: shells do not agree on how to name further descriptors.
_SCRIPT = 'read -r _; while read -r group; do [ -n "$group" ] && kill -s KILL -- "-$group"; done <&1'
# Each group has a line of its own in the file; an empty one is free for the next.
_LINE = 12


class Guard:
    """One thread at a time may call it."""

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}  # by group: the number of its line
        self._free: list[int] = []
        self._file: int | None = None
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # without a shell there is no guard: the ledger knows the groups, too
            self._file = open_anonymous_file()
            self._shell = subprocess.Popen(  # noqa: S603 - a script of ours, with nothing put into it
                ["/bin/sh", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=self._file,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={},
            )

    def watch(self, group: int) -> None:
        """From now on."""
        line = self._free.pop() if self._free else len(self._lines)
        self._lines[group] = line
        self._write(line, str(group))

    def forget(self, group: int) -> None:
        """It has ended."""
        line = self._lines.pop(group, None)
        if line is not None:
            self._free.append(line)
            self._write(line, "")

    def _write(self, line: int, text: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, text.rjust(_LINE - 1).encode() + b"\n", line * _LINE)

    def close(self) -> None:
        """Whatever is left was ended by others."""
        if self._file is None:
            return
        os.ftruncate(self._file, 0)
        os.close(self._file)
        self._file = None
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.kill()  # a child that was forked in the meantime may hold the pipe open
            with contextlib.suppress(OSError):
                self._shell.stdin.close()
            self._shell.wait()
