"""Decides what is at fault if a command cannot be started: its item, which fails, or something that all items need.
Then no item fails, because the others would follow: the run stops, and can be resumed."""

from __future__ import annotations

import errno
import os

from agentos.errors import CommandFailed, WorkerStartError
from agentos.verdict import PERMANENT, Verdict

from ..capacity import Room
from .command import Command

# The system has no room for another process or descriptor now, but will have when a command of this run has ended.
SYSTEM_IS_FULL = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# The disk is full or broken: no file of any item can be written.
DISK_FAILURES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


def execution_failure(error: OSError, command: Command) -> CommandFailed | WorkerStartError:
    """Return the error of a command whose program the system did not execute."""
    if error.errno == errno.E2BIG:
        text = "its arguments are longer than the system allows: pass the item on stdin (stdin=FIELD)"
        return _item_failure(command, text)
    if command.cwd is not None and not os.path.isdir(command.cwd):  # noqa: PTH112
        return WorkerStartError(f"no command can be started: their folder {command.cwd} does not exist")
    text = error.strerror or str(error)
    if command.program is None:
        return _item_failure(command, text)
    return WorkerStartError(f"{command.program} cannot be started: {text}")


def file_failure(error: OSError, command: Command) -> CommandFailed | WorkerStartError:
    """Return the error of a command whose input could not be written to a file."""
    if error.errno in DISK_FAILURES:
        return WorkerStartError(f"no command can be started: {error}")
    return _item_failure(command, error.strerror or str(error))


def no_room_error(error: OSError, room: Room | None) -> WorkerStartError:
    """Return the error of a run whose first command the system has no room for."""
    if error.errno == errno.EMFILE:
        advice = f" ({'ulimit -n' if room is None else room.limit}): raise the limit of open files"
    elif error.errno == errno.EAGAIN:
        advice = ": raise the limit of processes (ulimit -u), or end some"
    else:
        advice = ": try again when other programs have ended"
    return WorkerStartError(f"not even one command can be started: {error.strerror}{advice}")


def _item_failure(command: Command, text: str) -> CommandFailed:
    return CommandFailed(
        f"{command.arguments[0]} cannot be started: {text}",
        exit_status=None,
        verdict=Verdict(PERMANENT, message=text),
        details={},
    )
