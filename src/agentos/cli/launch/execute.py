"""Carries out a run that is described by a `RunSpec`: pool, worker, items, display, and the exit status at the end."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import click

from agentos.events import (
    CredentialQuarantined,
    ItemEnded,
    LimitShared,
    RunEnded,
    RunResumed,
    RunStopping,
    StoreReached,
    StoreUnreachable,
    ThreadAbandoned,
)
from agentos.home.run_folder import Ended, RunFolder, RunSpec
from agentos.keys.keys_file import Keys
from agentos.output.capture import Printed
from agentos.output.prefix import prefix_lines
from agentos.redaction.redactor import Redactor
from agentos.reporters.format import escape_controls
from agentos.reporters.sentences import event_text
from agentos.reporters.writers import JsonReporter
from agentos.runs.streams import ResultStream
from agentos.terminal.lines import LinesReporter, json_output
from agentos.terminal.screen import Screen, Stream
from agentos.workers.command.command import Command
from agentos.workers.engines.connect import Engine
from agentos.workflows.parallel import (
    CredentialCoordinator,
    LedgerError,
    ParallelCoordinator,
    ProgressStats,
    WorkerStartError,
)

from ..console import SIGNALLED, SOME_FAILED, STOPPED, SUCCEEDED, WRONG_USAGE, Failure
from ._store import Store, chosen
from ._tokens import tokens_func
from .engine import HERE, connect_engine, engine_slots
from .item_input import BadItems, Items, SizedItems, changed_files, read_items
from .pool_setup import DisabledWatch, make_pool, out_of_use, read_keys, warnings

# Without a run to learn it from, an item of a plan takes so long.
ITEM_SECONDS = 10.0
# A command is repeated only if it is said so: it may have done half of its work.
FUNCTION_RETRIES = 2
# Above a live display, people are told of these and of failures; whatever else there is to say is in the display.
_WORTH_A_LINE = (
    RunResumed, RunStopping, CredentialQuarantined, LimitShared, StoreUnreachable, StoreReached, ThreadAbandoned,
)  # fmt: skip


class Shown(NamedTuple):
    """How a run is to be shown."""

    as_json: bool = False
    quiet: bool = False
    no_progress: bool = False


class Work(NamedTuple):
    """What a run is made of, checked as far as it can be before anything starts."""

    worker: Any  # a Command or a function
    pool: CredentialCoordinator | None
    store: Store
    items: Items
    coordinator: ParallelCoordinator
    tokens: Callable[[Any], int] | None


def execute(
    folder: RunFolder, spec: RunSpec, how: Shown, *, retry_failed: bool = False, is_resume: bool = False
) -> int:
    """Returns the exit status."""
    with Teller(Screen(), how, spec.run_id) as teller:
        work = prepare(folder, spec, teller, is_resume=is_resume)
        if is_resume:
            for changed in changed_files(spec):
                teller.screen.message(f"Warning: {changed}: items that are not as they were will not be run")
            if not work.items.is_whole:
                teller.screen.message(
                    "Warning: stdin was not read to its end when the run began, and this goes on with what came; the "
                    f"rest must come again: ... | agentos run --run-id {spec.run_id} --items - ..."
                )
        folder.make()
        if not folder.exists():
            spec.total = work.items.total
            folder.write_spec(spec)
        if not how.as_json and not how.quiet:
            teller.screen.message(f"Run {spec.run_id} in {folder.path}")
        with DisabledWatch(work.pool):
            status = _carry_out(folder, spec, work, teller, retry_failed=retry_failed)
        if status in (SUCCEEDED, SOME_FAILED) and not work.items.is_whole:
            return STOPPED  # something is left, and only the one who sent it knows what
    if status == STOPPED and work.pool is not None:
        for told in out_of_use(work.pool, work.store):
            teller.screen.message(told)
    teller.advise(folder, status)
    return status


def prepare(folder: RunFolder, spec: RunSpec, teller: Teller, *, keep: bool = True, is_resume: bool = False) -> Work:
    """Raises a `click.UsageError` that says what to do. Items come last: what came by stdin cannot come again."""
    options = spec.options
    keys = read_keys(options.get("keys"), options.get("key_env"), spec.cwd)
    for warning in keys.warnings if keys is not None else ():
        teller.screen.message(f"Warning: {warning}")
    store = chosen(options.get("store"), keys, options.get("keys"))
    pool = None if keys is None else make_pool(keys, store, teller, run=spec.run_id if keep else None)
    teller.pool = pool
    if pool is not None:
        for told in warnings(pool, store):
            teller.screen.message(f"Warning: {told}")
    if spec.command is not None:
        worker: Any = _command(spec, keys, folder, teller)
    else:
        # Before its module is imported, which may give our stderr to its own log.
        teller.capture(folder.logs, None if pool is None else pool.redactor())
        worker = _function(spec)
    _check_secrets(spec, pool)
    engine = None
    if options.get("on", HERE) != HERE:
        engine = teller.until_the_end.enter_context(connect_engine(options["on"], spec.command, pool))
    retries = 0 if spec.command is not None else FUNCTION_RETRIES
    coordinator = make_coordinator(options, pool, retries=retries, ledger=folder.ledger, reporter=teller, engine=engine)
    redact = None if pool is None else pool.redact_value
    items = read_items(spec.items, folder, options.get("id_field"), keep=keep, redact=redact, is_resume=is_resume)
    tokens = tokens_func(options.get("tokens"))
    if isinstance(items, SizedItems):
        _check_fields(items, worker, tokens)
    return Work(worker, pool, store, items, coordinator, tokens)


def _command(spec: RunSpec, keys: Keys | None, folder: RunFolder, teller: Teller) -> Command:
    named = spec.options.get("credential_env")
    variables = named if named is not None else {} if keys is None else keys.variables
    field = spec.options.get("stdin_field")
    command = Command(
        spec.command or [],
        credential_env=variables,
        stdin="" if field == "{}" else field,
        patterns=() if keys is None else keys.patterns,
        folder=folder.path,
        cwd=spec.cwd,
        show=teller.output,
    )
    problem = command.problem()
    if problem is not None:
        raise click.UsageError(problem)
    for credential in keys.credentials if keys is not None else ():
        if command.variable(credential.id) is None:
            raise click.UsageError(
                f"nobody has said in which variable the command finds the key {credential.id!r}: name it with "
                "--credential-env, or name the key's provider in the keys file"
            )
    return command


def _function(spec: RunSpec) -> Callable[..., Any]:
    assert spec.function is not None
    module_name, _, name = spec.function.partition(":")
    if spec.cwd not in sys.path:
        sys.path.insert(0, spec.cwd)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise click.UsageError(f"there is no module {module_name!r} in {spec.cwd}, nor is one installed") from None
        raise click.UsageError(f"the module {module_name!r} cannot be imported: {error}") from error
    except Exception as error:
        raise click.UsageError(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"the module {module_name!r} has no function {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise click.UsageError(f"{spec.function} is no function: one that takes (item, credential) is needed")
    function: Callable[..., Any] = found
    return function


def _check_secrets(spec: RunSpec, pool: CredentialCoordinator | None) -> None:
    if pool is not None and any(pool.hides_secret(argument) for argument in spec.command or ()):
        raise click.UsageError(
            "the command holds the secret of a credential, for all to see in the list of processes: leave it out; the "
            "command finds it in its environment (--credential-env)"
        )


def _check_fields(items: SizedItems, worker: Any, tokens: Callable[[Any], int] | None) -> None:
    """What would fail each item is told once, before anything starts."""
    for number, item in enumerate(items, start=1):
        name = f"item {number} ({escape_controls(items.id_of(item))[:60]})"
        missing = worker.missing(item) if isinstance(worker, Command) else None
        if missing is not None:
            has = f"it has {', '.join(item)}" if isinstance(item, dict) else "it is a text: {} stands for it"
            raise click.UsageError(f"{name} has no field {missing!r}, but the command needs it: {has}")
        try:
            _ = tokens is None or tokens(item)
        except ValueError as error:
            raise click.UsageError(f"{name}: {error}") from None


def make_coordinator(
    options: dict[str, Any],
    pool: CredentialCoordinator | None,
    *,
    retries: int = 0,
    ledger: Path | None = None,
    reporter: Callable[[Any], None] | None = None,
    engine: Engine | None = None,
) -> ParallelCoordinator:
    """`retries`: if the options do not say."""
    parallel, most = options.get("parallel"), options.get("max_parallelism")
    if parallel == "auto" or (parallel is None and engine is not None):
        slots = engine_slots(engine) if engine is not None else os.cpu_count() or 1
        if pool is not None and parallel == "auto":
            keys = sum(state.max_concurrent for state in pool.states())
            slots = min(keys, slots) if engine is not None else keys
        parallel, most = slots, most or max(slots, ParallelCoordinator.MAX_PARALLELISM)
    try:
        return ParallelCoordinator(
            parallel,
            pool,
            max_parallelism=most,
            workers="threads" if engine is None else engine.executor,
            retries=options.get("retries", retries),
            timeout=options.get("timeout"),
            halt=options.get("halt"),
            max_wait=options.get("max_wait"),
            grace_seconds=options.get("grace", 5.0),
            on_changed=options.get("on_changed", "refuse"),
            ledger=ledger,
            reporter=reporter,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _carry_out(folder: RunFolder, spec: RunSpec, work: Work, teller: Teller, *, retry_failed: bool) -> int:
    try:
        stream = work.coordinator.stream(
            work.items.source,
            work.worker,
            work.items.id_of,
            run_id=spec.run_id,
            retry_failed=retry_failed,
            tokens_func=work.tokens,
        )
        with _hang_up(work.coordinator), stream:
            teller.start(stream)
            try:
                for _ in stream:
                    pass
            finally:
                teller.stop()
        status = _status(stream.stats, teller.signal)
    except KeyboardInterrupt:
        status = SIGNALLED + (teller.signal or signal.SIGINT)
        teller.screen.message("Ended at once.")
    except BadItems:  # from stdin, in the middle: the end of the run has told what it is
        status = WRONG_USAGE
    except (LedgerError, WorkerStartError, OSError) as error:  # none of them is a worker's
        raise Failure(str(error)) from None
    if teller.ended is not None:
        launch = _launch(folder)
        ended = teller.ended
        folder.write_ended(Ended(launch, status, ended.bound_by, ended.stats.elapsed, ended.stats.stopped))
    return status


def _launch(folder: RunFolder) -> int:
    from agentos.ledger.reader import Ledger

    with Ledger.open(folder.ledger) as ledger:
        return len(ledger.launches())


def _status(stats: ProgressStats, signum: int | None) -> int:
    if stats.stopped is None or stats.stopped.startswith("halted"):
        return SUCCEEDED if not stats.failed and stats.stopped is None else SOME_FAILED
    if stats.stopped == "interrupted":
        return SIGNALLED + (signum or signal.SIGINT)
    return STOPPED


class _hang_up:  # noqa: N801 - reads as a phrase
    """When the terminal is closed, the run stops as with Ctrl-C, unless somebody has asked that it be ignored."""

    def __init__(self, coordinator: ParallelCoordinator) -> None:
        self._coordinator = coordinator
        self._before: Any = None

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._coordinator.request_shutdown()

    def __enter__(self) -> None:
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            self._before = signal.signal(signal.SIGHUP, self._on_signal)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGHUP, self._before)


class Teller:
    """The run's reporter: to the display, to people, or to programs; and remembers what the exit status needs."""

    def __init__(self, screen: Screen, how: Shown, run_id: str) -> None:
        self.screen = screen
        self.pool: CredentialCoordinator | None = None
        self.printed: Printed | None = None
        self.signal: int | None = None
        self.ended: RunEnded | None = None
        self.until_the_end = contextlib.ExitStack()  # what is left when the run is told no more
        self._how = how
        self._run_id = run_id
        self._lock = threading.Lock()  # guards _tell until it is known whom to tell
        self._early: list[Any] = []  # events before that
        self._tell: Callable[[Any], None] = self._early.append
        self._lines: LinesReporter | None = None
        self._is_live = False

    def __call__(self, event: Any) -> None:
        if isinstance(event, RunStopping):
            self.signal = event.signal or self.signal
        elif isinstance(event, RunEnded):
            self.ended = event
            if self._is_live:
                self.screen.stop()
        elif isinstance(event, ItemEnded) and (printed := self.printed) is not None:
            printed.item_ended(event.result.item_id)
        with self._lock:
            self._tell(event)

    def capture(self, logs: Path, redactor: Redactor | None) -> None:
        """What Python code prints, from now on until `stop`."""
        self.printed = Printed(logs, redactor, self.output)
        self.printed.__enter__()

    def start(self, run: ResultStream | None) -> None:
        """Choose the outputs, and send them the events so far. None: a dry run, which has no progress to display."""
        with self._lock:
            self._choose(run)
            for event in self._early:
                self._tell(event)

    def _choose(self, run: ResultStream | None) -> None:
        redact = None if self.pool is None else self.pool.redact
        if self._how.as_json:
            events = JsonReporter(self.screen.text_stream("stdout"))
            if redact is not None:
                events.redact_with(redact)
            self._tell = events
            return
        is_live = run is not None and self.screen.can_be_live and not self._how.quiet and not self._how.no_progress
        lines = self._lines = LinesReporter(
            self.screen.text_stream("stderr"),
            run,
            quiet=self._how.quiet or is_live,
            go_on=f"agentos resume {self._run_id}",
        )
        if redact is not None:
            lines.redact_with(redact)
        if run is None or not is_live:
            self._tell = lines
            lines.start()
            return
        from agentos.terminal.display import Display

        states = tuple if self.pool is None else self.pool.states
        display = Display(run, states, color=self.screen.has_color, unicode=self.screen.has_unicode)
        if redact is not None:
            display.redact_with(redact)

        def tell(event: Any) -> None:
            display.note(event)
            lines(event)
            if isinstance(event, _WORTH_A_LINE) and (text := event_text(event)) is not None:
                self.screen.message(text if redact is None else redact(text))

        self._tell = tell
        self._is_live = self.screen.start(display.frame)

    def stop(self) -> None:
        self.screen.stop()
        if self._lines is not None:
            self._lines.stop()
        if self.printed is not None:
            self.printed.__exit__(None, None, None)
            self.printed = None

    def __enter__(self) -> Teller:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
        self.until_the_end.close()

    def output(self, item_id: str, stream: str, data: bytes) -> None:
        """What an item has printed, in whole lines."""
        if self._how.as_json:
            self.screen.write_output(json_output(item_id, stream, data), "stdout")
            return
        name: Stream = "stderr" if stream == "stderr" else "stdout"
        self.screen.write_output(prefix_lines(_prefix(item_id), data) if item_id else data, name)

    def advise(self, folder: RunFolder, status: int) -> None:
        """What to type next."""
        if self._how.as_json or status == SUCCEEDED:
            return
        if status == SOME_FAILED:
            self.screen.message(f"agentos show {folder.run_id} says more; agentos retry {folder.run_id} tries again.")
        elif self.ended is None:  # else that was told with what is left
            self.screen.message(f"Continue with: agentos resume {folder.run_id}")


@functools.lru_cache(maxsize=4096)
def _prefix(item_id: str) -> bytes:
    return f"[{escape_controls(item_id)}] ".encode("utf-8", "backslashreplace")


# --- what would be ------------------------------------------------------------------------------------------------


def dry_run(folder: RunFolder, spec: RunSpec, item_seconds: float | None, how: Shown) -> int:
    """Shows what would run, and for how long; starts nothing, and leaves nothing behind."""
    with Teller(Screen(), how, spec.run_id) as teller:
        work = prepare(folder, spec, teller, keep=False)
        items = list(work.items)
        teller.start(None)
        work.coordinator.execute_parallel(items, work.worker, work.items.id_of, dry_run=True, run_id=spec.run_id)
    seconds = item_seconds if item_seconds is not None else usual_seconds(folder)
    print(work.coordinator.plan(items, item_seconds=seconds, tokens_func=work.tokens))
    return SUCCEEDED


def usual_seconds(folder: RunFolder) -> float:
    """That an item of a run took, if it was begun already."""
    from agentos.ledger.reader import Ledger

    if not Path(folder.ledger).exists():
        return ITEM_SECONDS
    with Ledger.open(folder.ledger) as ledger:
        durations = sorted(item.duration for item in ledger.items("succeeded") if item.duration)
    return durations[len(durations) // 2] if durations else ITEM_SECONDS
