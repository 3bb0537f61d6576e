"""Runs the steps of a case in a fresh folder with a fresh AgentOS home, and records their output.

The program is the `agentos` that the present interpreter imports, so that the same cases run against any checkout.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import agentos

from .normal import normalised

PROGRAMS = Path(__file__).with_name("programs")
# Seconds after which a step counts as stuck.
PATIENCE = 30.0
_SOURCE = str(Path(agentos.__file__).parents[1])
# Control characters, which are recorded as escapes.
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Case:
    """Names a scenario: its files, its variables, and its steps, each a line for a shell."""

    name: str
    steps: str
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    starts_nothing: bool = False  # every `agentos run` in it is refused, or only prints help


class Machine:
    """Holds an empty home, a folder to work in, and `agentos` and `python` in the search path."""

    def __init__(self, root: Path, files: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self.root = root
        self.work = root / "work"
        for name in ("work", "home", "bin"):
            (root / name).mkdir()
        self._add_program("agentos", '-m agentos.cli "$@"')
        self._add_program("python", '"$@"')
        for program in PROGRAMS.glob("*.py"):
            shutil.copy(program, self.work)
        for name, text in files.items():
            path = self.work / name
            path.write_text(text)
            path.chmod(0o755 if text.startswith("#!") else 0o600)
        self.environ = {
            "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(root / "home"),
            "AGENTOS_HOME": str(root / "state"),
            "PYTHONPATH": _SOURCE,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TERM": "xterm",
            **environ,
        }

    def _add_program(self, name: str, arguments: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}\n")
        path.chmod(0o755)

    def one_by_one(self, lines: list[str]) -> list[str]:
        """Run each line in a shell of its own and return their transcripts."""
        return [self._transcript(line, *self._run(["/bin/sh", "-c", line])) for line in lines]

    def together(self, lines: list[str]) -> list[str]:
        """Run `agentos` commands, one after the other, in one process and return their transcripts."""
        calls = [shlex.split(line)[1:] for line in lines]
        answers, problem, ended = self._run([sys.executable, str(PROGRAMS / "each.py")], json.dumps(calls).encode())
        assert ended == 0, problem.decode()
        return [
            self._transcript(line, base64.b64decode(out), base64.b64decode(err), status)
            for line, (out, err, status) in zip(lines, json.loads(answers), strict=True)
        ]

    def _run(self, command: list[str], stdin: bytes | None = None) -> tuple[bytes, bytes, int]:
        with subprocess.Popen(
            command,
            cwd=self.work,
            env={**self.environ, "COLUMNS": "80", "LINES": "24"},
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(stdin, timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return out, err, process.returncode

    def _transcript(self, line: str, out: bytes, err: bytes, status: int) -> str:
        printed = prefixed("out", self.shown(out)) + prefixed("err", self.shown(err))
        return f"$ {line}\n{printed}status: {status}\n"

    def shown(self, data: bytes) -> str:
        """Return normalised text in which control characters are visible."""
        text = normalised(data.decode("utf-8", "backslashreplace"), str(self.root), _SOURCE)
        return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


@contextmanager
def machine(files: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Machine]:
    """Provide a fresh machine and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="golden-") as root:
        yield Machine(Path(root).resolve(), files, environ)


def transcript(case: Case) -> str:
    """Run a case and return the output and exit status of each step."""
    lines = [line.strip() for line in re.sub(r"\\\n *", "", case.steps).strip().splitlines()]
    with machine(case.files, case.environ) as fresh:
        printed: list[str] = []
        for is_alone, group in itertools.groupby(lines, lambda line: _is_alone(line, case)):
            run = fresh.one_by_one if is_alone else fresh.together
            printed += run(list(group))
    return "\n".join(printed)


def _is_alone(line: str, case: Case) -> bool:
    """Tell whether a line needs a shell, or a process of its own because it starts a run."""
    if not re.fullmatch("agentos( [^><|;&$]*)?", line):
        return True
    return not case.starts_nothing and re.match("agentos (run|resume|retry) ", line) is not None


def prefixed(name: str, text: str) -> str:
    """Return each line of `text` with the stream's name before it."""
    if not text:
        return ""
    lines = [f"{name}: {line}" if line else f"{name}:" for line in text.removesuffix("\n").split("\n")]
    if not text.endswith("\n"):
        lines.append(f"({name} does not end with a newline)")
    return "".join(f"{line}\n" for line in lines)
