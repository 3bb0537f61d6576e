"""The vocabulary of facts and events: what is known about an answer, and what a run tells about itself.

Everything that is shown (terminal, lines, results) is made from these events and from nothing else, so that no two
views of a run can disagree. They are tuples: cheap to make, printable, immutable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Why somebody waits for a credential. The two are told apart everywhere.
EXHAUSTED = "exhausted"  # all credentials are in use: a release ends the wait
# ... and RATE_LIMITED: the provider says wait; the end of a cool-down ends it
STORE_LOST = "store_lost"  # nobody knows who holds what; or did not know until now, and leases have to run out first


class PoolWaiting(NamedTuple):
    """Nobody can be served: announced once, until a credential is free again."""

    reason: str  # EXHAUSTED or RATE_LIMITED
    credentials: int
    in_use: int
    cooling: int
    usable_in: float | None  # seconds until the next cool-down ends, or a limit admits the next request
    limit: str | None = None  # the name of that limit


class CoolDownStarted(NamedTuple):
    """A group (or a provider, or one credential) is not used until an instant."""

    kind: str  # "group", "provider" or "credential"
    name: str | None
    scope: str | None
    seconds: float
    verdict: str
    asked: float | None = None  # what the provider asked for, where we capped it


class LimitLearned(NamedTuple):
    """A limit that nobody declared is known by now."""

    kind: str  # "group", or "shared": by several groups, as it seems
    name: str | None
    scope: str | None
    requests_per_minute: float


class LimitShared(NamedTuple):
    """Groups that were declared apart seem to share a limit, or turned out not to."""

    name: str | None
    groups: tuple[str, ...]
    is_shared: bool


class CredentialQuarantined(NamedTuple):
    """A credential is not used until a person says so."""

    credential_id: str
    reason: str


class StoreUnreachable(NamedTuple):
    """The shared store is lost: nothing new is granted until it is back."""

    store: str  # what it is called, without its password
    reason: str
    since: float  # epoch


class StoreReached(NamedTuple):
    """It is back."""

    store: str
    after: float  # seconds


class RunStarted(NamedTuple):
    run_id: str
    total: int | None  # None: the input does not tell its length
    workers: int
    credentials: int | None


class RunResumed(NamedTuple):
    """The ledger knows this run: so many items are on record."""

    run_id: str
    launch: int
    succeeded: int
    failed: int
    unfinished: int
    retry_failed: bool


class AttemptEnded(NamedTuple):
    """An attempt that was not the item's last: the item rotates, or is tried again later."""

    item_id: str
    attempt: int
    credential_id: str | None
    verdict: str
    again_in: float
    error: str


class ItemEnded(NamedTuple):
    result: Any  # WorkflowResult
    stats: Any  # ProgressStats


class StillRunning(NamedTuple):
    """Nothing has ended for a while."""

    stats: Any  # ProgressStats
    waiting: PoolWaiting | None  # why nothing starts, if that is what it waits for


class ThreadAbandoned(NamedTuple):
    """A thread, or a task that ignores its cancellation, did not end with its time-out. It keeps its credential until
    it does."""

    item_id: str
    timeout: float
    abandoned: int


class RunStopping(NamedTuple):
    """Nothing new starts from here on."""

    reason: str
    signal: int | None
    running: int
    grace: float | None  # None: running attempts finish in their own time


class RunEnded(NamedTuple):
    stats: Any  # ProgressStats
    unfinished: int | None  # None: more input was left unread than can be counted
    bound_by: str
    is_recorded: bool = False  # the same call continues it


class DryRun(NamedTuple):
    total: int | None
    ids: list[str]


WORKERS = "workers"
KEYS = "keys"
LIMITS = "limits"
PAUSES = "pauses"
INPUT = "input"
READER = "reader"
LEDGER = "ledger"
