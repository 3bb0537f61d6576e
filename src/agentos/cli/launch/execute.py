"""Carries out a run that a `RunSpec` describes, or shows what it would do, and returns the exit status."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Collection, Iterator

from agentos.errors import LedgerError, WorkerStartError
from agentos.home.run_folder import LaunchEnd, RunFolder, RunSpec
from agentos.items.results import ProgressStats
from agentos.items.sources import DAMAGED_RECORD
from agentos.keys.reload_requests import ReloadInbox
from agentos.ledger.reader import Ledger
from agentos.plurals import plural
from agentos.pool.store import MEMORY
from agentos.reporters.bound_text import LEARNED
from agentos.reporters.format import shorten
from agentos.terminal.screen import PATIENCE_SECONDS, Screen
from agentos.workers.command.command import Command

from ..console import FAILED, SIGNALLED, SOME_FAILED, STOPPED, SUCCEEDED, WRONG_USAGE, Failure, say
from ..enabling import enabling_commands
from .budget_setup import BUDGET_AMOUNTS
from .item_facts import item_facts
from .item_input import BadItems, Item, changed_files
from .key_confirmation import KeyConfirmation
from .keys_watch import KeysWatch, on_hang_up
from .planning import plan_run
from .pool_setup import quarantine_messages
from .prepare import PreparedRun, prepare_run
from .reporter import OutputMode, RunReporter
from .selection import pilot_text

# Printed after a run that learned limits have bound.
LEARNED_HINT = (
    "The limits were learned from answers, and the next run with the same store starts with them: nothing has to be "
    "declared in the keys file."
)
# Commands that a dry run shows, and characters of each.
SHOWN_COMMANDS = 3
MAX_COMMAND = 500


def execute(
    folder: RunFolder,
    spec: RunSpec,
    mode: OutputMode,
    *,
    retry_failed: bool = False,
    is_resume: bool = False,
    only: Collection[str] = (),
) -> int:
    """Carry out a run: block until it has ended, and return the exit status. `only`: see `prepare_run`."""
    with contextlib.ExitStack() as resources, RunReporter(Screen(), mode, folder) as reporter:
        try:
            run = prepare_run(folder, spec, reporter, resources, is_resume=is_resume, only=only)
        except BaseException:
            folder.discard_unused()
            raise
        reporter.stop_run = run.coordinator.request_shutdown
        if is_resume:
            _warn_of_changed_items(folder, spec, run, reporter)
            _warn_of_older_ledger(folder, reporter)
        folder.make()
        if not folder.exists():
            spec.total = run.items.total
            folder.write_spec(spec)
        else:
            _record_budget(folder, spec)
        if not mode.as_json and not mode.quiet:
            reporter.screen.message(f"Run {folder.run_id} in {folder.path}")
            if run.gateway_url is not None:
                reporter.screen.message(f"Gateway on {run.gateway_url}: items get a client token in place of a key.")
        confirmation = KeyConfirmation(run.pool, run.keys)
        if run.reload is not None:
            run.reload.listeners.append(confirmation.use)
        inbox = None if run.pool is None else ReloadInbox(folder.run_id)
        watch = KeysWatch(run.pool, run.reload, inbox, reporter.screen.message)
        with watch, confirmation as reporter.listener, on_hang_up(run.coordinator.request_shutdown, watch):
            status = _consume(folder, spec, run, reporter, inbox, retry_failed=retry_failed)
        if status in (SUCCEEDED, SOME_FAILED) and not run.items.is_whole:
            return STOPPED  # the part of stdin that was never read is left to do
    if status == STOPPED and run.pool is not None:
        for message in _advice_on_keys(reporter, spec, run):
            reporter.screen.message(message)
    bound_by = None if reporter.run_ended is None else reporter.run_ended.bound_by
    is_kept = run.store.url != MEMORY  # what was learned
    if bound_by is not None and LEARNED in bound_by and is_kept and not mode.as_json and not mode.quiet:
        reporter.screen.message(LEARNED_HINT)
    if spec.total is None and run.items.rest_count:
        spec.total = run.items.total  # stdin was read to its end
        folder.write_spec(spec)
    is_stopped = status not in (SUCCEEDED, SOME_FAILED)
    reporter.suggest_next_command(folder, status, pilot_text(run.items, folder.run_id, is_stopped=is_stopped))
    reporter.screen.flush(PATIENCE_SECONDS)
    return FAILED if status in (SUCCEEDED, SOME_FAILED) and reporter.is_output_incomplete() else status


def _advice_on_keys(reporter: RunReporter, spec: RunSpec, run: PreparedRun) -> list[str]:
    """Return how to put credentials back into use after a run has stopped early."""
    stopped = None if reporter.run_ended is None else reporter.run_ended.stats.stopped
    commands = enabling_commands(stopped, spec)
    if commands:
        return ["Before the run is resumed:", *(f"  {command}" for command in commands)]
    return [] if run.pool is None else [f"Warning: {text}" for text in quarantine_messages(run.pool, run.store)]


def _record_budget(folder: RunFolder, spec: RunSpec) -> None:
    """Record the amounts of a budget that this launch was given: they are those of the run from now on."""
    recorded = folder.read_spec()
    amounts = {name: spec.options[name] for name in BUDGET_AMOUNTS if name in spec.options}
    if any(recorded.options.get(name) != amount for name, amount in amounts.items()):
        recorded.options |= amounts
        folder.write_spec(recorded)


def _warn_of_changed_items(folder: RunFolder, spec: RunSpec, run: PreparedRun, reporter: RunReporter) -> None:
    for change in changed_files(spec):
        reporter.screen.message(f"Warning: {change}: changed items will not be run")
    if not run.items.is_whole:
        reporter.screen.message(
            "Warning: stdin was not read to its end, so only the items that were read are continued; pass the whole "
            f"input again: ... | agentos run --run-id {folder.run_id} --items - ..."
        )


def _warn_of_older_ledger(folder: RunFolder, reporter: RunReporter) -> None:
    """Warn if the ledger is older than the note on the end of the last launch, which stands beside it."""
    end = folder.read_end()
    if end is None:
        return
    launch = 0
    if folder.ledger.exists():
        with Ledger.open(folder.ledger) as ledger:
            launch = len(ledger.launches())
    if launch < end.launch:
        reporter.screen.message(
            f"Warning: the ledger of this run is older than its folder (launch {end.launch} has ended, the ledger ends "
            f"with launch {launch}; restored from a copy?): items that have ended since then are executed again"
        )


def _consume(
    folder: RunFolder,
    spec: RunSpec,
    run: PreparedRun,
    reporter: RunReporter,
    inbox: ReloadInbox | None,
    *,
    retry_failed: bool,
) -> int:
    """Take all results of the run, record how it ended, and return the exit status."""
    try:
        stream = run.coordinator.stream(
            run.items.source,
            run.worker,
            run.items.id_of,
            run_id=spec.run_id,
            retry_failed=retry_failed,
            tokens_func=run.tokens_func,
        )
        # Not before: a second process is refused the ledger, and must not take the place of the one that owns the run.
        with stream, contextlib.nullcontext() if inbox is None else inbox:
            reporter.start(stream)
            try:
                damaged = sum(result.metadata.get("error_type") == DAMAGED_RECORD for result in stream)
            finally:
                reporter.stop()
        status = _exit_status(stream.stats, reporter)
        if damaged:
            status = status or SOME_FAILED
            records = plural(damaged, "recorded result")
            problem = f"{records} cannot be used, the ledger is damaged"
            reporter.screen.message(f"Warning: {problem}: see agentos show {folder.run_id}")
    except KeyboardInterrupt:
        status = SIGNALLED + (reporter.signal or signal.SIGINT)
        reporter.screen.message("Stopped at once.")
    except BadItems:  # read from stdin while the run was going on; the end of the run has reported it
        status = WRONG_USAGE
    except (LedgerError, WorkerStartError, OSError) as error:  # errors of workers are results, and not raised here
        raise Failure(str(error)) from None
    if (event := reporter.run_ended) is not None:
        with Ledger.open(folder.ledger) as ledger:
            launch = len(ledger.launches())
        folder.write_end(LaunchEnd(launch, status, event.bound_by, event.stats.elapsed, event.stats.stopped))
    return status


def _exit_status(stats: ProgressStats, reporter: RunReporter) -> int:
    if stats.stopped is None or stats.stopped.startswith("halted"):
        return SUCCEEDED if not stats.failed and stats.stopped is None else SOME_FAILED
    if stats.stopped == "interrupted" and not (reporter.is_stopped_by_reader and reporter.signal is None):
        return SIGNALLED + (reporter.signal or signal.SIGINT)
    return STOPPED


def dry_run(folder: RunFolder, spec: RunSpec, item_seconds: float | None, mode: OutputMode) -> int:
    """Print what a run would do and how long it would take. Start nothing and write nothing."""
    with contextlib.ExitStack() as resources, RunReporter(Screen(), mode, folder) as reporter:
        run = prepare_run(folder, spec, reporter, resources, keep=False)
        items = list(run.items)
        reporter.start(None)
        run.coordinator.execute_parallel(items, run.worker, run.items.id_of, dry_run=True, run_id=spec.run_id)
    if not mode.as_json:
        for line in _first_commands(items, run, spec):
            say(line)
    facts = item_facts(folder, spec.options, item_seconds)
    arguments = facts.plan_arguments() | {"tokens_func": run.tokens_func, "budget": spec.options.get("budget")}
    print(plan_run(items, run.coordinator, run.bound, **arguments))
    return SUCCEEDED


def _first_commands(items: list[Item], run: PreparedRun, spec: RunSpec) -> Iterator[str]:
    """Yield how many items would run, and the first commands with their fields filled in."""
    of_total = f" of {run.items.total}" if run.items.total not in (None, len(items)) else ""
    yield f"{plural(len(items), 'item')}{of_total} would run; nothing is started:"
    for item in items[:SHOWN_COMMANDS]:
        item_id = run.items.id_of(item)
        if isinstance(run.worker, Command):
            text = shlex.join(run.worker.filled(item, item_id))
        else:
            text = f"{spec.function} with item {item_id}"
        yield f"  {shorten(text, MAX_COMMAND)}"
    if len(items) > SHOWN_COMMANDS:
        yield f"  … and {len(items) - SHOWN_COMMANDS} more"
    if isinstance(run.worker, Command) and len(items) > 1 and not run.worker.has_placeholders:
        yield "  The command has no placeholder such as {}: its item is in the variable AGENTOS_ITEM only."
