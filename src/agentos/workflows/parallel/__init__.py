"""Run many agent workflows in parallel over a shared pool of rate-limited API credentials.

The two coordinators and what goes with them; everything else is private. Start with `ParallelCoordinator`.
"""

from .context import CurrentItem, current_item
from .coordinator import ParallelCoordinator
from .credential_coordinator import CredentialCoordinator, CredentialState
from .credentials import Credential, Limits
from .errors import (
    AgentosError,
    AmbiguousRelease,
    AttemptTimeout,
    AuthFailed,
    CredentialError,
    Interrupted,
    InvalidItemId,
    LeaseTimeout,
    NoUsableCredential,
    Overloaded,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Transient,
    UnknownCredential,
    WorkerDied,
    WorkerStartError,
)
from .input_sanitizer import sanitize_identifier
from .leases import Lease
from .output_prefixer import OutputPrefixer
from .reporters import JsonReporter, PlainReporter
from .results import ProgressStats, WorkflowResult
from .verdicts import Verdict

__all__ = [
    # running
    "ParallelCoordinator",
    "ProgressStats",
    "WorkflowResult",
    "CurrentItem",
    "current_item",
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
    "CredentialError",
    "InvalidItemId",
    "LeaseTimeout",
    "NoUsableCredential",
    "UnknownCredential",
    "WorkerDied",
    "WorkerStartError",
    # output and names
    "JsonReporter",
    "OutputPrefixer",
    "PlainReporter",
    "sanitize_identifier",
]
