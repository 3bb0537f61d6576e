"""`agentos runs`, `show`, `logs` and `export`: looking at runs. Nothing here disturbs one that is running."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from agentos.durations import parse_duration
from agentos.errors import LedgerError, RunBusy
from agentos.home.paths import home
from agentos.home.run_folder import RunFolder, run_folders
from agentos.home.run_status import (
    FINISHED,
    KILLED,
    NOT_STARTED,
    RUNNING,
    STOPPED,
    UNREADABLE,
    Overview,
    ledger_of,
    overview_of,
    owner_of_run,
)
from agentos.items.file_names import log_name
from agentos.ledger.ownership import Ownership
from agentos.ledger.reader import UNFINISHED, Ledger
from agentos.reporters.format import escape_controls, local_time, plural, shorten, size, table

from ..completion import files, item_ids, run_ids
from ..console import INTERRUPTED, Command, Failure, say, say_json
from ..find import find_run, unknown_item
from .export import export_items, opened
from .show import all_facts, item_facts, item_lines, run_facts, run_lines

MOST_OF_A_COMMAND = 40
# How often a log that is followed is looked at (seconds).
LOOK_UP_SECONDS = 0.1
CHUNK_BYTES = 1 << 20


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Of a duration with its unit."""
    seconds = None if value is None else parse_duration(value)
    if value is not None and seconds is None:
        raise click.BadParameter(f"{value!r} is no duration: write 7d, 12h or 30m")
    return seconds


# --- runs ---------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.option("--prune", is_flag=True, help="Remove runs that are finished, with their results and logs.")
@click.option(
    "--older-than", callback=_seconds, metavar="AGE", help="With --prune: only those that ended so long ago (7d, 12h)."
)
@click.option(
    "--all", "everything", is_flag=True, help="With --prune: also what could be resumed. Never what is running."
)
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
def runs(as_json: bool, prune: bool, older_than: float | None, everything: bool, yes: bool) -> None:
    """List runs, the newest first, or prune old ones.

    \b
    Examples:
      agentos runs
      agentos runs --prune --older-than 7d --yes
    """
    if prune:
        if as_json:
            raise click.UsageError("--json lists runs, --prune removes them: give one of the two")
        _prune(older_than, everything=everything, is_sure=yes)
        return
    if older_than is not None or everything or yes:
        raise click.UsageError("--older-than, --all and --yes belong to --prune")
    overviews = map(overview_of, run_folders())
    if as_json:
        say_json([run_facts(overview) for overview in overviews])
        return
    rows = [_row(overview) for overview in overviews]
    if not rows:
        say(f"There is no run in {escape_controls(str(home() / 'runs'))}.", err=True)
        return
    heading = ("Run", "Created", "Done", "Failed", "Left", "Command", "State")
    for line in table([heading, *rows], right=frozenset({2, 3, 4})):
        say(line)


def _row(overview: Overview) -> tuple[str, ...]:
    counts, spec = overview.counts, overview.spec
    left = f"{counts.unfinished}+" if overview.left is None else str(overview.left)
    return (
        overview.folder.run_id,
        "" if spec is None else local_time(spec.created_at),
        str(counts.succeeded),
        str(counts.failed),
        left,
        shorten(overview.what, MOST_OF_A_COMMAND),
        overview.state_text,
    )


def _prune(older_than: float | None, *, everything: bool, is_sure: bool) -> None:
    states = {FINISHED, STOPPED, KILLED, NOT_STARTED, UNREADABLE} if everything else {FINISHED}
    latest = time.time() - (older_than or 0.0)
    chosen = [
        overview
        for folder in run_folders()
        if not folder.path.is_symlink()
        for overview in [overview_of(folder)]
        if overview.state in states and overview.ended_at <= latest
    ]
    if not chosen:
        say("There is nothing to remove.")
        return
    for line in table([_row(overview) for overview in chosen], right=frozenset({2, 3, 4})):
        say(line)
    taken = size(sum(_size(overview.folder.path) for overview in chosen))
    if not is_sure:
        click.confirm(f"Remove {plural(len(chosen), 'run')} ({taken}), with results and logs?", abort=True, err=True)
    for overview in chosen:
        _remove(overview.folder)
    say(f"Removed {plural(len(chosen), 'run')} ({taken}).")


def _remove(folder: RunFolder) -> None:
    """As its owner, so that nobody resumes it in the meantime. Links in it are removed, not followed."""
    try:
        owner = Ownership.take(folder.ledger)
    except RunBusy:
        raise Failure(f"run {folder.run_id} is running by now, and was left alone") from None
    except LedgerError as error:
        raise Failure(str(error)) from None
    try:
        shutil.rmtree(folder.path)
    except OSError as error:
        raise Failure(f"{folder.path} cannot be removed: {error}") from None
    finally:
        owner.release(in_order=False)


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - there may be very many
            except OSError:  # it is gone by now
                continue
    return total


# --- show ---------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids)
@click.argument("item_id", metavar="[ITEM]", required=False, shell_complete=item_ids)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(run_id: str | None, item_id: str | None, as_json: bool) -> None:
    """A run, or one of its items: what happened, and why. Without RUN: the newest.

    \b
    Examples:
      agentos show
      agentos show 20261116-093012-1f3a5c
      agentos show 20261116-093012-1f3a5c a
    """
    folder = find_run(run_id)
    if item_id is None:
        _show_run(folder, as_json=as_json)
        return
    with ledger_of(folder) as ledger:
        item = ledger.item(item_id)
        if item is None:
            raise unknown_item(ledger, item_id)
        attempts = list(ledger.attempts(item_id))
    if as_json:
        say_json(item_facts(folder, item, attempts))
    else:
        _say_all(item_lines(folder, item, attempts))


def _show_run(folder: RunFolder, *, as_json: bool) -> None:
    overview = overview_of(folder)
    if overview.problem is not None and overview.state != RUNNING:
        raise Failure(overview.problem)
    if not overview.launches:
        facts = all_facts(overview, None)
    else:
        with ledger_of(folder) as ledger:
            facts = all_facts(overview, ledger)
    if as_json:
        say_json(facts)
    else:
        _say_all(run_lines(overview, facts))


def _say_all(lines: Iterator[str]) -> None:
    for line in lines:
        say(line)


# --- logs ---------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.argument("item_id", metavar="[ITEM]", required=False, shell_complete=item_ids)
@click.option("--follow", "-f", is_flag=True, help="And what it still prints, while the run is alive.")
@click.option("--list", "as_list", is_flag=True, help="The items that have a log, with its size and file.")
@click.pass_context
def logs(context: click.Context, run_id: str, item_id: str | None, follow: bool, as_list: bool) -> None:
    """What an item printed, in all its attempts.

    \b
    Examples:
      agentos logs 20261116-093012-1f3a5c --list
      agentos logs 20261116-093012-1f3a5c a --follow
    """
    folder = find_run(run_id)
    if as_list == (item_id is not None):
        raise click.UsageError("name one item, or say --list")
    if item_id is None:
        with ledger_of(folder) as ledger:
            _list_logs(folder, ledger)
        return
    path = folder.logs / log_name(item_id)
    try:
        if follow and owner_of_run(folder) is not None:
            _follow(path, folder, item_id, sys.stdout.buffer)
        elif path.exists():
            _copy(path, 0, sys.stdout.buffer)
        if not path.exists():
            _say_no_log(folder, item_id)
    except KeyboardInterrupt:  # how one stops following
        context.exit(INTERRUPTED)


def _say_no_log(folder: RunFolder, item_id: str) -> None:
    with ledger_of(folder) as ledger:
        if ledger.standing(item_id) is None:
            raise unknown_item(ledger, item_id)
    say(f"Item {shorten(item_id, MOST_OF_A_COMMAND)} has no log: it printed nothing.", err=True)


def _list_logs(folder: RunFolder, ledger: Ledger) -> None:
    for item_id in ledger.ids():
        path = folder.logs / log_name(item_id)
        try:
            say(f"{size(path.stat().st_size):>12}  {path.name}  {escape_controls(item_id)}")
        except FileNotFoundError:
            continue


def _follow(path: Path, folder: RunFolder, item_id: str, output: BinaryIO) -> None:
    """Until the item has ended, or the run; whatever was printed by then is there by then."""
    position, is_over = 0, False
    if not path.exists():
        say(f"Item {shorten(item_id, MOST_OF_A_COMMAND)} has printed nothing yet.", err=True)
    while True:
        if path.exists():
            position = _copy(path, position, output)
        if is_over:
            return
        is_over = owner_of_run(folder) is None or _has_ended(folder, item_id)
        if not is_over:
            time.sleep(LOOK_UP_SECONDS)


def _has_ended(folder: RunFolder, item_id: str) -> bool:
    """In this launch: what failed in one before may be tried again at any moment."""
    try:
        with Ledger.open(folder.ledger) as ledger:
            standing, launches = ledger.standing(item_id), ledger.launches()
    except LedgerError:  # it is just being made
        return False
    if standing is None or standing[0] == UNFINISHED:
        return False
    return standing[0] == "succeeded" or standing[1] == launches[-1].launch


def _copy(path: Path, position: int, output: BinaryIO) -> int:
    """From there to the present end; returns where that is. A file that has become shorter is a new one."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) >= position:
            file.seek(position)
        else:
            file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            output.write(chunk)
        output.flush()
        return file.tell()


# --- export -------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option(
    "--format",
    "told",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="How rows are written.",
)
@click.option(
    "--output", metavar="FILE", shell_complete=files, help="Instead of stdout; it is replaced when all is written."
)
@click.option("--only", type=click.Choice(["succeeded", "failed", "unfinished"]), help="Items with this outcome.")
def export(run_id: str, told: str, output: str | None, only: str | None) -> None:
    """The results of a run, a row for each item that was started: id, outcome, value, error, attempts, duration,
    ended_at, credential_id, tokens, cost. In CSV the value is JSON text.

    \b
    Examples:
      agentos export 20261116-093012-1f3a5c > results.jsonl
      agentos export 20261116-093012-1f3a5c --only failed --format csv --output failed.csv
    """
    folder = find_run(run_id)
    with ledger_of(folder) as ledger, opened(output) as file:
        export_items(ledger, only, told, file)
