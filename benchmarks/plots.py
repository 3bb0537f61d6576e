"""Draw the plots: requests served over time against the legal limit, and cost against the number of items."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .svg import Drawing, Scale

WIDTH = 760
LEFT, RIGHT = 70, 20
TOP = 78  # title and legend
PANEL, GAP = 84, 34
BOTTOM = 44
LINE_COLOURS = ("blue", "purple", "green", "red")


class Panel(NamedTuple):
    """One client: when its requests were served, and when they were refused, in seconds since its first."""

    name: str
    served_at: Sequence[float]
    refused_at: Sequence[float]
    was_stopped: bool = False

    @property
    def result(self) -> str:
        last = max(self.served_at, default=0.0)
        until = "until it was stopped" if self.was_stopped else f"in {last:.1f} s"
        return f"{len(self.served_at):,} served {until}, {len(self.refused_at):,} refused"


def per_second(instants: Iterable[float]) -> list[int]:
    """Return the count of instants in each second."""
    counts = Counter(int(at) for at in instants)
    return [counts[second] for second in range(max(counts, default=-1) + 1)]


def over_time(title: str, panels: Sequence[Panel], rate: float, burst: float) -> str:
    """Draw a panel for each client, all with the same axes. `rate` and `burst` are sums over all limits."""
    served = [per_second(panel.served_at) for panel in panels]
    refused = [per_second(panel.refused_at) for panel in panels]
    seconds = max(map(len, served + refused), default=1) or 1
    highest = max([rate + burst, *(count for counts in served + refused for count in counts)])
    height = TOP + len(panels) * (PANEL + GAP) - GAP + BOTTOM
    drawing = Drawing(WIDTH, height, title, "Requests per second, as the provider's log has them, for each client.")
    _head(drawing, title, [("blue", "served", ""), ("red", "refused with 429", ""), ("ink", "legal limit", "5 4")])
    across = Scale(0, seconds, LEFT, WIDTH - RIGHT)
    for number, panel in enumerate(panels):
        top = TOP + number * (PANEL + GAP)
        up = Scale(0, highest, top + PANEL, top)
        is_last = number == len(panels) - 1
        drawing.grid(across, up, across.ticks(8) if is_last else [], up.ticks(3))
        drawing.text(LEFT, top - 7, panel.name, kind="name")
        drawing.text(WIDTH - RIGHT, top - 7, panel.result, anchor="end", kind="soft")
        for first, counts in _stretches(served[number]):
            drawing.area(_steps(first, counts, across, up), "blue")
            drawing.line(_steps(first, counts, across, up), "blue", width=1.5)
        for first, counts in _stretches(refused[number]):
            drawing.line(_steps(first, counts, across, up), "red", width=1.5)
        # The first second has the requests of the rate and of the full buckets.
        legal = [(0, rate + burst), (1, rate + burst), (1, rate), (seconds, rate)]
        drawing.line([(across(x), up(y)) for x, y in legal], "ink", width=1.5, dashes="5 4")
    middle = TOP + (height - TOP - BOTTOM) / 2
    drawing.text(18, middle, "requests per second", anchor="middle", kind="soft", turned=True)
    drawing.text(
        (LEFT + WIDTH - RIGHT) / 2, height - 8, "seconds since the first request", anchor="middle", kind="soft"
    )
    return str(drawing)


def against_count(title: str, lines: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    """Draw microseconds per item by number of items, both logarithmic: a dot per median, a bar from minimum to maximum.

    `lines` holds seconds per item: by name, by number of items, for each round.
    """
    medians = {name: {count: statistics.median(values) for count, values in by.items()} for name, by in lines.items()}
    costs = [value * 1e6 for by in lines.values() for values in by.values() for value in values]
    counts = [count for by in lines.values() for count in by]
    height = 400
    drawing = Drawing(WIDTH, height, title, "Microseconds for one item against the number of items of the run.")
    _head(drawing, title, [(colour, name, "") for colour, name in zip(LINE_COLOURS, lines, strict=False)])
    across = Scale(min(counts), max(counts), LEFT + 14, WIDTH - RIGHT - 30, is_log=True)
    up = Scale(_power_below(min(costs)), _power_above(max(costs)), height - BOTTOM, TOP, is_log=True)
    frame = across._replace(start=LEFT, end=WIDTH - RIGHT)
    drawing.grid(frame, up, [], up.ticks())
    for tick in across.ticks():
        drawing.text(across(tick), up.start + 16, f"{tick:,.0f}", anchor="middle", kind="soft")
    for colour, (name, by) in zip(LINE_COLOURS, lines.items(), strict=False):
        drawing.line([(across(count), up(cost * 1e6)) for count, cost in medians[name].items()], colour)
        for count, values in by.items():
            x = across(count)
            drawing.line([(x, up(min(values) * 1e6)), (x, up(max(values) * 1e6))], colour, width=1)
            drawing.dot(x, up(medians[name][count] * 1e6), colour)
    middle = (TOP + height - BOTTOM) / 2
    drawing.text(18, middle, "µs per item", anchor="middle", kind="soft", turned=True)
    drawing.text((LEFT + WIDTH - RIGHT) / 2, height - 8, "items in the run", anchor="middle", kind="soft")
    return str(drawing)


def _head(drawing: Drawing, title: str, legend: Iterable[tuple[str, str, str]]) -> None:
    drawing.text(LEFT, 24, title, kind="title")
    x = float(LEFT)
    for colour, name, dashes in legend:
        drawing.line([(x, 43), (x + 22, 43)], colour, dashes=dashes)
        drawing.text(x + 28, 47, name)
        x += 28 + 6.6 * len(name) + 24  # about 6.6 per letter in usual fonts


def _stretches(counts: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return each stretch of consecutive seconds with a count above zero: its first second, and its counts."""
    stretches: list[tuple[int, list[int]]] = []
    for second, count in enumerate(counts):
        if count and second and counts[second - 1]:
            stretches[-1][1].append(count)
        elif count:
            stretches.append((second, [count]))
    return stretches


def _steps(first: int, counts: Sequence[int], across: Scale, up: Scale) -> list[tuple[float, float]]:
    """Return the outline of a bar for each second, beginning and ending at zero."""
    points = [(across(first), up(0))]
    for second, count in enumerate(counts, first):
        points += [(across(second), up(count)), (across(second + 1), up(count))]
    return [*points, (points[-1][0], up(0))]


def _power_below(value: float) -> float:
    return 10.0 ** math.floor(math.log10(value))


def _power_above(value: float) -> float:
    return 10.0 ** math.ceil(math.log10(value))
