"""`agentos report`: hands a verdict or usage from a command to the attempt that started it.

Starts inside commands, many times in a run: imports as little as possible, and not the console.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from agentos.workers.command.reports import KINDS, MAX_AMOUNT, MAX_MESSAGE, REPORT_NAME, VARIABLE, WAITING

from ..duration_type import Duration

USAGE = "usage"


@click.command()
@click.argument("kind", metavar="KIND", type=click.Choice([*KINDS, USAGE]))
@click.option(
    "--retry-after", metavar="DURATION", type=Duration(), help="Wait that the provider asks for: 30s, 5m, or seconds."
)
@click.option("--until", metavar="EPOCH|ISO", help="Or the end of the wait: epoch seconds, or 2026-11-16T09:30:00Z.")
@click.option("--message", metavar="TEXT", help="The error message of the provider.")
@click.option("--requests", metavar="N", type=int, help="With usage: number of requests sent.")
@click.option("--tokens", metavar="N", type=int, help="With usage: number of tokens used.")
@click.option("--cost", metavar="X", type=float, help="With usage: cost.")
def report(kind: str, **options: Any) -> None:
    """Inside a command of a run: report what the provider answered, or the usage.

    KIND is rate-limited, quota-exhausted, auth-failed, overloaded, transient, permanent or usage.

    Report before the command ends. The last report counts, and overrides the output and exit status of the command.
    Usage adds up.

    \b
    Examples:
      agentos report rate-limited --retry-after 30s
      agentos report quota-exhausted --until 2026-11-17T00:00:00Z
      agentos report permanent --message "the file is empty"
      agentos report usage --tokens 1200 --cost 0.02
    """
    path = os.environ.get(VARIABLE)
    if not path:
        raise click.UsageError(f"agentos report works only in a command of a run: ${VARIABLE} is not set")
    values = {name: value for name, value in options.items() if value is not None}
    line = json.dumps(_usage(values) if kind == USAGE else _verdict(kind, values)) + "\n"
    try:
        # If the attempt has ended, the folder is missing. With another name the variable is wrong: nothing is created.
        create = os.O_CREAT if Path(path).name == REPORT_NAME else 0
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | create, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.UsageError(f"${VARIABLE} ({path}) cannot be written, so the report is lost: {reason}") from None


def _usage(values: dict[str, Any]) -> dict[str, Any]:
    _refuse_others(values, USAGE, {"requests", "tokens", "cost"})
    if not values:
        raise click.UsageError("usage needs --requests, --tokens or --cost")
    for name, amount in values.items():
        _check_amount(name, amount)
    return {"usage": values}


def _verdict(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    verdict = KINDS[kind]
    _refuse_others(values, kind, {"message", "retry_after", "until"} if verdict in WAITING else {"message"})
    if "retry_after" in values:
        _check_amount("retry_after", values["retry_after"])
    if "until" in values:
        values["until"] = _epoch(values["until"])
    if "message" in values:
        values["message"] = values["message"][:MAX_MESSAGE]
    return {"verdict": verdict, **values}


def _refuse_others(values: dict[str, Any], kind: str, allowed: set[str]) -> None:
    for name in values.keys() - allowed:
        raise click.UsageError(f"--{name.replace('_', '-')} does not belong to {kind}")


def _check_amount(name: str, amount: float) -> None:
    if not 0 <= amount < MAX_AMOUNT:
        option = f"--{name.replace('_', '-')}"
        raise click.UsageError(f"{option} must be a number from 0 to {MAX_AMOUNT:g}, not {amount!s:.40}")


def _epoch(text: str) -> float:
    """Return epoch seconds. An instant without a time zone is local time, as in `date`."""
    try:
        try:
            epoch = float(text)
        except ValueError:
            epoch = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.UsageError(f"--until must be epoch seconds or like 2026-11-16T09:30:00Z, not {text!r}") from None
    _check_amount("until", epoch)
    return epoch
