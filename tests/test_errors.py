"""The exception tree: base classes, and copies that lose nothing between processes."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from agentos import errors
from agentos.errors import (
    AgentosError,
    AmbiguousRelease,
    AttemptTimeout,
    AuthFailed,
    BudgetExceeded,
    CommandFailed,
    CredentialError,
    EngineNotInstalled,
    EngineUnavailable,
    EngineUrlError,
    ExecutorBroken,
    GatewayError,
    HomeError,
    Interrupted,
    InvalidItemId,
    KeysFileError,
    LeaseTimeout,
    LedgerError,
    NoUsableCredential,
    Overloaded,
    Permanent,
    PoolError,
    QuotaExhausted,
    RateLimited,
    RequestTooLarge,
    RunBusy,
    RunError,
    StoreError,
    Transient,
    UnknownCredential,
    UnknownRun,
    UnrecordableValue,
    WorkerDied,
    WorkerError,
    WorkerStartError,
    WorkerVerdict,
)
from agentos.verdict import VERDICT_KINDS, Verdict
from agentos.workflows import parallel

ALL = {thing for thing in vars(errors).values() if inspect.isclass(thing) and issubclass(thing, AgentosError)}
WITH_OWN_CONSTRUCTOR = {cls for cls in ALL if "__init__" in vars(cls)}

# One of each, with no attribute at its default.
SAMPLES: list[AgentosError] = [
    RateLimited("slow down", retry_after=12.5),
    QuotaExhausted("no more today", until=1_700_000_000.25),
    Overloaded("busy", retry_after=0.0),
    LeaseTimeout("no credential within 3 s", reason="rate_limited", usable_in=41.5),
    NoUsableCredential("no usable credential", reasons={"key-1": "quarantined", "key-2": "wrong scope"}),
    BudgetExceeded("spent", is_of_run=True),
    RunBusy("in use", pid=123, host="a-host", since=1_700_000_000.0),
    CommandFailed("exit status 3", exit_status=3, verdict=Verdict("transient"), details={"log": "a.log"}),
    WorkerError(
        "it broke",
        type_name="KeyError",
        trace="Traceback: …",
        verdict=Verdict("transient", retry_after=3.0),
        original=KeyError("gone"),
    ),
]
BARE_SAMPLES: list[AgentosError] = [
    RateLimited(),
    QuotaExhausted(),
    Overloaded(),
    LeaseTimeout("none", reason="exhausted"),
    NoUsableCredential("none"),
    RequestTooLarge("no limit is large enough"),
    BudgetExceeded("spent"),
    *(cls("a message") for cls in sorted(ALL - WITH_OWN_CONSTRUCTOR, key=lambda cls: cls.__name__)),
]


def ids(samples: list[AgentosError]) -> list[str]:
    return [type(sample).__name__ for sample in samples]


COPIES: dict[str, Callable[[BaseException], BaseException]] = {
    **{f"pickle {n}": lambda e, n=n: pickle.loads(pickle.dumps(e, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def assert_same(copied: BaseException, error: BaseException) -> None:
    assert copied is not error
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert copied.args == error.args
    assert {n: repr(v) for n, v in vars(copied).items()} == {n: repr(v) for n, v in vars(error).items()}


# --- crossing a process -------------------------------------------------------------------------------------------


def test_every_error_with_a_constructor_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == WITH_OWN_CONSTRUCTOR
    assert {type(sample) for sample in SAMPLES + BARE_SAMPLES} == ALL


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("error", SAMPLES + BARE_SAMPLES, ids=ids(SAMPLES + BARE_SAMPLES))
def test_copy_keeps_type_message_and_attributes(error: AgentosError, way: str) -> None:
    assert_same(COPIES[way](error), error)


@pytest.mark.parametrize("error", SAMPLES, ids=ids(SAMPLES))
def test_copy_of_a_copy_is_complete(error: AgentosError) -> None:
    assert_same(COPIES["pickle 5"](COPIES["pickle 5"](error)), error)


class OurRateLimited(RateLimited):
    """A subclass that a program defines."""


def test_copy_of_a_user_subclass_keeps_its_type() -> None:
    assert_same(COPIES["pickle 5"](OurRateLimited("ours", retry_after=2)), OurRateLimited("ours", retry_after=2))


@pytest.mark.parametrize("cls", [RateLimited, QuotaExhausted, Overloaded, AuthFailed, Transient, Permanent])
def test_copy_keeps_attributes_added_by_a_worker(cls: type[WorkerVerdict]) -> None:
    error = cls("refused")
    error.request_id = "req-1"  # type: ignore[attr-defined]
    error.add_note("while reading page 7")
    copied = COPIES["pickle 5"](error)
    assert copied.request_id == "req-1"  # type: ignore[attr-defined]
    assert copied.__notes__ == ["while reading page 7"]


# --- attributes ---------------------------------------------------------------------------------------------------


def test_unstated_fields_of_a_verdict_are_none() -> None:
    assert RateLimited().retry_after is None
    assert Overloaded().retry_after is None
    assert QuotaExhausted().until is None
    assert LeaseTimeout("none", reason="exhausted").usable_in is None
    assert NoUsableCredential("none").reasons == {}


@pytest.mark.parametrize(
    ("error", "text"),
    [(RateLimited(), "rate limited"), (QuotaExhausted(), "quota exhausted"), (Overloaded(), "provider overloaded")],
)
def test_verdict_without_a_message_has_a_default(error: WorkerVerdict, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", SAMPLES, ids=ids(SAMPLES))
def test_text_of_an_error_is_its_message(error: AgentosError) -> None:
    assert str(error) == error.args[0]
    assert len(error.args) == 1


def test_worker_verdicts_cover_the_six_kinds() -> None:
    kinds = {cls.kind: cls for cls in ALL if issubclass(cls, WorkerVerdict) and cls is not WorkerVerdict}
    assert kinds == {
        "rate_limited": RateLimited,
        "quota_exhausted": QuotaExhausted,
        "auth_failed": AuthFailed,
        "overloaded": Overloaded,
        "transient": Transient,
        "permanent": Permanent,
    }
    assert set(kinds) == VERDICT_KINDS


# --- the tree -----------------------------------------------------------------------------------------------------


# Base classes of each error besides AgentosError.
TREE: dict[type[AgentosError], set[type[Exception]]] = {
    RateLimited: {WorkerVerdict},
    QuotaExhausted: {WorkerVerdict},
    AuthFailed: {WorkerVerdict},
    Overloaded: {WorkerVerdict},
    Transient: {WorkerVerdict},
    Permanent: {WorkerVerdict},
    Interrupted: set(),
    LeaseTimeout: {PoolError, TimeoutError, OSError},
    NoUsableCredential: {PoolError},
    RequestTooLarge: {PoolError, ValueError},
    UnknownCredential: {PoolError, LookupError, ValueError},
    AmbiguousRelease: {PoolError, ValueError},
    CredentialError: {PoolError, ValueError},
    StoreError: {PoolError},
    InvalidItemId: {RunError, ValueError, TypeError},
    AttemptTimeout: {RunError, TimeoutError, OSError},
    BudgetExceeded: {RunError},
    UnrecordableValue: {RunError, TypeError},
    LedgerError: {RunError},
    RunBusy: {LedgerError, RunError},
    WorkerDied: {RunError},
    CommandFailed: {RunError},
    WorkerStartError: {RunError},
    ExecutorBroken: {RunError},
    GatewayError: set(),
    EngineUrlError: {RunError, ValueError},
    EngineNotInstalled: {RunError},
    EngineUnavailable: {RunError},
    WorkerError: {RunError},
    HomeError: set(),
    UnknownRun: {HomeError},
    KeysFileError: set(),
    WorkerVerdict: set(),
    PoolError: set(),
    RunError: set(),
}


@pytest.mark.parametrize("cls", TREE)
def test_error_has_exactly_its_documented_bases(cls: type[AgentosError]) -> None:
    assert set(cls.__mro__) == TREE[cls] | {cls, AgentosError, Exception, BaseException, object}


def test_documented_tree_is_complete() -> None:
    assert set(TREE) == ALL - {AgentosError}


def test_errors_for_programs_are_exported() -> None:
    engines = {ExecutorBroken, EngineUrlError, EngineNotInstalled, EngineUnavailable}
    internal = {WorkerVerdict, PoolError, RunError, WorkerError} | engines | {HomeError, UnknownRun, KeysFileError}
    assert {cls.__name__ for cls in ALL - internal} <= set(parallel.__all__)


# --- raised by the pool -------------------------------------------------------------------------------------------


def test_lease_timeout_carries_its_reason() -> None:
    pool = parallel.CredentialCoordinator(["sk-one"])
    pool.reserve()
    context = pool.lease(timeout=0)
    with pytest.raises(TimeoutError) as caught:
        context.__enter__()
    error = caught.value
    assert isinstance(error, LeaseTimeout)
    assert (error.reason, error.usable_in) == ("exhausted", None)
    assert_same(COPIES["pickle 5"](error), error)


def test_unusable_pool_gives_reasons_per_credential() -> None:
    pool = parallel.CredentialCoordinator([parallel.Credential("sk-one", id="one"), "sk-two"])
    pool.listen(lambda event: None)
    two = pool.states()[1].key_id
    pool.quarantine("one", "bill not paid")
    pool.quarantine(two, "revoked")
    context = pool.lease()
    with pytest.raises(NoUsableCredential) as caught:
        context.__enter__()
    assert caught.value.reasons == {"one": "bill not paid", two: "revoked"}
    assert_same(COPIES["pickle 5"](caught.value), caught.value)


def test_unknown_key_is_not_shown_in_the_error() -> None:
    pool = parallel.CredentialCoordinator(["sk-one"])
    with pytest.raises(UnknownCredential) as caught:
        pool.release("sk-Zq7Xw9Vu3")
    assert "Zq7X" not in str(caught.value)
