"""Rounds, medians and the table: what all benchmarks share."""

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
    """One of two figures over the other, for each round: both met the same moment of the machine."""

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

    what: str
    figure: str
    peer: str
    peer_figure: str
    ratio: Ratio | None  # None: the peer was not there
    target: str
    is_met: bool | None  # None: nothing is aimed at
    details: Any = None  # what is behind it, for those who write more than this line


def per_operation(call: Callable[[], object], operations: int) -> Callable[[], float]:
    """A round of `call`, which does so many operations: seconds for one of them."""

    def run_round() -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) / operations

    return run_round


def measure(sides: dict[str, Callable[[], float]], rounds: int = ROUNDS, *, warm_up: bool = True) -> list[Series]:
    """A round of each side in turn, again and again, so that a noisy moment of the machine meets all of them."""
    every = [Series(name, []) for name in sides]
    if warm_up:  # first use imports, allocates and specialises
        for run_round in sides.values():
            run_round()
    for number in range(rounds):
        # Every other time backwards: none of them always runs in the wake of the same one.
        for series in every if number % 2 else reversed(every):
            gc.collect()
            series.values.append(sides[series.name]())
    return every


def at_most(times: float, what: str, ours: Series, peer: Series) -> Row:
    ratio = Ratio.of(ours, peer)
    return Row(what, str(ours), peer.name, str(peer), ratio, f"<= {times:g} x", ratio.median <= times)


def at_least(times: float, what: str, ours: Series, peer: Series) -> Row:
    """As a rate: how many of ours fit into one of the peer's."""
    ratio = Ratio.of(peer, ours)
    return Row(what, str(ours), peer.name, str(peer), ratio, f">= {times:g} x", ratio.median >= times)


def above(times: float, what: str, ours: Series, peer: Series) -> Row:
    ratio = Ratio.of(ours, peer)
    return Row(what, str(ours), peer.name, str(peer), ratio, f"> {times:g} x", ratio.median > times)


def compared(what: str, ours: Series, peer: Series) -> Row:
    """Nothing is aimed at."""
    return Row(what, str(ours), peer.name, str(peer), Ratio.of(ours, peer), "", None)


def table(rows: Iterable[Row]) -> list[str]:
    titles = ("what", "median (min-max)", "peer", "peer's median (min-max)", "ratio by round", "target", "")
    return aligned(
        titles,
        [(r.what, r.figure, r.peer, r.peer_figure, str(r.ratio or ""), r.target, MARKS[r.is_met]) for r in rows],
    )


def aligned(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table that can be read as it is, and as Markdown."""
    every = [titles, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(titles))]
    every.insert(1, ["-" * width for width in widths])
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in every
    ]


def spread(values: Sequence[float], written: Callable[[float], str]) -> str:
    """The median, and from the least to the most if there is more than one."""
    median = written(statistics.median(values))
    return f"{median} ({written(min(values))}-{written(max(values))})" if len(values) > 1 else median


def _times(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _micro(seconds: float) -> str:
    micro = seconds * 1e6
    return f"{micro:.3g}" if micro < 100 else f"{micro:.0f}"
