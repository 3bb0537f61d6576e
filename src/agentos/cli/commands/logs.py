"""`agentos logs`: prints the log of an item, follows it, or lists the logs of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO

import click

from agentos.errors import LedgerError
from agentos.home.run_folder import RunFolder
from agentos.home.run_status import open_ledger, run_owner
from agentos.items.file_names import log_name
from agentos.ledger.reader import Ledger
from agentos.ledger.recorded import UNFINISHED
from agentos.reporters.format import escape_controls, shorten, size
from agentos.terminal.safe_output import safe_output

from ..completion import item_ids, run_ids
from ..console import INTERRUPTED, Command, binary_stdout, say
from ..find import find_run, unknown_item

# Characters of an item's id in a message.
MAX_ID = 40
# Seconds between two looks at a log that is followed.
POLL_SECONDS = 0.1
CHUNK_BYTES = 1 << 20


@click.command(cls=Command)
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.argument("item_id", metavar="[ITEM]", required=False, shell_complete=item_ids)
@click.option("--follow", "-f", is_flag=True, help="Continue with new output until the run ends.")
@click.option("--list", "as_list", is_flag=True, help="List the items that have a log, with size and file.")
@click.pass_context
def logs(context: click.Context, run_id: str, item_id: str | None, follow: bool, as_list: bool) -> None:
    """Print the output of an item, of all its attempts.

    \b
    Examples:
      agentos logs 20261116-093012-1f3a5c --list
      agentos logs 20261116-093012-1f3a5c a --follow
    """
    folder = find_run(run_id)
    if as_list == (item_id is not None):
        raise click.UsageError("name one item, or use --list")
    if item_id is None:
        with open_ledger(folder) as ledger:
            _list_logs(folder, ledger)
        return
    path = folder.logs / log_name(item_id)
    try:
        if follow and run_owner(folder) is not None:
            _follow(path, folder, item_id, binary_stdout())
        elif path.exists():
            _copy(path, 0, binary_stdout())
        if not path.exists():
            _say_no_log(folder, item_id)
    except KeyboardInterrupt:  # the way to end `--follow`, and no error
        context.exit(INTERRUPTED)


def _say_no_log(folder: RunFolder, item_id: str) -> None:
    with open_ledger(folder) as ledger:
        if ledger.standing(item_id) is None:
            raise unknown_item(ledger, item_id)
    say(f"Item {shorten(item_id, MAX_ID)} has no log: it printed nothing, or its log was removed.", err=True)


def _list_logs(folder: RunFolder, ledger: Ledger) -> None:
    for item_id in ledger.ids():
        path = folder.logs / log_name(item_id)
        try:
            say(f"{size(path.stat().st_size):>12}  {path.name}  {escape_controls(item_id)}")
        except FileNotFoundError:
            continue


def _follow(path: Path, folder: RunFolder, item_id: str, output: BinaryIO) -> None:
    """Copy a log as it grows, until the item or the run has ended.

    The end is looked for before the last copy: what was written before the end is in that copy."""
    position, is_over = 0, False
    if not path.exists():
        say(f"Item {shorten(item_id, MAX_ID)} has printed nothing yet.", err=True)
    while True:
        if path.exists():
            position = _copy(path, position, output)
        if is_over:
            return
        is_over = run_owner(folder) is None or _has_ended(folder, item_id)
        if not is_over:
            time.sleep(POLL_SECONDS)


def _has_ended(folder: RunFolder, item_id: str) -> bool:
    """Return whether the item has ended in this launch. One that failed in an earlier launch may still be retried."""
    try:
        with Ledger.open(folder.ledger) as ledger:
            standing, launches = ledger.standing(item_id), ledger.launches()
    except LedgerError:  # the run is just creating it
        return False
    if standing is None or standing[0] == UNFINISHED:
        return False
    return standing[0] == "succeeded" or standing[1] == launches[-1].launch


def _copy(path: Path, position: int, output: BinaryIO) -> int:
    """Copy from a position to the present end, and return the end. A file that became shorter is copied whole: it was
    replaced."""
    is_terminal = output.isatty()
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) >= position:
            file.seek(position)
        else:
            file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            output.write(safe_output(chunk) if is_terminal else chunk)
        output.flush()
        return file.tell()
