"""The folder that an attempt of a command has: for what it leaves behind, and for what it reports.

Most commands leave nothing there. To remove a folder takes longer than all else that is done with files for a short
command (the system may put us to sleep for it), and the next attempt needs one: so an unused one gets another name, and
waits there until it gets that of the next attempt. Whoever comes late to the first name finds nothing there.

Paths are texts here: path objects would cost more than what is done with them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import tempfile
import threading

from agentos.items.attempt import Attempt

_REPORT, _ITEM, _UNUSED = ".report", ".item.json", ".unused-"


def unnamed_file() -> int:
    """The descriptor of a file that nobody else can find."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("agentos")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Places:
    """Where an attempt finds and leaves its files."""

    __slots__ = ("database", "folder", "item", "report")

    def __init__(self, folder: str, database: str) -> None:
        self.folder = folder
        self.report = f"{folder}/{_REPORT}"
        self.item = f"{folder}/{_ITEM}"  # only there if the item is too large for a variable
        self.database = database


class Folders:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._unused: list[str] = []
        self._is_closed = False
        self._numbers = itertools.count()

    def make(self, attempt: Attempt) -> Places:
        """The folder and an empty report are there from now on."""
        path = attempt.context.checkpoint_dir(attempt.id)
        database = attempt.context.database_path(attempt.id)
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        places = Places(str(path), str(database))
        if not self._is_reused(places):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Emptied, too: what a killed launch has left there was said in another attempt.
            os.close(os.open(places.report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        return places

    def take_back(self, places: Places) -> bool:
        """After its attempt. True: the command has left something of its own there, and that stays."""
        if self._is_kept(places):
            return False
        for path in (places.report, places.item):
            with contextlib.suppress(OSError):
                os.unlink(path)
        try:
            os.rmdir(places.folder)
        except OSError:
            return os.path.exists(places.folder)
        return False

    def close(self) -> None:
        """From any thread."""
        with self._lock:
            self._is_closed = True
            for folder in self._unused:
                with contextlib.suppress(OSError):
                    os.unlink(f"{folder}/{_REPORT}")
                    os.rmdir(folder)

    def _is_reused(self, places: Places) -> bool:
        with self._lock, contextlib.suppress(OSError):  # the item has a folder already, with something in it
            if self._unused:
                os.rename(self._unused[-1], places.folder)
                self._unused.pop()
                return True
        return False

    def _is_kept(self, places: Places) -> bool:
        with self._lock, contextlib.suppress(OSError):  # whatever the command has done to it
            if self._is_closed or os.listdir(places.folder) != [_REPORT]:
                return False
            report = os.lstat(places.report)
            if stat.S_ISREG(report.st_mode) and not report.st_size:
                unused = f"{os.path.dirname(places.folder)}/{_UNUSED}{next(self._numbers)}"
                os.rename(places.folder, unused)
                self._unused.append(unused)
                return True
        return False
