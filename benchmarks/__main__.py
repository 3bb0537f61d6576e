"""Run all benchmarks, or those named, and print their tables: `python -m benchmarks [--list] [--write PAGE] [NAME…]`.

`NAME.ROW` runs one row of a benchmark that has named rows. With `--write`, the part of the page of each benchmark is
written as soon as the benchmark has ended. If a benchmark fails, its part stays as it was and the exit status is 1.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from . import page
from .isolated import Outcome, module_of, run_isolated
from .measuring import table

# In the order of execution; the longest benchmark is the last.
NAMES = (
    "items",
    "async_items",
    "growth",
    "plan",
    "many_keys",
    "hand_off",
    "memory",
    "resume",
    "commands",
    "ledger",
    "reservations",
    "stores",
    "gateway",
    "legal_speed",
)
# Distributions whose versions are printed.
PACKAGES = (
    "agentos-parallel",
    "psycopg",
    "psycopg-pool",
    "litellm",
    "openai",
    "httpx",
    "tenacity",
    "aiolimiter",
    "dbos",
    "redis",
    "aiohttp",
    "uvloop",
)


def print_list() -> None:
    """Print the name, purpose and named rows of each benchmark."""
    for name in NAMES:
        module = module_of(name)
        print(f"{name:14}{module.__doc__.splitlines()[0]}")
        for row in getattr(module, "ROW_NAMES", ()):
            print(f"{'':14}{name}.{row}")


def run(chosen: dict[str, list[str]], path: Path | None) -> bool:
    """Run the chosen benchmarks, print their tables and write their parts of the page. Return whether none failed."""
    print("\n".join(page.machine(PACKAGES)), end="\n\n", flush=True)
    outcomes: dict[str, Outcome | None] = dict.fromkeys(chosen)
    is_complete = list(chosen) == list(NAMES) and not any(chosen.values())
    for name, only in chosen.items():
        outcomes[name] = outcome = run_isolated(name, only)
        if path is not None and not outcome.error:
            outcomes[name] = outcome = write_part(path, name, outcome)
        if path is not None and is_complete:
            page.put(path, page.RUN, page.of_run(outcomes, PACKAGES))
        print("\n".join([*report_lines(name, outcome), ""]), flush=True)
    failed = {name: outcome for name, outcome in outcomes.items() if outcome is not None and outcome.error}
    seconds = sum(outcome.seconds for outcome in outcomes.values() if outcome is not None)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} benchmarks measured in {page.duration(seconds)}")
    for name, outcome in failed.items():
        print(f"FAILED: {name}: {outcome.error}: {outcome.message}", file=sys.stderr)
    return not failed


def write_part(path: Path, name: str, outcome: Outcome) -> Outcome:
    """Write a benchmark's part of the page. Return its outcome, with an error if writing failed: the figures are
    printed in any case."""
    try:
        page.write(path, name, outcome)
    except Exception as error:
        traceback.print_exc()
        return outcome._replace(error=type(error).__name__, message=f"not written: {error}")
    return outcome


def report_lines(name: str, outcome: Outcome) -> list[str]:
    """Return the lines that are printed for a benchmark: duration, state and table."""
    if outcome.error:
        state = f"FAILED: {outcome.error}: {outcome.message}"
    else:
        state = f"{page.busy(outcome.others)} {page.missed_targets(outcome.rows)}".rstrip()
    lines = [f"{name}: {page.duration(outcome.seconds)}. {state}"]
    return [*lines, *(table(outcome.rows) if outcome.rows else [])]


def chosen_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the chosen rows of each benchmark; an empty list stands for all rows. Raise `ValueError` for an unknown
    name."""
    rows: dict[str, list[str]] = {}
    for argument in names or NAMES:
        name, _, row = argument.partition(".")
        if name not in NAMES:
            raise ValueError(f"no such benchmark: {name}; choose from {', '.join(NAMES)}")
        if row and row not in (row_names := getattr(module_of(name), "ROW_NAMES", ())):
            raise ValueError(f"{name} has no row {row!r}; its rows: {', '.join(row_names) or 'not named'}")
        rows.setdefault(name, []).extend([row] if row else [])
    return {name: rows[name] for name in NAMES if name in rows}


def main() -> int:
    # Raise SystemExit, as Ctrl-C raises KeyboardInterrupt: `run_isolated` then ends the running benchmark.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME[.ROW]", help="benchmarks or rows to run (default: all)")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and say what each measures")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also write the results into this Markdown file")
    arguments = parser.parse_args()
    try:
        chosen = chosen_of(arguments.names)
    except ValueError as error:
        parser.error(str(error))
    if arguments.write is not None and any(chosen.values()):
        parser.error("--write needs whole benchmarks, not single rows")
    if arguments.list:
        print_list()
        return 0
    return 0 if run(chosen, arguments.write) else 1


if __name__ == "__main__":
    sys.exit(main())
