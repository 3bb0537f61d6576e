"""`agentos gateway env`: prints the settings of a client behind a gateway as lines for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from agentos.gateway.client_settings import (
    CLIENTS,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Settings,
    client_named,
    settings_of_client,
)
from agentos.gateway.client_versions import version_warnings
from agentos.home.paths import PRIVATE, home

from ..console import Command, say


@click.command("env", cls=Command, short_help="Print the settings of a client for a shell.")
@click.argument("name", metavar="CLIENT", type=click.Choice([client.name for client in CLIENTS]))
@click.option("--url", envvar=URL_VARIABLE, show_envvar=True, metavar="URL", help="The address of the gateway.")
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    metavar="TOKEN",
    help="The client token. Prefer the variable or --token-file: other processes can read arguments.",
)
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="A file with the client token.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where configuration files of the client are written. [default: clients in the AgentOS home directory]",
)
def env(name: str, url: str | None, token: str | None, token_file: Path | None, folder: Path | None) -> None:
    """Print the variables that make CLIENT use a gateway, as lines for a shell; write the configuration files that it
    needs. agentos run --gateway sets all of this for its commands; inside one, address and token are known.

    CLIENT is an agent (claude, codex, gemini, copilot, opencode, qwen, aider, llm) or the SDK of a provider (openai,
    anthropic, google-genai, azure).

    \b
    Examples:
      eval "$(agentos gateway env claude --url http://127.0.0.1:8787 --token-file token)"
      eval "$(agentos gateway env codex)"
    """
    client = client_named(name)
    assert client is not None
    if token_file is not None:
        token = token_file.read_text(encoding="utf-8").strip()
    if not url or not token:
        raise click.UsageError(_missing_text(url, token))
    if folder is None:
        folder = home() / "clients"
    if client.write_files is not None:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    for line in shell_lines(settings_of_client(client, url.rstrip("/"), token, str(folder.absolute()))):
        click.echo(line)
    for warning in version_warnings([client.name]):
        say(f"Warning: {warning}", err=True)


def _missing_text(url: str | None, token: str | None) -> str:
    """Return what is missing, all at once, and where it is found."""
    missing = []
    if not url:
        missing.append(f"the address of the gateway: --url URL, or {URL_VARIABLE}")
    if not token:
        missing.append(f"the client token: --token-file FILE, or {TOKEN_VARIABLE}")
    return f"Missing: {'; and '.join(missing)}. agentos gateway prints both when it starts."


def shell_lines(settings: Settings) -> Iterator[str]:
    """Yield a line of a POSIX shell for each variable."""
    for name, value in settings.items():
        yield f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
