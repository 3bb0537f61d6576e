"""Finds the programs that a command line starts: behind `env`, `timeout` or `npx`, and in the script of a `sh -c`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
# Start the command that follows them; the number of their own arguments before it.
_STARTERS = {"env": 0, "nohup": 0, "exec": 0, "command": 0, "time": 0, "nice": 0, "timeout": 1}
_PACKAGE_RUNNERS = {"npx", "bunx", "pnpx"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# After one of these words of a shell, a command begins.
_KEYWORDS = {"then", "do", "else", "if", "while", "until", "!", "{"}


def command_words(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the name of each program, or npm package, that the command starts for certain. Options that are not
    understood end the search: a wrong guess is worse than none."""
    words = list(arguments)
    while words and _ASSIGNMENT.match(words[0]):
        del words[0]
    if not words:
        return
    name, rest = words[0].rpartition("/")[2], words[1:]
    if name in _STARTERS:
        rest = rest[_STARTERS[name] :] if not rest[:1] or not rest[0].startswith("-") else []
        yield from command_words(rest)
    elif name in _PACKAGE_RUNNERS:
        rest = [word for word in rest if word not in ("-y", "--yes", "--")]
        yield from rest[:1]
    elif name in _SHELLS and len(rest) > 1 and rest[0] in ("-c", "-ec", "-lc", "-euc"):
        for command in _commands_of(rest[1]):
            yield from command_words(command)
    else:
        yield name


def _commands_of(script: str) -> Iterator[list[str]]:
    """Yield the simple commands of a shell script. A script that cannot be split into words has none."""
    lexer = shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    command: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|()") or (not command and word in _KEYWORDS):
                if command:
                    yield command
                command = []
            else:
                command.append(word)
    except ValueError:  # a quote without its end
        return
    if command:
        yield command
