"""Draws the live display of a run: a frame is a function of the run's figures, the clock and the size.

From the top: the run and its times, a bar, what binds the run, the running items (oldest first), the
credentials, the last failures. With fewer rows the lists get shorter, then only their titles stay, then the header and
the bar. Only visible rows are made, so a thousand running items cost no more than thirty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agentos.durations import format_duration
from agentos.events import ItemEnded, RunEnded, RunStopping, StoreReached, StoreUnreachable
from agentos.items.results import MIN_ITEMS_FOR_RATE, ProgressStats, seconds_to_go
from agentos.limits.declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, short_name
from agentos.pool.pauses import is_pause, longest_pause
from agentos.pool.states import CredentialState
from agentos.reporters.bound_text import bound_text
from agentos.reporters.sentences import cost_facts, error_text
from agentos.reporters.unusable_text import one_line, out_of_use_text
from agentos.runs.run_snapshot import RunSnapshot
from agentos.verdict import AUTH_FAILED, QUOTA_EXHAUSTED

from ._cells import head, left_aligned, right_aligned, text_width

if TYPE_CHECKING:
    from agentos.runs.streams import ResultStream

# Seconds for which a snapshot is used: it is made under the pool's lock, and countdowns need no new one.
SNAPSHOT_SECONDS = 0.25
# Failures in the display.
MAX_FAILURES = 5
# Characters at either end of a text that are measured: a longer text does not fit into any terminal.
MAX_CHARACTERS = 500
# Seconds. Shorter waits come from spacing requests evenly, and get no countdown.
SHORT_WAIT = 1.0
# Seconds. The end of a shorter wait is not shown: it is over before the next frame.
TINY_WAIT = 0.05
# Cells. In a narrower terminal, running items are shown without their credentials.
MIN_WIDTH_FOR_KEYS = 40
# Rows. In a lower terminal the bound of a run is shown only while nothing starts.
MIN_HEIGHT_FOR_BOUND = 10
# Cells of a limit's bar, and cells beside it that the state of a credential needs.
LIMIT_BAR = 8
MIN_STATE = 26

# Limits that are shown first, if there is room.
FIRST_LIMITS = (REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, REQUESTS_PER_DAY)

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

Segment = tuple[str, str]  # a text and its style, "" for none


class Glyphs(NamedTuple):
    full: str
    empty: str
    more: str


UNICODE = Glyphs("━", "─", "…")
ASCII = Glyphs("#", "-", "...")


class Display:
    """Frames of one run. `note` is a reporter that keeps what the run's figures do not contain.

    All parts of a frame come from one snapshot of the run and its pool. `clock` returns epoch seconds, as in the run's
    figures."""

    def __init__(
        self,
        run: ResultStream[Any],
        *,
        clock: Callable[[], float] = time.time,
        color: bool = True,
        unicode: bool = True,
    ) -> None:
        self._run = run
        self._clock = clock
        self._has_color = color
        self._has_unicode = unicode
        self._glyphs = UNICODE if unicode else ASCII
        self._redactors: list[Callable[[str], str]] = []
        self._snapshot: RunSnapshot | None = None
        self._rows = 0  # running items in it, at most
        # Written by the run's thread, read by the drawing thread: immutable values that are replaced as a whole.
        self._failures: tuple[tuple[str, str], ...] = ()
        self._stopping: RunStopping | None = None
        self._lost: StoreUnreachable | None = None  # None while the store is reachable

    def redact_with(self, redact: Callable[[str], str]) -> None:
        """Apply `redact` to all texts that come from items."""
        self._redactors.append(redact)

    def note(self, event: Any) -> None:
        """Keep failures, the reason of a stop, and the loss of the store."""
        if isinstance(event, ItemEnded) and not event.result.success:
            failure = self._safe(event.result.item_id), self._safe(error_text(event.result))
            self._failures = (*self._failures, failure)[-MAX_FAILURES:]
        elif isinstance(event, RunStopping):
            self._stopping = event
        elif isinstance(event, StoreUnreachable | StoreReached):
            self._lost = event if isinstance(event, StoreUnreachable) else None
        elif isinstance(event, RunEnded):
            self._snapshot = None  # the last frame shows the end

    def frame(self, width: int, height: int) -> list[str]:
        """Return at most `height` lines of at most `width` cells."""
        now = self._clock()
        run = self._take_snapshot(now, height)
        top = [self._bar(run.stats, width)]
        if height > 1:
            top.insert(0, self._header(run.stats, now, width))
        reason, style = self._reason(run, now, width)
        if reason and height > (MIN_HEIGHT_FOR_BOUND if style == "dim" else 2):
            top.append([(self._cut(reason, width), style)])
        rows = [*top, *self._lists(run, now, width, height - len(top))]
        return [self._line(row, width) for row in rows[: max(0, height)]]

    def _take_snapshot(self, now: float, rows: int) -> RunSnapshot:
        known = self._snapshot
        if known is None or rows > self._rows or not 0.0 <= now - known.at < SNAPSHOT_SECONDS:
            self._snapshot, self._rows = self._run.snapshot(rows), rows
            known = self._snapshot
        return known

    # --- the top --------------------------------------------------------------------------------------------------

    def _header(self, stats: ProgressStats, now: float, width: int) -> list[Segment]:
        elapsed = max(0.0, (now if stats.end_time is None else stats.end_time) - stats.start_time)
        new_results = stats.completed - stats.recorded
        facts = [f"{clock_text(elapsed)} elapsed"]
        eta = seconds_to_go(stats.completed, stats.total, elapsed, stats.recorded, stats.fastest, stats.not_before)
        if eta and self._stopping is None:
            facts.append(f"about {countdown_text(eta)} to go")
        facts += cost_facts(stats)
        if new_results >= MIN_ITEMS_FOR_RATE and elapsed > 0:
            facts.append(f"{amount_text(new_results / elapsed * 60)} items/min")
        run_id = self._safe(self._run.run_id)
        while len(facts) > 1 and 6 + min(text_width(run_id), 16) + len(", ".join(facts)) > width:
            facts.pop()
        times = ", ".join(facts)
        room = width - 6 - len(times)
        if room < 4:
            return [(times, "")]
        return [("run ", ""), (self._shorten(run_id, room), "bold"), ("  " + times, "")]

    def _bar(self, stats: ProgressStats, width: int) -> list[Segment]:
        count_text = f"{stats.completed} done" if stats.total is None else f"{stats.completed}/{stats.total} done"
        failed = f", {stats.failed} failed" if stats.failed else ""
        if len(count_text) + len(failed) > width:
            count_text = count_text.removesuffix(" done")
        cells = width - len(count_text) - len(failed) - 1
        counts = [(count_text, ""), (failed, "red")]
        if not stats.total or cells < 4:
            return counts
        succeeded = max(0, min(cells, cells * (stats.completed - stats.failed) // stats.total))
        # A single failure has a cell, too. Both are rounded down, so unfinished items have the rest.
        failures = min(max(cells * stats.failed // stats.total, bool(stats.failed)), cells - succeeded)
        full, empty = self._glyphs.full, self._glyphs.empty
        unfinished = empty * (cells - succeeded - failures)
        return [(full * succeeded, "green"), (full * failures, "red"), (unfinished, "dim"), (" ", ""), *counts]

    def _reason(self, run: RunSnapshot, now: float, width: int) -> Segment:
        """Return what binds the run, or why it stops; "" if it only waits for its last items."""
        if self._stopping is not None:
            once_more = " (Ctrl-C again stops at once)" if self._stopping.grace is not None else ""
            running = f"{run.stats.running} still running{once_more}"
            return f"stopping, {self._safe(one_line(self._stopping.reason))}: {running}", "yellow"
        if self._lost is not None:
            lost_for = clock_text(now - self._lost.since)
            return f"the pool's store is unreachable for {lost_for}: nothing new starts", "yellow"
        bound = run.bound
        if bound is None:
            return "", ""
        style, countdown = "dim", ""
        if bound.until is not None and bound.until - now >= SHORT_WAIT:
            style, countdown = "yellow", f"nothing starts for {countdown_text(bound.until - now)}. "
        text = f"{countdown}Bound by {self._safe(bound_text(bound, now))}"
        if text_width(text) > width:  # better without its instant than cut in the middle
            text = f"{countdown}Bound by {self._safe(bound_text(bound))}"
        return text, style

    # --- the lists ------------------------------------------------------------------------------------------------

    def _lists(self, run: RunSnapshot, now: float, width: int, height: int) -> list[list[Segment]]:
        """Return the rows of the lists: titles first, then a sixth of the rows for failures; running items and
        credentials share the others. Credentials are shown as at the instant of the snapshot, which the sentence about
        the bound has, too."""
        stats, states = run.stats, run.credentials
        has_running = stats.running > 0 and height > 0
        has_credentials = bool(states) and height > has_running
        room = height - has_running - has_credentials
        failures = min(len(self._failures), max(0, room + 5) // 6)
        room -= failures
        credentials = min(len(states), max(room - stats.running, room // 2))
        running = min(stats.running, room - credentials)
        rows: list[list[Segment]] = []
        if has_running:
            rows.append([("running", "bold"), (f" {stats.running}{_other_counts(run)}", "")])
            rows += self._running(run, running, now, width)
        if has_credentials:
            rows.append([("credentials", "bold"), (f" {len(states)}: {_state_counts(states, run.at)}", "")])
            rows += self._credentials(states, credentials, run.at, width)
        return rows + self._failed(failures, width)

    def _running(self, run: RunSnapshot, rows: int, now: float, width: int) -> list[list[Segment]]:
        if rows <= 0:
            return []
        count = run.stats.running
        visible = rows if count <= rows or rows == 1 else rows - 1
        items = run.running[:visible]
        ages = right_aligned([clock_text(item.age_seconds + now - run.at) for item in items])
        keys = [self._safe(item.credential_id or "") if width >= MIN_WIDTH_FOR_KEYS else "" for item in items]
        keys = [self._shorten(key, width // 4) for key in keys]
        attempts = [f"  attempt {item.attempt}" if item.attempt > 1 else "" for item in items]
        beside = 6 + sum(max(map(text_width, column), default=0) for column in (ages, keys, attempts))
        # Half of the width: one long id must not push the keys of the other items off the screen.
        room = min(max(width - beside, 8), max(width // 2, 20))
        ids = left_aligned([self._shorten(self._safe(item.id), room) for item in items])
        lines: list[list[Segment]] = [
            [("  " + age, "dim"), ("  " + name, ""), ("  " + key, "cyan"), (attempt, "yellow")]
            for age, name, key, attempt in zip(ages, ids, left_aligned(keys), attempts, strict=True)
        ]
        if count > visible and rows > 1:
            lines.append([(f"  {self._glyphs.more} and {count - visible} more", "dim")])
        return lines

    def _credentials(self, states: Sequence[CredentialState], rows: int, now: float, width: int) -> list[list[Segment]]:
        if rows <= 0:
            return []
        visible = rows if len(states) <= rows or rows == 1 else rows - 1
        if visible < len(states):
            states = sorted(states, key=lambda state: _place(state, now))
        more = len(states) - visible
        states = states[:visible]
        ids = left_aligned([self._shorten(self._safe(state.key_id), max(8, width // 4)) for state in states])
        state_texts = [self._state_text(state, now) for state in states]
        lines: list[list[Segment]] = [[("  " + name, "cyan")] for name in ids]
        room = width - 2 - max(map(text_width, ids)) - 2
        for name in dict.fromkeys((*FIRST_LIMITS, *(name for state in states for name in state.used))):
            column = [self._limit(name, state.used.get(name)) for state in states]
            cells = max(len(figures) for _, _, figures in column)
            if not cells or room - LIMIT_BAR - cells - 3 < MIN_STATE:
                continue
            room -= LIMIT_BAR + cells + 3
            for line, (full, empty, figures) in zip(lines, column, strict=True):
                line += [("  ", ""), full, empty, (" " + figures.ljust(cells), "")]
        for line, (text, style) in zip(lines, state_texts, strict=True):
            line.append(("  " + self._cut(text, room), style))
        if more > 0 and rows > 1:
            lines.append([(f"  {self._glyphs.more} and {more} more", "dim")])
        return lines

    def _limit(self, name: str, use: tuple[float, float] | None) -> tuple[Segment, Segment, str]:
        """Return the used share of a limit as a bar of two segments, and as figures."""
        if use is None:
            return (" " * LIMIT_BAR, ""), ("", ""), ""
        used, limit = use
        share = min(1.0, max(0.0, used / limit if limit else 1.0))
        full = max(int(LIMIT_BAR * share), used > 0)
        style = "red" if share >= 1.0 else "yellow" if share >= 0.8 else "green"
        figures = f"{amount_text(used)}/{amount_text(limit)} {short_name(name)}"
        return (self._glyphs.full * full, style), (self._glyphs.empty * (LIMIT_BAR - full), "dim"), figures

    def _state_text(self, state: CredentialState, now: float) -> Segment:
        kind = _state_of(state, now)
        learned = f", learned {amount_text(min(state.learned.values()))} requests/min" if state.learned else ""
        if kind == QUARANTINED:
            return out_of_use_text(self._safe(state.quarantined or "")), "red"
        if kind == PAUSED:
            pause = longest_pause(state, now, TINY_WAIT)
            return "" if pause is None else self._safe(pause.text(now)), "yellow"
        if kind == PACED:
            pause = longest_pause(state, now, TINY_WAIT)
            return f"paced: {'next request in 1 s' if pause is None else self._safe(pause.text(now))}{learned}", "dim"
        if kind == FREE:
            return f"free{learned}", "dim"
        leases = f" {state.live_leases}/{state.max_concurrent}" if state.max_concurrent > 1 else ""
        leases += " at once (so far)" if state.is_concurrency_learned and leases else ""
        pause = longest_pause(state, now, SHORT_WAIT)
        if pause is not None and pause.reason:  # it serves items, and gets no new ones for a moment
            return f"in use{leases}, {self._safe(pause.text(now))}", "yellow"
        return f"in use{leases}{learned}", ""

    def _failed(self, rows: int, width: int) -> list[list[Segment]]:
        lines: list[list[Segment]] = []
        for name, error in self._failures[len(self._failures) - rows :]:
            name = self._shorten(name, max(8, width // 3))
            lines.append([("failed ", "red"), (name, ""), (": " + error, "")])
        return lines

    # --- lines ----------------------------------------------------------------------------------------------------

    def _line(self, segments: list[Segment], width: int) -> str:
        """Return a row as text with colours, cut to `width` cells."""
        parts: list[str] = []
        for text, style in segments:
            cells = text_width(text)
            if cells > width:
                text = self._cut(text, width)
                cells = width
            width -= cells
            parts.append(f"\x1b[{_SGR[style]}m{text}\x1b[m" if style and text and self._has_color else text)
            if width <= 0:
                break
        return "".join(parts).rstrip(" ")

    def _safe(self, text: str) -> str:
        """Return a text of an item, redacted, without characters that move the cursor or have no fixed width."""
        for redact in self._redactors:
            text = redact(text)
        if len(text) > 2 * MAX_CHARACTERS:
            text = text[:MAX_CHARACTERS] + self._glyphs.more + text[-MAX_CHARACTERS:]
        if not text.isprintable():
            text = "".join([char if char.isprintable() else _escape(char) for char in text])
        if not text.isascii():
            # Without variation selectors, which change widths.
            text = "".join([char for char in text if not "\ufe00" <= char <= "\ufe0f"])
            if not self._has_unicode:
                text = text.encode("ascii", "backslashreplace").decode()
        return text

    def _shorten(self, text: str, width: int) -> str:
        """Return a text cut in the middle to `width` cells: ids differ at their ends."""
        if text_width(text) <= width:
            return text
        more = self._glyphs.more
        room = width - len(more)
        if room < 2:
            return head(text, max(0, width))
        tail = room // 2
        return head(text, room - tail) + more + head(text[::-1], tail)[::-1]

    def _cut(self, text: str, width: int) -> str:
        """Return a text cut at its end to `width` cells."""
        if text_width(text) <= width:
            return text
        more = self._glyphs.more
        return head(text, width - len(more)) + more if width > len(more) else head(text, max(0, width))


# States of a credential, in the order of the list if not all of them fit.
QUARANTINED, PAUSED, IN_USE, PACED, FREE = STATES = ("quarantined", "paused", "in use", "paced", "free")
# Pauses that a person may have to end, before the others.
_URGENT = (AUTH_FAILED, QUOTA_EXHAUSTED)


def _state_of(state: CredentialState, now: float) -> str:
    if state.quarantined is not None:
        return QUARANTINED
    pause = longest_pause(state, now, TINY_WAIT)
    if pause is not None and is_pause(pause, state, now):
        return PAUSED
    if state.in_use:
        return IN_USE
    return FREE if state.is_available and pause is None else PACED


def _place(state: CredentialState, now: float) -> tuple[int, int]:
    """Return where a credential stands in a list that has not room for all: what needs a person comes first."""
    place = STATES.index(_state_of(state, now))
    urgent = [_URGENT.index(verdict) for verdict in state.cooled_by.values() if verdict in _URGENT]
    return place, min(urgent, default=len(_URGENT))


def _state_counts(states: Sequence[CredentialState], now: float) -> str:
    kinds = [_state_of(state, now) for state in states]
    return ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in (IN_USE, PACED, FREE, PAUSED, QUARANTINED) if kind in kinds
    )


def _other_counts(run: RunSnapshot) -> str:
    """Return how many running items wait for a key, how many items are to start, and how many were refused before."""
    stats = run.stats
    held = f" ({run.held} {'waits' if run.held == 1 else 'wait'} for a key)" if run.held else ""
    left = 0 if stats.total is None else max(0, stats.total - stats.completed - stats.running)
    to_go = f", {left} to go" if left else ""
    refused = f" ({stats.rate_limited} refused)" if stats.rate_limited > 0 else ""
    return held + to_go + refused


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clock_text(seconds: float) -> str:
    """Return an age as 2:05, or 1:02:05."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def countdown_text(seconds: float) -> str:
    """Return a remaining time, in whole seconds: each change of the text redraws the region."""
    return f"{math.ceil(max(0.0, seconds))} s" if seconds < 120 else format_duration(seconds)


def amount_text(amount: float) -> str:
    """Return a number with about three digits: 7.5, 120, 12k, 3.4M."""
    if amount < 10:
        return f"{amount:.1f}".removesuffix(".0")
    for unit in ("", "k", "M", "G"):
        if amount < 10_000 and not unit:
            return f"{amount:.0f}"
        if amount < 1000:
            return f"{amount:.1f}".removesuffix(".0") + unit if amount < 10 else f"{amount:.0f}{unit}"
        amount /= 1000
    return f"{amount:.0f}T"
