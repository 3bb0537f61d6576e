"""Builds what a run is made of from its description: pool, worker, engine, coordinator and items.

Everything that can be checked before a run starts is checked here: errors are raised before an item is read from stdin,
and before anything is written.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import traceback
from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import click

from agentos.costs.budget import Budget
from agentos.costs.prices import Prices
from agentos.gateway.addresses import known_addresses
from agentos.gateway.client_versions import version_warnings
from agentos.home.run_folder import RunFolder, RunSpec
from agentos.items.access import AttemptAccess
from agentos.items.parallelism import ParallelBound
from agentos.keys.keys_file import Keys
from agentos.pool.credential import Credential
from agentos.reporters.format import escape_controls
from agentos.runs.checks import check_signature
from agentos.workers.capacity import room_for_run
from agentos.workers.command.command import Command
from agentos.workers.engines.connect import Engine
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator

from ..console import Failure
from .budget_setup import check_models, check_spent, make_budget
from .engine import LOCAL, connect_engine, engine_slots
from .gateway_setup import check_gateway, start_gateway
from .item_input import Item, Items, read_items, token_counter
from .keys_watch import KeysReload
from .planning import bound_at_once
from .pool_setup import StoreChoice, choose_store, make_pool, pool_warnings, read_keys
from .reporter import RunReporter
from .selection import filtered, limited, only_failed, shuffled

# Default of `--retries` for a function. A command has 0: a second attempt could repeat half of its side effects.
FUNCTION_RETRIES = 2
# What an item without fields is, and how to give one with fields.
_TEXT_ITEM = "the item is a text: write {}, or give items with fields (JSON, or a table with --format csv)"


class PreparedRun(NamedTuple):
    worker: Any  # a Command or a function
    pool: CredentialCoordinator | None
    keys: Keys | None
    store: StoreChoice
    items: Items
    coordinator: ParallelCoordinator
    tokens_func: Callable[[Any], int] | None
    gateway_url: str | None
    bound: ParallelBound | None  # what would bound the number of items at once; None: it is fixed
    reload: KeysReload | None  # reads the keys again; None: there are none


def prepare_run(
    folder: RunFolder,
    spec: RunSpec,
    reporter: RunReporter,
    resources: contextlib.ExitStack,
    *,
    keep: bool = True,
    is_resume: bool = False,
    only: Collection[str] = (),
) -> PreparedRun:
    """Return a run that can be started; `resources` closes its engine and its gateway. `keep=False`: write nothing and
    start no gateway, for a dry run. `only`: classes of failure, of a retry that runs only items which failed so.

    Raise `click.UsageError` with advice for what cannot be run, and the errors that `cli.console` reports. Items are
    read last: what came by stdin cannot be read again after an error.
    """
    options = spec.options
    keys = read_keys(options.get("keys"), options.get("key_env"), spec.cwd)
    for warning in keys.warnings if keys is not None else ():
        reporter.screen.message(f"Warning: {warning}")
    has_gateway = check_gateway(options, keys, has_engine=options.get("on", LOCAL) != LOCAL)
    budget = make_budget(options, has_gateway=has_gateway)
    prices = Prices({} if keys is None else keys.prices)
    check_models(budget, prices, keys, spec.command)
    if keep:
        check_spent(folder, budget)
    store = choose_store(options.get("store"), keys, options.get("keys"))
    pool = None if keys is None else make_pool(keys, store, reporter, run=spec.run_id if keep else None)
    reporter.pool = pool
    if pool is not None:
        for warning in pool_warnings(pool, store):
            reporter.screen.message(f"Warning: {warning}")
    for warning in version_warnings(spec.command) if has_gateway and spec.command else ():
        reporter.screen.message(f"Warning: {warning}")
    worker = _make_worker(spec, keys, folder, reporter, has_gateway=has_gateway)
    _check_secrets(spec, pool)
    engine = None
    if options.get("on", LOCAL) != LOCAL:
        engine = resources.enter_context(connect_engine(options["on"], spec.command, pool))
    if pool is None and options.get("max_wait") is not None:
        reporter.screen.message("Warning: --max-wait has no effect in a run without keys: no item waits for one")
    gateway = None
    if has_gateway and keep and keys is not None and pool is not None:
        gateway = start_gateway(options, keys, pool, prices, resources)
    make = functools.partial(
        make_coordinator,
        pool=pool,
        retries=0 if spec.command is not None else FUNCTION_RETRIES,
        ledger=folder.ledger,
        reporter=reporter,
        engine=engine,
        gateway=gateway,
        budget=budget if keep else None,
    )
    bound = None
    if is_auto(options, pool, engine):
        bound = bound_at_once(options, pool, is_command=spec.command is not None)
    coordinator = make(options)
    if keep and engine is None:
        coordinator = _within_limits(coordinator, spec, make, reporter, is_fixed=bound is None)
    redact = None if pool is None else pool.redact_value
    with reporter.note_reading():
        items = read_items(spec.items, folder, options.get("id_field"), keep=keep, redact=redact, is_resume=is_resume)
        items = shuffled(filtered(items, options.get("filter", ())), options.get("shuffle"))
        tokens_func = token_counter(options.get("tokens"))
        # A mistake in the first item of stdin, too, is reported before there is a run to resume.
        _check_fields(items, items.read_first(), worker, tokens_func)
    items = only_failed(limited(items, options.get("limit"), folder), only, folder)
    gateway_url = None if gateway is None else gateway.url
    reload = None
    if pool is not None and keys is not None:
        reload = KeysReload(
            Path(spec.cwd, options["keys"]) if "keys" in options else None,
            keys,
            pool,
            lambda new: _check_usable(spec, new, has_gateway=has_gateway),
        )
        if gateway is not None:
            reload.listeners.append(lambda new: gateway.use_addresses(known_addresses(new.base_urls)))
    return PreparedRun(worker, pool, keys, store, items, coordinator, tokens_func, gateway_url, bound, reload)


def make_coordinator(
    options: dict[str, Any],
    pool: CredentialCoordinator | None,
    *,
    retries: int = 0,
    ledger: Path | None = None,
    reporter: Callable[[Any], None] | None = None,
    engine: Engine | None = None,
    gateway: AttemptAccess | None = None,
    budget: Budget | None = None,
) -> ParallelCoordinator:
    """Return a coordinator for options of `agentos run`; `retries` is the default of that option."""
    parallel, max_parallelism = options.get("parallel"), options.get("max_parallelism")
    if engine is not None and parallel in (None, "auto"):
        parallel = engine_slots(engine)  # leases bound the run by themselves
    elif is_auto(options, pool, engine):
        parallel = "auto"
    if max_parallelism is None and isinstance(parallel, int):
        max_parallelism = parallel  # the cap of 10 is for programs; on the command line --parallel 50 means 50
    try:
        return ParallelCoordinator(
            parallel,
            pool,
            max_parallelism=max_parallelism,
            workers="threads" if engine is None else engine.executor,
            retries=options.get("retries", retries),
            timeout=options.get("timeout"),
            halt=options.get("halt"),
            max_wait=None if pool is None else options.get("max_wait"),
            grace_seconds=options.get("grace", 5.0),
            on_changed=options.get("on_changed", "refuse"),
            ledger=ledger,
            reporter=reporter,
            gateway=gateway or False,
            budget=budget,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def is_auto(options: dict[str, Any], pool: CredentialCoordinator | None, engine: Engine | None = None) -> bool:
    """Return whether the run finds out by itself how many items run at once: the default with keys."""
    parallel = options.get("parallel")
    return engine is None and (parallel == "auto" or (parallel is None and pool is not None))


def _within_limits(
    coordinator: ParallelCoordinator,
    spec: RunSpec,
    make: Callable[[dict[str, Any]], ParallelCoordinator],
    reporter: RunReporter,
    *,
    is_fixed: bool,
) -> ParallelCoordinator:
    """Return a coordinator with as many workers as the limits of this process admit, made by `make` from options. Raise
    `Failure` if there is no room for one. A number that is not fixed is bound by them anyway."""
    room = room_for_run(is_command=spec.command is not None)
    if room is not None and room.attempts < 1:
        raise Failure(f"the limits of this shell leave no room for a run: {room.limit} is too low, raise it")
    if room is None or room.attempts >= coordinator.max_workers or not is_fixed:
        return coordinator
    reporter.screen.message(
        f"Warning: {room.limit} leaves room for {room.attempts} of {coordinator.max_workers} items at a time: raise it "
        "to run more"
    )
    return make({**spec.options, "parallel": room.attempts})


def _make_worker(
    spec: RunSpec, keys: Keys | None, folder: RunFolder, reporter: RunReporter, *, has_gateway: bool
) -> Any:
    if not spec.command and not spec.function:
        raise Failure(f"the run.json of {folder.path} has neither a command nor a function: restore it")
    if spec.command is not None:
        return _make_command(spec, keys, folder, reporter, has_gateway=has_gateway)
    # Before the module is imported: it may hand sys.stderr to a logger of its own.
    reporter.capture_output(folder.logs, None if reporter.pool is None else reporter.pool.redactor)
    return _load_function(spec)


def _make_command(
    spec: RunSpec, keys: Keys | None, folder: RunFolder, reporter: RunReporter, *, has_gateway: bool
) -> Command:
    option = spec.options.get("credential_env")
    variables = option if option is not None else {} if keys is None else keys.variables
    field = spec.options.get("stdin_field")
    command = Command(
        spec.command or [],
        credential_env=variables,
        stdin="" if field == "{}" else field,
        patterns=() if keys is None else keys.patterns,
        folder=folder.path,
        cwd=spec.cwd,
        show=reporter.show_output,
    )
    problem = command.problem()
    if problem is not None:
        raise click.UsageError(problem)
    if keys is not None:
        try:
            _check_usable(spec, keys, has_gateway=has_gateway)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    return command


def _check_usable(spec: RunSpec, keys: Keys, *, has_gateway: bool) -> None:
    """Raise ValueError for keys that the run cannot use: through a gateway one without a secret, by a command one that
    no variable passes to it."""
    for credential in keys.credentials:
        if has_gateway and not credential.has_secret:
            raise ValueError(f"the credential {credential.id} has no key: it cannot be used through a gateway")
        is_passed = spec.options.get("credential_env") is not None or credential.id in keys.variables
        if spec.command is not None and not has_gateway and credential.has_secret and not is_passed:
            raise ValueError(_no_variable_text(credential, keys))


def _no_variable_text(credential: Credential, keys: Keys) -> str:
    """Return why a command would not find the key, and what to write."""
    place = keys.places.get(credential.id)
    problem = f"the key {credential.id!r} has no variable in which a command finds it"
    if place is None:  # a variable of the environment
        return f"{problem}: no known provider has one whose name begins so; give --credential-env NAME"
    variable = 'add credential_env = "NAME" to it, or give --credential-env NAME'
    if credential.provider is None:
        return f'{place}: {problem}: add provider = "openai" (or another one) or {variable.removeprefix("add ")}'
    return f"{place}: {problem}: the provider {credential.provider!r} is not known; {variable}"


def _load_function(spec: RunSpec) -> Callable[..., Any]:
    """Import MODULE:FUNCTION, from the folder of the run too."""
    assert spec.function is not None
    module_name, _, name = spec.function.partition(":")
    if spec.cwd not in sys.path:
        sys.path.insert(0, spec.cwd)
    try:
        function: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise click.UsageError(f"no module {module_name!r} in {spec.cwd} or installed") from None
        raise click.UsageError(f"the module {module_name!r} cannot be imported: {error}") from error
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ({frame.filename}, line {frame.lineno})"
        raise click.UsageError(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}{place}"
        ) from error
    for attribute in name.split("."):
        if not hasattr(function, attribute):
            similar = get_close_matches(attribute, [other for other in dir(function) if not other.startswith("_")], n=1)
            hint = f": did you mean {similar[0]}?" if similar else ""
            raise click.UsageError(f"the module {module_name!r} has no function {name!r}{hint}")
        function = getattr(function, attribute)
    if not callable(function):
        raise click.UsageError(f"{spec.function} is not a function: give one that takes (item, credential)")
    try:
        check_signature(function)
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    checked: Callable[..., Any] = function
    return checked


def _check_secrets(spec: RunSpec, pool: CredentialCoordinator | None) -> None:
    if pool is not None and any(pool.hides_secret(argument) for argument in spec.command or ()):
        raise click.UsageError(
            "the command contains the secret of a credential, visible in the list of processes: remove it; the command "
            "gets it in its environment (--credential-env)"
        )


def _check_fields(items: Items, known_items: list[Item], worker: Any, tokens_func: Callable[[Any], int] | None) -> None:
    """Raise for the first item without a field that every attempt needs, instead of one failure per item later."""
    for number, item in enumerate(known_items, start=1):
        name = f"item {number} ({escape_controls(items.id_of(item))[:60]})"
        missing = worker.missing(item) if isinstance(worker, Command) else None
        if missing is not None:
            has = f"it has {', '.join(item)}" if isinstance(item, dict) else _TEXT_ITEM
            brace = "" if missing == worker.stdin else f"; literal braces are written {{{{{missing}}}}}"
            raise click.UsageError(f"{name} has no field {missing!r}, but the command needs it: {has}{brace}")
        try:
            _ = tokens_func is None or tokens_func(item)
        except ValueError as error:
            raise click.UsageError(f"{name}: {error}") from None
