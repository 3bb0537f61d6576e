"""A run as it stands: from its folder, its ledger, and who holds its lock."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentos.errors import HomeError, LedgerError
from agentos.items.results import Counts
from agentos.ledger.ownership import Owner, owner_of
from agentos.ledger.reader import Launch, Ledger
from agentos.reporters.format import first_line

from .run_folder import RunFolder, RunSpec

RUNNING = "running"
FINISHED = "finished"
STOPPED = "stopped"  # early, in good order: interrupted, halted, no usable credential
KILLED = "killed"
NOT_STARTED = "not started"
UNREADABLE = "unreadable"

# Of failures so many causes are told apart; the rest is counted together.
MOST_CAUSES = 1000
OTHER_CAUSES = "(other causes)"
EXAMPLES = 3
# What differs between failures that have one cause: addresses, digests, numbers.
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-fA-F-]*\d)[0-9a-fA-F][0-9a-fA-F-]{7,}\b|\d+(?:[.,:]\d+)*")


@dataclass(frozen=True, slots=True)
class Overview:
    folder: RunFolder
    spec: RunSpec | None
    counts: Counts
    launches: list[Launch]
    owner: Owner | None
    problem: str | None = None  # why it cannot be read

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
        return FINISHED if self.launches[-1].stopped is None else STOPPED

    @property
    def is_resumable(self) -> bool:
        return self.state in (STOPPED, KILLED, NOT_STARTED)

    @property
    def total(self) -> int | None:
        if self.spec is None or self.spec.total is None:
            return self.counts.total if self.state == FINISHED else None
        return self.spec.total

    @property
    def left(self) -> int | None:
        """None: not known, because nobody knows how many items there are."""
        return None if self.total is None else max(self.total - self.counts.succeeded - self.counts.failed, 0)

    @property
    def ended_at(self) -> float:
        """Or started, or created: the last that is known of it."""
        if self.launches:
            return self.launches[-1].ended_at or self.launches[-1].started_at
        return self.spec.created_at if self.spec is not None else 0.0

    @property
    def what(self) -> str:
        if self.spec is None:
            return ""
        return self.spec.function or shlex.join(self.spec.command or ())

    @property
    def state_text(self) -> str:
        if self.owner is not None:
            place = "" if self.owner.is_here else f" on {self.owner.host}"
            return f"running (pid {self.owner.pid}{place})"
        if self.problem is not None:
            return f"cannot be read: {first_line(self.problem)}"
        if self.state == FINISHED:
            return FINISHED
        how = first_line(self.launches[-1].stopped) if self.state == STOPPED else self.state
        return f"{how}: agentos resume {self.folder.run_id}"


def overview_of(folder: RunFolder) -> Overview:
    """Never raises: a run that cannot be read says so."""
    try:
        spec = folder.read_spec()
    except HomeError as error:
        return Overview(folder, None, Counts(0, 0, 0), [], None, str(error))
    owner: Owner | None = None
    try:
        owner = owner_of(folder.ledger)
        if not folder.ledger.exists():
            return Overview(folder, spec, Counts(0, 0, 0), [], owner)
        with Ledger.open(folder.ledger) as ledger:
            # A launch that starts or ends between the two looks would seem to have been killed.
            launches: list[Launch] | None = None
            while launches != (launches := ledger.launches()):
                owner = owner_of(folder.ledger)
            return Overview(folder, spec, ledger.counts(), launches, owner)
    except (LedgerError, OSError) as error:
        return Overview(folder, spec, Counts(0, 0, 0), [], owner, str(error))


def owner_of_run(folder: RunFolder) -> Owner | None:
    """None: it is not running."""
    try:
        return owner_of(folder.ledger)
    except OSError as error:
        raise LedgerError(f"who runs {folder.run_id} cannot be found out: {error}") from None


@contextmanager
def ledger_of(folder: RunFolder) -> Iterator[Ledger]:
    """Problems with it are our own failure."""
    try:
        with Ledger.open(folder.ledger) as ledger:
            yield ledger
    except LedgerError:
        if not folder.ledger.exists():
            raise LedgerError(f"run {folder.run_id} has not started anything yet") from None
        raise


# --- failures -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cause:
    """Failures that have the same cause, as far as their texts tell."""

    error_type: str | None
    error: str  # as it is if it is the same for all, else without what differs
    count: int = 0
    ids: list[str] = field(default_factory=list)


def failures_by_cause(ledger: Ledger) -> list[Cause]:
    """The most frequent first."""
    causes: dict[tuple[str | None, str], Cause] = {}
    for item in ledger.items("failed"):
        error_type = item.metadata.get("error_type")
        text = _without_id(first_line(item.error), item.id)
        alike = _NUMBERS.sub("<n>", text)
        key = (error_type, alike)
        if key not in causes and len(causes) >= MOST_CAUSES:
            key, text = (None, OTHER_CAUSES), OTHER_CAUSES
        cause = causes.setdefault(key, Cause(error_type if text != OTHER_CAUSES else None, text))
        if cause.error != text:
            cause.error = alike
        cause.count += 1
        if len(cause.ids) < EXAMPLES:
            cause.ids.append(item.id)
    return sorted(causes.values(), key=lambda cause: cause.count, reverse=True)


def _without_id(text: str, item_id: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(item_id)}(?!\w)", "<id>", text) if 0 < len(item_id) <= len(text) else text
