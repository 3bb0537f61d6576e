"""Start the real program for tests: with pipes, or in a pseudo-terminal with an emulator behind it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pexpect

import agentos
from tests.conftest import eventually
from tests.support.programs import run_program
from tests.workers.test_processes import is_alive

from .terminal import Emulator

AGENTOS = [sys.executable, "-m", "agentos.cli"]
PATIENCE = 60.0
# A keys file with two credentials, and the variables that it names.
KEYS = """
[[credential]]
id = "first-key"
max_concurrent = 1
secret = "env:KEY_A"
credential_env = "API_KEY"

[[credential]]
id = "second-key"
max_concurrent = 1
secret = "env:KEY_B"
credential_env = "API_KEY"
"""
SECRETS = {"KEY_A": "sk-key-a-0123456789", "KEY_B": "sk-key-b-0123456789"}
# Runs several calls in one process: starting Python for each of them takes long.
_RUN_EACH = """
import json, sys
from agentos.cli import main
for arguments in json.load(sys.stdin):
    try:
        main(arguments, prog_name="agentos")
    except SystemExit as end:
        print("STATUS", end.code, file=sys.stderr)
"""
_SOURCE = str(Path(agentos.__file__).parents[1])


class Sandbox:
    """A working folder, an empty home and an environment for the program, separate from those of the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path / "work"
        self.home = path / "state"
        self.runs = self.home / "runs"
        self.path.mkdir()
        (path / "home").mkdir()
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(path / "home"),
            "AGENTOS_HOME": str(self.home),
            "PYTHONPATH": _SOURCE,
            "LANG": "C.UTF-8",
            "TERM": "xterm",
        }

    def write(self, name: str, text: str, *, mode: int = 0o644) -> Path:
        path = self.path / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def script(self, text: str, name: str = "command.sh") -> str:
        """Write an executable shell script. Return its name for a command line."""
        self.write(name, "#!/bin/sh\n" + text, mode=0o755)
        return f"./{name}"

    def lines(self, name: str) -> list[str]:
        path = self.path / name
        return path.read_text().splitlines() if path.exists() else []

    def agentos(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        return self.run([*AGENTOS, *arguments], **options)

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run any command to its end; `options` as in `run_program`."""
        return run_program(command, self.path, **{"environ": self.environ, "timeout": PATIENCE, **options})

    def run_each(self, *calls: list[str], first: str = "") -> tuple[list[int], subprocess.CompletedProcess[str]]:
        """Run several calls in one process. Return their exit statuses, and the process with all that was printed.
        `first`: a line of Python to execute before them."""
        done = self.run([sys.executable, "-c", f"{first}\n{_RUN_EACH}"], input=json.dumps(calls), check=True)
        return [int(status) for status in re.findall(r"^STATUS (\d+)$", done.stderr, re.MULTILINE)], done

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell in which `agentos` is the program."""
        environ = {**self.environ, "PYTHON": sys.executable}
        command = ["/bin/bash", "-c", 'agentos() { "$PYTHON" -m agentos.cli "$@"; }\n' + line]
        return self.run(command, environ=environ)

    @contextmanager
    def start(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """Start the program in the background; kill it at the end of the block."""
        program = subprocess.Popen(
            [*AGENTOS, *arguments],
            cwd=self.path,
            **{"env": self.environ, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options},
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            yield program
        finally:
            program.kill()
            program.communicate()

    @contextmanager
    def in_terminal(
        self, *arguments: str, columns: int = 100, rows: int = 30, **environ: str
    ) -> Iterator[TerminalSession]:
        session = TerminalSession(arguments, self.path, {**self.environ, **environ}, columns, rows)
        try:
            yield session
        finally:
            session.child.close(force=True)

    def pids(self, name: str, count: int) -> list[int]:
        """Return the process ids that commands have written to a file; block until there are `count` of them."""
        eventually(lambda: len(self.lines(name)) >= count, PATIENCE)
        return [int(line) for line in self.lines(name)]


class TerminalSession:
    """The program in a pseudo-terminal, and what its screen shows."""

    def __init__(
        self, arguments: tuple[str, ...], path: Path, environ: dict[str, str], columns: int, rows: int
    ) -> None:
        self.bytes = io.BytesIO()
        self.emulator = Emulator(columns, rows)
        self._fed_bytes = 0
        self.child = pexpect.spawn(
            AGENTOS[0],
            [*AGENTOS[1:], *arguments],
            cwd=str(path),
            env=environ,
            timeout=PATIENCE,
            dimensions=(rows, columns),
            echo=False,
        )
        self.child.delayafterclose = self.child.delayafterterminate = 0.01
        self.child.logfile_read = self.bytes

    def read(self) -> None:
        """Feed the emulator with new output; wait 10 ms for it."""
        with suppress(pexpect.TIMEOUT, pexpect.EOF):
            self.child.read_nonblocking(65536, timeout=0.01)
        data = self.bytes.getvalue()
        self.emulator.feed(data[self._fed_bytes :])
        self._fed_bytes = len(data)

    @property
    def lines(self) -> list[str]:
        return self.emulator.lines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, condition: Callable[[str], object], timeout: float = PATIENCE) -> None:
        """Read until the text of screen and scrollback meets the condition."""
        deadline = time.monotonic() + timeout
        while not condition(self.text):
            assert time.monotonic() < deadline, self.text
            self.read()

    def resize(self, columns: int, rows: int) -> None:
        self.read()
        self.emulator.resize(columns, rows)
        self.child.setwinsize(rows, columns)

    def end(self) -> int:
        """Read until the program ends. Return its exit status, negative for a signal."""
        deadline = time.monotonic() + PATIENCE
        while not self.child.eof():
            assert time.monotonic() < deadline, self.text
            self.read()
        self.child.wait()
        status = self.child.exitstatus
        return -self.child.signalstatus if status is None else status


def all_gone(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)
