"""Ends the process groups of a run whose own process was killed, and could not do it itself.

A shell waits at the other end of a pipe, and is told which groups there are whenever that changes. When the pipe closes
for whatever reason, it ends those that it was told of last: none, if the run has ended in order. It is a session of its
own, so that a Ctrl-C does not reach it, and holds nothing of ours open.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable

_SCRIPT = (
    'while read -r groups; do last=$groups; done; for group in $last; do kill -s KILL -- "-$group" 2>/dev/null; done'
)


class Guard:
    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # without a shell there is no guard: the ledger knows the groups, too
            self._shell = subprocess.Popen(  # noqa: S603 - a script of ours, with nothing put into it
                ["/bin/sh", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={},
            )

    def watch(self, groups: Iterable[int]) -> None:
        """These, from now on."""
        shell = self._shell
        if shell is not None and shell.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it is gone, or was closed by another thread
                os.write(shell.stdin.fileno(), (" ".join(map(str, groups)) + "\n").encode())

    def close(self) -> None:
        self.watch(())
        shell, self._shell = self._shell, None
        if shell is not None and shell.stdin is not None:
            with contextlib.suppress(OSError):
                shell.stdin.close()
            shell.wait()
