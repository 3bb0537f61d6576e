"""Prints the repr of public objects, the texts of exceptions, and the names of the public module."""

import inspect
import pickle
from collections.abc import Callable

import agentos.workflows.parallel as parallel
from agentos.workflows.parallel import (
    Command,
    Credential,
    CredentialCoordinator,
    Ledger,
    Limits,
    ParallelCoordinator,
    Pattern,
    ProgressStats,
    Verdict,
    WorkflowResult,
    sanitize_identifier,
)

KEY = "sk-one-0123456789"


def heading(text: str) -> None:
    print(f"\n--- {text} ---")


# Objects that a program does not create itself, and the methods that it calls of the others.
MADE_BY_US = ("Lease", "Ledger", "CurrentItem", "CredentialState")
METHODS = {
    "ParallelCoordinator": (
        "execute_parallel execute_parallel_async stream astream plan request_shutdown get_checkpoints"
    ),
    "CredentialCoordinator": (
        "lease call acall reserve release reserve_credential acquire acquire_credential release_credential "
        "mark_rate_limited get_stats get_available_count states quarantine restore add remove close"
    ),
    "Lease": "settle observe",
    "CurrentItem": "report_usage observe lease",
    "Ledger": "open run_ids launches counts item items ids attempts credentials close",
}


def public_names() -> None:
    """Print each public name, with the base classes of exceptions and the parameters of everything else."""
    heading("public names")
    for name in parallel.__all__:
        thing = getattr(parallel, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            print(f"{name} is {', '.join(base.__name__ for base in thing.__mro__[1:-2])}")
        elif name == "Reporter":
            print(f"{name} is {thing}")
        elif name not in MADE_BY_US:
            print(f"{name}({parameters_of(thing)})")
        for method in METHODS.get(name, "").split():
            print(f"{name}.{method}({parameters_of(getattr(thing, method))})")


def parameters_of(function: Callable[..., object]) -> str:
    """Return names and defaults."""
    return ", ".join(map(_told, inspect.signature(function).parameters.values()))


def _told(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    # A default without a repr of its own says nothing.
    default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}".partition("<object")[0]
    if inspect.isfunction(parameter.default):
        default = f"={parameter.default.__name__}"
    return f"{stars}{parameter.name}{default}"


def reprs() -> None:
    """Print how objects are shown."""
    heading("reprs")
    limits = Limits(requests_per_minute=60, tokens_per_minute=1000, requests_per_day=10, burst=5, max_concurrent=2)
    credential = Credential(KEY, id="team-a", provider="openai", quota_group="org", scopes=["m"], limits=limits)
    pool = CredentialCoordinator([credential, "sk-two-0123456789"])
    with pool.lease(tokens=100) as lease:
        shown = [lease, pool.get_stats(), pool.get_available_count(), *pool.states()]
    reserved = pool.reserve()
    shown += [reserved, str(reserved) in {KEY, "sk-two-0123456789"}]
    shown += [limits, Limits(), credential, Credential(KEY), Credential("env:NOT_SET"), pool]
    shown += [pool.redact(f"the key {KEY}"), pool.states()[0].keys_file_line]
    shown += [Command(["echo", "{id}"]), Pattern("throttled", "rate_limited")]
    shown += [Verdict("rate_limited", retry_after=5.0)]
    shown += [WorkflowResult("a", True, value=1), WorkflowResult("b", False, error="no", metadata={"x": 1})]
    shown += [ProgressStats(total=4, start_time=0.0, completed=1, success_count=1)]
    shown += [ProgressStats(total=4, completed=1).completion_rate, sanitize_identifier("a-b")]
    for thing in shown:
        print(repr(thing))


def plans() -> None:
    """Print plans of runs."""
    heading("plans")
    pool = CredentialCoordinator([Credential(KEY, id="a", limits=Limits(requests_per_minute=6, burst=1))])
    print(ParallelCoordinator(4, pool, reporter=None).plan(100, item_seconds=25))
    print(ParallelCoordinator(4, reporter=None).plan(["a", "b"], item_seconds=60))


def errors() -> None:
    """Print the exceptions that wrong calls raise."""
    heading("exceptions")
    pool = CredentialCoordinator([Credential(KEY, id="a", limits=Limits(tokens_per_minute=100))])
    key = pool.reserve()
    run = ParallelCoordinator(1, reporter=None)
    print(f"reserved while all are in use: {pool.reserve(timeout=0)}")
    calls = {
        "no credentials": lambda: CredentialCoordinator([]),
        "one string": lambda: CredentialCoordinator(KEY),
        "a number": lambda: CredentialCoordinator([5]),
        "one id twice": lambda: CredentialCoordinator([Credential("x1", id="a"), Credential("x2", id="a")]),
        "a variable that is not set": lambda: CredentialCoordinator([Credential("env:NOT_SET", id="a")]),
        "a file that is not there": lambda: CredentialCoordinator([Credential("file:nowhere", id="a")]),
        "a command that fails": lambda: CredentialCoordinator([Credential("cmd:false", id="a")]),
        "an empty secret": lambda: Credential(""),
        "a secret as id": lambda: Credential(KEY, id=KEY),
        "a wrong limit": lambda: Limits(requests_per_minute=0),
        "a wrong day": lambda: Limits(requests_per_day=1, day_resets="noon"),
        "a wrong store": lambda: CredentialCoordinator([KEY], store="ftp://nowhere"),
        "a pickled pool": lambda: pickle.dumps(pool),
        "a pickled credential": lambda: pickle.dumps(Credential(KEY)),
        "a lease in time": lambda: pool.lease(timeout=0).__enter__(),
        "too many tokens": lambda: pool.lease(tokens=1000).__enter__(),
        "another key released": lambda: pool.release("sk-another"),
        "another id restored": lambda: pool.restore("another"),
        "released": lambda: pool.release(key),
        "quarantined": lambda: pool.quarantine("a", "by hand"),
        "a lease of nothing": lambda: pool.lease(timeout=5).__enter__(),
        "no worker": lambda: run.execute_parallel(["a"], None),
        "one item id twice": lambda: run.execute_parallel(["a", "a"], print),
        "an item id that is none": lambda: run.execute_parallel(["a"], print, item_id_func=len),
        "a wrong run id": lambda: run.execute_parallel(["a"], print, run_id="../up"),
        "no workers": lambda: ParallelCoordinator(0),
        "other workers": lambda: ParallelCoordinator(1, workers="fibres"),
        "a wrong halt": lambda: ParallelCoordinator(1, halt="often"),
        "a wrong timeout": lambda: ParallelCoordinator(1, timeout=0),
        "a wrong pool": lambda: ParallelCoordinator(1, [KEY]),
        "no ledger": lambda: Ledger.open("nowhere.db"),
        "another file": lambda: Ledger.open("show_objects.py"),
        "outside an item": parallel.current_item,
        "a wrong identifier": lambda: sanitize_identifier("a\nb"),
        "an unknown name": lambda: parallel.nothing,
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
        else:
            print(f"{name}: no exception")


public_names()
reprs()
plans()
errors()
