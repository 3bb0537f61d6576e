"""Amounts: what one request uses of each kind of window."""

from __future__ import annotations

from typing import NamedTuple

from .declaration import COST, INPUT_TOKENS, OUTPUT_TOKENS, PLAN, REQUESTS, TOKENS

# What a request uses of a plan, in percent, until the next answer tells: enough that none is sent when nothing is left.
PLAN_SHARE = 1e-6


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


def amount_of(kind: str, requests: float, tokens: float, detail: Detail | None) -> float:
    """Return how much of a kind a request uses. Tokens of unknown direction count as input and as output."""
    if kind == REQUESTS:
        return requests
    if kind == TOKENS:
        return tokens
    if kind == INPUT_TOKENS:
        return tokens if detail is None else detail.input_tokens
    if kind == OUTPUT_TOKENS:
        return tokens if detail is None else detail.output_tokens
    if kind == PLAN:
        return PLAN_SHARE
    return detail.cost if kind == COST and detail is not None else 0.0
