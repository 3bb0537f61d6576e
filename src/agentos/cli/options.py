"""The options that several commands share. Each can be set by a variable of the environment, which `--help` names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from agentos.home.run_folder import ItemSource

from .completion import files
from .duration_type import Duration
from .item_choice import DRAW, Seed, check_filters

F = TypeVar("F", bound=Callable[..., Any])

# AGENTOS_RUN_ID and AGENTOS_ITEM, the names by the usual rule, are taken: a run sets them for its commands.
_VARIABLES = {
    "--run-id": "AGENTOS_RUN_NAME",
    "--item": "AGENTOS_ITEM_TEXTS",
    "--gateway/--no-gateway": "AGENTOS_GATEWAY",
    "--budget-hard/--no-budget-hard": "AGENTOS_BUDGET_HARD",
    "--budget-reported/--no-budget-reported": "AGENTOS_BUDGET_REPORTED",
}


class FiniteRange(click.FloatRange):
    """A number in a range. Infinity, and "nan", which compares with no bound, are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Option(click.Option):
    """An option whose errors name its variable only if the value came from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        is_from_variable = (
            ctx is None
            or self.name is None
            or ctx.get_parameter_source(self.name) is click.core.ParameterSource.ENVIRONMENT
        )
        return super().get_error_hint(ctx) if is_from_variable else click.Parameter.get_error_hint(self, ctx)


def option(name: str, *more: Any, **attributes: Any) -> Callable[[F], F]:
    """Return an option that a variable can set: `--max-wait` is AGENTOS_MAX_WAIT."""
    variable = _VARIABLES.get(name, "AGENTOS_" + name.lstrip("-").replace("-", "_").upper())
    return click.option(name, *more, cls=Option, envvar=variable, show_envvar=True, **attributes)


def several(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds the options, in this order in `--help`."""

    def decorate(command: F) -> F:
        for add_option in reversed(options):
            command = add_option(command)
        return command

    return decorate


def sources(options: dict[str, Any]) -> list[ItemSource]:
    """Return the sources that the options of `ITEMS` name."""
    named_sources = [
        ItemSource("stdin" if path == "-" else "file", options["format_"], None if path == "-" else path)
        for path in options["items"]
    ]
    if options["inline"]:
        named_sources.append(ItemSource("inline", items=list(options["inline"])))
    if options["delimiter"] is not None:
        _set_delimiter(named_sources, options["delimiter"])
    return named_sources


def _set_delimiter(named_sources: list[ItemSource], delimiter: str) -> None:
    delimiter = "\t" if delimiter == "\\t" else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise click.BadParameter("give one character, such as ';' (a tab: '\\t')", param_hint="--delimiter")
    for source in named_sources:
        source.delimiter = delimiter


class Parallel(click.ParamType[Any]):
    """A number from 1, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto" or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"{value!r} is neither a number from 1 nor auto", param, ctx)
        return number


ITEMS = several(
    option(
        "--items",
        multiple=True,
        metavar="FILE|-",
        shell_complete=files,
        help="A file of items (jsonl, json, csv, tsv, or txt: one per line), or - for stdin. May be repeated.",
    ),
    option("--item", "inline", multiple=True, metavar="X", help="One item: text, or a JSON object. May be repeated."),
    option(
        "--format",
        "format_",
        type=click.Choice(["jsonl", "json", "csv", "tsv", "txt"]),
        help="Format of the items, if the file name does not say it.",
    ),
    option("--delimiter", metavar="CHARACTER", help="Character between the fields of CSV. [default: a comma]"),
    option("--id-field", metavar="FIELD", help="The field of an object that is its id, instead of 'id'."),
)
CHOICE = several(
    option(
        "--filter",
        multiple=True,
        metavar="FIELD=VALUE",
        callback=lambda _context, _parameter, value: check_filters(value),
        help="Only items whose field has this value. May be repeated: all must match.",
    ),
    option(
        "--shuffle",
        type=Seed(),
        is_flag=False,
        flag_value=DRAW,
        metavar="[SEED]",
        help="Run the items in a random order; the same SEED gives the same order.",
    ),
)
LIMIT = option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="Run only the next N items; agentos resume runs the others.",
)
PACE = several(
    option(
        "--parallel",
        type=Parallel(),
        metavar="N|auto",
        help="Items that run at a time; auto: as many as the keys, memory and cores allow. [default: auto with keys, "
        "else 3]",
    ),
    option("--max-parallelism", type=click.IntRange(1), metavar="N", help="Maximum of --parallel. [default: none]"),
    option(
        "--keys",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="The keys file: credentials and their limits (TOML).",
    ),
    option("--key-env", metavar="PATTERN", help="Environment variables that hold keys, such as 'OPENAI_API_KEY*'."),
    option(
        "--store",
        metavar="URL",
        help="Where runs share the state of the keys: sqlite:///PATH, redis://HOST, or memory: for this run alone. "
        "[default: sqlite:///$AGENTOS_HOME/pool.db]",
    ),
    option("--tokens", metavar="N|FIELD", help="Tokens that an item needs: a number, or the name of a field."),
    option(
        "--requests-per-item",
        type=FiniteRange(1),
        metavar="N",
        help="Requests that an item makes through a gateway, for the plan. [default: those of the last run, else 1]",
    ),
)
EXECUTION = several(
    option(
        "--on",
        metavar="threads|dask://HOST:PORT",
        help="Where a function runs: in this process, or on a Dask cluster, one attempt per thread.  "
        "[default: threads]",
    ),
    option("--credential-env", metavar="NAME", help="Environment variable that passes the key to a command."),
    option(
        "--gateway/--no-gateway",
        default=None,
        help="Send the requests of items through a gateway inside the run, which has a key for each request; items get "
        "a client token and never a key.",
    ),
    option(
        "--hold",
        type=Duration(),
        metavar="DURATION",
        help="Longest time that the gateway holds a request until a key is usable. [default: 280s]",
    ),
    option(
        "--retries",
        type=click.IntRange(0),
        metavar="N",
        help="Retries after a failure. [default: 0 for a command, 2 for a function]",
    ),
    option(
        "--timeout",
        type=Duration(may_be_zero=False),
        metavar="DURATION",
        help="Time limit of an attempt: 90s, 5m, or a number of seconds.",
    ),
    option("--halt", metavar="WHEN", help="Stop after failures: 'soon,fail=10%', 'now,fail=1'."),
    option(
        "--max-wait",
        type=Duration(),
        metavar="DURATION",
        help="Stop if nothing can start (with --gateway: or be sent) for this time.",
    ),
    option(
        "--grace",
        type=Duration(),
        metavar="DURATION",
        help="Time for running items to end after Ctrl-C. [default: 5s]",
    ),
)
RUN_BUDGET = option(
    "--budget",
    type=FiniteRange(0, min_open=True),
    metavar="X",
    help="Money that the run may spend: at the budget nothing new starts, and running items finish.",
)
ITEM_COST = option(
    "--item-cost",
    type=FiniteRange(0),
    metavar="X",
    help="Money that an item is expected to cost, until the first has ended. [default: that of the last run, if known]",
)
BUDGET = several(
    RUN_BUDGET,
    option(
        "--budget-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Tokens that the run may use: input and output, without those read from a prompt cache.",
    ),
    option(
        "--item-budget",
        type=FiniteRange(0, min_open=True),
        metavar="X",
        help="Money that one item may spend: once it has, its next request fails with BudgetExceeded.",
    ),
    option(
        "--budget-hard/--no-budget-hard",
        default=None,
        help="At the budget also refuse further requests of running items, which stay unfinished (with --gateway).",
    ),
    option(
        "--budget-reported/--no-budget-reported",
        default=None,
        help="Without --gateway: the items report what they spend (agentos report usage, report_usage).",
    ),
    ITEM_COST,
)
ITEM_TOKENS = several(
    option(
        "--input-tokens",
        type=click.IntRange(0),
        metavar="N",
        help="Input tokens of an item, for the plan. [default: those of the last run, if known]",
    ),
    option(
        "--output-tokens",
        type=click.IntRange(0),
        metavar="N",
        help="Output tokens of an item, for the plan. [default: those of the last run, if known]",
    ),
)
STDIN_FIELD = option(
    "--stdin",
    "stdin_field",
    metavar="FIELD",
    help="Field that is passed to a command on stdin ({} for the whole item).",
)
ON_CHANGED = option(
    "--on-changed",
    type=click.Choice(["refuse", "rerun"]),
    help="If the input of an item differs from the recorded one: fail, or run it again.  [default: refuse]",
)
OUTPUT = several(
    option("--json", "as_json", is_flag=True, help="Print events and the output of items as JSON lines on stdout."),
    option(
        "--quiet",
        is_flag=True,
        help="Of messages, print only failures and the summary; what items print on stdout stays.",
    ),
    option("--no-progress", is_flag=True, help="Print lines instead of the live display."),
    option(
        "--stop-on-closed-output",
        is_flag=True,
        help="Stop the run if the reader of stdout closes it, as head does; else it continues without output.",
    ),
)
ITEM_SECONDS = option(
    "--item-seconds",
    type=Duration(may_be_zero=False),
    metavar="DURATION",
    help="Duration of an item, for the plan. [default: that of the last run, else 10s]",
)
