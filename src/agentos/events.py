"""Events of a run and of a pool, and the names of the reasons that they give.

Terminal, lines and JSON are produced from these events only, so that no two views of a run can disagree. Events are
tuples: cheap to create, printable, immutable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Reasons for waiting for a credential, besides `verdict.RATE_LIMITED` (the end of a cool-down ends the wait).
EXHAUSTED = "exhausted"  # all credentials are in use: a release ends the wait
STORE_LOST = "store_lost"  # the holders of leases are not known, or old leases have to expire first

# What bounds the speed of a run (`RunEnded.bound_by`, plans).
WORKERS = "workers"
KEYS = "keys"
LIMITS = "limits"
PAUSES = "pauses"
INPUT = "input"
READER = "reader"
LEDGER = "ledger"


class PoolWaiting(NamedTuple):
    """No request can be served. Announced once, until a credential is free again."""

    reason: str  # EXHAUSTED or RATE_LIMITED
    credentials: int
    in_use: int
    cooling: int
    usable_in: float | None  # seconds until the next cool-down ends, or a limit admits the next request
    limit: str | None = None  # its name


class CoolDownStarted(NamedTuple):
    """A quota group, a provider or one credential rests."""

    kind: str  # "group", "provider" or "credential"
    name: str | None
    scope: str | None
    seconds: float
    verdict: str
    asked: float | None = None  # seconds in the provider's hint, if they were capped


class LimitLearned(NamedTuple):
    """An undeclared limit has become known."""

    kind: str  # "group", or "shared": several groups seem to share it
    name: str | None
    scope: str | None
    requests_per_minute: float


class LimitShared(NamedTuple):
    """Groups that were declared separately seem to share a limit, or turned out not to."""

    name: str | None
    groups: tuple[str, ...]
    is_shared: bool


class CredentialQuarantined(NamedTuple):
    """A credential is not used until a person re-enables it."""

    credential_id: str
    reason: str


class StoreUnreachable(NamedTuple):
    """The shared store cannot be reached: no lease is granted until it can."""

    store: str  # its URL without the password
    reason: str
    since: float  # epoch


class StoreReached(NamedTuple):
    """The shared store can be reached again."""

    store: str
    after: float  # seconds


class RunStarted(NamedTuple):
    run_id: str
    total: int | None  # None: the length of the input is not known
    workers: int
    credentials: int | None


class RunResumed(NamedTuple):
    """The run continues an earlier launch; the counts are those of the ledger."""

    run_id: str
    launch: int
    succeeded: int
    failed: int
    unfinished: int
    retry_failed: bool


class AttemptEnded(NamedTuple):
    """An attempt ended that was not the item's last: the item changes its credential, or is retried later."""

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
    """No item has ended for a while."""

    stats: Any  # ProgressStats
    waiting: PoolWaiting | None  # None: the run does not wait for a credential


class ThreadAbandoned(NamedTuple):
    """A thread, or a task that ignores its cancellation, outlived its time-out. It keeps its credential until it
    ends."""

    item_id: str
    timeout: float
    abandoned: int


class RunStopping(NamedTuple):
    """No further attempt starts."""

    reason: str
    signal: int | None
    running: int
    grace: float | None  # seconds for running attempts; None: unlimited


class RunEnded(NamedTuple):
    stats: Any  # ProgressStats
    unfinished: int | None  # None: the input was not read to its end
    bound_by: str
    is_recorded: bool = False  # in a ledger: the same call resumes the run


class DryRun(NamedTuple):
    total: int | None
    ids: list[str]
