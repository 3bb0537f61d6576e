"""What `agentos show` says of a run, and of one of its items: as facts for programs, and as lines for people."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from agentos.durations import format_duration
from agentos.home.run_folder import RunFolder
from agentos.home.run_status import FINISHED, RUNNING, Overview, failures_by_cause
from agentos.items.file_names import log_name
from agentos.ledger.reader import UNFINISHED, Launch, Ledger, RecordedAttempt, RecordedItem
from agentos.reporters.format import escape_controls, local_time, plural, shell_argument, shorten, size, table

# So many of each are listed; all are in `agentos export`.
MOST_SLOW = 5
MOST_CAUSES_SHOWN = 10
MOST_UNFINISHED = 10
# Characters of an input or a value.
MOST_OF_A_VALUE = 1000
MOST_OF_AN_ID = 60
NUMBERS = frozenset(range(1, 7))


# --- a run --------------------------------------------------------------------------------------------------------


def run_facts(overview: Overview) -> dict[str, Any]:
    """Of any run, also of one that has not started or cannot be read."""
    spec, counts = overview.spec, overview.counts
    return {
        "run_id": overview.folder.run_id,
        "state": overview.state,
        "stopped": overview.launches[-1].stopped if overview.launches else None,
        "pid": overview.owner.pid if overview.owner is not None else None,
        "host": overview.owner.host if overview.owner is not None else None,
        "problem": overview.problem,
        "created_at": spec.created_at if spec is not None else None,
        "command": spec.command if spec is not None else None,
        "function": spec.function if spec is not None else None,
        "folder": str(overview.folder.path),
        "total": overview.total,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "unfinished": counts.unfinished,
        "left": overview.left,
        "is_resumable": overview.is_resumable,
    }


def all_facts(overview: Overview, ledger: Ledger | None) -> dict[str, Any]:
    """And of one that has a ledger, what is in there."""
    ended = overview.folder.read_ended()
    facts = {
        **run_facts(overview),
        "cwd": overview.spec.cwd if overview.spec is not None else None,
        "launches": [asdict(launch) for launch in overview.launches],
        "bound_by": ended.bound_by if ended is not None else None,
        "slowest": [],
        "failures": [],
        "credentials": [],
        "unfinished_ids": [],
    }
    if ledger is not None:
        facts["slowest"] = [{"id": item_id, "duration": seconds} for item_id, seconds in ledger.slowest(MOST_SLOW)]
        facts["failures"] = [asdict(cause) for cause in failures_by_cause(ledger)]
        facts["credentials"] = [asdict(totals) for totals in ledger.credentials()]
        unfinished = itertools.islice(ledger.items(UNFINISHED), MOST_UNFINISHED)
        facts["unfinished_ids"] = [item.id for item in unfinished]
    facts["next"] = next_commands(overview, facts)
    return facts


def run_lines(overview: Overview, facts: dict[str, Any]) -> Iterator[str]:
    yield f"Run {overview.folder.run_id}: {overview.state_text}"
    yield from _what(overview)
    yield f"  Items: {items_text(overview)}"
    yield from _launches(overview)
    if facts["bound_by"]:
        yield f"  Bound by: {escape_controls(facts['bound_by'])}"
    yield from _failures(facts["failures"])
    if facts["slowest"]:
        yield "\nSlowest items:"
        rows = [(format_duration(slow["duration"]), shorten(slow["id"], MOST_OF_AN_ID)) for slow in facts["slowest"]]
        yield from table(rows, right=frozenset({0}), indent="  ")
    yield from _credentials(facts["credentials"])
    if facts["unfinished_ids"]:
        more = overview.counts.unfinished - len(facts["unfinished_ids"])
        ids = [shorten(item_id, MOST_OF_AN_ID) for item_id in facts["unfinished_ids"]]
        yield f"\nUnfinished: {', '.join(ids)}" + (f", and {more} more" if more > 0 else "")
    if facts["next"]:
        yield "\nNext:"
        yield from (f"  {command}" for command in facts["next"])


def items_text(overview: Overview) -> str:
    counts, left = overview.counts, overview.left
    of = "" if overview.total is None else f"{overview.total}: "
    rest = f"{counts.unfinished} begun, and maybe more, left" if left is None else f"{left} left"
    return f"{of}{counts.succeeded} succeeded, {counts.failed} failed, {rest}"


def next_commands(overview: Overview, facts: dict[str, Any]) -> list[str]:
    run_id, commands = overview.folder.run_id, []
    if overview.state == RUNNING:
        commands.append(f"agentos stop {run_id}")
        running = next(filter(None, map(shell_argument, facts["unfinished_ids"])), None)
        if running is not None:
            commands.append(f"agentos logs {run_id} --follow {running}")
    elif overview.is_resumable:
        commands.append(f"agentos resume {run_id}")
    failed = next(
        filter(None, (shell_argument(item_id) for cause in facts["failures"] for item_id in cause["ids"])), None
    )
    if failed is not None:
        if overview.state == FINISHED:
            commands.append(f"agentos retry {run_id}")
        commands.append(f"agentos show {run_id} {failed}")
    logged = next(
        (item_id for cause in facts["failures"] for item_id in cause["ids"] if _has_log(overview, item_id)), None
    )
    if logged is not None and (name := shell_argument(logged)) is not None:
        commands.append(f"agentos logs {run_id} {name}")
    if overview.counts.succeeded:
        commands.append(f"agentos export {run_id} --format jsonl")
    return commands


def _has_log(overview: Overview, item_id: str) -> bool:
    return (overview.folder.logs / log_name(item_id)).exists()


def _what(overview: Overview) -> Iterator[str]:
    spec = overview.spec
    if spec is not None:
        yield f"  {'Function' if spec.function else 'Command'}: {shorten(overview.what, MOST_OF_A_VALUE)}"
        yield f"  Created: {local_time(spec.created_at)} in {escape_controls(spec.cwd)}"
    yield f"  Folder: {escape_controls(str(overview.folder.path))}"


def _launches(overview: Overview) -> Iterator[str]:
    if overview.launches:
        yield "  Launches:"
        rows = [
            (
                str(launch.launch),
                local_time(launch.started_at),
                format_duration(None if launch.ended_at is None else launch.ended_at - launch.started_at),
                _how_it_ended(launch, is_running=overview.state == RUNNING and launch is overview.launches[-1]),
            )
            for launch in overview.launches
        ]
        yield from table(rows, right=frozenset({0, 2}), indent="    ")


def _how_it_ended(launch: Launch, *, is_running: bool) -> str:
    if launch.ended_at is None:
        return f"running (pid {launch.pid} on {launch.host})" if is_running else "killed"
    return escape_controls(launch.stopped) if launch.stopped is not None else "finished"


def _failures(causes: list[dict[str, Any]]) -> Iterator[str]:
    if not causes:
        return
    yield "\nFailures by cause:"
    rows = []
    for cause in causes[:MOST_CAUSES_SHOWN]:
        ids = ", ".join(shorten(item_id, MOST_OF_AN_ID) for item_id in cause["ids"])
        more = cause["count"] - len(cause["ids"])
        kind = f"{escape_controls(cause['error_type'])}: " if cause["error_type"] else ""
        rows.append((str(cause["count"]), f"{kind}{cause['error']}", ids + (", …" if more else "")))
    for count, error, ids in rows:
        yield f"  {count.rjust(len(rows[0][0]))} x {error}"
        yield f"  {' ' * len(rows[0][0])}   {ids}"
    if len(causes) > len(rows):
        yield f"  and {plural(len(causes) - len(rows), 'more cause')}"


def _credentials(totals: list[dict[str, Any]]) -> Iterator[str]:
    if not totals:
        return
    yield ""
    rows: list[tuple[str, ...]] = [("Credential", "attempts", "succeeded", "requests", "tokens", "cost", "waited")]
    rows += [
        (
            shorten(total["credential_id"], MOST_OF_AN_ID),
            *(str(total[name]) for name in ("attempts", "succeeded", "requests", "tokens")),
            f"{total['cost']:.4g}",
            format_duration(total["waited"]),
        )
        for total in totals
    ]
    yield from table(rows, right=NUMBERS)


# --- an item ------------------------------------------------------------------------------------------------------


def item_facts(folder: RunFolder, item: RecordedItem, attempts: list[RecordedAttempt]) -> dict[str, Any]:
    log = folder.logs / log_name(item.id)
    return {
        **asdict(item),
        "run_id": folder.run_id,
        "history": [asdict(attempt) for attempt in attempts],
        "log": str(log) if log.exists() else None,
    }


def item_lines(folder: RunFolder, item: RecordedItem, attempts: list[RecordedAttempt]) -> Iterator[str]:
    took = f" after {format_duration(item.duration)}" if item.duration else ""
    yield f"Item {escape_controls(item.id)} of run {folder.run_id}: {item.outcome}{took}"
    yield f"  Input: {_value_text(item.input)}"
    if item.outcome == "succeeded":
        yield f"  Value: {_value_text(item.value)}"
    if item.error:
        kind = item.metadata.get("error_type")
        yield "  Error: " + (f"{escape_controls(str(kind))}: " if kind else "") + _indented(item.error)
    if item.tokens or item.cost:
        yield f"  Used: {plural(item.tokens, 'token')}, cost {item.cost:.4g}"
    yield "  Attempts:" if attempts else "  Attempts: none; it could not be started as given"
    if attempts:
        yield from table([_attempt_row(attempt) for attempt in attempts], right=frozenset({2, 3}), indent="    ")
    traceback = item.metadata.get("traceback")
    if isinstance(traceback, str) and traceback:
        yield f"  Traceback:\n    {_indented(traceback)}"
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
    waited = f"waited {format_duration(attempt.waited)}" if attempt.waited else ""
    error = shorten((attempt.error or "").strip().partition("\n")[0], 200)
    return (
        f"{attempt.launch}.{attempt.n}",
        shorten(attempt.credential_id or "no credential", MOST_OF_AN_ID),
        waited,
        format_duration(took),
        escape_controls(attempt.verdict or "running, or killed"),
        error,
    )


def _value_text(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), MOST_OF_A_VALUE)


def _indented(text: str) -> str:
    return "\n    ".join(escape_controls(line) for line in text.strip().splitlines())
