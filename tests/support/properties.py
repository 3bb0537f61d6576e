"""Property tests: few fixed examples in the suite, many random ones in `make soak`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

Check = Callable[..., None]

# No deadline: the speed of the machine varies. No database of examples: every machine tries the same ones.
_COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


class Property(NamedTuple):
    check: Check
    inputs: dict[str, SearchStrategy[Any]]

    @property
    def name(self) -> str:
        return f"{self.check.__module__.rpartition('.')[2]}: {self.check.__name__}"

    def explore(self, seed_number: int, examples: int) -> int:
        """Try `examples` examples that follow from a seed. Return how many were tried."""
        count = 0

        @functools.wraps(self.check)
        def counted(**inputs: Any) -> None:
            nonlocal count
            count += 1
            self.check(**inputs)

        long = settings(_COMMON, max_examples=examples, derandomize=False, print_blob=True)
        long(seed(seed_number)(given(**self.inputs)(counted)))()
        return count


PROPERTIES: list[Property] = []


def holds_for(*, examples: int = 20, **inputs: SearchStrategy[Any]) -> Callable[[Check], Check]:
    """Turn a function into a property test for all `inputs`; the suite tries `examples` of them."""

    def register(check: Check) -> Check:
        PROPERTIES.append(Property(check, inputs))
        return settings(_COMMON, max_examples=examples, derandomize=True)(given(**inputs)(check))

    return register
