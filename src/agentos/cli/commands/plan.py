"""`agentos plan`: simulates a run, and prints how long it would take and which limit binds it."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from agentos.home.run_folder import RunFolder
from agentos.reporters.writers import PlainReporter

from .. import options
from ..completion import run_ids
from ..console import Command
from ..find import find_run


@click.command(cls=Command)
@options.ITEMS
@click.option("--count", type=click.IntRange(0), metavar="N", help="Number of items, instead of the items themselves.")
@options.PACE
@options.ITEM_SECONDS
@options.ITEM_COST
@options.RUN_BUDGET
@click.option(
    "--like", metavar="RUN", shell_complete=run_ids, help="Take duration, requests and cost of an item from this run."
)
def plan(count: int | None, like: str | None, item_seconds: float | None, **values: Any) -> None:
    """Forecast how long a run would take, which limit binds it, what one more key would change, and what it would cost.

    The plan is a simulation with the rules of a real run and the current state of the keys. It starts nothing and uses
    nothing up.

    \b
    Examples:
      agentos plan --count 10000 --keys keys.toml --tokens 1500 --item-seconds 20 --parallel auto
      agentos plan --items issues.jsonl --keys keys.toml --like 20261116-093012-1f3a5c
    """
    from ..launch.execute import ITEM_SECONDS, typical_cost, typical_item_seconds, typical_requests
    from ..launch.item_input import is_number, read_items, token_counter
    from ..launch.pool_setup import choose_store, make_pool, read_keys
    from ..launch.prepare import make_coordinator

    if (count is None) == (not values["items"] and not values["inline"]):
        raise click.UsageError("no items given: use --count N, --items FILE or --item X")
    run_options = {name: value for name, value in values.items() if value is not None}
    keys = read_keys(run_options.get("keys"), run_options.get("key_env"), os.getcwd())  # noqa: PTH109
    pool = None
    if keys is not None:
        pool = make_pool(keys, choose_store(run_options.get("store"), keys), PlainReporter(sys.stderr))
    coordinator = make_coordinator(run_options, pool)
    cost = run_options.get("item_cost") or (None if like is None else typical_cost(find_run(like)))
    money: dict[str, Any] = {"item_cost": cost, "budget": run_options.get("budget")}
    seconds = item_seconds or (ITEM_SECONDS if like is None else typical_item_seconds(find_run(like)))
    requests = run_options.get("requests_per_item") or (1.0 if like is None else typical_requests(find_run(like)))
    tokens = token_counter(run_options.get("tokens"))
    if count is not None:
        if tokens is not None and not is_number(run_options["tokens"]):
            raise click.UsageError("--tokens FIELD needs the items themselves (--items)")
        number = 0 if tokens is None else tokens(None)
        click.echo(coordinator.plan(count, item_seconds=seconds, tokens=number, requests_per_item=requests, **money))
    else:
        folder = RunFolder("plan")
        items = list(read_items(options.sources(values), folder, run_options.get("id_field"), keep=False))
        click.echo(
            coordinator.plan(items, item_seconds=seconds, tokens_func=tokens, requests_per_item=requests, **money)
        )
