"""The options of a budget: what a run may spend, and what can be said against it before the run starts."""

from __future__ import annotations

from typing import Any

import click

from agentos.costs.amounts import larger_amount, money_text
from agentos.costs.budget import Budget
from agentos.costs.prices import Prices
from agentos.home.run_folder import RunFolder
from agentos.home.run_status import read_status
from agentos.keys.keys_file import Keys
from agentos.ledger.reader import Ledger
from agentos.runs.options import UNKNOWN_BEFORE, check_prices

from .item_input import is_number

# Options that are amounts: a later launch of the run replaces them.
BUDGET_AMOUNTS = ("budget", "budget_tokens", "item_budget")


def make_budget(options: dict[str, Any], *, has_gateway: bool) -> Budget | None:
    """Return the budget that the options describe; None if they describe none. Raise `click.UsageError` if nothing
    would count what items spend."""
    if all(options.get(name) is None for name in BUDGET_AMOUNTS):
        for name in ("budget_hard", "budget_reported"):
            if options.get(name):
                raise click.UsageError(
                    f"--{name.replace('_', '-')} belongs to --budget, --budget-tokens or --item-budget"
                )
        return None
    is_hard, is_reported = bool(options.get("budget_hard")), bool(options.get("budget_reported"))
    if has_gateway and is_reported:
        raise click.UsageError("with --gateway the gateway counts what items spend: omit --budget-reported")
    if is_hard and not has_gateway:
        raise click.UsageError("--budget-hard needs --gateway: only the gateway can refuse requests of running items")
    if not has_gateway and not is_reported:
        raise click.UsageError(
            "nothing counts what the items spend: add --gateway or, if the items report it (agentos report usage "
            "--cost 0.02, report_usage), --budget-reported"
        )
    tokens = options.get("tokens")
    return Budget(
        options.get("budget"),
        tokens=options.get("budget_tokens"),
        item=options.get("item_budget"),
        is_hard=is_hard,
        is_reported=is_reported,
        item_cost=options.get("item_cost") or 0.0,
        item_tokens=int(tokens) if tokens is not None and is_number(tokens) else 0,
    )


def check_models(budget: Budget | None, prices: Prices, keys: Keys | None, command: list[str] | None) -> None:
    """Raise `click.UsageError` if a budget is money, and no model has a price or the one that the command names has
    none."""
    if budget is None or not budget.has_money or budget.is_reported:
        return
    try:
        check_prices(budget, prices)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    providers = {credential.provider for credential in keys.credentials} if keys is not None else set()
    model = _named_model(command or [])
    if model is not None and not any(prices.is_known(model, provider) for provider in providers):
        raise click.UsageError(
            f"the price of the model {model} is not known, so that a budget of money cannot be kept: add "
            f'[price."{model}"] with input and output (money per million tokens) to the keys file'
        )


def _named_model(command: list[str]) -> str | None:
    """Return the model that the arguments of a command name; None if they name none, or an item's field does."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, separator, value = word.partition("=")
        model = value if separator else following
        if name == "--model" and model and "{" not in model:
            return model
    return None


def check_spent(folder: RunFolder, budget: Budget | None) -> None:
    """Raise `click.UsageError` if a run that is not finished has spent as much as its budget allows."""
    if budget is None or not folder.ledger.exists() or not read_status(folder).is_resumable:
        return
    with Ledger.open(folder.ledger) as ledger:
        spent = ledger.spent()
    run_id = folder.run_id
    if budget.has_money and spent.cost is None:
        raise click.UsageError(f"{run_id}: {UNKNOWN_BEFORE}")
    if budget.money is not None and (spent.cost or 0.0) >= budget.money:
        raise click.UsageError(
            f"the run {run_id} has spent {money_text(spent.cost or 0.0)}, and its budget is "
            f"{money_text(budget.money)}. To continue, give a larger one: agentos resume {run_id} --budget "
            f"{larger_amount(budget.money, spent.cost or 0.0)}"
        )
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        raise click.UsageError(
            f"the run {run_id} has used {spent.tokens:,} tokens, and its budget is {budget.tokens:,}. To continue, "
            f"give a larger one: agentos resume {run_id} --budget-tokens "
            f"{larger_amount(budget.tokens, spent.tokens)}"
        )
