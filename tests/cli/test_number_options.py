"""Numbers as options: what is no finite number is wrong usage, for every option of every command."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
import pytest

from agentos.cli import COMMANDS

NUMBERS = (click.IntRange, click.FloatRange, click.types.IntParamType, click.types.FloatParamType)


def number_options(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Option]]:
    for option in command.params:
        if isinstance(option, click.Option) and isinstance(option.type, NUMBERS):
            yield " ".join((*path, option.opts[0])), option
    for name, inner in getattr(command, "commands", {}).items():
        yield from number_options(inner, (*path, name))


OPTIONS = dict(
    found
    for name, (module, *_) in COMMANDS.items()
    for found in number_options(getattr(importlib.import_module(f"agentos.cli.{module}"), name), (name,))
)


def test_options_with_numbers_are_found() -> None:
    assert {"run --budget", "run --item-cost", "run --limit", "plan --count"} <= OPTIONS.keys()


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "-nan"])
@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"report --cost"}))  # reports refuse it with their own message
def test_number_that_is_not_finite_is_wrong_usage(name: str, text: str) -> None:
    option = OPTIONS[name]
    with pytest.raises(click.BadParameter):
        option.type.convert(text, option, None)
