"""The files of one attempt of a command: its folder, which holds its report, and files without a name.

Every attempt gets a new folder, unless an earlier attempt of its item has saved something there. Folders are not handed
on to other items: a command can change the mode of its folder, link the report to another file, or leave a process that
still holds a descriptor.

Paths are strings here: `Path` objects would cost more than the system calls.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

from agentos.items.attempt import Attempt

# Some kernels put the caller of rmdir to sleep for about 2.5 ms. With this many threads the removal of empty folders
# keeps pace with 2,000 commands per second.
REMOVAL_THREADS = 4


class AttemptFiles:
    """Paths of the files of one attempt."""

    __slots__ = ("database", "folder", "item", "report")

    def __init__(self, folder: str, database: str) -> None:
        self.folder = folder
        self.report = f"{folder}/.report"
        self.item = f"{folder}/.item.json"  # exists only if the item is too large for a variable
        self.database = database


class Folders:
    """Creates the folders of attempts and removes them. One thread calls it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._removal = ThreadPoolExecutor(REMOVAL_THREADS, thread_name_prefix="agentos-rmdir")

    def create(self, attempt: Attempt) -> AttemptFiles:
        """Create the folder of an attempt with an empty report in it, and the parent folder of its database."""
        folder = attempt.context.checkpoint_dir(attempt.id)
        database = attempt.context.database_path(attempt.id)
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = AttemptFiles(str(folder), str(database))
        try:
            _create_empty(files.report)
        except FileExistsError:  # left by an attempt of a launch that was killed
            os.unlink(files.report)
            _create_empty(files.report)
        return files

    def remove(self, files: AttemptFiles) -> bool:
        """Remove report, item and folder after the attempt. Return True if the folder stays because the command has
        left something of its own there."""
        for path in (files.report, files.item):
            with contextlib.suppress(OSError):
                os.unlink(path)
        try:
            if os.listdir(files.folder):
                return True
            # A new name first: the next attempt of the item may need the folder before it is removed.
            empty = f"{os.path.dirname(files.folder)}/.removed-{next(self._numbers)}"
            os.rename(files.folder, empty)
        except OSError:  # no descriptor is free, or the command has removed the folder or changed its mode
            _remove_folder(files.folder)
            return os.path.exists(files.folder)
        try:
            self._removal.submit(_remove_folder, empty)
        except RuntimeError:  # the interpreter shuts down
            _remove_folder(empty)
        return False

    def close(self) -> None:
        """Block until all folders are removed."""
        self._removal.shutdown()


def open_anonymous_file() -> int:
    """Return the descriptor of an empty file that has no path."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("agentos")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _create_empty(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _remove_folder(path: str) -> None:
    with contextlib.suppress(OSError):  # it is not empty: a process that outlived its command has written there
        os.rmdir(path)
