"""Prices: the cost of an answer, by the model that gave it.

Prices of the keys file come first; all others are those of the package genai-prices (extra `prices`), which holds a
table of its own and reads nothing from the network.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Mapping
from functools import lru_cache
from math import inf, isclose
from typing import Any, NamedTuple

TOKENS_PER_PRICE = 1_000_000
# Input or output tokens of the usual request, for which most prices have no tiers.
USUAL_TOKENS = 30_000
# Seconds for which a published price is used before it is looked up again.
PRICE_SECONDS = 60.0


class Price(NamedTuple):
    """Money per million tokens of one model."""

    input: float
    output: float
    cache_read: float | None = None  # None: as `input`
    cache_write: float | None = None  # None: as `input`


class Prices:
    """The prices of models. Safe to use from any thread."""

    def __init__(self, declared: Mapping[str, Price] | None = None) -> None:
        """`declared`: by the name of a model, or by a pattern such as `"*opus*"`; a name wins over a pattern, an
        earlier pattern over a later one."""
        self._declared = dict(declared or {})

    def cost(
        self,
        model: str,
        provider: str | None,
        *,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
    ) -> float | None:
        """Return the cost of an answer; None if the price of the model is not known. `input_tokens` are those that were
        not read from a prompt cache, `cache_write_tokens` the part of them that was written to one."""
        price = self.declared(model)
        if price is None:
            price, limit = _published_price(model, provider, int(time.time() / PRICE_SECONDS))
            if price is None:
                return None
            if input_tokens + cached_tokens > limit or output_tokens > limit:
                counts = input_tokens + cached_tokens, output_tokens, cached_tokens, cache_write_tokens
                return _published_cost(model, provider, counts)
        cache_read = price.input if price.cache_read is None else price.cache_read
        cache_write = price.input if price.cache_write is None else price.cache_write
        money = (
            (input_tokens - cache_write_tokens) * price.input
            + cache_write_tokens * cache_write
            + cached_tokens * cache_read
            + output_tokens * price.output
        )
        return money / TOKENS_PER_PRICE

    @property
    def is_empty(self) -> bool:
        """Return whether no model has a price: none is declared, and the published ones are not installed."""
        return not self._declared and not has_published_prices()

    def is_known(self, model: str, provider: str | None) -> bool:
        """Return whether the model has a price."""
        return self.cost(model, provider, input_tokens=1, output_tokens=1) is not None

    def declared(self, model: str) -> Price | None:
        """Return the price that the keys file gives for a model; None if it gives none."""
        if model in self._declared:
            return self._declared[model]
        return next((price for name, price in self._declared.items() if fnmatch.fnmatchcase(model, name)), None)


def has_published_prices() -> bool:
    """Return whether the package with the prices of providers is installed."""
    return _calculate() is not None


@lru_cache(maxsize=1)
def _calculate() -> Any:
    """Return the package's function and its class of usage; None if it is not installed."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    return calc_price, Usage


@lru_cache(maxsize=1024)
def _published_price(model: str, provider: str | None, _interval: int) -> tuple[Price | None, float]:
    """Return the published price of a model, None if there is none, and the input or output tokens up to which it does
    not depend on their number. The package takes 80 µs for each calculation, and has prices by the time of day."""
    costs = [_published_cost(model, provider, counts) for counts in _SAMPLES]
    if None in costs:
        return None, 0
    each, read, write, output, sample, medium, large = (cost for cost in costs if cost is not None)
    price = Price(*(cost * TOKENS_PER_PRICE for cost in (each, output, read, write)))
    if not isclose(sample, each + read + write + output) or not isclose(medium, sample * USUAL_TOKENS):
        return price, 0
    return price, inf if isclose(large, sample * TOKENS_PER_PRICE) else USUAL_TOKENS


# Counts as for `_published_cost`: one token of each kind, one of all kinds, the usual number of all kinds, and more
# than any tier has.
_SAMPLES = (
    (1, 0, 0, 0),
    (1, 0, 1, 0),
    (1, 0, 0, 1),
    (0, 1, 0, 0),
    (3, 1, 1, 1),
    (3 * USUAL_TOKENS, USUAL_TOKENS, USUAL_TOKENS, USUAL_TOKENS),
    (3 * TOKENS_PER_PRICE, TOKENS_PER_PRICE, TOKENS_PER_PRICE, TOKENS_PER_PRICE),
)

# Names of providers where the package spells them differently.
_PROVIDERS = {"gemini": "google", "xai": "x-ai", "bedrock": "aws"}


def _published_cost(model: str, provider: str | None, counts: tuple[int, int, int, int]) -> float | None:
    calculate = _calculate()
    if calculate is None:
        return None
    calc_price, usage_class = calculate
    # Its input tokens include those read from a cache and those written to one.
    usage = usage_class(
        input_tokens=counts[0], output_tokens=counts[1], cache_read_tokens=counts[2], cache_write_tokens=counts[3]
    )
    name = None if provider is None else _PROVIDERS.get(provider, provider)
    try:
        return float(calc_price(usage, model_ref=model, provider_id=name).total_price)
    except (LookupError, ValueError):  # the model is unknown; or its price does not fit the usage
        return None
