"""The part of `docs/cli.md` that is made from the program: `python -m tests.acceptance.cli_reference docs/cli.md`.

What stands between the two marks is written anew; the rest of the page is written by hand, there.
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
    """All, with their whole names, in the order of `agentos --help`."""
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
    """The lines below `Examples:` in its help."""
    return [line for block in _blocks(command) if _EXAMPLES.fullmatch(block[0]) for line in block[1:]]


def page(text: str) -> str:
    """The page with its generated part renewed."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "docs/cli.md has lost the marks between which the commands stand"
    sections = "\n".join(_section(name, command) for name, command in commands() if command is not main)
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def _section(name: str, command: click.Command) -> str:
    # Its help goes by the same names as in the program: click remembers those with which it was asked for first.
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
    """Paragraphs of its help, in lines without indentation."""
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        lines = [line.strip() for line in paragraph.replace("\b", "").splitlines() if line.strip()]
        if lines:
            yield lines


def _escaped(text: str) -> str:
    return re.sub(r"([*<|])", r"\\\1", text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
