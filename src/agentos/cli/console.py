"""The command line's side of every outcome: output for people and programs, exit statuses, and errors.

Packages below the command line raise errors of `agentos.errors` and know nothing of click. `Command` turns them into a
message on stderr and an exit status, here and nowhere else.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

import click

from agentos.errors import EngineUnavailable, HomeError, KeysFileError, LedgerError, UnknownRun

SUCCEEDED, SOME_FAILED, WRONG_USAGE, FAILED, STOPPED = 0, 1, 2, 3, 4
# What Python says if the system refuses a thread.
NO_THREAD = "can't start new thread"
# Exit status of a command that a signal ended: this plus the number of the signal.
SIGNALLED = 128
INTERRUPTED = SIGNALLED + 2

# The arguments of the command have to change: exit status WRONG_USAGE.
_USAGE_ERRORS = (UnknownRun, KeysFileError)
# Something outside the arguments has to change: exit status FAILED.
_FAILURES = (HomeError, LedgerError, EngineUnavailable)


class Failure(click.ClickException):
    """A failure that is neither wrong usage nor an item's: the ledger, the store, a run that is busy."""

    exit_code = FAILED


class Refusal(click.ClickException):
    """The arguments were understood, and cannot be carried out: an unknown run, a bad keys file. Without the hint at
    `--help`, which would not help."""

    exit_code = WRONG_USAGE


class Command(click.Command):
    """A command that reports domain errors as click does its own. How it is called is shown for errors that click finds
    in the arguments, and not for those that the command finds while it works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if error.param is None or error.param.name != "run_id":
                raise
            raise click.UsageError(
                "Missing argument 'RUN': the id of a run, or last for the newest one; agentos runs lists them", ctx
            ) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.BadParameter:
            raise
        except click.UsageError as error:
            raise Refusal(error.message) from None
        except _USAGE_ERRORS as error:
            raise Refusal(str(error)) from None
        except _FAILURES as error:
            raise Failure(str(error)) from None
        except MemoryError:
            raise Failure(
                "there is no memory left: end other programs, raise ulimit -v, or lower --parallel. agentos resume "
                "continues a run"
            ) from None
        except RuntimeError as error:
            if NO_THREAD not in str(error):
                raise
            raise Failure(
                f"the run has no room for its threads ({error}): raise ulimit -u or ulimit -v, or lower --parallel"
            ) from None


def write_default_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """List the options of the command that a group carries out if none is named."""
    with formatter.section(f"Options without a command ({command.name})"):
        records = (parameter.get_help_record(ctx) for parameter in command.params)
        formatter.write_dl([record for record in records if record is not None])


def say(text: str, *, err: bool = False) -> None:
    """Print a line on stdout, or stderr. Characters that its encoding lacks are printed as escapes."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def binary_stdout() -> BinaryIO:
    """Return stdout for bytes. If the parent process has closed it, what is written is dropped, as `say` does."""
    return open(os.devnull, "wb") if sys.stdout is None else sys.stdout.buffer  # noqa: PTH123 - until the exit


def say_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
