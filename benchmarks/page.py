"""Write the results into a Markdown page: the part of each benchmark is between two HTML comments."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from .isolated import Outcome, module_of
from .measuring import Row, aligned, table

# Share of the machine that other programs may use before the page warns about it.
BUSY = 0.1
RUN = "run"  # name of the part about the last complete run


def put(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replace the lines between the comments of a part. A page without these comments gets the part at its end."""
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
    """Return two lines: the machine with its Python, and the versions of the packages."""
    python = f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return [
        f"{os.cpu_count()} CPUs ({_processor()}), {_memory()}{_system()}, {python}",
        ", ".join(f"{name} {version(name)}" for name in packages),
    ]


def section(name: str, outcome: Outcome) -> list[str]:
    """Return a benchmark's part of the page: machine, date, load and results."""
    module = module_of(name)
    packages = ("agentos-parallel", *getattr(module, "PACKAGES", ()))
    rows = outcome.rows
    lines = [f"{line}  " for line in machine(packages)]
    when = (
        f"Measured on {today()} in {duration(outcome.seconds)}. {busy(outcome.others)} {missed_targets(rows)}".strip()
    )
    part = module.page_part(rows) if hasattr(module, "page_part") else table(rows)
    return [*lines, when, "", *part]


def write(path: Path, name: str, outcome: Outcome) -> None:
    """Write a benchmark's part of the page, and its plots into the folder `plots` beside the page."""
    module = module_of(name)
    plots: dict[str, str] = module.plots_of(outcome.rows) if hasattr(module, "plots_of") else {}
    lines = section(name, outcome)
    for file, text in plots.items():
        (path.parent / "plots").mkdir(exist_ok=True)
        (path.parent / "plots" / file).write_text(text)
    put(path, name, lines)


def of_run(outcomes: Mapping[str, Outcome | None], packages: Sequence[str]) -> list[str]:
    """Return the part about a complete run; None stands for a benchmark that has not run yet."""
    done = [outcome for outcome in outcomes.values() if outcome is not None]
    total = duration(sum(outcome.seconds for outcome in done))
    lines = [f"{line}  " for line in machine(packages)]
    titles = ("benchmark", "duration", "other programs", "targets missed", "")
    cells = [(name, *_run_cells(outcome)) for name, outcome in outcomes.items()]
    return [*lines, f"Last complete run: {today()}, {total}.", "", *aligned(titles, cells)]


def _run_cells(outcome: Outcome | None) -> tuple[str, str, str, str]:
    if outcome is None:
        return ("", "", "", "did not run")
    seconds = duration(outcome.seconds)
    if outcome.error:
        return (seconds, "", "", f"FAILED ({outcome.error}): the figures below are of an earlier run")
    targets, missed = _count_targets(outcome.rows)
    note = "the machine was busy" if outcome.others >= BUSY else ""
    return (seconds, f"{outcome.others:.0%}", f"{missed} of {targets}" if targets else "", note)


def missed_targets(rows: Sequence[Row]) -> str:
    """Return a sentence with the number of missed targets; empty without targets."""
    targets, missed = _count_targets(rows)
    return f"{missed} of {targets} targets missed." if targets else ""


def _count_targets(rows: Sequence[Row]) -> tuple[int, int]:
    """Return the number of targets and of missed targets."""
    results = [row.is_met for row in rows if row.is_met is not None]
    return len(results), results.count(False)


def busy(others: float) -> str:
    """Return a sentence about the load by other programs, with a warning if it is high."""
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
    """Return the system and the first two parts of its release: the rest may name the provider of the machine."""
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return f"{platform.system()} {release}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return match.group(1).strip() if match else platform.machine()
