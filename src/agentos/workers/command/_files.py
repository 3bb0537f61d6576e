"""The files of one attempt of a command: its folder, which holds its report, and files without a name.

Every attempt gets a new folder, unless an earlier attempt of its item has saved something there. Folders are not handed
on to other items: a command can change the mode of its folder, link the report to another file, or leave a process that
still holds a descriptor.

Paths are strings here: making `Path` objects would take longer than the system calls.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Any

from agentos.errors import WorkerStartError
from agentos.items.attempt import Attempt

from .reports import REPORT_NAME, read_reports


class AttemptFiles:
    """Paths of the files of one attempt."""

    __slots__ = ("client_settings", "database", "folder", "item", "report")

    def __init__(self, folder: str, database: str) -> None:
        self.folder = folder
        self.report = f"{folder}/{REPORT_NAME}"  # exists once the command has reported something
        self.item = f"{folder}/.item.json"  # exists only if the item is too large for a variable
        self.client_settings = f"{folder}/.client"  # a folder that exists only in a run with a gateway
        self.database = database


def create_files(attempt: Attempt) -> AttemptFiles:
    """Create the folder of an attempt, and the parent folder of its database. The command makes the report.

    Raise `WorkerStartError` if a folder cannot be made: its parent belongs to the run, so no item is at fault."""
    context = attempt.context
    try:
        files = AttemptFiles(context.checkpoint_dir(attempt.id), context.database_path(attempt.id))
        is_new = _make_folders(files)
    except OSError as error:
        raise WorkerStartError(f"no command can be started: no folder for files of an item: {error}") from None
    if not is_new:  # an earlier attempt has saved something there, or was killed together with its launch
        add_reported_usage(attempt, read_reports(files.report))  # spent, and in no record
        _remove_report(files.report)
        shutil.rmtree(files.client_settings, ignore_errors=True)
    return files


def _make_folders(files: AttemptFiles) -> bool:
    """Return whether the folder of the attempt is new. Raise `OSError`. A call for each level, because `makedirs` gives
    the mode to the last one only."""
    database_folder = os.path.dirname(files.database)
    if not os.path.isdir(database_folder):
        os.makedirs(os.path.dirname(database_folder), 0o700, exist_ok=True)
        os.makedirs(database_folder, 0o700, exist_ok=True)
    try:
        os.mkdir(files.folder, 0o700)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(files.folder), 0o700, exist_ok=True)
        os.mkdir(files.folder, 0o700)
    except FileExistsError:
        return False
    return True


def add_reported_usage(attempt: Attempt, reports: list[dict[str, Any]]) -> None:
    """Add the usage in these reports to that of an attempt."""
    for report in reports:
        if "usage" in report:
            attempt.add_usage(**{"requests": 0, "tokens": 0, "cost": 0.0, **report["usage"]})


def create_client_settings(files: AttemptFiles) -> str:
    """Create the folder for the configuration files of the command's client, and return its path."""
    os.mkdir(files.client_settings, 0o700)
    return files.client_settings


def remove_empty_folder(files: AttemptFiles) -> bool:
    """Remove the folder if it is empty, as it is after most attempts. Return whether it is gone: then the command has
    neither reported nor saved anything."""
    try:
        os.rmdir(files.folder)
    except OSError:
        return False
    return True


def remove_files(files: AttemptFiles) -> bool:
    """Remove report, item, client settings and folder. Return whether the folder is gone; it stays if the command has
    left something of its own there."""
    for path in (files.report, files.item):
        with contextlib.suppress(OSError):
            os.unlink(path)
    shutil.rmtree(files.client_settings, ignore_errors=True)
    return remove_empty_folder(files) or not os.path.exists(files.folder)


def open_anonymous_file() -> int:
    """Return the descriptor of an empty file that has no path."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("agentos")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _remove_report(path: str) -> None:
    """Remove what an earlier attempt left in the place of the report, also a folder."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
