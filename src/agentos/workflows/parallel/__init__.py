"""Run many agent workflows in parallel over a shared pool of rate-limited API credentials.

The two coordinators and what goes with them; everything else is private. Start with `ParallelCoordinator`.
"""

import typing as _typing

from ._core.limits import Limits
from .commands import Command, Pattern
from .context import CurrentItem, current_item
from .coordinator import ParallelCoordinator
from .credential_coordinator import CredentialCoordinator, CredentialState
from .credentials import Credential
from .errors import (
    AgentosError,
    AmbiguousRelease,
    AttemptTimeout,
    AuthFailed,
    CommandFailed,
    CredentialError,
    Interrupted,
    InvalidItemId,
    LeaseTimeout,
    LedgerError,
    NoUsableCredential,
    Overloaded,
    Permanent,
    QuotaExhausted,
    RateLimited,
    RequestTooLarge,
    RunBusy,
    Transient,
    UnknownCredential,
    UnrecordableValue,
    WorkerDied,
    WorkerStartError,
)
from .input_sanitizer import sanitize_identifier
from .leases import Lease
from .output_prefixer import OutputPrefixer
from .reporters import JsonReporter, PlainReporter
from .results import ProgressStats, WorkflowResult
from .verdicts import Verdict

if _typing.TYPE_CHECKING:
    from .ledger import Ledger

__all__ = [
    # running
    "ParallelCoordinator",
    "ProgressStats",
    "WorkflowResult",
    "Command",
    "Pattern",
    "CurrentItem",
    "current_item",
    "Ledger",
    # credentials
    "CredentialCoordinator",
    "Credential",
    "CredentialState",
    "Lease",
    "Limits",
    # what a worker may raise
    "AuthFailed",
    "Interrupted",
    "Overloaded",
    "Permanent",
    "QuotaExhausted",
    "RateLimited",
    "Transient",
    "Verdict",
    # what we raise
    "AgentosError",
    "AmbiguousRelease",
    "AttemptTimeout",
    "CommandFailed",
    "CredentialError",
    "InvalidItemId",
    "LeaseTimeout",
    "LedgerError",
    "NoUsableCredential",
    "RequestTooLarge",
    "RunBusy",
    "UnknownCredential",
    "UnrecordableValue",
    "WorkerDied",
    "WorkerStartError",
    # output and names
    "JsonReporter",
    "OutputPrefixer",
    "PlainReporter",
    "sanitize_identifier",
]


def __getattr__(name: str) -> _typing.Any:
    """A ledger needs SQLite and msgspec, which most programs do not: they are imported with the first use."""
    if name != "Ledger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .ledger import Ledger

    return Ledger
