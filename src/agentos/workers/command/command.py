"""`Command`: a program to run for each item, in place of a worker function.

    coordinator.execute_parallel(issues, Command(["codex", "exec", "fix issue {id}"], credential_env="CODEX_API_KEY"))

No shell is involved. Each attempt is a process group of its own, which is killed as a whole.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentos.items.fields import WHOLE, field_of
from agentos.output.stream import OutputCall
from agentos.providers.patterns import Pattern
from agentos.redaction.redactor import Redactor
from agentos.verdict import VERDICT_KINDS

# Variables without which most programs fail. They may contain a short secret, such as `test`, by chance.
_SYSTEM_VARIABLES = frozenset({"PATH", "HOME", "PWD", "SHELL", "USER", "LOGNAME", "LANG", "TERM", "TMPDIR"})
# `{{name}}` and `{{` are literal braces; `{name}` and `{}` are placeholders; any other brace is literal, also after a
# dollar or percent sign: `${HOME}` is a shell's, `%{http_code}` is curl's.
_PLACEHOLDER = re.compile(r"\{\{([\w.-]*)\}\}|(\{\{)|(?<![$%])\{((?:[^\W\d][\w.-]*)?)\}")
# Whole awk programs that look like placeholders: literal for items that have no field of this name.
_AWK_PROGRAMS = frozenset({"print", "next", "exit"})


class Command:
    """The declaration of a program to run for each item.

    In each argument `{id}` is the item's id, `{}` the item itself, `{field}` one of its fields (`{outer.inner}` for one
    inside another), and `{{` a brace. `credential_env` names the variable that passes the key to the program: one for
    all credentials, or one for each by its id. `stdin` names a field that the program reads from stdin, which is empty
    otherwise. `folder` holds logs and checkpoints; without it there are no logs. `show` is called with the printed
    output, in whole lines.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        credential_env: str | Mapping[str, str] | None = None,
        stdin: str | None = None,
        patterns: Iterable[Pattern] = (),
        folder: str | os.PathLike[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        show: OutputCall | None = None,
    ) -> None:
        if isinstance(arguments, str) or not arguments or not all(isinstance(argument, str) for argument in arguments):
            raise ValueError("a command must be a non-empty list of strings, such as ['echo', '{id}']")
        self.arguments = tuple(arguments)
        self._templates = [_parse(argument) for argument in arguments]
        self._credential_env = credential_env
        self.stdin = stdin
        self.patterns = tuple(patterns)
        for pattern in self.patterns:
            if pattern.verdict not in VERDICT_KINDS:
                raise ValueError(
                    f"a pattern's verdict must be one of {', '.join(sorted(VERDICT_KINDS))}, not {pattern.verdict!r}"
                )
        self.folder = None if folder is None else Path(folder)
        self.cwd = None if cwd is None else os.fspath(cwd)
        self.show = show

    @property
    def fields(self) -> list[str]:
        """Return the names of the fields that an item must have."""
        names = {name: None for template in self._templates for is_placeholder, name in template if is_placeholder}
        if self.stdin is not None:
            names[self.stdin] = None
        return [name for name in names if name not in ("id", WHOLE) and name not in _AWK_PROGRAMS]

    @property
    def has_placeholders(self) -> bool:
        """Return whether an argument, or stdin, depends on the item."""
        return self.stdin is not None or any(is_placeholder for part in self._templates for is_placeholder, _ in part)

    def missing(self, item: Any) -> str | None:
        """Return the first required field that an item lacks, or None."""
        return next((name for name in self.fields if field_of(item, name) is None), None)

    @property
    def program(self) -> str | None:
        """Return the name or path of the program; None if it depends on the item."""
        first = self._templates[0]
        return None if any(is_placeholder for is_placeholder, _ in first) else "".join(text for _, text in first)

    def problem(self) -> str | None:
        """Return why no item can start the command, as far as that shows before the run; None if it can be started."""
        if (problem := self._quoted_whole()) is not None:
            return problem
        program = self.program
        if program is None:
            return None
        path = None if self.cwd is None or os.sep not in program else os.path.join(self.cwd, program)  # noqa: PTH118
        if shutil.which(path or program) is None:
            return self._why_not_found(program, Path(path or program))
        return None

    def _quoted_whole(self) -> str | None:
        """Return a sentence if the only argument is a whole command line, such as 'echo {id}'; else None."""
        line, words = self.arguments[0], self.arguments[0].split()
        if len(self.arguments) > 1 or len(words) < 2 or shutil.which(words[0]) is None or Path(line).is_file():
            return None
        return (
            f"there is no program {line!r}: write the command without quotes around the whole of it (-- {line}), or "
            f"let a shell read it (-- sh -c {shlex.quote(line)})"
        )

    def _why_not_found(self, program: str, path: Path) -> str:
        beside = Path(self.cwd or "", program)
        if os.sep not in program and beside.is_file():
            return f"there is no program {program!r} on the PATH: for the file in this folder write ./{program}"
        if path.is_file():
            return f"{program} cannot be executed: run chmod +x {program}"
        return f"there is no program {program!r}" + ("" if os.sep in program else " on the PATH")

    def filled(self, item: Any, item_id: str) -> list[str]:
        """Return the arguments for an item. Raise `LookupError` if it lacks a field."""
        return ["".join(_fill(part, item, item_id) for part in template) for template in self._templates]

    def variable(self, credential_id: str) -> str | None:
        """Return the name of the variable that passes a credential, or None."""
        names = self._credential_env
        return names if names is None or isinstance(names, str) else names.get(credential_id)

    @property
    def variables(self) -> frozenset[str]:
        """Return the names of all variables that pass a credential."""
        names = self._credential_env
        return frozenset(() if names is None else (names,) if isinstance(names, str) else names.values())

    def __call__(self, *_: Any) -> Any:
        raise TypeError("a Command cannot be called: pass it to a coordinator as the worker")

    def __repr__(self) -> str:
        return f"<Command {self.arguments[0]}>"


def _parse(argument: str) -> list[tuple[bool, str]]:
    """Split an argument into pieces: (True, name of a placeholder) or (False, literal text)."""
    pieces: list[tuple[bool, str]] = []
    end = 0
    for match in _PLACEHOLDER.finditer(argument):
        if match.start() > end:
            pieces.append((False, argument[end : match.start()]))
        escaped, brace, name = match.groups()
        pieces.append((True, name) if name is not None else (False, "{" if brace else "{" + escaped + "}"))
        end = match.end()
    if end < len(argument):
        pieces.append((False, argument[end:]))
    return pieces


def _fill(piece: tuple[bool, str], item: Any, item_id: str) -> str:
    is_placeholder, text = piece
    if not is_placeholder:
        return text
    if text == "id":
        return item_id
    value = field_of(item, text)
    if value is None and text in _AWK_PROGRAMS:
        return "{" + text + "}"
    if value is None:
        raise LookupError(f"the item has no field {text!r}, which the command needs (a literal brace is {{{{)")
    return value


def inherited_environment(redactor: Redactor | None) -> dict[str, str]:
    """Return the environment of this program without variables that hold a secret of the pool, however short: a command
    gets only the secret of its own lease."""
    if redactor is None:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not _holds_secret(name, value, redactor)}


def _holds_secret(name: str, value: str, redactor: Redactor) -> bool:
    return redactor.is_secret(value) or (name not in _SYSTEM_VARIABLES and redactor.has_short_secret(value))
