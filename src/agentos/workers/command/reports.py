"""What a command says about itself, with `agentos report`: one JSON object per line in a file of its attempt.

The file is made before the command starts and read after it has ended. Whatever the command has done to it, reading
never fails: what cannot be understood was not said.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from agentos.verdict import AUTH_FAILED, OVERLOADED, PERMANENT, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT

# The variable that names the file.
VARIABLE = "AGENTOS_REPORT"
# As they are typed.
KINDS = {
    kind.replace("_", "-"): kind
    for kind in (RATE_LIMITED, QUOTA_EXHAUSTED, AUTH_FAILED, OVERLOADED, TRANSIENT, PERMANENT)
}
# Those that say for how long, or until when.
WAITING = frozenset({RATE_LIMITED, QUOTA_EXHAUSTED, OVERLOADED})
# So much of the file is read: hundreds of reports. A command in a loop must not fill our memory.
MOST_BYTES = 65536
MOST_MESSAGE = 1000
# A figure from here on is a mistake, and sums of such figures would end where no number can be written as JSON.
MOST_AMOUNT = 1e15


def read_reports(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """`{"verdict": …, "retry_after": …, "until": …, "message": …}`, all but the first optional, or
    `{"usage": {"requests": …, "tokens": …, "cost": …}}`, all of them from 0 to 1e15; in the order of their coming."""
    try:
        lines = _beginning(Path(path)).split(b"\n")
    except (OSError, ValueError):
        return []
    return [report for line in lines if (report := _understood(line))]


def _beginning(path: Path) -> bytes:
    # Not even a pipe that was put in its place makes the reader wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, MOST_BYTES)
    finally:
        os.close(descriptor)
    return content if len(content) < MOST_BYTES else content[: content.rfind(b"\n") + 1]


def _understood(line: bytes) -> dict[str, Any] | None:
    if not line:
        return None
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    usage, kind = said.get("usage"), said.get("verdict")
    if isinstance(usage, dict):
        amounts = {name: _amount(usage.get(name)) for name in ("requests", "tokens", "cost")}
        used = {name: amount for name, amount in amounts.items() if amount is not None}
        whole = {name: amount if name == "cost" else int(amount) for name, amount in used.items()}
        return {"usage": whole} if whole else None
    if not isinstance(kind, str) or kind not in KINDS.values():
        return None
    times = {name: _amount(said.get(name)) for name in ("retry_after", "until")} if kind in WAITING else {}
    report: dict[str, Any] = {"verdict": kind, **{name: time for name, time in times.items() if time is not None}}
    if isinstance(said.get("message"), str):
        report["message"] = said["message"][:MOST_MESSAGE]
    return report


def _amount(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        amount = float(value)
    except OverflowError:
        return None
    return amount if 0 <= amount < MOST_AMOUNT else None
