"""The `agentos` command: arguments in, a coordinator at work, an exit status out.

Nothing heavy is imported before a command runs, so that `agentos --help` answers at once.
"""

from __future__ import annotations

import click

from agentos import __version__


def _version_text() -> str:
    import platform
    import sqlite3

    return f"agentos {__version__} (Python {platform.python_version()}, SQLite {sqlite3.sqlite_version})"


def _show_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        click.echo(_version_text())
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run many agent workflows in parallel over a shared pool of rate-limited API credentials."""


@main.command()
@click.pass_context
def demo(context: click.Context) -> None:
    """Run 60 items over 4 keys of a simulated provider that answers 429. Needs no key and no network."""
    from agentos.cli.demo import run_demo

    context.exit(run_demo())
