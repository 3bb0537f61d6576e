"""Write SVG: one element per line, colours for light and dark pages, equal text for equal figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

Anchor = Literal["start", "middle", "end"]
# Palette after Okabe and Ito, distinct for colour-blind readers; each colour with a lighter form for dark pages.
COLOURS = {
    "blue": ("#0072b2", "#56b4e9"),
    "red": ("#c8420a", "#ff8a4c"),
    "green": ("#008a63", "#2fd0a0"),
    "purple": ("#a0518a", "#e29acb"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9aa4af"),
    "grid": ("#dfe3e8", "#30363d"),
    "paper": ("#ffffff", "#0d1117"),
}


class Scale(NamedTuple):
    """Maps values from `low` to `high` to coordinates from `start` to `end`, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.is_log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Return round values within the scale: about `wanted` of them, or all powers of ten."""
        if self.is_log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers]
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = min((power * times for times in (1, 2, 5, 10)), key=lambda step: abs(step - rough))
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


class Drawing:
    """A picture; `str()` returns the text of the file."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._width, self._height = width, height
        self._head = [f"<title>{escape(title)}</title>", f"<desc>{escape(description)}</desc>"]
        self._elements: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, anchor: Anchor = "start", kind: str = "ink", turned: bool = False
    ) -> None:
        turn = f' transform="rotate(-90 {_coordinate(x)} {_coordinate(y)})"' if turned else ""
        position = f'x="{_coordinate(x)}" y="{_coordinate(y)}"'
        self._add(f'<text class="{kind}" {position} text-anchor="{anchor}"{turn}>{escape(text)}</text>')

    def line(self, points: Iterable[tuple[float, float]], colour: str, *, width: float = 2, dashes: str = "") -> None:
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._add(f'<polyline class="{colour}-line" stroke-width="{width:g}"{dashed} points="{_points(points)}"/>')

    def area(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        self._add(f'<polygon class="{colour}-area" points="{_points(points)}"/>')

    def dot(self, x: float, y: float, colour: str) -> None:
        self._add(f'<circle class="{colour}-dot" cx="{_coordinate(x)}" cy="{_coordinate(y)}" r="3"/>')

    def grid(self, scale_x: Scale, scale_y: Scale, ticks_x: Sequence[float], ticks_y: Sequence[float]) -> None:
        """Draw lines and labels at the ticks."""
        for tick in ticks_y:
            y = scale_y(tick)
            self.line([(scale_x.start, y), (scale_x.end, y)], "grid", width=1)
            self.text(scale_x.start - 6, y + 4, f"{tick:,g}", anchor="end", kind="soft")
        for tick in ticks_x:
            self.text(scale_x(tick), scale_y.start + 16, f"{tick:,.0f}", anchor="middle", kind="soft")

    def _add(self, element: str) -> None:
        self._elements.append(element)

    def __str__(self) -> str:
        size = f'width="{self._width}" height="{self._height}" viewBox="0 0 {self._width} {self._height}"'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        paper = '<rect class="paper" width="100%" height="100%"/>'
        return "\n".join([opening, *self._head, *_style(), paper, *self._elements, "</svg>", ""])


def _style() -> list[str]:
    fonts = "text { font: 12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }"
    title = ".title { font-size: 15px; font-weight: 600; } .name { font-weight: 600; }"
    shapes = "polyline { fill: none; stroke-linejoin: round; }"
    dark = ["@media (prefers-color-scheme: dark) {", *_colours(1), "}"]
    return ["<style>", fonts, title, shapes, *_colours(0), *dark, "</style>"]


def _colours(which: int) -> list[str]:
    ink, soft, paper = (COLOURS[name][which] for name in ("ink", "soft", "paper"))
    lines = [f".ink, .title, .name {{ fill: {ink}; }} .soft {{ fill: {soft}; }} .paper {{ fill: {paper}; }}"]
    for name, both in COLOURS.items():
        if name not in ("soft", "paper"):
            colour = both[which]
            lines.append(
                f".{name}-line {{ stroke: {colour}; }} .{name}-dot {{ fill: {colour}; }} "
                f".{name}-area {{ fill: {colour}; fill-opacity: 0.35; }}"
            )
    return lines


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_coordinate(x)},{_coordinate(y)}" for x, y in points)


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
