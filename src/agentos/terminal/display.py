"""The live display of a run: a frame is a function of what the run tells, of one clock, and of the room there is.

From the top: the run and its times, a bar, why nothing more starts, the items that run (the oldest first), the
credentials, the last failures. With fewer rows the lists get shorter, then only their titles stay, then the header and
the bar. Only rows that will be shown are made, so that a thousand running items cost no more than thirty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agentos.durations import format_duration
from agentos.events import ItemEnded, PoolWaiting, RunStopping, StoreReached, StoreUnreachable
from agentos.items.results import MIN_ITEMS_FOR_RATE, ProgressStats, seconds_to_go
from agentos.limits.declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE
from agentos.pool.states import CredentialState
from agentos.reporters.sentences import error_text, verdict_text, waiting_text
from agentos.verdict import RATE_LIMITED

from ._cells import head, left_aligned, right_aligned, text_width

if TYPE_CHECKING:
    from agentos.runs.streams import ResultStream

# The pool is asked so often (seconds) at most: it answers under its lock, and its countdowns need no asking.
LOOK_SECONDS = 0.5
# So many failures are remembered.
MOST_FAILURES = 5
# Characters of a text that are looked at, from either end: what is longer is shortened in any case.
MOST_CHARACTERS = 500
# A wait shorter than this (seconds) is how a limit spreads requests, and not worth a countdown.
SHORT_WAIT = 1.0
# Below this width the list of running items shows no credentials.
NARROW = 40
# Cells of a limit's bar, and those that a credential's state needs beside it.
LIMIT_BAR = 8
LEAST_STATE = 26

LIMIT_UNITS = {
    REQUESTS_PER_MINUTE: "requests/min",
    TOKENS_PER_MINUTE: "tokens/min",
    REQUESTS_PER_DAY: "requests/day",
}

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

Segment = tuple[str, str]  # a text and its style, "" for none


class Glyphs(NamedTuple):
    full: str
    empty: str
    more: str


UNICODE = Glyphs("━", "─", "…")
ASCII = Glyphs("#", "-", "...")


class Look(NamedTuple):
    """At the pool."""

    at: float
    credentials: tuple[CredentialState, ...]
    waiting: PoolWaiting | None


class Display:
    """`frame` draws a run, and `note`, as its reporter, remembers what only events tell.

    `states` returns the credentials, of a run that has a pool. `clock`: seconds since 1970, as in the run's figures."""

    def __init__(
        self,
        run: ResultStream,
        states: Callable[[], tuple[CredentialState, ...]] = tuple,
        *,
        clock: Callable[[], float] = time.time,
        color: bool = True,
        unicode: bool = True,
    ) -> None:
        self._run = run
        self._states = states
        self._clock = clock
        self._has_color = color
        self._has_unicode = unicode
        self._glyphs = UNICODE if unicode else ASCII
        self._redactors: list[Callable[[str], str]] = []
        self._look = Look(-math.inf, (), None)
        # Written by the run's thread and read by the one that draws: each is replaced as a whole.
        self._failures: tuple[tuple[str, str], ...] = ()
        self._stopping: RunStopping | None = None
        self._lost: StoreUnreachable | None = None  # while it is

    def redact_with(self, redact: Callable[[str], str]) -> None:
        """Nothing that `redact` takes out is shown."""
        self._redactors.append(redact)

    def note(self, event: Any) -> None:
        if isinstance(event, ItemEnded) and not event.result.success:
            failure = self._shown(event.result.item_id), self._shown(error_text(event.result))
            self._failures = (*self._failures, failure)[-MOST_FAILURES:]
        elif isinstance(event, RunStopping):
            self._stopping = event
        elif isinstance(event, StoreUnreachable | StoreReached):
            self._lost = event if isinstance(event, StoreUnreachable) else None

    def frame(self, width: int, height: int) -> list[str]:
        """At most so many lines of at most so many cells, as they are now."""
        now = self._clock()
        stats = self._run.stats
        look = self._looked(now)
        top = [self._bar(stats, width)]
        if height > 1:
            top.insert(0, self._header(stats, now, width))
        why = self._why(stats, look, now)
        if why and height > 2:
            top.append([(self._cut(why, width), "yellow")])
        rows = [*top, *self._lists(stats, look, now, width, height - len(top))]
        return [self._line(row, width) for row in rows[: max(0, height)]]

    def _looked(self, now: float) -> Look:
        if not 0.0 <= now - self._look.at < LOOK_SECONDS:
            self._look = Look(now, self._states(), self._run.waiting())
        return self._look

    # --- the top --------------------------------------------------------------------------------------------------

    def _header(self, stats: ProgressStats, now: float, width: int) -> list[Segment]:
        elapsed = max(0.0, (now if stats.end_time is None else stats.end_time) - stats.start_time)
        done = stats.completed - stats.recorded
        facts = [f"{clock_text(elapsed)} elapsed"]
        eta = seconds_to_go(stats.completed, stats.total, elapsed, stats.recorded, stats.fastest, stats.not_before)
        if eta and self._stopping is None:
            facts.append(f"about {soon_text(eta)} to go")
        if done >= MIN_ITEMS_FOR_RATE and elapsed > 0:
            facts.append(f"{amount_text(done / elapsed * 60)} items/min")
        run_id = self._shown(self._run.run_id)
        while len(facts) > 1 and 6 + min(text_width(run_id), 16) + len(", ".join(facts)) > width:
            facts.pop()
        times = ", ".join(facts)
        room = width - 6 - len(times)
        if room < 4:
            return [(times, "")]
        return [("run ", ""), (self._shortened(run_id, room), "bold"), ("  " + times, "")]

    def _bar(self, stats: ProgressStats, width: int) -> list[Segment]:
        done = f"{stats.completed} done" if stats.total is None else f"{stats.completed}/{stats.total} done"
        failed = f", {stats.failed} failed" if stats.failed else ""
        if len(done) + len(failed) > width:
            done = done.removesuffix(" done")
        cells = width - len(done) - len(failed) - 1
        counts = [(done, ""), (failed, "red")]
        if not stats.total or cells < 4:
            return counts
        succeeded = max(0, min(cells, cells * (stats.completed - stats.failed) // stats.total))
        # What has failed is seen, even if it is little; what is left to do too.
        bad = min(max(cells * stats.failed // stats.total, bool(stats.failed)), cells - succeeded)
        full, empty = self._glyphs.full, self._glyphs.empty
        left = empty * (cells - succeeded - bad)
        return [(full * succeeded, "green"), (full * bad, "red"), (left, "dim"), (" ", ""), *counts]

    def _why(self, stats: ProgressStats, look: Look, now: float) -> str:
        """Nothing new starts: why, and until when."""
        if self._stopping is not None:
            once_more = " (Ctrl-C once more: at once)" if self._stopping.grace is not None else ""
            return f"stopping, {self._shown(self._stopping.reason)}: {stats.running} still running{once_more}"
        if self._lost is not None:
            return f"the pool's store is lost for {clock_text(now - self._lost.since)}: nothing new starts"
        waiting = look.waiting
        if waiting is None:
            return ""
        if waiting.reason != RATE_LIMITED or waiting.usable_in is None:
            return f"waiting for a credential: {waiting_text(waiting)}"
        if waiting.limit is not None and waiting.usable_in < SHORT_WAIT:
            return f"as fast as the limits allow ({self._shown(waiting.limit)})"
        limit = "" if waiting.limit is None else f" ({self._shown(waiting.limit)})"
        usable_in = soon_text(waiting.usable_in - (now - look.at))  # first: a narrow terminal cuts off the rest
        return f"nothing starts for {usable_in}{limit}: all {waiting.credentials} usable credentials have to wait"

    # --- the lists ------------------------------------------------------------------------------------------------

    def _lists(self, stats: ProgressStats, look: Look, now: float, width: int, height: int) -> list[list[Segment]]:
        """Titles first; of the rest, failures get a little, and running items and credentials share it."""
        has_running = stats.running > 0 and height > 0
        has_credentials = bool(look.credentials) and height > has_running
        left = height - has_running - has_credentials
        failures = min(len(self._failures), max(0, left + 5) // 6)
        left -= failures
        credentials = min(len(look.credentials), max(left - stats.running, left // 2))
        running = min(stats.running, left - credentials)
        rows: list[list[Segment]] = []
        if has_running:
            rows.append([("running", "bold"), (f" {stats.running}{_waiting_counts(stats)}", "")])
            rows += self._running(stats.running, running, width)
        if has_credentials:
            rows.append(
                [("credentials", "bold"), (f" {len(look.credentials)}: {_state_counts(look.credentials, now)}", "")]
            )
            rows += self._credentials(look.credentials, credentials, now, width)
        return rows + self._failed(failures, width)

    def _running(self, count: int, rows: int, width: int) -> list[list[Segment]]:
        if rows <= 0:
            return []
        shown = rows if count <= rows or rows == 1 else rows - 1
        items = self._run.running(shown)
        ages = right_aligned([clock_text(item.age_seconds) for item in items])
        keys = [self._shown(item.credential_id or "") if width >= NARROW else "" for item in items]
        keys = [self._shortened(key, width // 4) for key in keys]
        attempts = [f"  attempt {item.attempt}" if item.attempt > 1 else "" for item in items]
        beside = 6 + sum(max(map(text_width, column), default=0) for column in (ages, keys, attempts))
        # One long id does not push the keys of the others out of sight.
        room = min(max(width - beside, 8), max(width // 2, 20))
        ids = left_aligned([self._shortened(self._shown(item.id), room) for item in items])
        lines: list[list[Segment]] = [
            [("  " + age, "dim"), ("  " + name, ""), ("  " + key, "cyan"), (attempt, "yellow")]
            for age, name, key, attempt in zip(ages, ids, left_aligned(keys), attempts, strict=True)
        ]
        if count > shown and rows > 1:
            lines.append([(f"  {self._glyphs.more} and {count - shown} more", "dim")])
        return lines

    def _credentials(self, states: Sequence[CredentialState], rows: int, now: float, width: int) -> list[list[Segment]]:
        if rows <= 0:
            return []
        shown = rows if len(states) <= rows or rows == 1 else rows - 1
        if shown < len(states):  # those that are held back first
            states = sorted(states, key=lambda state: STATES.index(_state_of(state, now)))
        more = len(states) - shown
        states = states[:shown]
        ids = left_aligned([self._shortened(self._shown(state.key_id), max(8, width // 4)) for state in states])
        told = [self._state_text(state, now) for state in states]
        lines: list[list[Segment]] = [[("  " + name, "cyan")] for name in ids]
        room = width - 2 - max(map(text_width, ids)) - 2
        for name in LIMIT_UNITS:
            column = [self._limit(name, state.used.get(name)) for state in states]
            cells = max(len(figures) for _, _, figures in column)
            if not cells or room - LIMIT_BAR - cells - 3 < LEAST_STATE:
                continue
            room -= LIMIT_BAR + cells + 3
            for line, (full, empty, figures) in zip(lines, column, strict=True):
                line += [("  ", ""), full, empty, (" " + figures.ljust(cells), "")]
        for line, (text, style) in zip(lines, told, strict=True):
            line.append(("  " + self._cut(text, room), style))
        if more > 0 and rows > 1:
            lines.append([(f"  {self._glyphs.more} and {more} more", "dim")])
        return lines

    def _limit(self, name: str, use: tuple[float, float] | None) -> tuple[Segment, Segment, str]:
        """What is used of a limit, as a bar and as figures."""
        if use is None:
            return (" " * LIMIT_BAR, ""), ("", ""), ""
        used, limit = use
        share = min(1.0, max(0.0, used / limit if limit else 1.0))
        full = max(int(LIMIT_BAR * share), used > 0)
        style = "red" if share >= 1.0 else "yellow" if share >= 0.8 else "green"
        figures = f"{amount_text(used)}/{amount_text(limit)} {LIMIT_UNITS[name]}"
        return (self._glyphs.full * full, style), (self._glyphs.empty * (LIMIT_BAR - full), "dim"), figures

    def _state_text(self, state: CredentialState, now: float) -> Segment:
        kind = _state_of(state, now)
        learned = f", learned {amount_text(min(state.learned.values()))} requests/min" if state.learned else ""
        if kind == QUARANTINED:
            return f"quarantined: {self._shown(state.quarantined or '')}", "red"
        if kind == COOLING:
            return self._cooling_text(state, now), "yellow"
        if kind == FREE:
            return f"free{learned}", "dim"
        places = f" {state.live_leases}/{state.max_concurrent}" if state.max_concurrent > 1 else ""
        return f"in use{places}{learned}", ""

    def _cooling_text(self, state: CredentialState, now: float) -> str:
        until = state.rate_limited_until
        if until is None or until - now < SHORT_WAIT:
            scope, until = max(state.cooling.items(), key=lambda entry: entry[1])
            reason = f"{state.cooled_by.get(scope, RATE_LIMITED)} for {self._shown(scope)}"
        else:
            reason = state.cooled_by.get("") or state.waits_for or RATE_LIMITED
        return f"cooling {soon_text(until - now)}: {verdict_text(reason)}"

    def _failed(self, rows: int, width: int) -> list[list[Segment]]:
        lines: list[list[Segment]] = []
        for name, error in self._failures[len(self._failures) - rows :]:
            name = self._shortened(name, max(8, width // 3))
            lines.append([("failed ", "red"), (name, ""), (": " + error, "")])
        return lines

    # --- lines ----------------------------------------------------------------------------------------------------

    def _line(self, segments: list[Segment], width: int) -> str:
        """Nothing gets past here that is wider than the terminal."""
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

    def _shown(self, text: str) -> str:
        """Other people's texts, without secrets, and without anything that moves the cursor or cannot be measured."""
        for redact in self._redactors:
            text = redact(text)
        if len(text) > 2 * MOST_CHARACTERS:
            text = text[:MOST_CHARACTERS] + self._glyphs.more + text[-MOST_CHARACTERS:]
        if not text.isprintable():
            text = "".join([char if char.isprintable() else _escape(char) for char in text])
        if not text.isascii():
            text = "".join([char for char in text if not "\ufe00" <= char <= "\ufe0f"])  # they change widths
            if not self._has_unicode:
                text = text.encode("ascii", "backslashreplace").decode()
        return text

    def _shortened(self, text: str, width: int) -> str:
        """In the middle: ids differ at their ends."""
        if text_width(text) <= width:
            return text
        more = self._glyphs.more
        room = width - len(more)
        if room < 2:
            return head(text, max(0, width))
        tail = room // 2
        return head(text, room - tail) + more + head(text[::-1], tail)[::-1]

    def _cut(self, text: str, width: int) -> str:
        if text_width(text) <= width:
            return text
        more = self._glyphs.more
        return head(text, width - len(more)) + more if width > len(more) else head(text, max(0, width))


# How a credential is, those that are held back first.
COOLING, QUARANTINED, IN_USE, FREE = STATES = ("cooling", "quarantined", "in use", "free")


def _state_of(state: CredentialState, now: float) -> str:
    if state.quarantined is not None:
        return QUARANTINED
    until = state.rate_limited_until
    if until is not None and until - now >= SHORT_WAIT:
        return COOLING
    if any(end - now >= SHORT_WAIT for end in state.cooling.values()):
        return COOLING
    return IN_USE if state.in_use else FREE


def _state_counts(states: Sequence[CredentialState], now: float) -> str:
    kinds = [_state_of(state, now) for state in states]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in (IN_USE, FREE, COOLING, QUARANTINED) if kind in kinds)


def _waiting_counts(stats: ProgressStats) -> str:
    sent_back = f" ({stats.rate_limited} sent back by a provider)" if stats.rate_limited > 0 else ""
    return f", {stats.waiting} waiting{sent_back}" if stats.waiting > 0 else ""


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clock_text(seconds: float) -> str:
    """2:05, or 1:02:05."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def soon_text(seconds: float) -> str:
    """A countdown. Whole seconds: it is drawn anew whenever it changes."""
    return f"{math.ceil(max(0.0, seconds))} s" if seconds < 120 else format_duration(seconds)


def amount_text(amount: float) -> str:
    """7.5, 120, 12k, 3.4M: three digits are enough to see how much room there is."""
    if amount < 10:
        return f"{amount:.1f}".removesuffix(".0")
    for unit in ("", "k", "M", "G"):
        if amount < 10_000 and not unit:
            return f"{amount:.0f}"
        if amount < 1000:
            return f"{amount:.1f}".removesuffix(".0") + unit if amount < 10 else f"{amount:.0f}{unit}"
        amount /= 1000
    return f"{amount:.0f}T"
