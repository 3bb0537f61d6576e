"""`agentos plan`: simulates a run, and prints when it would be done, what binds it and what it would cost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from agentos.home.run_folder import RunFolder, RunSpec
from agentos.home.run_status import open_ledger, read_status
from agentos.reporters.writers import PlainReporter

from .. import options
from ..completion import run_ids
from ..console import Command, Failure
from ..find import find_run


@click.command(cls=Command)
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=run_ids)
@options.ITEMS
@click.option("--count", type=click.IntRange(0), metavar="N", help="Number of items, instead of the items themselves.")
@options.PACE
@options.ITEM_SECONDS
@options.ITEM_TOKENS
@options.ITEM_COST
@options.RUN_BUDGET
@click.option(
    "--like",
    metavar="RUN",
    shell_complete=run_ids,
    help="Take duration, requests, tokens and cost of an item from this run.",
)
def plan(run_id: str | None, count: int | None, like: str | None, item_seconds: float | None, **values: Any) -> None:
    """Forecast when a run would be done, what binds it, what one more key would change, and what it would cost.

    The plan is a simulation with the rules of a real run and the current state of the keys. It starts nothing and uses
    nothing up. With RUN: of the items that this run has left, with its options, and with what its items took so far.

    \b
    Examples:
      agentos plan --count 10000 --keys keys.toml --tokens 1500 --item-seconds 20 --parallel auto
      agentos plan --items issues.jsonl --keys keys.toml --like 20261116-093012-1f3a5c
      agentos plan last
    """
    from ..launch.item_facts import item_facts

    has_items = bool(values["items"] or values["inline"])
    if (run_id is not None) + (count is not None) + has_items != 1:
        raise click.UsageError("no items given: use --count N, --items FILE, --item X or the id of a run (one of them)")
    run_options = {name: value for name, value in values.items() if value is not None}
    folder, total, is_command = None if like is None else find_run(like), None, True
    if run_id is not None:
        folder = find_run(run_id) if like is None else folder
        planned = find_run(run_id)
        items, run_options, cwd, total = _left_of(planned, run_options)
        is_command = planned.read_spec().command is not None
    else:
        items, cwd = count if count is not None else _read(values, run_options), os.getcwd()  # noqa: PTH109
    facts = item_facts(folder, run_options, item_seconds)
    forecast = _forecast(items, run_options, cwd, facts.plan_arguments(), is_command=is_command)
    click.echo(forecast if total is None else replace(forecast, budget_total=total))


def _forecast(items: Any, run_options: dict[str, Any], cwd: str, facts: dict[str, Any], *, is_command: bool) -> Any:
    from ..launch.engine import LOCAL
    from ..launch.item_input import is_number, token_counter
    from ..launch.planning import bound_at_once, plan_run
    from ..launch.pool_setup import choose_store, make_pool, read_keys
    from ..launch.prepare import is_auto, make_coordinator

    keys = read_keys(run_options.get("keys"), run_options.get("key_env"), cwd)
    pool = None
    if keys is not None:
        pool = make_pool(keys, choose_store(run_options.get("store"), keys), PlainReporter(sys.stderr))
    coordinator = make_coordinator(run_options, pool)
    tokens_func: Callable[[Any], int] | None = token_counter(run_options.get("tokens"))
    tokens = 0
    if isinstance(items, int) and tokens_func is not None:
        if not is_number(run_options["tokens"]):
            raise click.UsageError("--tokens FIELD needs the items themselves (--items)")
        tokens, tokens_func = tokens_func(None), None
    bound = None
    if is_auto(run_options, pool) and run_options.get("on", LOCAL) == LOCAL:
        bound = bound_at_once(run_options, pool, is_command=is_command)
    arguments = facts | {"tokens": tokens, "tokens_func": tokens_func, "budget": run_options.get("budget")}
    return plan_run(items, coordinator, bound, **arguments)


def _read(values: dict[str, Any], run_options: dict[str, Any]) -> list[Any]:
    from ..launch.item_input import read_items

    return list(read_items(options.sources(values), RunFolder("plan"), run_options.get("id_field"), keep=False))


def _left_of(folder: RunFolder, given: dict[str, Any]) -> tuple[Any, dict[str, Any], str, float | None]:
    """Return the items that a run has left (their number, or themselves if they differ in tokens), its options with
    those that are given now, its folder of work, and its budget if it has spent some of it."""
    status = read_status(folder)
    if status.spec is None or status.problem is not None:
        raise Failure(status.problem or f"the description of the run {folder.run_id} cannot be read")
    run_options = {**status.spec.options, **{name: value for name, value in given.items() if value not in ((), None)}}
    spent = 0.0
    if status.launches:
        with open_ledger(folder) as ledger:
            spent = ledger.spent().cost or 0.0
    total = run_options.get("budget") if spent else None
    if run_options.get("budget") is not None:
        run_options["budget"] = max(0.0, run_options["budget"] - spent)
    if status.remaining is None:
        raise Failure(f"the number of items of {folder.run_id} is not known: its input was not read to its end")
    tokens = run_options.get("tokens")
    if tokens is None or (tokens.isascii() and tokens.isdecimal()):
        return status.remaining, run_options, status.spec.cwd, total
    items = _unfinished(folder, status.spec, has_started=bool(status.launches))
    return items, run_options, status.spec.cwd, total


def _unfinished(folder: RunFolder, spec: RunSpec, *, has_started: bool) -> list[Any]:
    """Return the items of a run that have no outcome."""
    from ..launch.item_input import read_items

    items = read_items(spec.items, folder, spec.options.get("id_field"), keep=False, is_resume=True)
    if not has_started:
        return list(items)
    with open_ledger(folder) as ledger:
        ended = {item.id for outcome in ("succeeded", "failed") for item in ledger.items(outcome)}
    return [item for item in items if items.id_of(item) not in ended]
