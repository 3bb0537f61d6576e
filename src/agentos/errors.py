"""The exceptions of this package.

A worker raises a `WorkerVerdict` to report the answer of its provider. Pools, runs and the files of the AgentOS home
directory raise the others for their callers. No message contains a secret.
"""

from __future__ import annotations

from typing import Any, ClassVar

from agentos.verdict import Verdict


class AgentosError(Exception):
    """Base class of all exceptions here. Keeps its attributes when it is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), self.__dict__.copy()


# --- raised by a worker: the answer of its provider ---------------------------------------------------------------


class WorkerVerdict(AgentosError):
    """The meaning of a provider's answer. Raise one of its subclasses."""

    kind: ClassVar[str]


class RateLimited(WorkerVerdict):
    """The provider refuses for now: the credential's quota group cools down for `retry_after` seconds. If None, for the
    time of one request at the estimated rate, doubled with each refusal in a row."""

    kind = "rate_limited"

    def __init__(self, message: str = "rate limited", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QuotaExhausted(WorkerVerdict):
    """The quota of a day, a month or a plan is used up, until the epoch second `until` if that is known."""

    kind = "quota_exhausted"

    def __init__(self, message: str = "quota exhausted", *, until: float | None = None) -> None:
        super().__init__(message)
        self.until = until


class AuthFailed(WorkerVerdict):
    """The provider does not accept this credential."""

    kind = "auth_failed"


class Overloaded(WorkerVerdict):
    """The provider has no capacity for any client: no credential is at fault."""

    kind = "overloaded"

    def __init__(self, message: str = "provider overloaded", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Transient(WorkerVerdict):
    """A failure that may not recur: the item is retried after a pause, up to `retries` times."""

    kind = "transient"


class Permanent(WorkerVerdict):
    """A failure that will recur: the item fails at once, without a retry."""

    kind = "permanent"


class Interrupted(AgentosError):
    """Raised by a worker that saw `current_item().should_stop`: the item stays unfinished, with its checkpoint."""


# --- raised by the pool -------------------------------------------------------------------------------------------


class PoolError(AgentosError):
    """A pool could not carry out a call."""


class LeaseTimeout(PoolError, TimeoutError):
    """No credential became usable in time. `reason` is `exhausted` (all in use) or `rate_limited` (all cooling down).

    `usable_in` is the number of seconds until the next cool-down ends, for a wait of the second kind.
    """

    def __init__(self, message: str, *, reason: str, usable_in: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.usable_in = usable_in


class NoUsableCredential(PoolError):
    """No credential can become usable unless a person acts. `reasons` holds the causes by credential id."""

    def __init__(self, message: str, *, reasons: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}


class RequestTooLarge(PoolError, ValueError):
    """More requests or tokens at once than the limits of any credential allow: waiting cannot help."""


class UnknownCredential(PoolError, LookupError, ValueError):
    """The key or id is not in this pool. The message does not show the key."""


class AmbiguousRelease(PoolError, ValueError):
    """A plain string names a credential with several live leases: release the object that `reserve` returned."""


class StoreError(PoolError):
    """The store that the pool shares with other processes cannot be used."""


class CredentialError(PoolError, ValueError):
    """A credential cannot be used as written: a missing variable, a file that others can read, a failing command."""

    credential_id: str | None = None


# --- raised by the gateway ----------------------------------------------------------------------------------------


class GatewayError(AgentosError):
    """A gateway cannot start, or a client token cannot be made."""


# --- raised by a run ----------------------------------------------------------------------------------------------


class RunError(AgentosError):
    """A run, or one of its attempts, could not be carried out."""


class InvalidItemId(RunError, ValueError, TypeError):
    """`item_id_func` raised, or returned something that is not a string."""


class AttemptTimeout(RunError, TimeoutError):
    """An attempt took longer than `timeout`."""


class BudgetExceeded(RunError):
    """An item has spent its own budget: it fails, and is not retried. `is_of_run`: the budget of the whole run is used
    up instead, so that the item stays unfinished and the run can be resumed with a larger one."""

    def __init__(self, message: str, *, is_of_run: bool = False) -> None:
        super().__init__(message)
        self.is_of_run = is_of_run


class UnrecordableValue(RunError, TypeError):
    """A result, an input or a checkpoint cannot be written to the ledger: it cannot be encoded as JSON."""


class LedgerError(RunError):
    """The ledger cannot be opened, read or written. Nothing that it holds was changed."""


class RunBusy(LedgerError):
    """Another process, or another run of this one, is writing to the ledger."""

    def __init__(
        self, message: str, *, pid: int | None = None, host: str | None = None, since: float | None = None
    ) -> None:
        super().__init__(message)
        self.pid = pid
        self.host = host
        self.since = since  # epoch


class WorkerDied(RunError):
    """A worker process ended without an answer: a crash, `os._exit`, or the system's memory killer."""


class CommandFailed(RunError):
    """A command ended with a status other than 0, or could not be started. `exit_status` is negative for a signal, None
    if it did not start. `verdict`: read from its output. `details`: copied to the result's metadata."""

    def __init__(
        self, message: str, *, exit_status: int | None, verdict: Verdict, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.verdict = verdict
        self.details = details or {}


class WorkerStartError(RunError):
    """The worker cannot be started at all: it cannot be sent to another process or imported there, its credential
    cannot be read there, the program or the folder of a command is gone, or the disk is full. No item is at fault; the
    run stops and can be resumed."""


class ExecutorBroken(RunError):
    """The executor cannot carry out attempts any more: a process of its pool was killed, its cluster is gone, or it was
    shut down. No item is at fault; the run stops and can be resumed."""


class EngineUrlError(RunError, ValueError):
    """The URL names no engine that attempts can be sent to."""


class EngineNotInstalled(RunError):
    """The engine needs a package that is not installed. The message names the extra that installs it."""


class EngineUnavailable(RunError):
    """The engine does not answer."""


class WorkerError(RunError):
    """An exception of a worker process: the name of its type, its text, its traceback, its verdict on the provider, and
    the exception itself as `original` if it can be pickled."""

    def __init__(
        self, message: str, *, type_name: str, trace: str, verdict: Verdict, original: BaseException | None
    ) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.trace = trace
        self.verdict = verdict
        self.original = original


# --- raised by the files of the AgentOS home directory and of the keys --------------------------------------------


class HomeError(AgentosError):
    """A file or folder of the AgentOS home directory cannot be read or written."""


class UnknownRun(HomeError):
    """The AgentOS home directory has no run with this id."""


class KeysFileError(AgentosError):
    """The keys cannot be used as they are written. The message holds no secret."""


def _rebuild(cls: type[AgentosError], args: tuple[Any, ...]) -> AgentosError:
    """Create an error without `__init__`, whose keyword arguments pickle does not store; attributes follow as state."""
    error = cls.__new__(cls, *args)
    error.args = args
    return error
