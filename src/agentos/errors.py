"""The whole exception tree.

Two families, split by who raises them. A *worker* raises a `WorkerVerdict` to say what its provider answered; the
*pool* and the *run* raise the others to say what the caller must know. No message ever holds a secret.
"""

from __future__ import annotations

from typing import Any, ClassVar

from agentos.verdict import Verdict


class AgentosError(Exception):
    """Anything this package raises by design. Survives pickling, with all that was added to it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), self.__dict__.copy()


# --- raised by a worker: what the provider said -------------------------------------------------------------------


class WorkerVerdict(AgentosError):
    """What an answer from a provider means. Raise one of the kinds below, not this class."""

    kind: ClassVar[str]


class RateLimited(WorkerVerdict):
    """The provider says wait: the credential's group cools down for `retry_after` seconds. When that is not given, for
    the time that one request takes by what is known of the limit, doubled while it goes on."""

    kind = "rate_limited"

    def __init__(self, message: str = "rate limited", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QuotaExhausted(WorkerVerdict):
    """The allowance of a day, a month or a plan is used up, until the epoch second `until` where that is known."""

    kind = "quota_exhausted"

    def __init__(self, message: str = "quota exhausted", *, until: float | None = None) -> None:
        super().__init__(message)
        self.until = until


class AuthFailed(WorkerVerdict):
    """The provider does not accept this credential."""

    kind = "auth_failed"


class Overloaded(WorkerVerdict):
    """The provider has no capacity for anybody: no credential is to blame."""

    kind = "overloaded"

    def __init__(self, message: str = "provider overloaded", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Transient(WorkerVerdict):
    """It may work next time: the item is tried again after a pause, as often as `retries` allows."""

    kind = "transient"


class Permanent(WorkerVerdict):
    """It will never work: the item fails at once."""

    kind = "permanent"


class Interrupted(AgentosError):
    """Raised by a worker that saw `current_item().should_stop`: the item is left unfinished, as a checkpoint."""


# --- raised by the pool -------------------------------------------------------------------------------------------


class PoolError(AgentosError):
    """The pool could not do what was asked."""


class LeaseTimeout(PoolError, TimeoutError):
    """No credential became usable in time. `reason` is `exhausted` (all in use) or `rate_limited` (provider says wait).

    `usable_in` is the number of seconds until a cool-down ends, where that is what the wait was for.
    """

    def __init__(self, message: str, *, reason: str, usable_in: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.usable_in = usable_in


class NoUsableCredential(PoolError):
    """No credential can become usable without a person. `reasons` says why, by credential id."""

    def __init__(self, message: str, *, reasons: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}


class RequestTooLarge(PoolError, ValueError):
    """More requests or tokens at once than any credential's limit allows: waiting would be for nothing."""


class UnknownCredential(PoolError, LookupError, ValueError):
    """The key or id is not in this pool. The message does not show the key."""


class AmbiguousRelease(PoolError, ValueError):
    """A plain string names a credential with several live leases: release the object that `reserve` returned."""


class StoreError(PoolError):
    """The store that the pool shares with other processes cannot be used."""


class CredentialError(PoolError, ValueError):
    """A credential cannot be used as written: a missing variable, a file that others can read, a failing command."""


# --- raised by a run ----------------------------------------------------------------------------------------------


class RunError(AgentosError):
    """A run could not be carried out as asked."""


class InvalidItemId(RunError, ValueError, TypeError):
    """`item_id_func` raised, or returned something that is not a string."""


class AttemptTimeout(RunError, TimeoutError):
    """An attempt took longer than `timeout`."""


class UnrecordableValue(RunError, TypeError):
    """A result, an input or a checkpoint cannot be written to the ledger: it has no form in JSON."""


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
    """A command ended with a status other than 0, or could not be started; `exit_status` is negative for a signal, None
    if it never ran. `verdict`: what it said about the provider. `details`: what is kept of it in the result."""

    def __init__(
        self, message: str, *, exit_status: int | None, verdict: Verdict, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.verdict = verdict
        self.details = details or {}


class WorkerStartError(RunError):
    """The worker cannot be started at all: it cannot be sent to another process or imported there, or its credential
    cannot be read there."""


class ExecutorBroken(RunError):
    """The executor that carries out attempts does so no longer: a process of its pool was killed, its cluster is gone,
    or it was shut down. No item is to blame; the run stops and can be resumed."""


class EngineUrlError(RunError, ValueError):
    """The URL names no engine that attempts can be sent to."""


class EngineNotInstalled(RunError):
    """The engine needs a package that is not installed. The message names the extra that installs it."""


class EngineUnavailable(RunError):
    """The engine does not answer."""


class WorkerError(RunError):
    """An exception of a worker process, as far as it could travel: its type's name, its text, its traceback, what it
    said about the provider, and, if it can be pickled, the exception itself as `original`."""

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
    """Without `__init__`, whose keyword arguments pickle does not know; the attributes follow as state."""
    error = cls.__new__(cls, *args)
    error.args = args
    return error
