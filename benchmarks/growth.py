"""Cost per item by number of items, from 100 to 100,000: it must not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentos.workflows.parallel import ParallelCoordinator

from . import plots
from .items import WORKERS, no_op, run_executor
from .ledger import Folder, commit_each, run_recorded
from .measuring import Row, Series, at_most, compared, measure, per_operation, table

COUNTS = (100, 1_000, 10_000, 100_000)
ROUNDS = 5
# Baseline for the largest count. With fewer items the fixed cost of a run would be a large part of it.
FEW = 10_000
MAX_COMMITS = 10_000  # single commits: ten times as many would take half an hour on some disks
MAX_GROWTH = 1.5
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
    if count <= MAX_COMMITS:
        calls[COMMITS] = lambda: commit_each(folder.new(), count)
    return {name: per_operation(call, count) for name, call in calls.items()}


def measured_by_count() -> dict[int, dict[str, Series]]:
    """Measure all counts in every round, so that growth shows within a round."""
    with Folder() as folder:
        calls = {(name, count): call for count in COUNTS for name, call in sides(folder, count).items()}
        for call in sides(folder, COUNTS[0]).values():
            call()  # a warm-up with the smallest count: that of `measure` would take much longer
        series = measure({f"{name}, {count}": call for (name, count), call in calls.items()}, ROUNDS, warm_up=False)
    by_count: dict[int, dict[str, Series]] = {count: {} for count in COUNTS}
    for (name, count), values in zip(calls, series, strict=True):
        by_count[count][name] = values._replace(name=name)
    return by_count


def rows() -> Iterator[Row]:
    measured = measured_by_count()
    for count, by_name in measured.items():
        row = f"per item, {count:,} items"
        yield compared(row, by_name[NO_LEDGER], by_name[EXECUTOR])._replace(details=(count, by_name))
        yield compared(f"{row}, with a ledger", by_name[LEDGER], by_name[EXECUTOR])
        if COMMITS in by_name:
            yield compared(f"{row}, with a ledger", by_name[LEDGER], by_name[COMMITS])
    for name in (NO_LEDGER, LEDGER):
        few = measured[FEW][name]._replace(name=f"itself with {FEW:,} items")
        yield at_most(MAX_GROWTH, f"per item, {COUNTS[-1]:,} items, {name}", measured[COUNTS[-1]][name], few)


def page_part(rows: Iterable[Row]) -> list[str]:
    return [*table(rows), "", f"![{TITLE}](plots/{PLOT})"]


def plots_of(rows: Iterable[Row]) -> dict[str, str]:
    by_count: dict[int, dict[str, Series]] = dict(row.details for row in rows if row.details)
    lines = {
        name: {count: by_name[name].values for count, by_name in by_count.items() if name in by_name}
        for name in (NO_LEDGER, LEDGER, EXECUTOR, COMMITS)
    }
    return {PLOT: plots.against_count(TITLE, lines)}
