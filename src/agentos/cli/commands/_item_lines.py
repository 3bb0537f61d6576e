"""`agentos show RUN ITEM`: one item as a record for programs and as lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from agentos.durations import format_duration
from agentos.home.run_folder import RunFolder
from agentos.items.file_names import log_name
from agentos.ledger.recorded import DAMAGED, RecordedAttempt, RecordedItem
from agentos.plurals import plural
from agentos.reporters.format import escape_controls, shell_argument, shorten, size, table

# Characters of an input or a value, and of an id.
MAX_VALUE = 1000
MAX_ID = 60


def item_record(folder: RunFolder, item: RecordedItem, attempts: list[RecordedAttempt]) -> dict[str, Any]:
    """Return the record of one item for programs."""
    log = folder.logs / log_name(item.id)
    return {
        **asdict(item),
        "run_id": folder.run_id,
        "history": [asdict(attempt) for attempt in attempts],
        "log": str(log) if log.exists() else None,
    }


def item_lines(folder: RunFolder, item: RecordedItem, attempts: list[RecordedAttempt]) -> Iterator[str]:
    """Yield the lines about one item for people."""
    took = f" after {format_duration(item.duration)}" if item.duration else ""
    yield f"Item {escape_controls(item.id)} of run {folder.run_id}: {item.outcome}{took}"
    if item.outcome == DAMAGED:
        yield f"  Error: {item.error}"
        yield f"\nNext:\n  agentos retry {folder.run_id}"
        return
    yield f"  Input: {_value_text(item.input)}"
    if item.outcome == "succeeded":
        yield f"  Value: {_value_text(item.value)}"
    if item.error:
        kind = item.metadata.get("error_type")
        yield "  Error: " + (f"{escape_controls(str(kind))}: " if kind else "") + _indent(item.error)
    if item.usage is not None:
        yield f"  Requests: {usage_text(asdict(item.usage))}"
    elif item.tokens or item.cost:
        yield f"  Used: {plural(item.tokens, 'token')}, cost {item.cost:.4g}"
    yield "  Attempts:" if attempts else "  Attempts: none; the item could not be started"
    if attempts:
        header = ("launch.attempt", "key", "waited", "took", "verdict", "")
        yield from table([header, *map(_attempt_row, attempts)], right=frozenset({2, 3}), indent="    ")
    traceback = item.metadata.get("traceback")
    if isinstance(traceback, str) and "\n" in traceback.strip():  # one line is the error, which stands above
        yield f"  Traceback:\n    {_indent(traceback)}"
    log = folder.logs / log_name(item.id)
    yield f"  Log: {escape_controls(str(log))} ({size(log.stat().st_size)})" if log.exists() else "  Log: none"
    name = shell_argument(item.id)
    commands = [f"agentos logs {folder.run_id} {name}"] if log.exists() and name is not None else []
    if item.outcome == "failed":
        commands.append(f"agentos retry {folder.run_id}")
    if commands:
        yield "\nNext:"
        yield from (f"  {command}" for command in commands)


def _attempt_row(attempt: RecordedAttempt) -> tuple[str, ...]:
    took = None if attempt.ended_at is None else attempt.ended_at - attempt.started_at
    waited = format_duration(attempt.waited) if attempt.waited else ""
    error = shorten((attempt.error or "").strip().partition("\n")[0], 200)
    return (
        f"{attempt.launch}.{attempt.n}",
        shorten(attempt.credential_id or _no_credential(attempt), MAX_ID),
        waited,
        format_duration(took),
        escape_controls(attempt.verdict or "running, or killed"),
        error,
    )


def _no_credential(attempt: RecordedAttempt) -> str:
    if attempt.usage is None:
        return "no credential"
    ids = ", ".join(attempt.credential_ids)
    return plural(attempt.usage.requests, "request") + (f" with {ids}" if ids else "")


def usage_text(usage: dict[str, Any]) -> str:
    """Return what requests used, as the gateway of the run counted them."""
    tokens = ", ".join(f"{usage[f'{name}_tokens']:,} {name}" for name in ("input", "output", "cached"))
    parts = [f"{usage['requests']:,}", f"tokens: {tokens}"]
    parts.append("cost not known" if usage["cost"] is None else f"cost {usage['cost']:.4g}")
    if usage["held_seconds"] >= 1:
        parts.append(f"held for {format_duration(usage['held_seconds'])}")
    if usage["refusals"]:
        parts.append(f"{plural(usage['refusals'], 'refusal')} that no item saw")
    return "; ".join(parts)


def _value_text(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), MAX_VALUE)


def _indent(text: str) -> str:
    return "\n    ".join(escape_controls(line) for line in text.strip().splitlines())
