"""The values of `--filter` and `--shuffle`, checked while the command line is read. The choice itself is made by
`launch.selection`."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import click

# The value of `--shuffle` without a seed: a new one is drawn.
DRAW = "draw"


def check_filters(conditions: Iterable[str]) -> list[str]:
    """Return the conditions; raise `click.UsageError` for one that is not FIELD=VALUE."""
    conditions = list(conditions)
    for condition in conditions:
        if not condition.partition("=")[0] or "=" not in condition:
            raise click.BadParameter(f"{condition!r} is not FIELD=VALUE, such as status=open", param_hint="--filter")
    return conditions


class Seed(click.ParamType[Any]):
    """A number that determines a random order; without one, a new number is drawn and recorded."""

    name = "SEED"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == DRAW:
            return random.SystemRandom().randrange(2**32)
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is not a number: write --shuffle -- COMMAND, or --shuffle=SEED", param, ctx)
