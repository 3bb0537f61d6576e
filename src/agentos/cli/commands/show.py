"""`agentos show`: a run, or one of its items, as records for programs and as lines for people."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from agentos.costs.amounts import larger_amount, spent_text
from agentos.durations import format_duration
from agentos.errors import BudgetExceeded
from agentos.home.run_folder import RunFolder, is_demo
from agentos.home.run_status import RUNNING, RunStatus, failures_by_cause, open_ledger, read_status
from agentos.items.file_names import log_name
from agentos.items.results import ProgressStats, Spent
from agentos.ledger.reader import Ledger
from agentos.ledger.recorded import DAMAGED, UNFINISHED, Launch
from agentos.plurals import plural
from agentos.reporters.format import escape_controls, first_line, local_time, shell_argument, shorten, table
from agentos.reporters.sentences import larger_budget
from agentos.reporters.unusable_text import detail_lines

from ..completion import item_ids, run_ids
from ..console import Command, Failure, say, say_json
from ..enabling import enabling_commands
from ..find import find_run, unknown_item
from ._item_lines import MAX_ID, MAX_VALUE, item_lines, item_record, usage_text

# Entries of each list; `agentos export` has them all.
MAX_SLOWEST = 5
MAX_CAUSES = 10
MAX_UNFINISHED = 10
MAX_DAMAGED = 10
# The failure of an item that has spent its own budget.
_ITEM_BUDGET = BudgetExceeded.__name__
_RIGHT_ALIGNED = frozenset(range(1, 7))


@click.command(cls=Command)
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids)
@click.argument("item_id", metavar="[ITEM]", required=False, shell_complete=item_ids)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show(run_id: str | None, item_id: str | None, as_json: bool) -> None:
    """Show what happened in a run or to one item, and why. Without RUN: the newest run.

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
    with open_ledger(folder) as ledger:
        item = ledger.item(item_id)
        if item is None:
            raise unknown_item(ledger, item_id)
        attempts = [] if item.outcome == DAMAGED else list(ledger.attempts(item_id))
    if as_json:
        say_json(item_record(folder, item, attempts))
    else:
        _say_all(item_lines(folder, item, attempts))


def _show_run(folder: RunFolder, *, as_json: bool) -> None:
    status = read_status(folder)
    if status.problem is not None and status.state != RUNNING:
        raise Failure(status.problem)
    if not status.launches:
        record = _full_record(status, None)
    else:
        with open_ledger(folder) as ledger:
            record = _full_record(status, ledger)
    if as_json:
        say_json(record)
    else:
        _say_all(_run_lines(status, record))


def _say_all(lines: Iterator[str]) -> None:
    for line in lines:
        say(line)


# --- a run --------------------------------------------------------------------------------------------------------


def run_record(status: RunStatus) -> dict[str, Any]:
    """Return the record of a run, also of one that has not started or cannot be read."""
    spec, counts = status.spec, status.counts
    return {
        "run_id": status.folder.run_id,
        "state": status.state,
        "stopped": status.launches[-1].stopped if status.launches else None,
        "pid": status.owner.pid if status.owner is not None else None,
        "host": status.owner.host if status.owner is not None else None,
        "problem": status.problem,
        "created_at": spec.created_at if spec is not None else None,
        "command": spec.command if spec is not None else None,
        "function": spec.function if spec is not None else None,
        "folder": str(status.folder.path),
        "total": status.total,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "unfinished": counts.unfinished if status.remaining is None else status.remaining,
        "started": counts.unfinished,
        "is_resumable": status.is_resumable,
    }


def _full_record(status: RunStatus, ledger: Ledger | None) -> dict[str, Any]:
    """Return the record of one run; what only a ledger knows is empty without one."""
    end = status.folder.read_end()
    record = {
        **run_record(status),
        "cwd": status.spec.cwd if status.spec is not None else None,
        "launches": [asdict(launch) for launch in status.launches],
        "bound_by": end.bound_by if end is not None else None,
        "slowest": [],
        "failures": [],
        "credentials": [],
        "usage": None,
        **_spent_record(status, ledger),
        "unfinished_ids": [],
        "damaged_ids": [],
    }
    if ledger is not None:
        record["slowest"] = [{"id": item_id, "duration": seconds} for item_id, seconds in ledger.slowest(MAX_SLOWEST)]
        record["failures"] = [asdict(cause) for cause in failures_by_cause(ledger)]
        record["credentials"] = [asdict(totals) for totals in ledger.credentials()]
        usage = ledger.usage()
        record["usage"] = None if usage is None else asdict(usage)
        unfinished = itertools.islice(ledger.items(UNFINISHED), MAX_UNFINISHED)
        record["unfinished_ids"] = [item.id for item in unfinished]
        record["damaged_ids"] = [item.id for item in ledger.items(DAMAGED)]
    record["next"] = _next_commands(status, record)
    return record


def _spent_record(status: RunStatus, ledger: Ledger | None) -> dict[str, Any]:
    """Return what the run has spent, may spend and is expected to spend; None for what is not known."""
    options = status.spec.options if status.spec is not None else {}
    record: dict[str, Any] = {
        "cost": None,
        "expected_cost": None,
        "budget": options.get("budget"),
        "budget_tokens": options.get("budget_tokens"),
        "item_budget": options.get("item_budget"),
        "max_item_cost": None,
        "tokens": 0,
    }
    spent = Spent() if ledger is None else ledger.spent()
    if record["item_budget"] is not None:
        record["max_item_cost"] = max(spent.by_item.values(), default=0.0)
    if spent.cost or record["budget"] is not None or record["budget_tokens"] is not None:
        record["cost"], record["tokens"] = spent.cost, spent.tokens
        if spent.cost and spent.item_cost is not None and status.remaining is not None:
            record["expected_cost"] = spent.cost + status.remaining * spent.item_cost
    return record


def _run_lines(status: RunStatus, record: dict[str, Any]) -> Iterator[str]:
    yield f"Run {status.folder.run_id}: {status.state_text}"
    yield from _description_lines(status)
    yield f"  Items: {_items_text(status)}"
    yield from _damage_lines(status, record["damaged_ids"])
    yield from _launch_lines(status)
    if status.is_resumable and (details := detail_lines(record["stopped"])):
        yield "  Credentials:"
        yield from (f"    {line}" for line in details)
    if record["bound_by"]:
        yield f"  Bound by: {escape_controls(record['bound_by'])}"
    if record["usage"] is not None:
        yield f"  Requests: {usage_text(record['usage'])}"
    if record["cost"] is not None:
        names = ("cost", "tokens", "budget", "budget_tokens", "expected_cost")
        yield f"  Cost: {spent_text(*(record[name] for name in names))}"
    yield from _failure_lines(record["failures"])
    if record["slowest"]:
        yield "\nSlowest items:"
        rows = [(format_duration(slow["duration"]), shorten(slow["id"], MAX_ID)) for slow in record["slowest"]]
        yield from table(rows, right=frozenset({0}), indent="  ")
    yield from _credential_lines(record["credentials"], has_gateway=record["usage"] is not None)
    if record["unfinished_ids"]:
        more = status.counts.unfinished - len(record["unfinished_ids"])
        ids = [shorten(item_id, MAX_ID) for item_id in record["unfinished_ids"]]
        yield f"\nStarted, not finished: {', '.join(ids)}" + (f", and {more} more" if more > 0 else "")
    if record["next"]:
        yield "\nNext:"
        yield from (f"  {command}" for command in record["next"])


def _damage_lines(status: RunStatus, damaged_ids: list[str]) -> Iterator[str]:
    if damaged_ids:
        ids = ", ".join(shorten(item_id, MAX_ID) for item_id in damaged_ids[:MAX_DAMAGED])
        more = len(damaged_ids) - MAX_DAMAGED
        yield f"  Damaged: the records of {plural(len(damaged_ids), 'item')} do not match their checksums: {ids}" + (
            f", and {more} more" if more > 0 else ""
        )
        yield f"    Restore {status.folder.ledger} from a copy, or run these items again: agentos retry"
        yield "    All other items can be read and exported."


def _items_text(status: RunStatus) -> str:
    counts, remaining = status.counts, status.remaining
    total = "" if status.total is None else f"{status.total}: "
    rest = f"at least {counts.unfinished} unfinished" if remaining is None else f"{remaining} unfinished"
    started = f" ({counts.unfinished} of them started)" if 0 < counts.unfinished < (remaining or 0) else ""
    return f"{total}{counts.succeeded} succeeded, {counts.failed} failed, {rest}{started}"


def _next_commands(status: RunStatus, record: dict[str, Any]) -> list[str]:
    run_id, commands = status.folder.run_id, []
    if status.state == RUNNING:
        commands.append(f"agentos stop {run_id}")
        running_id = next(filter(None, map(shell_argument, record["unfinished_ids"])), None)
        if running_id is not None:
            commands.append(f"agentos logs {run_id} --follow {running_id}")
    elif status.is_resumable and not _is_demo(status):
        commands += enabling_commands(record["stopped"], status.spec)
        commands.append(f"agentos resume {run_id}{_larger_budget(status, record)}")
    failed_id = next(
        filter(None, (shell_argument(item_id) for cause in record["failures"] for item_id in cause["ids"])), None
    )
    if status.state != RUNNING and not _is_demo(status) and (failed_id is not None or record["damaged_ids"]):
        commands.append(f"agentos retry {run_id}{_larger_item_budget(record)}")
    if failed_id is not None:
        commands.append(f"agentos show {run_id} {failed_id}")
    logged_id = next(
        (item_id for cause in record["failures"] for item_id in cause["ids"] if _has_log(status, item_id)), None
    )
    if logged_id is not None and (name := shell_argument(logged_id)) is not None:
        commands.append(f"agentos logs {run_id} {name}")
    if status.counts.succeeded:
        commands.append(f"agentos export {run_id} --format jsonl")
    return commands


def _is_demo(status: RunStatus) -> bool:
    return status.spec is not None and is_demo(status.spec)


def _larger_budget(status: RunStatus, record: dict[str, Any]) -> str:
    """Return the option that a resume needs, if the last launch was stopped by its budget."""
    stats = ProgressStats(None, stopped=record["stopped"])
    stats.budget, stats.budget_tokens = record["budget"], record["budget_tokens"]
    stats.cost, stats.tokens = record["cost"], record["tokens"]
    return larger_budget(stats) if status.launches else ""


def _larger_item_budget(record: dict[str, Any]) -> str:
    """Return the option that a retry needs, if items failed because they have spent their own budget."""
    if record["item_budget"] is None or not any(cause["error_type"] == _ITEM_BUDGET for cause in record["failures"]):
        return ""
    return f" --item-budget {larger_amount(record['item_budget'], record['max_item_cost'] or 0.0)}"


def _has_log(status: RunStatus, item_id: str) -> bool:
    return (status.folder.logs / log_name(item_id)).exists()


def _description_lines(status: RunStatus) -> Iterator[str]:
    spec = status.spec
    if spec is not None:
        yield f"  {'Function' if spec.function else 'Command'}: {shorten(status.command_text, MAX_VALUE)}"
        yield f"  Created: {local_time(spec.created_at)} in {escape_controls(spec.cwd)}"
    yield f"  Folder: {escape_controls(str(status.folder.path))}"


def _launch_lines(status: RunStatus) -> Iterator[str]:
    if status.launches:
        yield "  Launches:"
        rows = [
            (
                str(launch.launch),
                local_time(launch.started_at),
                format_duration(None if launch.ended_at is None else launch.ended_at - launch.started_at),
                _launch_state(launch, is_running=status.state == RUNNING and launch is status.launches[-1]),
            )
            for launch in status.launches
        ]
        yield from table(rows, right=frozenset({0, 2}), indent="    ")


def _launch_state(launch: Launch, *, is_running: bool) -> str:
    if launch.ended_at is None:
        return f"running (pid {launch.pid} on {launch.host})" if is_running else "killed"
    return first_line(launch.stopped) if launch.stopped is not None else "finished"


def _failure_lines(causes: list[dict[str, Any]]) -> Iterator[str]:
    if not causes:
        return
    yield "\nFailures by cause:"
    width = len(str(causes[0]["count"]))
    for cause in causes[:MAX_CAUSES]:
        ids = ", ".join(shorten(item_id, MAX_ID) for item_id in cause["ids"])
        more = cause["count"] - len(cause["ids"])
        error_type = f"{escape_controls(cause['error_type'])}: " if cause["error_type"] else ""
        kind = f" [{escape_controls(cause['kind'])}]" if cause["kind"] not in ("", cause["error_type"]) else ""
        yield f"  {cause['count']:>{width}} x{kind} {error_type}{cause['error']}"
        yield f"  {' ' * width}   items: {ids}" + (", …" if more else "")
        if cause["example"] != cause["error"]:
            yield f"  {' ' * width}   example: {shorten(cause['ids'][0], MAX_ID)}: {cause['example']}"
    if len(causes) > MAX_CAUSES:
        yield f"  and {plural(len(causes) - MAX_CAUSES, 'more cause')}"


def _credential_lines(totals: list[dict[str, Any]], *, has_gateway: bool) -> Iterator[str]:
    if not totals:
        return
    last = "refusals" if has_gateway else "waited"
    yield ""
    rows: list[tuple[str, ...]] = [("Credential", "attempts", "succeeded", "requests", "tokens", "cost", last)]
    rows += [
        (
            shorten(total["credential_id"], MAX_ID),
            *(str(total[name]) for name in ("attempts", "succeeded", "requests")),
            str(total["tokens"] if has_gateway else total["tokens"] or "-"),
            _cost_text(total, has_gateway=has_gateway),
            str(total["refusals"]) if has_gateway else format_duration(total["waited"]),
        )
        for total in totals
    ]
    yield from table(rows, right=_RIGHT_ALIGNED)


def _cost_text(total: dict[str, Any], *, has_gateway: bool) -> str:
    """Return a cost; "-" if it is not known. Without a gateway 0 means that no worker has reported any."""
    is_known = total["cost"] is not None and (has_gateway or total["cost"] > 0)
    return f"{total['cost']:.4g}" if is_known else "-"
