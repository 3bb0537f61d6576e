"""Start programs by fork, with their imports done: `python -m tests.acceptance.forks MODULE …` imports these modules
and forks once per requested program. Starting Python for each of them takes far longer.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import eventually

ROOT = Path(__file__).parents[2]


class Fork:
    """One forked program, with the interface of `subprocess.Popen`. Its output goes to two files."""

    def __init__(self, forks: Forks, pid: int, output: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks = forks
        self._output = output

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forks.ask(poll=self.pid)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        eventually(lambda: self.poll() is not None, timeout)
        return self.output_text, self._output.with_suffix(".err").read_text()

    @property
    def output_text(self) -> str:
        return self._output.read_text()


class Forks:
    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._count = 0

    def start(self, program: str, *arguments: object, **environ: str) -> Fork:
        """Start a module, or a file that ends in `.py`."""
        self._count += 1
        output = self._folder / f"{self._count}.out"
        for path in (output, output.with_suffix(".err")):
            path.touch()
        request = {"program": program, "arguments": [str(argument) for argument in arguments], "environ": environ}
        return Fork(self, self.ask(**request, output=str(output)), output)

    def ask(self, **request: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


@contextmanager
def forks(folder: Path, *modules: str) -> Iterator[Forks]:
    """Yield a server that has imported the modules; kill all its programs at the end of the block."""
    folder.mkdir()
    command = [sys.executable, "-W", "ignore", "-m", "tests.acceptance.forks", *modules]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        try:
            yield Forks(server, folder)
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def _serve_requests() -> dict[str, Any]:
    """Serve requests until stdin ends. Return only in a forked child, with the request to run."""
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return dict(request)
        print(json.dumps(answer), flush=True)
    sys.exit()


def _run_request(request: dict[str, Any]) -> None:
    output = Path(request["output"])
    for number, path in enumerate((Path(os.devnull), output, output.with_suffix(".err"))):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the buffer of the old one belongs to the server
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits "ignore"
    os.environ.update(request["environ"])
    sys.argv = [request["program"], *request["arguments"]]
    if request["program"].endswith(".py"):
        runpy.run_path(request["program"], run_name="__main__")
    else:
        runpy.run_module(request["program"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    _run_request(_serve_requests())
