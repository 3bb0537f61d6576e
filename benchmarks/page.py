"""The page with the results: each benchmark's part stands between two marks and is written by a program."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from .alone import Outcome, module_of
from .measuring import Row, aligned, table

# From this share of the machine on, a line says that others were at work.
BUSY = 0.1
RUN = "run"  # the part that tells of the last whole run


def put(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replaces what stands between the marks of a benchmark. A page without them gets them at its end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = path.read_text() if path.exists() else ""
    part = "\n".join([begin, "", *lines, "", end])
    if begin in text:
        head, _, rest = text.partition(begin)
        text = head + part + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n{part}\n".lstrip()
    path.write_text(text)


def machine(packages: Sequence[str]) -> list[str]:
    """Where and with what it was measured."""
    python = f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return [
        f"{os.cpu_count()} CPUs ({_processor()}), {_memory()}{_system()}, {python}",
        ", ".join(f"{name} {version(name)}" for name in packages),
    ]


def section(name: str, outcome: Outcome) -> list[str]:
    """A benchmark's part of the page: where, when and how it was measured, and what came out."""
    module = module_of(name)
    packages = ("agentos-parallel", *getattr(module, "PACKAGES", ()))
    rows = outcome.rows
    lines = [f"{line}  " for line in machine(packages)]
    when = f"Measured on {today()} in {duration(outcome.seconds)}. {busy(outcome.others)} {told_misses(rows)}".strip()
    part = module.page_part(rows) if hasattr(module, "page_part") else table(rows)
    return [*lines, when, "", *part]


def write(path: Path, name: str, outcome: Outcome) -> None:
    """A benchmark's part, and its plots beside the page."""
    module = module_of(name)
    drawn: dict[str, str] = module.plots_of(outcome.rows) if hasattr(module, "plots_of") else {}
    lines = section(name, outcome)
    for file, text in drawn.items():
        (path.parent / "plots").mkdir(exist_ok=True)
        (path.parent / "plots" / file).write_text(text)
    put(path, name, lines)


def of_run(outcomes: Mapping[str, Outcome | None], packages: Sequence[str]) -> list[str]:
    """The part that tells of a whole run; None stands for a benchmark that has not been reached."""
    done = [outcome for outcome in outcomes.values() if outcome is not None]
    took = duration(sum(outcome.seconds for outcome in done))
    lines = [f"{line}  " for line in machine(packages)]
    titles = ("benchmark", "took", "other programs", "targets missed", "")
    cells = [(name, *_run_cells(outcome)) for name, outcome in outcomes.items()]
    return [*lines, f"The last whole run: {today()}, {took}.", "", *aligned(titles, cells)]


def _run_cells(outcome: Outcome | None) -> tuple[str, str, str, str]:
    if outcome is None:
        return ("", "", "", "not reached")
    took = duration(outcome.seconds)
    if outcome.error:
        return (took, "", "", f"FAILED ({outcome.error}): what stands below is of an earlier run")
    aimed, missed = _aimed(outcome.rows)
    note = "the machine was busy" if outcome.others >= BUSY else ""
    return (took, f"{outcome.others:.0%}", f"{missed} of {aimed}" if aimed else "", note)


def told_misses(rows: Sequence[Row]) -> str:
    aimed, missed = _aimed(rows)
    return f"{missed} of {aimed} targets missed." if aimed else ""


def _aimed(rows: Sequence[Row]) -> tuple[int, int]:
    aimed = [row for row in rows if row.is_met is not None]
    return len(aimed), sum(not row.is_met for row in aimed)


def busy(others: float) -> str:
    warning = ": too much to trust the figures" if others >= BUSY else ""
    return f"Meanwhile, other programs used {others:.0%} of the machine{warning}."


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _memory() -> str:
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return f"{gigabytes:.0f} GB, "


def _system() -> str:
    """Its name and the first two parts of its release: the rest may name a machine's maker."""
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return f"{platform.system()} {release}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found.group(1).strip() if found else platform.machine()
