"""Processes that can see each other: one that is gone need not be waited for until its leases run out."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def boot_id() -> str:
    """Of this start of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def place() -> str:
    """Where a process's number means the same process to everybody: one start of a machine, and in that one container.
    Empty where that is not known."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}" if boot_id() else ""  # noqa: PTH115
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Whether no process of this place has the number, or one that has ended and was not waited for. One that has it
    may be another by now."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    except (OSError, IndexError):
        return False  # somebody else's, but there
    return state in ("Z", "X")
