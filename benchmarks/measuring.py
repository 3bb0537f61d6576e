"""Measure in alternating rounds, compare medians and format tables: shared by all benchmarks."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

ROUNDS = 9
MARKS = {True: "ok", False: "MISSED", None: ""}


class Series(NamedTuple):
    """One figure per round, in seconds."""

    name: str
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{spread(self.values, _micro)} µs"


class Ratio(NamedTuple):
    """Quotient of two series, round by round: both sides of a round ran under the same load of the machine."""

    values: list[float]

    @classmethod
    def of(cls, upper: Series, lower: Series) -> Ratio:
        return cls([ours / peer for ours, peer in zip(upper.values, lower.values, strict=True)])

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{spread(self.values, _times)} x"


class Row(NamedTuple):
    """One line of the table."""

    name: str
    figure: str
    peer: str
    peer_figure: str
    ratio: Ratio | None  # None: the peer was not measured
    target: str
    is_met: bool | None  # None: no target
    details: Any = None  # data for `page_part` and `plots_of` of the benchmark


def per_operation(call: Callable[[], object], operations: int) -> Callable[[], float]:
    """Return a function that runs `call` once and returns the seconds per operation."""

    def run_round() -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) / operations

    return run_round


def measure(sides: dict[str, Callable[[], float]], rounds: int = ROUNDS, *, warm_up: bool = True) -> list[Series]:
    """Run rounds of all sides in turn and return a series for each, so that a noisy moment affects all of them."""
    all_series = [Series(name, []) for name in sides]
    if warm_up:  # the first call imports modules, allocates memory and specialises bytecode
        for run_round in sides.values():
            run_round()
    for number in range(rounds):
        # Every other round in reverse order, so that no side always runs after the same one.
        for series in all_series if number % 2 else reversed(all_series):
            gc.collect()
            series.values.append(sides[series.name]())
    return all_series


def at_most(times: float, name: str, ours: Series, peer: Series) -> Row:
    """Return a row whose target is: ours takes at most `times` the peer's time."""
    ratio = Ratio.of(ours, peer)
    return Row(name, str(ours), peer.name, str(peer), ratio, f"<= {times:g} x", ratio.median <= times)


def at_least(times: float, name: str, ours: Series, peer: Series) -> Row:
    """Return a row whose target is a rate: ours does at least `times` the peer's operations per second."""
    ratio = Ratio.of(peer, ours)
    return Row(name, str(ours), peer.name, str(peer), ratio, f">= {times:g} x", ratio.median >= times)


def above(times: float, name: str, ours: Series, peer: Series) -> Row:
    """Return a row whose target is: ours takes more than `times` the peer's time."""
    ratio = Ratio.of(ours, peer)
    return Row(name, str(ours), peer.name, str(peer), ratio, f"> {times:g} x", ratio.median > times)


def compared(name: str, ours: Series, peer: Series) -> Row:
    """Return a row without a target."""
    return Row(name, str(ours), peer.name, str(peer), Ratio.of(ours, peer), "", None)


def table(rows: Iterable[Row]) -> list[str]:
    """Return the lines of the table."""
    titles = ("measurement", "median (min-max)", "peer", "peer's median (min-max)", "ratio by round", "target", "")
    return aligned(
        titles,
        [(r.name, r.figure, r.peer, r.peer_figure, str(r.ratio or ""), r.target, MARKS[r.is_met]) for r in rows],
    )


def aligned(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with aligned columns."""
    all_lines = [titles, *lines]
    widths = [max(len(line[column]) for line in all_lines) for column in range(len(titles))]
    all_lines.insert(1, ["-" * width for width in widths])
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in all_lines
    ]


def spread(values: Sequence[float], formatted: Callable[[float], str]) -> str:
    """Return the median, followed by minimum and maximum if there is more than one value."""
    median = formatted(statistics.median(values))
    return f"{median} ({formatted(min(values))}-{formatted(max(values))})" if len(values) > 1 else median


def _times(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _micro(seconds: float) -> str:
    micro = seconds * 1e6
    return f"{micro:.3g}" if micro < 100 else f"{micro:.0f}"
