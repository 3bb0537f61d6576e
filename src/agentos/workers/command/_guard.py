"""Kill the process groups of a run whose own process was killed.

A shell sleeps at the other end of a pipe, into which nothing is ever written. The pipe closes with the run's process;
then the shell kills the groups that are listed in an anonymous file, which it shares with that process. The list is
empty if the run has ended in order. Listing a group does not wake the shell. It has a session of its own, so that a
Ctrl-C does not reach it, and inherits no other descriptor.

Not covered: T1 the system starts a command, T2 the run's process is killed before it has listed the group. That command
runs to its end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from ._files import open_anonymous_file

# The shell reads the file through its stdout: shells differ in how they name descriptors above 2.
_SCRIPT = 'read -r _; while read -r group; do [ -n "$group" ] && kill -s KILL -- "-$group"; done <&1'
# Bytes per line of the file. Each group has a line of its own; an empty line is free for the next group.
_LINE_BYTES = 12


class Guard:
    """The list of groups and the shell that watches. One thread at a time may call it."""

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}  # line number by group
        self._free_lines: list[int] = []
        self._file: int | None = None
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # without a shell: the next launch kills the groups that the ledger lists
            self._file = open_anonymous_file()
            self._shell = subprocess.Popen(  # noqa: S603 - a constant script
                ["/bin/sh", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=self._file,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={},
            )

    def watch(self, group: int) -> None:
        """List a group."""
        line = self._free_lines.pop() if self._free_lines else len(self._lines)
        self._lines[group] = line
        self._write(line, str(group))

    def forget(self, group: int) -> None:
        """Take a group that has ended off the list."""
        line = self._lines.pop(group, None)
        if line is not None:
            self._free_lines.append(line)
            self._write(line, "")

    def _write(self, line: int, text: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, text.rjust(_LINE_BYTES - 1).encode() + b"\n", line * _LINE_BYTES)

    def close(self) -> None:
        """Clear the list and end the shell. Called after all groups were killed."""
        if self._file is None:
            return
        os.ftruncate(self._file, 0)
        os.close(self._file)
        self._file = None
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.kill()  # a child that was forked meanwhile may hold the pipe open
            with contextlib.suppress(OSError):
                self._shell.stdin.close()
            self._shell.wait()
