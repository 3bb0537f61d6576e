"""How many attempts the limits of this process admit at once: of open files, and of processes and threads.

Without a look at the limits, a run that exceeds them loses logs, or fails items that are not at fault.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import NamedTuple

# Descriptors of a running command: two outputs, the notice of its exit, its log.
COMMAND_DESCRIPTORS = 4
# Descriptors of an item that a Python worker works on: its log.
FUNCTION_DESCRIPTORS = 1
# Descriptors that starting a command needs for a moment: two more ends of pipes, two of `Popen`, stdin, and some for
# other threads.
START_DESCRIPTORS = 8
# Descriptors that a run opens after it was prepared: ledger, selector, wake-up pipe, guard, redirected outputs.
RUN_DESCRIPTORS = 20
# Threads and processes of a run beside its workers, and of a command with a few children.
RUN_TASKS = 8
COMMAND_TASKS = 4


class Room(NamedTuple):
    """How many attempts have room at once, and the limit that decides, as a shell shows and sets it."""

    attempts: int
    limit: str


def room_for_commands() -> Room | None:
    """Return how many commands can run at once in a run that has started; None if the limits do not matter."""
    return _descriptor_room(COMMAND_DESCRIPTORS, START_DESCRIPTORS)


def room_for_run(*, is_command: bool) -> Room | None:
    """Return how many attempts can run at once in a run that is about to start; None if the limits do not matter."""
    each = (COMMAND_DESCRIPTORS, COMMAND_TASKS) if is_command else (FUNCTION_DESCRIPTORS, 1)
    rooms = (_descriptor_room(each[0], RUN_DESCRIPTORS + START_DESCRIPTORS), _task_room(each[1]))
    return min((room for room in rooms if room is not None), default=None)


def _descriptor_room(each: int, reserve: int) -> Room | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 - one is of the listing itself
    except OSError:
        return Room(0, f"ulimit -n {limit}") if limit < reserve else None
    return Room(max(0, (limit - used - reserve) // each), f"ulimit -n {limit}")


def _task_room(each: int) -> Room | None:
    """Return the room for processes and threads of this user; None for an administrator: there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or os.getuid() == 0:
        return None
    used = 0
    with contextlib.suppress(OSError):  # no /proc: unknown, count this process alone
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if process.name.isdecimal() and process.stat().st_uid == os.getuid():
                    used += len(os.listdir(process / "task"))  # noqa: PTH208
    return Room(max(0, (limit - used - RUN_TASKS) // each), f"ulimit -u {limit}")
