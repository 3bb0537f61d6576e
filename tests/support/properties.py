"""A property of some input: short and the same in every run of the suite, long and by chance in `make soak`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

Check = Callable[..., None]

# How long an example takes to make is up to the machine; and there is no file of examples, or one machine would know
# what others do not.
_COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


class Property(NamedTuple):
    check: Check
    inputs: dict[str, SearchStrategy[Any]]

    @property
    def name(self) -> str:
        return f"{self.check.__module__.rpartition('.')[2]}: {self.check.__name__}"

    def explore(self, number: int, examples: int) -> int:
        """So many examples, which follow from the number. Returns how many were looked at."""
        seen = 0

        @functools.wraps(self.check)
        def counted(**inputs: Any) -> None:
            nonlocal seen
            seen += 1
            self.check(**inputs)

        long = settings(_COMMON, max_examples=examples, derandomize=False, print_blob=True)
        long(seed(number)(given(**self.inputs)(counted)))()
        return seen


PROPERTIES: list[Property] = []


def holds_for(*, examples: int = 20, **inputs: SearchStrategy[Any]) -> Callable[[Check], Check]:
    """Marks a test that has to pass whatever its inputs are; `examples` is how many the suite tries."""

    def marked(check: Check) -> Check:
        PROPERTIES.append(Property(check, inputs))
        return settings(_COMMON, max_examples=examples, derandomize=True)(given(**inputs)(check))

    return marked
