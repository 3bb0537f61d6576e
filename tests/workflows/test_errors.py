"""The exception tree: who catches what, and exceptions that cross a process whole."""

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
    CommandFailed,
    CredentialError,
    EngineNotInstalled,
    EngineUnavailable,
    EngineUrlError,
    ExecutorBroken,
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

# One of each, with every attribute set to something that is not its default.
SAMPLES: list[AgentosError] = [
    RateLimited("slow down", retry_after=12.5),
    QuotaExhausted("no more today", until=1_700_000_000.25),
    Overloaded("busy", retry_after=0.0),
    LeaseTimeout("no credential within 3 s", reason="rate_limited", usable_in=41.5),
    NoUsableCredential("no usable credential", reasons={"key-1": "quarantined", "key-2": "wrong scope"}),
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


def test_every_class_with_its_own_constructor_has_a_sample_here() -> None:
    assert {type(sample) for sample in SAMPLES} == WITH_OWN_CONSTRUCTOR
    assert {type(sample) for sample in SAMPLES + BARE_SAMPLES} == ALL


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("error", SAMPLES + BARE_SAMPLES, ids=ids(SAMPLES + BARE_SAMPLES))
def test_a_copy_has_the_type_the_message_and_all_attributes(error: AgentosError, way: str) -> None:
    assert_same(COPIES[way](error), error)


@pytest.mark.parametrize("error", SAMPLES, ids=ids(SAMPLES))
def test_a_copy_of_a_copy_is_still_whole(error: AgentosError) -> None:
    assert_same(COPIES["pickle 5"](COPIES["pickle 5"](error)), error)


class OurRateLimited(RateLimited):
    """A program's own kind of limit."""


def test_a_subclass_of_a_program_stays_that_subclass() -> None:
    assert_same(COPIES["pickle 5"](OurRateLimited("ours", retry_after=2)), OurRateLimited("ours", retry_after=2))


@pytest.mark.parametrize("cls", [RateLimited, QuotaExhausted, Overloaded, AuthFailed, Transient, Permanent])
def test_what_a_worker_added_to_its_exception_travels_along(cls: type[WorkerVerdict]) -> None:
    error = cls("refused")
    error.request_id = "req-1"  # type: ignore[attr-defined]
    error.add_note("while reading page 7")
    copied = COPIES["pickle 5"](error)
    assert copied.request_id == "req-1"  # type: ignore[attr-defined]
    assert copied.__notes__ == ["while reading page 7"]


# --- what they hold -----------------------------------------------------------------------------------------------


def test_what_the_provider_did_not_say_is_none() -> None:
    assert RateLimited().retry_after is None
    assert Overloaded().retry_after is None
    assert QuotaExhausted().until is None
    assert LeaseTimeout("none", reason="exhausted").usable_in is None
    assert NoUsableCredential("none").reasons == {}


@pytest.mark.parametrize(
    ("error", "text"),
    [(RateLimited(), "rate limited"), (QuotaExhausted(), "quota exhausted"), (Overloaded(), "provider overloaded")],
)
def test_a_verdict_without_a_message_has_a_readable_one(error: WorkerVerdict, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", SAMPLES, ids=ids(SAMPLES))
def test_the_message_is_all_of_the_text(error: AgentosError) -> None:
    assert str(error) == error.args[0]
    assert len(error.args) == 1


def test_the_workers_verdicts_are_the_six_kinds_and_each_has_its_own() -> None:
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


# Beside itself and AgentosError, as what each is caught.
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
    UnrecordableValue: {RunError, TypeError},
    LedgerError: {RunError},
    RunBusy: {LedgerError, RunError},
    WorkerDied: {RunError},
    CommandFailed: {RunError},
    WorkerStartError: {RunError},
    ExecutorBroken: {RunError},
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
def test_an_exception_is_caught_as_what_it_is_and_nothing_else(cls: type[AgentosError]) -> None:
    assert set(cls.__mro__) == TREE[cls] | {cls, AgentosError, Exception, BaseException, object}


def test_the_tree_above_is_the_whole_tree() -> None:
    assert set(TREE) == ALL - {AgentosError}


def test_what_programs_catch_or_raise_is_exported() -> None:
    engines = {ExecutorBroken, EngineUrlError, EngineNotInstalled, EngineUnavailable}
    inside = {WorkerVerdict, PoolError, RunError, WorkerError} | engines | {HomeError, UnknownRun, KeysFileError}
    assert {cls.__name__ for cls in ALL - inside} <= set(parallel.__all__)


# --- as the pool raises them --------------------------------------------------------------------------------------


def test_a_lease_that_does_not_come_in_time_is_a_timeout_with_its_reason() -> None:
    pool = parallel.CredentialCoordinator(["sk-one"])
    pool.reserve()
    context = pool.lease(timeout=0)
    with pytest.raises(TimeoutError) as caught:
        context.__enter__()
    error = caught.value
    assert isinstance(error, LeaseTimeout)
    assert (error.reason, error.usable_in) == ("exhausted", None)
    assert_same(COPIES["pickle 5"](error), error)


def test_a_pool_without_a_usable_credential_says_why_for_each() -> None:
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


def test_a_key_of_another_pool_is_unknown_and_not_shown() -> None:
    pool = parallel.CredentialCoordinator(["sk-one"])
    with pytest.raises(UnknownCredential) as caught:
        pool.release("sk-Zq7Xw9Vu3")
    assert "Zq7X" not in str(caught.value)
