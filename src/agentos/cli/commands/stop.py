"""`agentos stop`: interrupts a run that another process on this machine carries out."""

from __future__ import annotations

import os
import signal
import time

import click

from agentos.home.run_status import read_status, run_owner

from ..completion import running_ids
from ..console import Command, say
from ..find import find_run

# Seconds between two looks at a run that `--wait` waits for.
POLL_SECONDS = 0.05


class NotStopped(click.ClickException):
    """The run is not running, or cannot be stopped by this process."""

    exit_code = 1


@click.command(cls=Command)
@click.argument("run_id", metavar="RUN", shell_complete=running_ids)
@click.option("--wait", is_flag=True, help="Return after the run has ended.")
def stop(run_id: str, wait: bool) -> None:
    """Stop a run, as Ctrl-C in its terminal would: nothing new starts, and running items get
    time to end (--grace).

    A second agentos stop ends the run at once. agentos resume continues it later.

    \b
    Example:
      agentos stop 20261116-093012-1f3a5c --wait
    """
    folder = find_run(run_id)
    run_id = folder.run_id
    owner = run_owner(folder)
    if owner is None:
        raise NotStopped(f"run {run_id} is not running: {read_status(folder).state_text}")
    if not owner.is_here or owner.pid is None:
        raise NotStopped(f"run {run_id} is running as pid {owner.pid} on {owner.host}: stop it there")
    try:
        os.kill(owner.pid, signal.SIGINT)
    except ProcessLookupError:
        raise NotStopped(f"run {run_id} has just ended") from None
    except PermissionError:
        raise NotStopped(f"run {run_id} is running as pid {owner.pid}, which belongs to another user") from None
    say(f"Stopping run {run_id} (pid {owner.pid}). A second agentos stop ends it at once.")
    if wait:
        while (current := run_owner(folder)) is not None and current.pid == owner.pid:
            time.sleep(POLL_SECONDS)
        say(f"Run {run_id} has ended: {read_status(folder).state_text}")
