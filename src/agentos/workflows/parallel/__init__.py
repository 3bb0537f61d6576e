"""Run many agent workflows in parallel over a shared pool of rate-limited API credentials.

The two coordinators and what goes with them; everything else is private. Start with `ParallelCoordinator`.

Each name is imported from its module when it is first asked for: `agentos report` runs inside the commands of a run,
and must not load a coordinator to write one line. Type checkers read the imports; `_NAMES` says the same to Python.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
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
        StoreError,
        Transient,
        UnknownCredential,
        UnrecordableValue,
        WorkerDied,
        WorkerStartError,
    )
    from .input_sanitizer import sanitize_identifier
    from .leases import Lease
    from .ledger import Ledger
    from .output_prefixer import OutputPrefixer
    from .reporters import JsonReporter, PlainReporter
    from .results import ProgressStats, WorkflowResult
    from .verdicts import Verdict

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
    "StoreError",
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

# module -> the public names that live there
_NAMES = {
    "_core.limits": "Limits",
    "commands": "Command Pattern",
    "context": "CurrentItem current_item",
    "coordinator": "ParallelCoordinator",
    "credential_coordinator": "CredentialCoordinator CredentialState",
    "credentials": "Credential",
    "errors": (
        "AgentosError AmbiguousRelease AttemptTimeout AuthFailed CommandFailed CredentialError Interrupted "
        "InvalidItemId LeaseTimeout LedgerError NoUsableCredential Overloaded Permanent QuotaExhausted RateLimited "
        "RequestTooLarge RunBusy StoreError Transient UnknownCredential UnrecordableValue WorkerDied WorkerStartError"
    ),
    "input_sanitizer": "sanitize_identifier",
    "leases": "Lease",
    "ledger": "Ledger",
    "output_prefixer": "OutputPrefixer",
    "reporters": "JsonReporter PlainReporter",
    "results": "ProgressStats WorkflowResult",
    "verdicts": "Verdict",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not _typing.TYPE_CHECKING:  # which would take any misspelt name for one that is found here

    def __getattr__(name: str) -> object:
        """A public name, or a module that has some."""
        if name not in _MODULES and name not in _NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}")
        found = getattr(module, name) if name in _MODULES else module
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
