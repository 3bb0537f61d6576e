"""The status of a run, read from its folder, its ledger and the lock of its owner; and its failures by cause.

Reading disturbs no run that is going on.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from agentos.errors import HomeError, LedgerError
from agentos.items.results import Counts
from agentos.ledger.ownership import Owner, owner_of, stop_of
from agentos.ledger.reader import Ledger
from agentos.ledger.recorded import Launch, RecordedItem
from agentos.reporters.format import first_line
from agentos.reporters.sentences import BUDGET_USED_UP
from agentos.reporters.unusable_text import NO_USABLE

from .run_folder import RunFolder, RunSpec

RUNNING = "running"
FINISHED = "finished"
STOPPED = "stopped"  # early and in order: interrupted, halted, no usable credential
KILLED = "killed"
NOT_STARTED = "not started"
UNREADABLE = "unreadable"

# Causes that are told apart in one run; further failures are counted as OTHER_CAUSES. Bounds the memory.
MAX_CAUSES = 1000
OTHER_CAUSES = "(other causes)"
# Ids of items that are remembered for each cause.
MAX_EXAMPLES = 3
# Addresses, digests and numbers: the parts in which failures of one cause differ.
# Classes of failures that are not the kind of an answer, by the name of the exception.
_CLASS_OF_TYPE = {"AttemptTimeout": "timeout", "WorkerDied": "crash"}
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-fA-F-]*\d)[0-9a-fA-F][0-9a-fA-F-]{7,}\b|\d+(?:[.,:]\d+)*")


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run as it was when its files were read."""

    folder: RunFolder
    spec: RunSpec | None
    counts: Counts
    launches: list[Launch]
    owner: Owner | None
    problem: str | None = None  # why the run cannot be read

    @property
    def state(self) -> str:
        if self.owner is not None:
            return RUNNING
        if self.problem is not None:
            return UNREADABLE
        if not self.launches:
            return NOT_STARTED
        if self.launches[-1].ended_at is None:
            return KILLED
        return FINISHED if self.launches[-1].stopped is None and not self.is_pilot else STOPPED

    @property
    def is_pilot(self) -> bool:
        """Whether the last launch left items to do because of `--limit`."""
        return self.spec is not None and "limit" in self.spec.options and bool(self._left(self.spec.total))

    def _left(self, total: int | None) -> int | None:
        return None if total is None else max(total - self.counts.succeeded - self.counts.failed, 0)

    @property
    def is_resumable(self) -> bool:
        return self.state in (STOPPED, KILLED, NOT_STARTED)

    @property
    def total(self) -> int | None:
        """Return the number of items; None if it is not known before the run has finished."""
        if self.spec is None or self.spec.total is None:
            return self.counts.total if self.state == FINISHED else None
        return self.spec.total

    @property
    def remaining(self) -> int | None:
        """Return the number of items without an outcome; None if the total is not known."""
        return self._left(self.total)

    @property
    def ended_at(self) -> float:
        """Return when the run ended; else when it started, or was created. Epoch seconds."""
        if self.launches:
            return self.launches[-1].ended_at or self.launches[-1].started_at
        return self.spec.created_at if self.spec is not None else 0.0

    @property
    def command_text(self) -> str:
        """Return the function or the command line; "" if the description cannot be read."""
        if self.spec is None:
            return ""
        return self.spec.function or shlex.join(self.spec.command or ())

    @property
    def state_text(self) -> str:
        """Return the state for people, with the command that continues the run."""
        if self.owner is not None:
            host = "" if self.owner.is_here else f" on {self.owner.host}"
            return f"running (pid {self.owner.pid}{host})"
        if self.problem is not None:
            return f"cannot be read: {first_line(self.problem)}"
        if self.state == FINISHED:
            return FINISHED
        state = self.state
        if state == STOPPED:
            stopped = self.launches[-1].stopped
            state = f"{self.remaining} left after --limit" if stopped is None else first_line(stopped)
            # A resume without a change would stop again: `agentos show` says which it needs.
            if state.startswith((NO_USABLE, BUDGET_USED_UP)):
                return state
        return f"{state}: agentos resume {self.folder.run_id}"


def read_status(folder: RunFolder) -> RunStatus:
    """Return the status of a run. Raises nothing: a run that cannot be read has a `problem`."""
    try:
        spec = folder.read_spec()
    except HomeError as error:
        return RunStatus(folder, None, Counts(0, 0, 0), [], None, str(error))
    owner: Owner | None = None
    try:
        owner = owner_of(folder.ledger)
        if not folder.ledger.exists():
            return RunStatus(folder, spec, Counts(0, 0, 0), [], owner)
        with Ledger.open(folder.ledger) as ledger:
            # Owner and launches are read one after the other. A launch that starts or ends in between would have no
            # owner and no end, as one that was killed: read again until the launches stay the same.
            launches: list[Launch] | None = None
            while launches != (launches := ledger.launches()):
                owner = owner_of(folder.ledger)
            return RunStatus(folder, spec, ledger.counts(), _with_stop(folder, launches), owner)
    except (LedgerError, OSError) as error:
        return RunStatus(folder, spec, Counts(0, 0, 0), [], owner, str(error))


def _with_stop(folder: RunFolder, launches: list[Launch]) -> list[Launch]:
    """Return the launches; the last one with its end from the note of its owner, if the ledger could not be written."""
    stop = stop_of(folder.ledger) if launches and launches[-1].ended_at is None else None
    if stop is None or stop.launch != launches[-1].launch:
        return launches
    return [*launches[:-1], replace(launches[-1], ended_at=stop.at, stopped=stop.reason)]


def run_owner(folder: RunFolder) -> Owner | None:
    """Return the process that carries out the run; None if it is not running. Raise `LedgerError`."""
    try:
        return owner_of(folder.ledger)
    except OSError as error:
        raise LedgerError(f"the process of run {folder.run_id} cannot be determined: {error}") from None


@contextmanager
def open_ledger(folder: RunFolder) -> Iterator[Ledger]:
    """Yield the ledger of a run. Raise `LedgerError`, also if the run has not started yet."""
    try:
        with Ledger.open(folder.ledger) as ledger:
            yield ledger
    except LedgerError:
        if not folder.ledger.exists():
            raise LedgerError(f"run {folder.run_id} has not started any item yet") from None
        raise


# --- failures -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FailureCause:
    """Failures whose type and text are the same, apart from ids and numbers."""

    error_type: str | None
    error: str  # with placeholders where the failures differ
    count: int = 0
    ids: list[str] = field(default_factory=list)
    kind: str = ""  # the class of the first failure, for `agentos retry --only`
    example: str = ""  # the text of the first failure, as it is


def failure_classes(item: RecordedItem) -> list[str]:
    """Return the classes by which `agentos retry --only` finds a failed item: that of the failure (timeout, crash, or
    the kind of the provider's answer) first, then the name of the exception."""
    error_type = str(item.metadata.get("error_type") or "error")
    kind = _CLASS_OF_TYPE.get(error_type) or item.metadata.get("verdict") or error_type
    return [str(kind), error_type]


def failures_by_cause(ledger: Ledger) -> list[FailureCause]:
    """Return the causes of failures, the most frequent first."""
    causes: dict[tuple[str | None, str], FailureCause] = {}
    for item in ledger.items("failed"):
        error_type = item.metadata.get("error_type")
        text = _without_id(first_line(item.error), item.id)
        pattern = _NUMBERS.sub("<n>", text)
        key = (error_type, pattern)
        if key not in causes and len(causes) >= MAX_CAUSES:
            key, text = (None, OTHER_CAUSES), OTHER_CAUSES
        cause = causes.get(key)
        if cause is None:
            known_type = error_type if text != OTHER_CAUSES else None
            cause = FailureCause(known_type, text, kind=failure_classes(item)[0], example=first_line(item.error))
            causes[key] = cause
        if cause.error != text:
            cause.error = pattern
        cause.count += 1
        if len(cause.ids) < MAX_EXAMPLES:
            cause.ids.append(item.id)
    return sorted(causes.values(), key=lambda cause: cause.count, reverse=True)


def _without_id(text: str, item_id: str) -> str:
    """Return the text of a failure with the item's id masked. An id that is a number stays: it may as well be an exit
    status, and numbers are masked where the failures of one cause differ."""
    if not 0 < len(item_id) <= len(text) or _NUMBERS.fullmatch(item_id):
        return text
    return re.sub(rf"(?<!\w){re.escape(item_id)}(?!\w)", "<id>", text)
