"""`python -m benchmarks [--list] [--write PAGE] [NAME…]`: runs all benchmarks, or those named, and prints one table.

`NAME.ROW` runs one row of a benchmark that has named rows.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import page
from .measuring import Row, table

# The ones that load large peers come last: what they load would slow the collector down for the others. The last one
# has a process for each of its peers, and takes longest.
NAMES = (
    "items",
    "async_items",
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
)


def module_of(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def print_list() -> None:
    for name in NAMES:
        module = module_of(name)
        print(f"{name:14}{module.__doc__.splitlines()[0]}")
        for row in getattr(module, "ROW_NAMES", ()):
            print(f"{'':14}{name}.{row}")


def run(chosen: dict[str, list[str]], path: Path | None) -> None:
    print("\n".join(page.machine(PACKAGES)), end="\n\n", flush=True)
    start = time.monotonic()
    rows: list[Row] = []
    for name, only in chosen.items():
        module = module_of(name)
        part = list(module.rows(only) if only else module.rows())
        rows += part
        if path is not None:
            written = module.page_part(part) if hasattr(module, "page_part") else table(part)
            page.put(path, name, written)
    print("\n".join(table(rows)))
    aimed = [row for row in rows if row.is_met is not None]
    missed = sum(not row.is_met for row in aimed)
    print(f"\n{missed} of {len(aimed)} targets missed; took {time.monotonic() - start:.0f} s")


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


def main() -> None:
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
    else:
        run(chosen, arguments.write)


if __name__ == "__main__":
    main()
