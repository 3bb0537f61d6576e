"""RequestCosts: adds the cost of answered requests to the usage of their attempt.

Looking a price up takes 0.1 ms, a third of what all else takes for a small request: the gateway's loop only notes what
was used, and the thread that asks for the usage of an attempt looks the prices up.
"""

from __future__ import annotations

import threading

from agentos.costs.prices import Prices
from agentos.items.access import AttemptUsage

from .client_tokens import Client, copy_of


class RequestCosts:
    """The costs of one gateway's requests. Safe to use from any thread but the gateway's loop, which it may delay."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._lock = threading.Lock()  # held while the noted requests of a client are added to its usage

    def usage_of(self, client: Client) -> AttemptUsage:
        """Return a copy of what an attempt has used so far, with the cost. That is None if one request has no price."""
        with self._lock:
            while client.unpriced:
                provider, model, usage = client.unpriced.popleft()
                cost = None
                if model is not None:
                    cost = self._prices.cost(
                        model, provider, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens,
                        cached_tokens=usage.cached_tokens, cache_write_tokens=usage.cache_write_tokens,
                    )  # fmt: skip
                client.cost = None if cost is None or client.cost is None else client.cost + cost
            usage_so_far = copy_of(client.usage)
            usage_so_far.cost = client.cost if usage_so_far.requests else None
            return usage_so_far
