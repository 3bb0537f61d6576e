"""The format of the reports that a command writes with `agentos report`: one JSON object per line in a file of its
attempt. `agentos report` and the runner of commands import this module.

The first report creates the file; the runner reads it after the command has ended. Reading never fails, although the
command may have done anything to the file: lines that are not valid reports are skipped.
"""

from __future__ import annotations

import json
import os
from typing import Any

from agentos.verdict import AUTH_FAILED, OVERLOADED, PERMANENT, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT

# The variable that holds the path of the file.
VARIABLE = "AGENTOS_REPORT"
# The name of the file, in the folder of its attempt.
REPORT_NAME = ".report"
# Verdict kinds by the name that is typed on the command line.
KINDS = {
    kind.replace("_", "-"): kind
    for kind in (RATE_LIMITED, QUOTA_EXHAUSTED, AUTH_FAILED, OVERLOADED, TRANSIENT, PERMANENT)
}
# Kinds that may have `retry_after` or `until`.
WAITING = frozenset({RATE_LIMITED, QUOTA_EXHAUSTED, OVERLOADED})
# Bytes read of the file, enough for hundreds of reports: a command in a loop must not fill the memory.
MAX_BYTES = 65536
# Characters kept of a message.
MAX_MESSAGE = 1000
# Upper bound of an amount: larger values are mistakes, and sums of them could exceed what JSON can represent.
MAX_AMOUNT = 1e15


def read_reports(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the valid reports of a file in their order; an empty list if it cannot be read.

    A report is `{"verdict": …, "retry_after": …, "until": …, "message": …}`, all but the first optional, or
    `{"usage": {"requests": …, "tokens": …, "cost": …}}`, with amounts from 0 to MAX_AMOUNT.
    """
    try:
        content = _read_start(path)
    except (OSError, ValueError):
        return []
    return [report for line in content.split(b"\n") if (report := _parse(line))]


def _read_start(path: str | os.PathLike[str]) -> bytes:
    # Not blocking: the command may have put a pipe in the place of the file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, MAX_BYTES)
    finally:
        os.close(descriptor)
    return content if len(content) < MAX_BYTES else content[: content.rfind(b"\n") + 1]


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    usage, kind = fields.get("usage"), fields.get("verdict")
    if isinstance(usage, dict):
        amounts = {name: _amount(usage.get(name)) for name in ("requests", "tokens", "cost")}
        valid = {name: amount for name, amount in amounts.items() if amount is not None}
        counts = {name: amount if name == "cost" else int(amount) for name, amount in valid.items()}
        return {"usage": counts} if counts else None
    if not isinstance(kind, str) or kind not in KINDS.values():
        return None
    times = {name: _amount(fields.get(name)) for name in ("retry_after", "until")} if kind in WAITING else {}
    report: dict[str, Any] = {"verdict": kind, **{name: time for name, time in times.items() if time is not None}}
    if isinstance(fields.get("message"), str):
        report["message"] = fields["message"][:MAX_MESSAGE]
    return report


def _amount(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        amount = float(value)
    except OverflowError:
        return None
    return amount if 0 <= amount < MAX_AMOUNT else None
