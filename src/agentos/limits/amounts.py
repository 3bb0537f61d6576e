"""Amounts: what one request uses of each kind of window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from agentos.money import money, units

from .declaration import COST, KINDS, PLAN

# What a request uses of a plan, in percent, until the next answer tells: enough that none is sent when nothing is left.
PLAN_SHARE = 1e-6
# Where the amount of a kind stands in what `amounts_of` returns.
POSITIONS = {kind: position for position, kind in enumerate((*KINDS, PLAN))}


class Detail(NamedTuple):
    """The tokens of a request by direction, and its cost. A request without it counts all its tokens as either."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class Binding(NamedTuple):
    """The limit that decides when a request may be sent."""

    at: float  # the instant; 0 for now
    name: str | None = None  # as users see it; None: no limit holds the request up
    amount: float | None = None  # what the limit allows; None: it has no fixed amount


NO_BINDING = Binding(0.0)


def detail_of(tokens: int, input_tokens: int | None, output_tokens: int | None, cost: float | None) -> Detail | None:
    """Return the detail of a request of which only some amounts are known; None if only `tokens` is."""
    if input_tokens is None and output_tokens is None and cost is None:
        return None
    # An unknown direction has what is left of all tokens; all of them if neither is known.
    input_ = max(0, tokens - (output_tokens or 0)) if input_tokens is None else input_tokens
    output = max(0, tokens - (input_tokens or 0)) if output_tokens is None else output_tokens
    return Detail(input_, output, cost or 0.0)


def amounts_of(requests: float, tokens: float, detail: Detail | None) -> Sequence[float]:
    """Return how much of each kind a request uses, by POSITIONS, as windows count it. Tokens of unknown direction count
    as input and as output."""
    if detail is None:
        return requests, tokens, tokens, tokens, 0, PLAN_SHARE
    input_tokens, output_tokens, cost = detail
    return requests, tokens, input_tokens, output_tokens, units(cost) if cost else 0, PLAN_SHARE


def amount_of(kind: str, requests: float, tokens: float, detail: Detail | None) -> float:
    """Return how much of one kind a request uses, as windows count it."""
    return amounts_of(requests, tokens, detail)[POSITIONS[kind]]


def in_units(kind: str, amount: float) -> float:
    """Return an amount of a kind as windows count it: money in units, so that sums are exact."""
    return units(amount) if kind == COST and amount < math.inf else amount


def from_units(kind: str, amount: float) -> float:
    """Return an amount that a window has counted as people declare it."""
    return money(amount) if kind == COST else amount
