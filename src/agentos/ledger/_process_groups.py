"""Process groups that outlived the launch that started them: recognised, and ended.

Worker processes end by themselves when their coordinator is gone. What cannot (it is stopped, or one of its own
children has left the pipe alone) is found here by what the ledger has on record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

# How long a killed group may take to be gone.
GONE_SECONDS = 2.0


def born(pid: int) -> str | None:
    """When a process was born, in a form that no other process with this number shares. None: there is none."""
    boot = _boot()
    try:
        # The name, in parentheses, may hold anything; the 20th field after it is the start, in ticks since the boot.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return f"{boot} {fields[19]}" if fields[0] not in "ZX" else None
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (OSError, IndexError):
        return None
    told = subprocess.run(  # noqa: S603 - where there is no /proc
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or None


def end(pgid: int, was_born: str) -> bool:
    """Ends the group if it is the one that was recorded; whether there was anything to end."""
    leader = born(pgid)
    if leader is not None and leader != was_born:
        return False  # the number belongs to somebody else now
    # No number is given away while a group has it. So what is left of a group without its leader is still the recorded
    # one, if it is a session of its own, as ours are, and the machine has not been started anew since.
    if leader is None and not (was_born.startswith(_boot()) and _is_session(pgid)):
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


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
