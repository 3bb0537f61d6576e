"""Generate the reference in `docs/cli.md` from the program: `python -m tests.acceptance.cli_reference docs/cli.md`.

The text between the two marks is replaced; the rest of the page is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from agentos.cli import COMMANDS, main

BEGIN = "<!-- made by `make docs` from the program: change the help texts there -->"
END = "<!-- end of what is made -->"
_EXAMPLES = re.compile(r"Examples?:")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield all commands with their full names, in the order of `agentos --help`."""
    yield "agentos", main
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield f"agentos {name}", command
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                yield f"agentos {name} {inner}", command.commands[inner]


def examples_of(command: click.Command) -> list[str]:
    """Return the lines below `Examples:` in the help of a command."""
    return [line for block in _blocks(command) if _EXAMPLES.fullmatch(block[0]) for line in block[1:]]


def page(text: str) -> str:
    """Return the page with its generated part replaced."""
    head, _, tail = text.partition(BEGIN)
    _, end, foot = tail.partition(END)
    assert end, "docs/cli.md has lost the marks between which the commands stand"
    sections = "\n".join(_section(name, command) for name, command in commands() if command is not main)
    return f"{head}{BEGIN}\n\n{sections}\n{END}{foot}"


def _section(name: str, command: click.Command) -> str:
    # The same names for help as in the program: click caches those of the first call.
    names = main.context_settings["help_option_names"]
    context = click.Context(command, info_name=name, help_option_names=names)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"{'#' * (name.count(' ') + 2)} {name}", "", "```", f"{name} {usage}", "```", ""]
    for block in _blocks(command):
        if _EXAMPLES.fullmatch(block[0]):
            lines += ["```console", *(f"$ {line}" for line in block[1:]), "```", ""]
        else:
            lines += [_escaped(line) for line in block] + [""]
    rows = [_row(option, context) for option in command.params if isinstance(option, click.Option)]
    if rows:
        lines += ["| option | environment | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    assert option.help, f"{option.name} has no help"
    twin = f"`{option.envvar}`" if option.envvar else ""
    default = f" [default: {option.default}]" if option.show_default else ""
    spelled = record[0].replace("|", "\\|")
    return f"| `{spelled}` | {twin} | {_escaped(option.help)}{default} |"


def _blocks(command: click.Command) -> Iterator[list[str]]:
    """Yield the paragraphs of a command's help as lines without indentation."""
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        lines = [line.strip() for line in paragraph.replace("\b", "").splitlines() if line.strip()]
        if lines:
            yield lines


def _escaped(text: str) -> str:
    return re.sub(r"([*<|])", r"\\\1", text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
