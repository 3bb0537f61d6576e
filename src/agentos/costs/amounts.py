"""Spells amounts of money and tokens for people."""

from __future__ import annotations


def money_text(amount: float) -> str:
    """Return an amount of money with two decimals; a small one with two digits."""
    return f"{amount:,.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"


def spent_text(
    cost: float | None, tokens: int, budget: float | None, budget_tokens: int | None, expected: float | None
) -> str:
    """Return what was spent, of what, and what is expected in the end: "3.21 of 20.00, about 14.50 expected; 1,200
    tokens"."""
    of_budget = "" if budget is None else f" of {money_text(budget)}"
    text = ("not known" if cost is None else money_text(cost)) + of_budget
    if expected is not None and cost is not None and expected > cost:
        text += f", about {money_text(expected)} expected"
    of_tokens = "" if budget_tokens is None else f" of {budget_tokens:,}"
    return f"{text}; {tokens:,}{of_tokens} tokens"


def larger_amount(budget: float, spent: float) -> str:
    """Return the amount to suggest where a budget is used up: twice the budget, or twice what was spent if that is
    more."""
    return f"{2 * max(budget, spent):.12g}"
