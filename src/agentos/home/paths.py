"""The AgentOS home directory: its location, its owner and mode, and atomic writes of files in it."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import tempfile
from pathlib import Path

from agentos.errors import HomeError

# Mode of folders below the home directory: items, outputs and ledgers are readable by their owner only.
PRIVATE = 0o700
# Bits of a mode: other users can write; other users can do anything.
OTHERS_WRITE = 0o022
OTHERS = 0o077


def home() -> Path:
    """Return `$AGENTOS_HOME`, else `~/.agentos`. Raise `HomeError` if other users can change what is in it: a run is
    described there, and `agentos resume` executes it."""
    variable = os.environ.get("AGENTOS_HOME")
    try:
        path = Path(variable).expanduser().absolute() if variable else Path.home() / ".agentos"
    except (RuntimeError, OSError) as error:  # no home directory, or no working directory
        raise HomeError(f"there is no folder for runs ({error}): set $AGENTOS_HOME to an absolute path") from None
    check_private(path)
    return path


def check_private(path: Path) -> None:
    """Raise `HomeError`, with the command that repairs it, unless the folder is this user's and only this user can
    write to it. Make it unreadable for others. No-op if there is none."""
    try:
        status = path.stat()
    except OSError:  # it does not exist, or its use fails with a message of its own
        return
    name = shlex.quote(str(path))
    if status.st_uid != os.geteuid():
        owner = f"user {status.st_uid}, not to the user of this program ({os.geteuid()})"
        raise HomeError(
            f"{path} belongs to {owner}: check what is in it, then run chown -R {os.geteuid()} {name}, or set "
            "$AGENTOS_HOME to another folder"
        )
    if status.st_mode & OTHERS_WRITE:
        raise HomeError(
            f"other users can write to {path}, and could have changed its runs: check what is in it, then run chmod "
            f"-R go= {name}"
        )
    if stat.S_ISDIR(status.st_mode) and status.st_mode & OTHERS:
        with contextlib.suppress(OSError):  # a file system without modes
            path.chmod(PRIVATE)


def make_private(path: Path) -> None:
    """Make a folder, and those above it that do not exist, for this user alone, with any umask. Raise `OSError`, and
    `HomeError` for a folder that exists and is not private."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        try:
            folder.mkdir(PRIVATE)
            folder.chmod(PRIVATE)  # the umask may have removed bits
        except FileExistsError:
            if not folder.is_dir():
                raise
            check_private(folder)


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raise `OSError`, also for a pipe or a device, whose end may never come."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file: a concurrent reader, and a start after a power cut, sees the old content or the new one. Raises
    `OSError`."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        os.unlink(name)  # noqa: PTH108
        raise
