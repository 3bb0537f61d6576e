"""How a run is told: plain lines, JSON lines, or nothing (`reporter=None`).

A reporter is anything that can be called with an event of `_core.events`. It is called from the run's own thread, one
event at a time.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TextIO

from agentos.durations import format_duration
from agentos.events import (
    STORE_LOST,
    AttemptEnded,
    CoolDownStarted,
    CredentialQuarantined,
    DryRun,
    ItemEnded,
    LimitLearned,
    LimitShared,
    PoolWaiting,
    RunEnded,
    RunResumed,
    RunStarted,
    RunStopping,
    StillRunning,
    StoreReached,
    StoreUnreachable,
    ThreadAbandoned,
)
from agentos.items.results import ProgressStats, WorkflowResult
from agentos.redaction.json_text import without_secrets
from agentos.verdict import RATE_LIMITED

Reporter = Callable[[Any], None]

# A cool-down shorter than this is over before a person has read about it.
SHORT_COOL_DOWN = 0.2
# Without a pool an item waits for a limit by itself: worth a line if it takes so many seconds.
LONG_PAUSE = 1.0
# Of a value that JSON cannot hold so many characters are told.
MOST_REPR = 1000
# A run of up to this many items reports progress with every item.
SMALL_RUN = 100
# Ids and errors are other people's texts: what would move the cursor or start a line of its own is shown as an escape.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class TextReporter:
    """Lines on stdout, or on the stream given, without any secret of the pools that it was told of."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._redactors: list[Callable[[str], str]] = []

    def redact_with(self, redact: Callable[[str], str]) -> None:
        if redact not in self._redactors:
            self._redactors.append(redact)

    def _write(self, text: str) -> None:
        for redact in self._redactors:
            text = self._redacted(text, redact)
        # sys.stdout is looked up each time: whoever redirects it later gets the lines. It may be closed.
        stream = self._stream if self._stream is not None else sys.stdout
        if stream is None:
            return
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=stream, flush=True)

    def _redacted(self, text: str, redact: Callable[[str], str]) -> str:
        return redact(text)


class PlainReporter(TextReporter):
    """`[COORDINATOR]` lines, for people."""

    def __call__(self, event: Any) -> None:
        text = text_of(event)
        if text is not None:
            self._write(text)


class JsonReporter(TextReporter):
    """One JSON object per event and line. What JSON cannot hold is told by its `repr`."""

    def __call__(self, event: Any) -> None:
        told = {name: _plain(value) for name, value in event._asdict().items()}
        self._write(json.dumps({"event": type(event).__name__, **told}, allow_nan=False))

    def _redacted(self, text: str, redact: Callable[[str], str]) -> str:
        """String by string: it stays JSON, and a secret with terminal codes in it is seen, which are escaped here."""
        return without_secrets(text, redact)


def _plain(value: Any) -> Any:
    """The same in the types of JSON. A worker may return anything, and telling must not fail because of it."""
    if isinstance(value, WorkflowResult | ProgressStats):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, PoolWaiting):
        return value._asdict()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # not of JSON, not a number, too long a number, or contains itself
        return _shortened_repr(value)
    return value


def _shortened_repr(value: Any) -> str:
    try:
        return repr(value)[:MOST_REPR]
    except Exception as error:
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"


def text_of(event: Any) -> str | None:
    """What people are told of an event: a line, or several; None if that is nothing."""
    return _TEXTS.get(type(event), _nothing)(event)


def failed_line(result: WorkflowResult) -> str:
    return f"[COORDINATOR] Failed: {shown(result.item_id)}: {error_text(result)}"


def error_text(result: WorkflowResult) -> str:
    """Why an item failed, in one line."""
    kind, error = result.metadata.get("error_type"), first_line(result.error)
    return error if kind is None or kind == error else f"{kind}: {error}"


def waiting_text(waiting: PoolWaiting) -> str:
    """Why somebody waits, with the numbers needed to act."""
    if waiting.reason == STORE_LOST:
        if waiting.usable_in is None:
            return "the pool's store is lost, and nothing new starts until it is back"
        left = format_duration(waiting.usable_in)
        return f"the pool's store may have forgotten leases: nothing new starts for {left}, until they have run out"
    if waiting.reason == RATE_LIMITED:
        usable_in = waiting.usable_in or 0.0
        what = f"all {waiting.credentials} usable credentials are rate-limited or cooling down"
        limit = "" if waiting.limit is None else f" ({waiting.limit})"
        return f"{what}, the next for {format_duration(usable_in)}{limit}"
    cooling = f", {waiting.cooling} rate-limited" if waiting.cooling else ""
    return f"{waiting.in_use} of {waiting.credentials} credentials in use{cooling}"


def verdict_text(verdict: str) -> str:
    """Why a credential is not used."""
    return "the store is new or was emptied, old leases must run out" if verdict == STORE_LOST else verdict


def warn_capped(requested: int, cap: int, reporter: Reporter) -> None:
    """On stdout where people read the run, else on stderr: stdout may be for machines."""
    print(
        f"Warning: {requested} parallel workers were requested, the maximum is {cap}: using {cap} "
        "(max_parallelism= raises the maximum)",
        file=sys.stdout if isinstance(reporter, PlainReporter) else sys.stderr,
    )


def _nothing(_event: Any) -> None:
    return None


def _run_started(event: RunStarted) -> str:
    items = "items" if event.total is None else f"{event.total} items"
    pool = "" if event.credentials is None else f" over {event.credentials} credentials"
    return f"[COORDINATOR] Starting parallel execution of {items} with {event.workers} workers{pool}"


def _run_resumed(event: RunResumed) -> str:
    failed = f"{event.failed} failed" + (", to be tried again" if event.retry_failed and event.failed else "")
    on_record = f"{event.succeeded} succeeded, {failed}, {event.unfinished} unfinished"
    return f"[COORDINATOR] Resuming run {event.run_id} (launch {event.launch}); on record: {on_record}"


def _item_ended(event: ItemEnded) -> str | None:
    stats = event.stats
    lines = []
    if not event.result.success:
        lines.append(failed_line(event.result))
    if is_worth_a_line(stats.completed, stats.total):
        of_total = "" if stats.total is None else f"/{stats.total} ({stats.completion_rate:.1f}%)"
        lines.append(f"[COORDINATOR] Progress: {stats.completed}{of_total}")
    return "\n".join(lines) or None


def is_worth_a_line(completed: int, total: int | None) -> bool:
    """Return True for each item of a small run, about a hundred times for a large one; increasingly rarely if the
    total is not known."""
    if total is not None:
        return total <= SMALL_RUN or completed == total or completed % -(-total // SMALL_RUN) == 0
    step = 1
    while completed >= SMALL_RUN * step:
        step *= 10
    return completed % step == 0


def _attempt_ended(event: AttemptEnded) -> str | None:
    if event.verdict in ("transient", "auth_failed", "quota_exhausted", "worker_died") or event.again_in >= LONG_PAUSE:
        again = f" in {event.again_in:.1f} s" if event.again_in else ""
        what = f"{shown(event.item_id)}: attempt {event.attempt} {event.verdict}, again{again}"
        return f"[COORDINATOR] {what}: {first_line(event.error)}"
    return None  # a rate limit or an overload is told once, as a cool-down


def _pool_waiting(event: PoolWaiting) -> str:
    if event.reason == RATE_LIMITED:
        return f"[COORDINATOR] Waiting for the provider: {waiting_text(event)}"
    return f"[COORDINATOR] Credential pool exhausted: {waiting_text(event)}; waiting for a release"


def _cool_down_started(event: CoolDownStarted) -> str | None:
    if event.seconds < SHORT_COOL_DOWN:
        return None
    if event.verdict == STORE_LOST:
        return (
            f"[COORDINATOR] The pool's store is new or may have forgotten leases: nothing starts for "
            f"{format_duration(event.seconds)}, until they have run out"
        )
    what = _domain_text(event)
    scope = f" for {event.scope}" if event.scope is not None else ""
    capped = f" (capped: the provider asked for {event.asked:.0f} s)" if event.asked is not None else ""
    return f"[COORDINATOR] Cooling down {what}{scope} for {format_duration(event.seconds)}: {event.verdict}{capped}"


def _limit_learned(event: LimitLearned) -> str:
    scope = f" for {event.scope}" if event.scope is not None else ""
    line = f"requests_per_minute = {math.floor(event.requests_per_minute)}"
    return f"[COORDINATOR] Learned the limit of {_domain_text(event)}{scope}: {line} (declared, it need not be learned)"


def _limit_shared(event: LimitShared) -> str:
    groups = ", ".join(group.removeprefix("credential ") for group in event.groups)
    if not event.is_shared:
        return f"[COORDINATOR] These do not share a limit after all: {groups}"
    advice = "if they belong to one account, give them one quota_group"
    return f"[COORDINATOR] These seem to share a limit and are paced together: {groups} ({advice})"


def _domain_text(event: CoolDownStarted | LimitLearned) -> str:
    name = event.name or "(not named)"
    return f"{event.kind} {name}" if event.kind != "group" or not name.startswith("credential ") else name


def _quarantined(event: CredentialQuarantined) -> str:
    return f"[COORDINATOR] Credential {event.credential_id} is quarantined: {first_line(event.reason)}"


def _store_unreachable(event: StoreUnreachable) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(event.since))
    return (
        f"[COORDINATOR] The pool's store is lost since {since}: {first_line(event.reason)}. What runs goes on, nothing "
        "new starts until it is back"
    )


def _store_reached(event: StoreReached) -> str:
    return f"[COORDINATOR] The pool's store is back, after {format_duration(event.after)}"


def _still_running(event: StillRunning) -> str:
    stats = event.stats
    why = f": {waiting_text(event.waiting)}" if event.waiting is not None else ""
    to_go = "" if stats.eta is None else f", about {format_duration(stats.eta)} to go"
    counts = f"{stats.completed} done, {stats.running} running, {stats.waiting} waiting"
    return f"[COORDINATOR] Still here: {counts}{to_go}{why}"


def _thread_abandoned(event: ThreadAbandoned) -> str:
    return (
        f"[COORDINATOR] {shown(event.item_id)} did not end within {event.timeout:g} s; it cannot be killed, so it is "
        f"left to itself ({event.abandoned} so far)"
    )


def _run_stopping(event: RunStopping) -> str:
    by = f"Received signal {event.signal}" if event.signal is not None else f"Stopping: {event.reason}"
    grace = "" if event.grace is None else f" for up to {event.grace:g} s"
    waits = f"; waiting for {event.running} running{grace}" if event.running else ""
    again = " (once more: at once)" if event.signal is not None else ""
    return f"[COORDINATOR] {by}, graceful shutdown: nothing new starts{waits}{again}"


def _run_ended(event: RunEnded) -> str:
    return ended_text(event, "the same call continues them" if event.is_recorded else "see get_checkpoints()")


def ended_text(event: RunEnded, how_to_go_on: str) -> str:
    stats = event.stats
    heading = "Execution complete" if stats.stopped is None else f"Execution stopped early: {stats.stopped}"
    lines = [
        f"[COORDINATOR] {heading}:",
        f"  Total: {stats.total if stats.total is not None else 'not known'}",
        f"  Succeeded: {stats.success_count}"
        + (f" ({stats.recorded} items were on record before)" if stats.recorded else ""),
        f"  Failed: {stats.failed}",
    ]
    if event.unfinished is None or event.unfinished:
        unfinished = "an unread rest of the input" if event.unfinished is None else event.unfinished
        lines.append(f"  Unfinished: {unfinished} ({how_to_go_on})")
    lines.append(f"  Duration: {stats.elapsed:.2f}s")
    lines.append(f"  Bound by: {event.bound_by}")
    return "\n".join(lines)


def _dry_run(event: DryRun) -> str:
    ids = [f"  - {shown(item_id)}" for item_id in event.ids]
    count = f"{event.total} items" if event.total is not None else f"{len(ids)} items, or more,"
    return "\n".join([f"[COORDINATOR] Dry run mode: {count} would be processed, nothing is started:", *ids])


def first_line(text: str | None) -> str:
    """Of an error, for people."""
    lines = (text or "").strip().splitlines()
    return shown(lines[0][:300]) if lines else ""


def shown(text: str) -> str:
    """Other people's text on a terminal."""
    return text.translate(_ESCAPES)


_TEXTS: dict[type, Callable[[Any], str | None]] = {
    RunStarted: _run_started,
    RunResumed: _run_resumed,
    ItemEnded: _item_ended,
    AttemptEnded: _attempt_ended,
    PoolWaiting: _pool_waiting,
    CoolDownStarted: _cool_down_started,
    CredentialQuarantined: _quarantined,
    LimitLearned: _limit_learned,
    LimitShared: _limit_shared,
    StoreUnreachable: _store_unreachable,
    StoreReached: _store_reached,
    StillRunning: _still_running,
    ThreadAbandoned: _thread_abandoned,
    RunStopping: _run_stopping,
    RunEnded: _run_ended,
    DryRun: _dry_run,
}
