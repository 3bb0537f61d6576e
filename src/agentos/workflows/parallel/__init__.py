"""Run many agent workflows in parallel over a shared pool of rate-limited API credentials.

The public names: two coordinators, and the types that go with them. Start with `ParallelCoordinator`.

Each name is imported from its module when it is first used: `agentos report` runs inside the commands of a run, and
must not load a coordinator to write one line. Type checkers read the imports; `_NAMES` is the same table for Python.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from agentos.costs.budget import Budget
    from agentos.costs.prices import Price
    from agentos.errors import (
        AgentosError,
        AmbiguousRelease,
        AttemptTimeout,
        AuthFailed,
        BudgetExceeded,
        CommandFailed,
        CredentialError,
        GatewayError,
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
    from agentos.identifiers import sanitize_identifier
    from agentos.items.context import CurrentItem, current_item
    from agentos.items.results import ProgressStats, WorkflowResult
    from agentos.ledger.reader import Ledger
    from agentos.ledger.recorded import RecordedItem
    from agentos.limits.declaration import Limits, Window
    from agentos.output.prefix import OutputPrefixer
    from agentos.plans.plan import RunPlan
    from agentos.pool.credential import Credential
    from agentos.pool.lease import Lease
    from agentos.providers.patterns import Pattern
    from agentos.providers.verdicts import Verdict
    from agentos.reporters.writers import JsonReporter, PlainReporter, Reporter
    from agentos.workers.command.command import Command

    from .coordinator import ParallelCoordinator
    from .credential_coordinator import CredentialCoordinator, CredentialState

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
    "RecordedItem",
    "RunPlan",
    "Budget",
    "Price",
    # credentials
    "CredentialCoordinator",
    "Credential",
    "CredentialState",
    "Lease",
    "Limits",
    "Window",
    # exceptions that a worker may raise, and verdicts
    "AuthFailed",
    "Interrupted",
    "Overloaded",
    "Permanent",
    "QuotaExhausted",
    "RateLimited",
    "Transient",
    "Verdict",
    # exceptions that this package raises
    "AgentosError",
    "AmbiguousRelease",
    "AttemptTimeout",
    "BudgetExceeded",
    "CommandFailed",
    "CredentialError",
    "GatewayError",
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
    "Reporter",
    "sanitize_identifier",
]

# module -> its public names
_NAMES = {
    "agentos.costs.budget": "Budget",
    "agentos.costs.prices": "Price",
    "agentos.limits.declaration": "Limits Window",
    "agentos.workers.command.command": "Command Pattern",
    "agentos.items.context": "CurrentItem current_item",
    "agentos.workflows.parallel.coordinator": "ParallelCoordinator",
    "agentos.workflows.parallel.credential_coordinator": "CredentialCoordinator CredentialState",
    "agentos.pool.credential": "Credential",
    "agentos.errors": (
        "AgentosError AmbiguousRelease AttemptTimeout AuthFailed BudgetExceeded CommandFailed CredentialError "
        "GatewayError Interrupted InvalidItemId LeaseTimeout LedgerError NoUsableCredential Overloaded Permanent "
        "QuotaExhausted RateLimited RequestTooLarge RunBusy StoreError Transient UnknownCredential UnrecordableValue "
        "WorkerDied WorkerStartError"
    ),
    "agentos.identifiers": "sanitize_identifier",
    "agentos.pool.lease": "Lease",
    "agentos.ledger.reader": "Ledger",
    "agentos.ledger.recorded": "RecordedItem",
    "agentos.plans.plan": "RunPlan",
    "agentos.output.prefix": "OutputPrefixer",
    "agentos.reporters.writers": "JsonReporter PlainReporter Reporter",
    "agentos.items.results": "ProgressStats WorkflowResult",
    "agentos.providers.verdicts": "Verdict",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
# Modules that programs use as attributes of this package.
_SUBMODULES = {"errors": "agentos.errors", "verdicts": "agentos.providers.verdicts"}

if not _typing.TYPE_CHECKING:  # a type checker would accept any misspelt name

    def __getattr__(name: str) -> object:
        """Import a public name, or a module that programs use, when it is first used."""
        if name in _SUBMODULES:
            value: object = _importlib.import_module(_SUBMODULES[name])
        elif name in _MODULES:
            value = getattr(_importlib.import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
