"""`agentos run`, `resume` and `retry`: describe a run by its arguments, and carry it out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.home.run_folder import SPEC_VERSION, RunFolder, RunSpec, is_demo
from agentos.home.run_status import FINISHED, open_ledger, read_status
from agentos.identifiers import sanitize_identifier
from agentos.ledger.recorded import DAMAGED
from agentos.plurals import plural
from agentos.pool.store_url import absolute
from agentos.runs.options import MAX_RUN_ID_LENGTH, new_run_id

from .. import options
from ..completion import files, run_ids
from ..console import SOME_FAILED, SUCCEEDED, Command
from ..find import LAST, find_run

if TYPE_CHECKING:
    from ..launch.reporter import OutputMode

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
# A function named by its file, where MODULE:FUNCTION is expected.
_FUNCTION_IN_FILE = re.compile(r"(?P<path>[\w./-]+)\.py:(?P<name>[A-Za-z_][\w.]*)")
# Options that are recorded with a run, and that `resume` and `retry` can replace.
_RECORDED_OPTIONS = (
    "parallel",
    "max_parallelism",
    "keys",
    "key_env",
    "store",
    "tokens",
    "on",
    "credential_env",
    "gateway",
    "hold",
    "requests_per_item",
    "retries",
    "timeout",
    "halt",
    "max_wait",
    "grace",
    "on_changed",
    "budget",
    "budget_tokens",
    "item_budget",
    "budget_hard",
    "budget_reported",
    "item_cost",
    "limit",
)
# Options that are recorded when a run is created, and never replaced.
_FIXED_OPTIONS = ("stdin_field", "id_field", "filter", "shuffle")

# The parameters of `resume` and `retry`.
_RESUME_PARAMETERS = options.several(
    options.PACE,
    options.EXECUTION,
    options.BUDGET,
    options.ON_CHANGED,
    options.OUTPUT,
    click.argument("run_id", metavar="RUN", shell_complete=run_ids),
)
_ONLY = click.option(
    "--only",
    metavar="CLASS,…",
    help="Retry only items that failed with these classes of failure, such as timeout,overloaded or the name of an "
    "exception; agentos show lists them.",
)


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@options.ITEMS
@options.CHOICE
@options.LIMIT
@options.PACE
@options.EXECUTION
@options.BUDGET
@options.STDIN_FIELD
@options.option("--run-id", metavar="NAME", help="Id of the run. An existing run with this id is continued.")
@options.option("--dry-run", is_flag=True, help="Show what would run and how long it would take; start nothing.")
@options.ITEM_SECONDS
@options.ON_CHANGED
@options.OUTPUT
@click.argument(
    "worker", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND... | MODULE:FUNCTION", shell_complete=files
)
@click.pass_context
def run(context: click.Context, /, worker: tuple[str, ...], **values: Any) -> None:
    """Run COMMAND, or the Python function MODULE:FUNCTION, on every item.

    In COMMAND, {id} is the item's id, {} the item itself, {field} a field of it, and {{ a brace. No shell is
    involved; to use one, run sh -c '...'. A function gets the item and its credential; it runs in this process, or with
    --on on a Dask cluster, whose workers must be able to import it and to read the keys.

    With --gateway the requests of items go through a gateway, which leases a key for each of them: a limit is
    waited for, not seen. A command then finds a client token in place of its key, and the address in
    OPENAI_BASE_URL, ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL and AGENTOS_GATEWAY_URL.

    A command finds its key in the variable that its provider's tools read (or --credential-env), and its item as JSON
    in AGENTOS_ITEM. It reports a limit by its output, by exit status 75, or with agentos report; the item is then
    retried with another key, or waits. If it fails and no item has succeeded with its key in this run, it is executed
    again with another key, once after a time-out and else at most five times; that counts as no retry.

    The output of items goes to stdout, each line after its item's id; progress and messages go to stderr.
    After Ctrl-C or a crash nothing is lost: agentos resume continues.

    \b
    Examples:
      agentos run --item a --item b --item c -- echo hello {id}
      agentos run --items issues.jsonl --keys keys.toml -- claude -p "Fix {title}"
      ls *.py | agentos run --items - --parallel 8 -- ruff check {}
      agentos run --items prompts.txt --key-env 'OPENAI_API_KEY*' workers:answer
      agentos run --items issues.jsonl --keys keys.toml --gateway -- claude -p "Fix {title}"
      agentos run --items issues.jsonl --keys keys.toml --gateway --budget 20 -- claude -p "Fix {title}"

    Exit status: 0 all succeeded, 1 some failed, 2 wrong usage, 3 agentos failed (ledger, store, run busy, stdout on a
    full disk), 4 stopped (no usable credential, --budget, --max-wait, --stop-on-closed-output), 130 or 143 interrupted.
    After 4, 130 and 143 agentos resume continues.
    """
    from ..launch.execute import dry_run, execute

    spec = _spec(worker, values)
    folder = RunFolder(spec.run_id)
    if folder.exists():
        _check_same_command(folder.read_spec(), spec)
    mode = _output_mode(values)
    if values["dry_run"]:
        context.exit(dry_run(folder, spec, values["item_seconds"], mode))
    context.exit(execute(folder, spec, mode))


@click.command(cls=Command)
@options.LIMIT
@_RESUME_PARAMETERS
@click.pass_context
def resume(context: click.Context, /, run_id: str, **values: Any) -> None:
    """Continue the unfinished items of RUN, with its recorded command, items and options.

    Options given here replace the recorded ones. After a run with --limit it runs the items that are left.

    \b
    Examples:
      agentos resume 20261116-093012-1f3a5c
      agentos resume last --limit 50
    """
    context.exit(_relaunch(run_id, values, retry_failed=False))


@click.command(cls=Command)
@_ONLY
@_RESUME_PARAMETERS
@click.pass_context
def retry(context: click.Context, /, run_id: str, only: str | None, **values: Any) -> None:
    """Retry the failed items of RUN, and continue its unfinished ones; after a run with --limit only those that were
    started.

    With --only, retry the items that failed with these classes of failure, and nothing else.

    \b
    Examples:
      agentos retry 20261116-093012-1f3a5c --timeout 600
      agentos retry last --only timeout,overloaded
    """
    context.exit(_relaunch(run_id, values, retry_failed=True, only=only))


def _relaunch(run_id: str, values: dict[str, Any], *, retry_failed: bool, only: str | None = None) -> int:
    from ..launch.execute import execute
    from ..launch.selection import class_names

    folder = find_run(run_id)
    spec = folder.read_spec()
    if is_demo(spec):
        raise click.UsageError(
            f"run {folder.run_id} was a demo: its keys and its provider existed only while it ran; agentos demo starts "
            "another one"
        )
    if retry_failed and only is None and (text := _nothing_to_retry(folder)) is not None:
        click.echo(text, err=True)
        return SUCCEEDED
    if not retry_failed and not values["as_json"] and (ended := _nothing_to_resume(folder)) is not None:
        text, status = ended
        click.echo(text, err=True)
        return status
    was_limited = spec.options.pop("limit", None) is not None
    spec.options |= _recorded_options(values)
    if retry_failed and was_limited and read_status(folder).remaining:
        spec.options["limit"] = 0  # a retry of a pilot is still a pilot: it starts no further items
    return execute(
        folder,
        spec,
        _output_mode(values),
        retry_failed=retry_failed,
        is_resume=True,
        only=class_names(only),
    )


def _nothing_to_retry(folder: RunFolder) -> str | None:
    """Return why a retry of the run would start nothing; None if it would, or that cannot be known."""
    status = read_status(folder)
    if status.problem is not None or not status.launches or status.counts.failed or status.counts.unfinished:
        return None
    with open_ledger(folder) as ledger:
        if any(True for _ in ledger.items(DAMAGED)):
            return None
    left = "" if not status.remaining else f"; {plural(status.remaining, 'item')} not started: agentos resume "
    return f"Nothing to retry: no item of run {folder.run_id} has failed{left}{folder.run_id if left else ''}"


def _nothing_to_resume(folder: RunFolder) -> tuple[str, int] | None:
    """Return why a resume of the run would start nothing, and its exit status; None if it would start something, or
    that cannot be known."""
    from ..launch.item_input import changed_files

    status = read_status(folder)
    if status.state != FINISHED or status.spec is None or status.remaining != 0 or changed_files(status.spec):
        return None
    failed = status.counts.failed
    ended = f"Nothing to resume: {plural(status.counts.succeeded + failed, 'item')} of run {folder.run_id} ended"
    if not failed:
        return f"{ended}, all with success", SUCCEEDED
    return f"{ended}, {failed} as failures. To try these again: agentos retry {folder.run_id}", SOME_FAILED


def _spec(worker: tuple[str, ...], values: dict[str, Any]) -> RunSpec:
    if not worker:
        raise click.UsageError(
            "there is nothing to run: name a command after --, such as  -- echo {id}  , or a function, MODULE:FUNCTION"
        )
    if len(worker) == 1 and (in_file := _FUNCTION_IN_FILE.fullmatch(worker[0])):
        module = in_file["path"].removeprefix("./").replace("/", ".")
        raise click.UsageError(f"a function is named by its module, not by its file: write {module}:{in_file['name']}")
    if len(worker) > 1 and _FUNCTION.fullmatch(worker[0]) and shutil.which(worker[0]) is None:
        raise click.UsageError(
            f"there is no program {worker[0]!r}; if it is a function, options stand before it: "
            f"agentos run … {shlex.join(worker[1:])} {worker[0]}"
        )
    items = options.sources(values)
    if not items:
        raise click.UsageError("no items given: use --items FILE, --items - for stdin, or --item X")
    is_function = len(worker) == 1 and _FUNCTION.fullmatch(worker[0]) is not None
    recorded = _recorded_options(values)
    for name in _FIXED_OPTIONS:
        if values[name] not in (None, []):
            recorded[name] = values[name]
    return RunSpec(
        version=SPEC_VERSION,
        run_id=_run_id(values["run_id"]),
        created_at=time.time(),
        cwd=os.getcwd(),  # noqa: PTH109
        items=items,
        command=None if is_function else list(worker),
        function=worker[0] if is_function else None,
        options=recorded,
    )


def _run_id(name: str | None) -> str:
    if name is None:
        return new_run_id()
    try:
        sanitize_identifier(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--run-id") from None
    if name == LAST:
        raise click.BadParameter(
            f"{LAST!r} names the newest run in other commands: choose another id", param_hint="--run-id"
        )
    if len(name) > MAX_RUN_ID_LENGTH:
        raise click.BadParameter(f"at most {MAX_RUN_ID_LENGTH} characters", param_hint="--run-id")
    return name


def _recorded_options(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were set and that a resume needs, with absolute paths."""
    recorded = {name: values[name] for name in _RECORDED_OPTIONS if values.get(name) is not None}
    if "keys" in recorded:
        recorded["keys"] = os.path.abspath(recorded["keys"])  # noqa: PTH100 - a link must stay one
    if "store" in recorded:
        recorded["store"] = absolute(recorded["store"], Path.cwd())
    return recorded


def _check_same_command(existing: RunSpec, spec: RunSpec) -> None:
    """Raise if a run of this name exists with another command. Other options may differ."""
    if (existing.command, existing.function) != (spec.command, spec.function):
        command = " ".join(existing.command or [existing.function or ""])
        raise click.UsageError(
            f"the run {spec.run_id!r} already exists with another command: {command[:200]}\n"
            f"Choose another --run-id, or continue that run: agentos resume {spec.run_id}"
        )


def _output_mode(values: dict[str, Any]) -> OutputMode:
    from ..launch.reporter import OutputMode

    if values["as_json"] and values["quiet"]:
        raise click.UsageError("--json and --quiet exclude each other")
    return OutputMode(values["as_json"], values["quiet"], values["no_progress"], values["stop_on_closed_output"])
