"""`python -m benchmarks [--list] [NAME…]`: runs all benchmarks, or those named, and prints one table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import time
from importlib.metadata import version

from .measuring import Row, print_table

# The ones that load large peers come last: what they load would slow the collector down for the others.
NAMES = ("items", "async_items", "many_keys", "hand_off", "memory", "resume", "ledger", "reservations")
PACKAGES = ("agentos-parallel", "psycopg", "psycopg-pool", "litellm", "dbos")


def header() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} CPUs, {platform.platform()}, {python}\n{packages}"


def print_list() -> None:
    for name in NAMES:
        print(f"{name:14}{importlib.import_module(f'benchmarks.{name}').__doc__}")


def run(names: list[str]) -> None:
    print(header(), end="\n\n", flush=True)
    start = time.monotonic()
    rows: list[Row] = []
    for name in names:
        rows += importlib.import_module(f"benchmarks.{name}").rows()
    print_table(rows)
    missed = sum(not row.is_met for row in rows)
    print(f"\n{missed} of {len(rows)} targets missed; took {time.monotonic() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (all)")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and say what each measures")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if arguments.list:
        print_list()
    else:
        run([name for name in NAMES if not arguments.names or name in arguments.names])


if __name__ == "__main__":
    main()
