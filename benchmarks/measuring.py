"""Rounds, medians and the table: what all benchmarks share."""

from __future__ import annotations

import gc
import math
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
        return f"{_micro(self.median)} ({_micro(min(self.values))}-{_micro(max(self.values))}) µs"


class Row(NamedTuple):
    """One line of the table."""

    what: str
    figure: str
    peer: str
    peer_figure: str
    ratio: float  # NaN: the peer was not there
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


def measure(sides: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> list[Series]:
    """A round of each side in turn, again and again, so that a noisy moment of the machine meets all of them."""
    every = [Series(name, []) for name in sides]
    for run_round in sides.values():
        run_round()  # first use imports, allocates and specialises
    for number in range(rounds):
        # Every other time backwards: none of them always runs in the wake of the same one.
        for series in every if number % 2 else reversed(every):
            gc.collect()
            series.values.append(sides[series.name]())
    return every


def at_most(times: float, what: str, ours: Series, peer: Series) -> Row:
    ratio = ours.median / peer.median
    return Row(what, str(ours), peer.name, str(peer), ratio, f"<= {times:g} x", ratio <= times)


def at_least(times: float, what: str, ours: Series, peer: Series) -> Row:
    """As a rate: how many of ours fit into one of the peer's."""
    ratio = peer.median / ours.median
    return Row(what, str(ours), peer.name, str(peer), ratio, f">= {times:g} x", ratio >= times)


def above(times: float, what: str, ours: Series, peer: Series) -> Row:
    ratio = ours.median / peer.median
    return Row(what, str(ours), peer.name, str(peer), ratio, f"> {times:g} x", ratio > times)


def table(rows: Iterable[Row]) -> list[str]:
    titles = ("what", "median (min-max)", "peer", "peer's median (min-max)", "ratio", "target", "")
    return aligned(
        titles, [(r.what, r.figure, r.peer, r.peer_figure, _times(r.ratio), r.target, MARKS[r.is_met]) for r in rows]
    )


def aligned(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table that can be read as it is, and as Markdown."""
    every = [titles, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(titles))]
    every.insert(1, ["-" * width for width in widths])
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in every
    ]


def _times(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{ratio:.3f} x"


def _micro(seconds: float) -> str:
    micro = seconds * 1e6
    return f"{micro:.3g}" if micro < 100 else f"{micro:.0f}"
