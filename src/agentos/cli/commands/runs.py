"""`agentos runs`: lists runs, or removes old ones."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import click

from agentos.errors import LedgerError, RunBusy
from agentos.home.paths import home
from agentos.home.run_folder import RunFolder, run_folders
from agentos.home.run_status import FINISHED, KILLED, NOT_STARTED, STOPPED, UNREADABLE, RunStatus, read_status
from agentos.ledger.ownership import Ownership
from agentos.plurals import plural
from agentos.reporters.format import escape_controls, local_time, shorten, size, table

from ..console import Command, Failure, say, say_json
from ..duration_type import Duration
from .show import run_record

# Characters of a command in the list.
MAX_COMMAND = 40
_RIGHT_ALIGNED = frozenset({2, 3, 4})


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@click.option("--prune", is_flag=True, help="Remove finished runs, with their results and logs.")
@click.option(
    "--older-than",
    type=Duration(),
    metavar="AGE",
    help="With --prune: only runs that ended longer ago than this (7d, 12h).",
)
@click.option("--all", "everything", is_flag=True, help="With --prune: also unfinished runs, but not running ones.")
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
def runs(as_json: bool, prune: bool, older_than: float | None, everything: bool, yes: bool) -> None:
    """List runs, the newest first, or remove old ones.

    \b
    Examples:
      agentos runs
      agentos runs --prune --older-than 7d --yes
    """
    if prune:
        if as_json:
            raise click.UsageError("--json lists runs, --prune removes them: give one of the two")
        _prune(older_than, everything=everything, is_confirmed=yes)
        return
    if older_than is not None or everything or yes:
        raise click.UsageError("--older-than, --all and --yes belong to --prune")
    statuses = map(read_status, run_folders())
    if as_json:
        say_json([run_record(status) for status in statuses])
        return
    rows = [_row(status) for status in statuses]
    if not rows:
        say(f"There is no run in {escape_controls(str(home() / 'runs'))}.", err=True)
        return
    _say_table(rows)


def _say_table(rows: list[tuple[str, ...]]) -> None:
    for line in table([("Run", "Created", "Done", "Failed", "Left", "Command", "State"), *rows], right=_RIGHT_ALIGNED):
        say(line)


def _row(status: RunStatus) -> tuple[str, ...]:
    counts, spec = status.counts, status.spec
    remaining = f"{counts.unfinished}+" if status.remaining is None else str(status.remaining)
    return (
        status.folder.run_id,
        "" if spec is None else local_time(spec.created_at),
        str(counts.succeeded),
        str(counts.failed),
        remaining,
        shorten(status.command_text, MAX_COMMAND),
        status.state_text,
    )


def _prune(older_than: float | None, *, everything: bool, is_confirmed: bool) -> None:
    states = {FINISHED, STOPPED, KILLED, NOT_STARTED, UNREADABLE} if everything else {FINISHED}
    latest_end = time.time() - (older_than or 0.0)
    selected = [
        status
        for folder in run_folders()
        if not folder.path.is_symlink()
        for status in [read_status(folder)]
        if status.state in states and status.ended_at <= latest_end
    ]
    if not selected:
        say("There is nothing to remove.")
        return
    _say_table([_row(status) for status in selected])
    total_size = size(sum(_folder_bytes(status.folder.path) for status in selected))
    if not is_confirmed:
        click.confirm(
            f"Remove {plural(len(selected), 'run')} ({total_size}), with results and logs?", abort=True, err=True
        )
    for status in selected:
        _remove(status.folder)
    say(f"Removed {plural(len(selected), 'run')} ({total_size}).")


def _remove(folder: RunFolder) -> None:
    """Remove the folder of a run. Holds the run's lock, so that it is not resumed meanwhile; follows no links."""
    try:
        owner = Ownership.take(folder.ledger)
    except RunBusy:
        raise Failure(f"run {folder.run_id} is running by now and was not removed") from None
    except LedgerError as error:
        raise Failure(str(error)) from None
    try:
        shutil.rmtree(folder.path)
    except OSError as error:
        raise Failure(f"{folder.path} cannot be removed: {error}") from None
    finally:
        owner.release(in_order=False)


def _folder_bytes(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - there may be very many
            except OSError:  # removed meanwhile
                continue
    return total
