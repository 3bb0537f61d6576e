"""The exit status of a child process, which the system does not keep for every program.

If a program ignores SIGCHLD, or waits for all of its children elsewhere, a child's status is lost. `subprocess` then
reports 0, a success. Here the status is None, and no caller takes it for a success.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess

UNKNOWN_STATUS = (
    "its exit status is lost, because this program ignores SIGCHLD or waits for all of its children: call "
    "signal.signal(signal.SIGCHLD, signal.SIG_DFL) first"
)


def ignores_children() -> bool:
    """Return whether this program ignores SIGCHLD: then the system keeps no exit status."""
    return signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN


def wait_for_status(process: subprocess.Popen[bytes]) -> int | None:
    """Block until the process has ended. Return its exit status, negative for a signal; None if it is lost. Nothing
    else may wait for the process meanwhile."""
    return wait_for_end(process)[0]


def wait_for_end(process: subprocess.Popen[bytes]) -> tuple[int | None, resource.struct_rusage | None]:
    """Block as `wait_for_status`. Return the exit status, and what the process and its children have used."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:
        process.returncode = 0  # `Popen` must not wait for it again
        return None, None
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage
