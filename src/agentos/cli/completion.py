"""`agentos completion`, and what the shell is offered where a run, an item or a credential is to be named.

Completing must be quick and must never fail: what cannot be read is not offered.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

# So many are offered, and so many ids are looked at for them.
MOST_OFFERED = 50
MOST_LOOKED_AT = 20_000
MOST_OF_A_COMMAND = 60
# What every shell takes as it is, in the middle of a word. Other ids can be typed, in quotes, but not completed.
_PLAIN = re.compile(r"[\w./%+-]*")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets a shell complete commands, options, runs, items and files.

    For bash put the first of these lines into ~/.bashrc, for zsh the second into ~/.zshrc (below compinit); for fish
    type the third once. Needs bash 4.4 or newer: the one that macOS brings is older.

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
    """The newest first, each with its command."""
    from agentos.home.run_folder import run_folders

    folders = (folder for folder in run_folders() if folder.run_id.startswith(incomplete))
    return [
        CompletionItem(folder.run_id, help=_command_of(folder)) for folder in itertools.islice(folders, MOST_OFFERED)
    ]


def running_ids(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Only those that can be stopped."""
    from agentos.errors import LedgerError
    from agentos.home.run_folder import run_folders
    from agentos.home.run_status import run_owner

    found = []
    for folder in run_folders():
        try:
            is_running = folder.run_id.startswith(incomplete) and run_owner(folder) is not None
        except LedgerError:
            continue
        if is_running:
            found.append(CompletionItem(folder.run_id, help=_command_of(folder)))
    return found[:MOST_OFFERED]


def item_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Of the run that was named before."""
    from agentos.errors import LedgerError
    from agentos.home.run_folder import RunFolder
    from agentos.ledger.reader import Ledger

    try:
        with Ledger.open(RunFolder(context.params["run_id"]).ledger) as ledger:
            return _offered(itertools.islice(ledger.ids(), MOST_LOOKED_AT), incomplete)
    except (LedgerError, ValueError, OSError):
        return []


def credential_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Of the keys that were named before, or in the environment."""
    from agentos.errors import KeysFileError
    from agentos.keys.keys_file import load_keys

    try:
        file = context.params.get("keys_file")
        return _offered((one.id for one in load_keys(file).credentials) if file is not None else (), incomplete)
    except (KeysFileError, OSError):
        return []


def files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The shell knows them best."""
    return [CompletionItem(incomplete, type="file")]


def _offered(ids: Iterable[str], incomplete: str) -> list[CompletionItem[Any]]:
    fitting = (id_ for id_ in ids if id_.startswith(incomplete) and not id_.startswith("-") and _PLAIN.fullmatch(id_))
    return [CompletionItem(id_) for id_ in itertools.islice(fitting, MOST_OFFERED)]


def _command_of(folder: Any) -> str | None:
    from agentos.errors import HomeError
    from agentos.reporters.format import shorten

    try:
        spec = folder.read_spec()
    except HomeError:
        return None
    return shorten(spec.function or shlex.join(spec.command or ()), MOST_OF_A_COMMAND)
