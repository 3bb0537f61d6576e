"""Recognises and kills process groups that outlived the launch that started them.

Worker processes end themselves when their coordinator dies. Some cannot (a stopped process, or a child that does not
watch the pipe): the next launch finds their groups in the ledger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from agentos.clock import boot_id

# Seconds to wait for a killed group to disappear.
GONE_SECONDS = 2.0


def born(pid: int) -> str | None:
    """Return the start of a process, which distinguishes it from another one with the same pid; None if it does not
    exist."""
    boot = boot_id()
    try:
        # The name, in parentheses, may hold any characters; the 20th field after it is the start, in ticks since boot.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return f"{boot} {fields[19]}" if fields[0] not in "ZX" else None
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (OSError, IndexError):
        return None
    ps = subprocess.run(  # noqa: S603 - for systems without /proc
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return ps.stdout.strip() or None


def end(pgid: int, recorded_birth: str) -> bool:
    """Kill the group if it is the recorded one, and wait up to GONE_SECONDS for its end. Return whether it was."""
    leader = born(pgid)
    if leader is not None and leader != recorded_birth:
        return False  # another process has this number now
    # The kernel does not reuse the number of an existing group. A group without its leader is therefore still the
    # recorded one, if it is a session of its own (as our groups are) and the machine was not rebooted since.
    if leader is None and not (recorded_birth.startswith(boot_id()) and _is_session(pgid)):
        return False
    try:
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    deadline = time.monotonic() + GONE_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline and born(pgid) is not None:
            os.killpg(pgid, 0)
            time.sleep(0.01)
    return True


def _is_session(pgid: int) -> bool:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[2:4] == [str(pgid), str(pgid)]:  # group and session
            return True
    return False
