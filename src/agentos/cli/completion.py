"""`agentos completion`, and the completion of runs, items and credentials for shells.

Completion must be quick and must not fail: files that cannot be read complete to nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

# Completions that a shell gets, and ids of a run that are searched for them.
MAX_COMPLETIONS = 50
MAX_SEARCHED = 20_000
# Characters of a run's command in its description.
MAX_COMMAND = 60
# Characters that no shell interprets inside a word. Ids with others can be typed in quotes, but not completed.
_PLAIN = re.compile(r"[\w./%+-]*")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets a shell complete commands, options, runs, items and files.

    For bash put the first line below into ~/.bashrc, for zsh the second into ~/.zshrc (below compinit); for fish run
    the third once. Needs bash 4.4 or newer: the bash of macOS is older.

    \b
    Examples:
      eval "$(agentos completion bash)"
      eval "$(agentos completion zsh)"
      agentos completion fish > ~/.config/fish/completions/agentos.fish
    """
    from agentos.cli import main

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(main, {}, "agentos", "_AGENTOS_COMPLETE").source(), nl=False)


def run_ids(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete ids of runs, the newest first, each with its command."""
    folders = (folder for folder in _run_folders() if folder.run_id.startswith(incomplete))
    return [
        CompletionItem(folder.run_id, help=_command_of(folder)) for folder in itertools.islice(folders, MAX_COMPLETIONS)
    ]


def running_ids(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete ids of runs that are running."""
    from agentos.errors import LedgerError
    from agentos.home.run_status import run_owner

    matches = []
    for folder in _run_folders():
        try:
            is_running = folder.run_id.startswith(incomplete) and run_owner(folder) is not None
        except LedgerError:
            continue
        if is_running:
            matches.append(CompletionItem(folder.run_id, help=_command_of(folder)))
    return matches[:MAX_COMPLETIONS]


def item_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete ids of items, of the run that the argument before names."""
    from agentos.errors import HomeError, LedgerError
    from agentos.home.run_folder import RunFolder
    from agentos.ledger.reader import Ledger

    try:
        with Ledger.open(RunFolder(context.params["run_id"]).ledger) as ledger:
            return _completions(itertools.islice(ledger.ids(), MAX_SEARCHED), incomplete)
    except (HomeError, LedgerError, ValueError, OSError):
        return []


def credential_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete ids of credentials, of the keys file that an option or the environment names."""
    from agentos.errors import KeysFileError
    from agentos.keys.keys_file import load_keys

    try:
        file = context.params.get("keys_file")
        credentials = load_keys(file).credentials if file is not None else ()
        return _completions((credential.id for credential in credentials), incomplete)
    except (KeysFileError, OSError):
        return []


def files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Let the shell complete names of files."""
    return [CompletionItem(incomplete, type="file")]


def _completions(ids: Iterable[str], incomplete: str) -> list[CompletionItem[Any]]:
    matches = (id_ for id_ in ids if id_.startswith(incomplete) and not id_.startswith("-") and _PLAIN.fullmatch(id_))
    return [CompletionItem(id_) for id_ in itertools.islice(matches, MAX_COMPLETIONS)]


def _run_folders() -> Iterator[Any]:
    """Yield the folders of runs; none if the home directory cannot be used, which the command itself will say."""
    from agentos.errors import HomeError
    from agentos.home.run_folder import run_folders

    with contextlib.suppress(HomeError):
        yield from run_folders()


def _command_of(folder: Any) -> str | None:
    from agentos.errors import HomeError
    from agentos.reporters.format import shorten

    try:
        spec = folder.read_spec()
    except HomeError:
        return None
    return shorten(spec.function or shlex.join(spec.command or ()), MAX_COMMAND)
