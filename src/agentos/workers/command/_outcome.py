"""Decide what the end of a command means: its value, or the error with the verdict on the provider."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any

from agentos.child_status import UNKNOWN_STATUS
from agentos.errors import CommandFailed, Interrupted
from agentos.items.attempt import Attempt
from agentos.items.file_names import log_name
from agentos.providers import verdicts
from agentos.verdict import NO_VERDICT, RETRY_ON_OTHER_KEY, Verdict

from ._files import add_reported_usage
from ._process import CommandProcess
from ._reason import reason_of
from .command import Command

# Characters at the end of the output that the user's patterns are tried on: a pattern that backtracks may take very
# long on more.
MAX_MATCHED = 8 * 1024


def outcome_of(
    process: CommandProcess, status: int | None, reports: list[dict[str, Any]], command: Command
) -> tuple[Any, BaseException | None]:
    """Return the value of a command that has ended, or its error. Also passes on the usage that it has reported.

    `status` is None if it is lost, which is never a success."""
    attempt = process.attempt
    stdout, stderr = process.outputs.values()
    reported = _reported_verdict(attempt, reports)
    verdict = _verdict_on_output(process, status, command) if reported is None else reported
    if attempt.client_token is not None and verdict.kind in RETRY_ON_OTHER_KEY:
        # The command has no key: of limits and keys only the gateway knows.
        verdict = attempt.context.end_access(attempt).verdict or NO_VERDICT
    details = {"exit_status": status, "log": None if command.folder is None else log_name(attempt.id)}
    if status == 0 and verdict.kind is None:
        return {**details, "stdout": stdout.tail.decode("utf-8", "replace"), "is_cut": stdout.is_cut}, None
    if attempt.should_stop and not attempt.is_timed_out:
        return None, Interrupted(f"stopped ({_status_text(status)})")
    message = b"" if reported is None else reported.message.encode("utf-8", "replace")
    reason = reason_of(message) or reason_of(stderr.tail, stdout.tail)
    text = _status_text(status) + (f": {reason}" if reason else "")
    details["stderr"] = stderr.tail[-4096:].decode("utf-8", "replace")
    return None, CommandFailed(text, exit_status=status, verdict=verdict, details=details)


def _reported_verdict(attempt: Attempt, reports: list[dict[str, Any]]) -> Verdict | None:
    """Return the last verdict that the command itself has reported; add up the usage that it has reported."""
    add_reported_usage(attempt, reports)
    verdicts_of_command = [_verdict_from_report(report) for report in reports if "verdict" in report]
    return verdicts_of_command[-1] if verdicts_of_command else None


def _verdict_from_report(report: dict[str, Any]) -> Verdict:
    wait = report.get("retry_after")
    if wait is None and "until" in report:
        wait = max(0.0, report["until"] - time.time())
    kind = report["verdict"]
    # What a report says about its item is believed; what it says about the credential is as weak as printed text.
    return Verdict(kind, wait, message=report.get("message", ""), is_printed=kind in RETRY_ON_OTHER_KEY)


def _verdict_on_output(process: CommandProcess, status: int | None, command: Command) -> Verdict:
    """Read what the command has printed: with the user's patterns first, then with the rules for all providers.

    Both are tried with any exit status: some agents exit with 0 after a failure.
    """
    tails = [output.tail for output in process.outputs.values()]
    if status == 0 and not any(tails):
        return NO_VERDICT
    text = b"\n".join(tails).decode("utf-8", "replace")
    for pattern in command.patterns:
        if (verdict := pattern.read(text[-MAX_MATCHED:])) is not None:
            return verdict
    return verdicts.from_output(text, status, provider=process.attempt.provider, now=time.time())


def _status_text(status: int | None) -> str:
    if status is None:
        return UNKNOWN_STATUS
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"ended by signal {-status} ({signal.Signals(-status).name})"
    return f"ended by signal {-status}"
