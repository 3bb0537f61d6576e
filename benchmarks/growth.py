"""The cost of an item against the number of items, from 100 to 100,000: it must not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentos.workflows.parallel import ParallelCoordinator

from . import plots
from .items import WORKERS, no_op, run_executor
from .ledger import Folder, commit_each, run_recorded
from .measuring import Row, Series, at_most, compared, measure, per_operation, table

COUNTS = (100, 1_000, 10_000, 100_000)
ROUNDS = 5
# What the most are compared with: with less, what a run costs once is a large part of it.
FEW = 10_000
MOST_COMMITS = 10_000  # one by one: ten times as many would take half an hour on some disks
MOST_GROWTH = 1.5
PLOT = "growth.svg"
TITLE = "Cost per item against the number of items"
NO_LEDGER, LEDGER, EXECUTOR, COMMITS = "ours", "ours, with a ledger", "ThreadPoolExecutor", "one commit per item"


def run_ours(count: int) -> None:
    with ParallelCoordinator(WORKERS, reporter=None).stream(range(count), no_op) as results:
        assert sum(result.success for result in results) == count


def sides(folder: Folder, count: int) -> dict[str, Callable[[], float]]:
    calls: dict[str, Callable[[], object]] = {
        NO_LEDGER: lambda: run_ours(count),
        LEDGER: lambda: run_recorded(folder.new(), None, count),
        EXECUTOR: lambda: run_executor(count),
    }
    if count <= MOST_COMMITS:
        calls[COMMITS] = lambda: commit_each(folder.new(), count)
    return {name: per_operation(call, count) for name, call in calls.items()}


def measured_by_count() -> dict[int, dict[str, Series]]:
    """All numbers in every round: what grows is seen within a round, too."""
    with Folder() as folder:
        every = {(name, count): call for count in COUNTS for name, call in sides(folder, count).items()}
        for call in sides(folder, COUNTS[0]).values():
            call()  # as `measure` would, but not for an hour
        series = measure({f"{name}, {count}": call for (name, count), call in every.items()}, ROUNDS, warm_up=False)
    by_count: dict[int, dict[str, Series]] = {count: {} for count in COUNTS}
    for (name, count), one in zip(every, series, strict=True):
        by_count[count][name] = one._replace(name=name)
    return by_count


def rows() -> Iterator[Row]:
    measured = measured_by_count()
    for count, by_name in measured.items():
        what = f"per item, {count:,} items"
        yield compared(what, by_name[NO_LEDGER], by_name[EXECUTOR])._replace(details=(count, by_name))
        yield compared(f"{what}, with a ledger", by_name[LEDGER], by_name[EXECUTOR])
        if COMMITS in by_name:
            yield compared(f"{what}, with a ledger", by_name[LEDGER], by_name[COMMITS])
    for name in (NO_LEDGER, LEDGER):
        few = measured[FEW][name]._replace(name=f"itself with {FEW:,} items")
        yield at_most(MOST_GROWTH, f"per item, {COUNTS[-1]:,} items, {name}", measured[COUNTS[-1]][name], few)


def page_part(rows: Iterable[Row]) -> list[str]:
    return [*table(rows), "", f"![{TITLE}](plots/{PLOT})"]


def plots_of(rows: Iterable[Row]) -> dict[str, str]:
    by_count: dict[int, dict[str, Series]] = dict(row.details for row in rows if row.details)
    lines = {
        name: {count: by_name[name].values for count, by_name in by_count.items() if name in by_name}
        for name in (NO_LEDGER, LEDGER, EXECUTOR, COMMITS)
    }
    return {PLOT: plots.against_count(TITLE, lines)}
