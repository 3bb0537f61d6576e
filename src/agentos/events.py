"""Events of a run and of a pool, and the names of the reasons that they give.

Terminal, lines and JSON are produced from these events only, so that no two views of a run can disagree. Events are
tuples: cheap to create, printable, immutable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Version of the events as JSON lines: raised when an event or a field is renamed or removed. Additions do not raise it.
JSON_VERSION = 1

# Reasons for waiting for a credential, besides `verdict.RATE_LIMITED` (the end of a cool-down ends the wait).
EXHAUSTED = "exhausted"  # all credentials are in use: a release ends the wait
STORE_LOST = "store_lost"  # the holders of leases are not known, or old leases have to expire first

# Prefix of the reason for which a person took a credential out of use.
DISABLED = "disabled: "
# Prefix of the reason for a cool-down after no connection to a provider could be established. Its address follows.
UNREACHABLE = "unreachable: "


class PoolWaiting(NamedTuple):
    """No request can be served. Announced once, until a credential is free again."""

    reason: str  # "exhausted": all in use; "rate_limited": all cool down or are at a limit; "store_lost"
    credentials: int  # usable for this request
    in_use: int  # of them, with a live lease
    cooling: int  # of them, in a cool-down or at a limit
    usable_in: float | None  # seconds until the next cool-down ends, or a limit admits the next request
    limit: str | None = None  # the name of that limit; None: a cool-down
    verdict: str | None = None  # the kind of the verdict behind that cool-down, or "unreachable: " and an address
    on: str | None = None  # the quota group of that limit or cool-down; exhausted: the one credential without; or None
    groups: int = 0  # quota groups that wait for the same
    amount: float | None = None  # what the limits of these groups allow together; None: not known of each
    at_once: int | None = None  # leases that they may have at once; if some are usable, those only
    leases: int = 0  # that these have
    is_learned: bool = False  # at_once is learned
    quarantined: int = 0  # credentials that would be usable, but were refused or taken out of use
    disabled: int = 0  # of them, by a person
    held: int = 0  # credentials that wait for the same
    learned: int = 0  # of `groups`, those whose limit was learned
    paused: int = 0  # of `cooling`: for a minute or more, or by a cool-down and without a lease. The others are paced


class CoolDownStarted(NamedTuple):
    """A quota group, a provider or one credential rests."""

    kind: str  # "group", "provider" or "credential"
    name: str | None  # of the group, the provider or the credential
    scope: str | None  # None: all scopes
    seconds: float  # from now on
    verdict: str  # the kind of the verdict behind it, or "unreachable: " and an address
    hint: float | None = None  # seconds that the provider asked for, if they were capped


class LimitLearned(NamedTuple):
    """An undeclared limit has become known."""

    kind: str  # "group"
    name: str | None  # of the group
    scope: str | None  # None: requests without a scope
    requests_per_minute: float  # as learned


class CredentialQuarantined(NamedTuple):
    """A credential is not used until a person re-enables it."""

    credential_id: str  # its id
    reason: str  # what the provider answered, or what a person gave


class KeysReloaded(NamedTuple):
    """The credentials of a pool were declared anew while it is in use."""

    added: list[str]  # ids of credentials that are new
    changed: list[str]  # ids of credentials with another secret, other settings or other limits
    retired: list[str]  # ids of credentials that are not granted any more; what is in use finishes


class CredentialRested(NamedTuple):
    """A command printed that the provider refused its credential, which therefore rests in this run."""

    credential_id: str  # its id
    scope: str | None  # None: for items without a scope
    seconds: float  # from now on; then one item tries it
    verdict: str  # the kind of verdict that was read from the output
    message: str  # what was printed


class CredentialBenched(NamedTuple):
    """Items in a row failed with a credential while others worked: it rests in this run. Announced once."""

    credential_id: str  # its id
    scope: str | None  # None: for items without a scope
    failures: int  # items in a row
    seconds: float  # until one item tries it; longer after each further failure


class CredentialRecovered(NamedTuple):
    """A credential that was set aside works again."""

    credential_id: str  # its id


class StoreUnreachable(NamedTuple):
    """The shared store cannot be reached: no lease is granted until it can."""

    store: str  # its URL without the password
    reason: str  # the error
    since: float  # epoch


class StoreReached(NamedTuple):
    """The shared store can be reached again."""

    store: str  # its URL without the password
    lost_for: float  # seconds


class RunStarted(NamedTuple):
    """The first event of a run."""

    run_id: str  # its id
    total: int | None  # None: the length of the input is not known
    workers: int  # how many items run at once
    credentials: int | None  # None: the run has no pool
    recorded: int = 0  # items of them that have an outcome and are not run again
    is_auto: bool = False  # `workers` is the number of the first items; the run finds the number by itself


class RunResumed(NamedTuple):
    """The run continues an earlier launch; the counts are those of the ledger."""

    run_id: str  # its id
    launch: int  # 2 for the first resume
    succeeded: int  # items on record
    failed: int  # items on record
    unfinished: int  # items on record without an outcome
    retry_failed: bool  # failed items are tried again
    selected: int | None = None  # items of this launch, if it leaves out some that are on record (--only, --filter)


class AttemptEnded(NamedTuple):
    """An attempt ended that was not the item's last: the item changes its credential, or is retried later."""

    item_id: str  # the item
    attempt: int  # 1 for the first
    credential_id: str | None  # None: the run has no pool
    verdict: str  # a kind of `Verdict`, or "worker_died"
    retry_in: float  # seconds; 0: at once
    error: str  # redacted text of the exception, or of the output
    suspicion: str = ""  # why the key may be at fault: the item is tried with another one, which spends no retry
    keys_tried: int = 0  # keys with which the item has failed, if one of them may be at fault


class ItemEnded(NamedTuple):
    """An item has its outcome; with a ledger, the outcome is on disk."""

    result: Any  # WorkflowResult
    stats: Any  # ProgressStats


class Heartbeat(NamedTuple):
    """No item has ended for a while."""

    stats: Any  # ProgressStats
    waiting: PoolWaiting | None  # None: the run does not wait for a credential
    bound_by: str | None = None  # what binds the run now: a sentence; None: it waits for its last items


class AttemptAbandoned(NamedTuple):
    """A thread, or a task that ignores its cancellation, outlived its time-out. It keeps its credential until it
    ends."""

    item_id: str  # the item
    timeout: float  # seconds
    abandoned_attempts: int  # of this run, so far


class RunStopping(NamedTuple):
    """No further attempt starts."""

    reason: str  # why
    signal: int | None  # its number; None: not because of a signal
    running: int  # attempts that run now
    grace: float | None  # seconds for running attempts; None: unlimited
    terminated: int = 0  # programs of running attempts that were told to end (SIGTERM)


class RunEnded(NamedTuple):
    """The last event of a run."""

    stats: Any  # ProgressStats
    unfinished: int | None  # None: the input was not read to its end
    bound_by: str | None  # what bound the run: a sentence; None: nothing, there was little to do
    is_recorded: bool = False  # in a ledger: the same call resumes the run


class DryRun(NamedTuple):
    """The items that a run would have; nothing is started."""

    total: int | None  # None: the length of the input is not known
    ids: list[str]  # the first 1,000 at most, if the length is not known


class Output(NamedTuple):
    """One line that an item printed (`agentos run --json`)."""

    item_id: str  # the item
    stream: str  # "stdout" or "stderr"
    line: str  # without its line end; bytes that are not UTF-8 are escaped
