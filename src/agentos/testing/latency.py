"""How long a simulated provider takes to answer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

# A draw: given the provider's own source of chance, seconds.
Draw = Callable[[random.Random], float]


class Latency:
    """The usual distributions. A provider draws from its own seeded source, so that two runs take equally long."""

    @staticmethod
    def fixed(seconds: float) -> Draw:
        return lambda chance: seconds  # noqa: ARG005 - every draw is given the source

    @staticmethod
    def uniform(least: float, most: float) -> Draw:
        return lambda chance: chance.uniform(least, most)

    @staticmethod
    def lognormal(median: float, sigma: float) -> Draw:
        """Like most services: near the median, with a long tail. A sigma of 0.5 doubles it one time in twelve."""
        return lambda chance: chance.lognormvariate(math.log(median), sigma)
