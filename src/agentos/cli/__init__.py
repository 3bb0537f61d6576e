"""The `agentos` command: the table of its commands, and the group that loads the one that was chosen.

Each command is in `commands` (`run`, `resume` and `retry` in one module); `launch` starts runs; `console` prints
messages and sets exit statuses; `find` resolves the names of runs and items; `options` and `completion` serve all.
`agentos --help` imports click and nothing else: the table has the line of each command.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import signal
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from agentos import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.shell_completion import CompletionItem

# Command -> the module below this package that defines it under the same name, and its line in `--help`.
COMMANDS = {
    "run": ("commands.run", "Run a command, or a Python function, on every item."),
    "resume": ("commands.run", "Continue the unfinished items of a run."),
    "retry": ("commands.run", "Retry the failed items of a run."),
    "plan": ("commands.plan", "Forecast how long a run takes and what limits it."),
    "runs": ("commands.runs", "List runs, or remove old ones."),
    "show": ("commands.show", "Show what happened in a run or to one item."),
    "logs": ("commands.logs", "Print the output of an item."),
    "export": ("commands.export", "Export the results of a run as JSON lines or CSV."),
    "stop": ("commands.stop", "Stop a run, as Ctrl-C in its terminal would."),
    "keys": ("commands.keys", "Show, check, disable and enable credentials."),
    "gateway": ("commands.gateway", "Serve clients over HTTP, with a credential per request."),
    "demo": ("commands.demo", "Run a demonstration on this machine. Needs no key."),
    "report": ("commands.report", "Inside a command: report a limit, an error or usage."),
    "completion": ("completion", "Print the completion script for a shell."),
}
# The first commands of the table, which `--help` lists before the others.
EVERYDAY = 9

# Extra -> the modules that it installs.
EXTRAS = {
    "dask": ("distributed",),
    "gateway": ("aiohttp", "prometheus_client", "zstandard"),
    "prices": ("genai_prices",),
    "redis": ("redis",),
}


class LazyGroup(click.Group):
    def main(self, *args: Any, **options: Any) -> Any:
        if os.getpid() == 1:
            from .init_process import leave_init

            leave_init()
        _restore_signals()
        _open_closed_descriptors()
        _make_descriptors_blocking()
        return super().main(*args, **options)

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"agentos.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a command for a name that does not exist."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not context.resilient_parsing:
            from difflib import get_close_matches

            similar = get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {similar[0]}?" if similar else f"There are {', '.join(COMMANDS)}."
            raise click.UsageError(f"No such command {name!r}. {hint}", context)
        return super().resolve_command(context, args)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """Complete the name of a command without importing any."""
        from click.shell_completion import CompletionItem

        matches = [
            CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return matches + click.Command.shell_complete(self, context, incomplete)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Parse the arguments; `--help` and `--version` print meanwhile."""
        with _system_errors():
            return super().make_context(*args, **options)

    def invoke(self, context: click.Context) -> Any:
        """Turn a Ctrl-C outside a run into a message and an exit status."""
        try:
            with _system_errors():
                return super().invoke(context)
        except KeyboardInterrupt:
            from .console import INTERRUPTED

            click.echo("Interrupted.", err=True)
            context.exit(INTERRUPTED)

    def format_options(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, without importing any, and the option --version. All of it fits into 24 rows."""
        rows = [(name, line) for name, (_, line) in COMMANDS.items()]
        with formatter.section("Everyday"):
            formatter.write_dl(rows[:EVERYDAY])
        with formatter.section("Keys and others"):
            formatter.write_dl([*rows[EVERYDAY:], ("--version", "Show the version and exit.")])


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Turn an error of the operating system into a message and an exit status."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of a pipe has closed it: click ends the program silently
            raise
        from .console import Failure

        if error.errno == errno.ENOENT and error.filename is None:  # of `getcwd`
            raise Failure("the current folder was removed: change to another one and run again") from None
        if error.filename is None:
            _drop_rest_of_stdout()
        raise Failure(f"{error.filename or 'stdout'}: {error.strerror}") from None


def _drop_rest_of_stdout() -> None:
    """Have what is left in the buffer of stdout written nowhere: Python would fail once more at its end, and exit with
    status 120."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _restore_signals() -> None:
    """Undo what the parent process has left behind by accident: with SIGCHLD ignored no exit status would be known, and
    a blocked SIGTERM would never arrive. Signals that it ignores on purpose (SIGHUP under nohup, SIGINT of a background
    job) stay ignored. SIGPIPE is ignored here by Python, and has its default in every command that is started."""
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _open_closed_descriptors() -> None:
    """Open /dev/null in the place of descriptors 0 to 2 that the parent process has closed. Else files and sockets get
    these numbers, and a child process whose stdin or stdout is redirected replaces what it should inherit."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one


def _make_descriptors_blocking() -> None:
    """Replace descriptors 0 to 2 that the parent process has left non-blocking: items that have not come yet would be
    an error, and what a full pipe does not take would be lost. A pipe or a terminal is opened again, because the parent
    shares the flag of its own descriptor; a socket cannot be."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        if os.get_blocking(descriptor) or stat.S_ISREG(os.fstat(descriptor).st_mode):
            continue
        try:  # without blocking, because the other end of a pipe may be closed
            own = os.open(f"/dev/fd/{descriptor}", flags | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            os.set_blocking(descriptor, True)
        else:
            os.set_blocking(own, True)
            os.dup2(own, descriptor)
            os.close(own)


def _version_text() -> str:
    import platform
    import sqlite3

    extras = ", ".join(name for name, modules in EXTRAS.items() if all(map(importlib.util.find_spec, modules)))
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return f"agentos {__version__} ({versions}; extras: {extras or 'none'})"


def _show_version(context: click.Context, _parameter: click.Parameter, is_requested: bool) -> None:
    if is_requested and not context.resilient_parsing:
        click.echo(_version_text())
        context.exit()


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run many agent workflows in parallel over a shared pool of rate-limited API credentials. Begin with:
    agentos demo. Options: agentos COMMAND --help."""
