"""Latency: how long a simulated provider takes to answer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

# Draws seconds from the provider's random source.
Draw = Callable[[random.Random], float]


class Latency:
    """The usual distributions. A provider draws from its own seeded source, so that two runs have equal latencies."""

    @staticmethod
    def fixed(seconds: float) -> Draw:
        return lambda chance: seconds  # noqa: ARG005 - part of the signature of every draw

    @staticmethod
    def uniform(low: float, high: float) -> Draw:
        return lambda chance: chance.uniform(low, high)

    @staticmethod
    def lognormal(median: float, sigma: float) -> Draw:
        """Near the median with a long tail. With a sigma of 0.5, one in twelve takes twice the median or more."""
        return lambda chance: chance.lognormvariate(math.log(median), sigma)
