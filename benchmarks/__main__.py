"""`python -m benchmarks [--list] [--write PAGE] [NAME…]`: runs all benchmarks, or those named, and prints their tables.

`NAME.ROW` runs one row of a benchmark that has named rows. With `--write`, each benchmark's part of the page is written
as soon as it is known. One that fails leaves its part as it was; then the exit status is 1.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from . import page
from .alone import Outcome, module_of, run_alone
from .measuring import table

# The one that takes longest comes last.
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
    "legal_speed",
)
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
)


def print_list() -> None:
    for name in NAMES:
        module = module_of(name)
        print(f"{name:14}{module.__doc__.splitlines()[0]}")
        for row in getattr(module, "ROW_NAMES", ()):
            print(f"{'':14}{name}.{row}")


def run(chosen: dict[str, list[str]], path: Path | None) -> bool:
    """Whether all went well."""
    print("\n".join(page.machine(PACKAGES)), end="\n\n", flush=True)
    outcomes: dict[str, Outcome | None] = dict.fromkeys(chosen)
    is_whole = list(chosen) == list(NAMES) and not any(chosen.values())
    for name, only in chosen.items():
        outcomes[name] = outcome = run_alone(name, only)
        if path is not None and not outcome.error:
            outcomes[name] = outcome = written(path, name, outcome)
        if path is not None and is_whole:
            page.put(path, page.RUN, page.of_run(outcomes, PACKAGES))
        print("\n".join([*told(name, outcome), ""]), flush=True)
    failed = {name: outcome for name, outcome in outcomes.items() if outcome is not None and outcome.error}
    took = sum(outcome.seconds for outcome in outcomes.values() if outcome is not None)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} benchmarks measured in {page.duration(took)}")
    for name, outcome in failed.items():
        print(f"FAILED: {name}: {outcome.error}: {outcome.message}", file=sys.stderr)
    return not failed


def written(path: Path, name: str, outcome: Outcome) -> Outcome:
    """What was measured is told even if it cannot be written as it should be."""
    try:
        page.write(path, name, outcome)
    except Exception as error:
        traceback.print_exc()
        return outcome._replace(error=type(error).__name__, message=f"not written: {error}")
    return outcome


def told(name: str, outcome: Outcome) -> list[str]:
    if outcome.error:
        state = f"FAILED: {outcome.error}: {outcome.message}"
    else:
        state = f"{page.busy(outcome.others)} {page.told_misses(outcome.rows)}".rstrip()
    lines = [f"{name}: {page.duration(outcome.seconds)}. {state}"]
    return [*lines, *(table(outcome.rows) if outcome.rows else [])]


def chosen_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The rows of each benchmark; none stands for all. Raises `ValueError` with a sentence."""
    asked: dict[str, list[str]] = {}
    for whole in names or NAMES:
        name, _, row = whole.partition(".")
        if name not in NAMES:
            raise ValueError(f"no such benchmark: {name}; there are {', '.join(NAMES)}")
        if row and row not in (there := getattr(module_of(name), "ROW_NAMES", ())):
            raise ValueError(f"{name} has no row {row!r}; it has {', '.join(there) or 'no names for them'}")
        asked.setdefault(name, []).extend([row] if row else [])
    return {name: asked[name] for name in NAMES if name in asked}


def main() -> int:
    # As Ctrl-C does: what is being measured is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME[.ROW]", help="which to run (all)")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and say what each measures")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also put the results into this Markdown file")
    arguments = parser.parse_args()
    try:
        chosen = chosen_of(arguments.names)
    except ValueError as error:
        parser.error(str(error))
    if arguments.write is not None and any(chosen.values()):
        parser.error("a page is written from whole benchmarks, not from single rows")
    if arguments.list:
        print_list()
        return 0
    return 0 if run(chosen, arguments.write) else 1


if __name__ == "__main__":
    sys.exit(main())
