"""`agentos stop`: interrupts a run that another process on this machine carries out."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

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
    """Stop a run, as Ctrl-C in its terminal would: nothing new starts, and running programs get SIGTERM
    and time to end (--grace of the run, 5 s by default).

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
    signum = _stop_signal(owner.pid)
    if signum is None:
        raise NotStopped(f"run {run_id} (pid {owner.pid}) ignores SIGINT and SIGTERM: kill -KILL {owner.pid} ends it")
    try:
        os.kill(owner.pid, signum)
    except ProcessLookupError:
        raise NotStopped(f"run {run_id} has just ended") from None
    except PermissionError:
        raise NotStopped(f"run {run_id} is running as pid {owner.pid}, which belongs to another user") from None
    say(f"Stopping run {run_id} (pid {owner.pid}). A second agentos stop ends it at once.")
    if wait:
        while (current := run_owner(folder)) is not None and current.pid == owner.pid:
            time.sleep(POLL_SECONDS)
        say(f"Run {run_id} has ended: {read_status(folder).state_text}")


def _stop_signal(pid: int) -> signal.Signals | None:
    """Return the signal that stops a run: SIGTERM if it ignores SIGINT, as a shell makes background jobs do; None if it
    ignores both."""
    ignored = 0
    with contextlib.suppress(OSError, ValueError):  # without /proc: assume that it ignores nothing
        fields = dict(line.partition(":\t")[::2] for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        ignored = int(fields.get("SigIgn", "0"), 16)
    return next((signum for signum in (signal.SIGINT, signal.SIGTERM) if not ignored >> (signum - 1) & 1), None)
