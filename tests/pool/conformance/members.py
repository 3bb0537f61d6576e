"""Processes that share a pool, controlled by a test."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds: on an idle machine every event comes at once


class Process:
    """One process that runs `tests.pool.conformance.member`, with this version of the package or another one. `prefix`:
    the beginning of its command."""

    def __init__(self, package: Path | None = None, prefix: Sequence[str] = ()) -> None:
        self._numbers = itertools.count(1)
        self._heard = threading.Condition()
        self.messages: list[dict[str, Any]] = []
        self.is_changed = False  # constants were set: no other test can use it
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.pool.conformance.member"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env=None if package is None else {**os.environ, "PYTHONPATH": str(package)},
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._heard:
                self.messages.append(json.loads(line))
                self._heard.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    # --- commands -------------------------------------------------------------------------------------------------

    def send(self, command: str, **order: Any) -> int:
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, "number": number, **order}) + "\n")
        self._process.stdin.flush()
        return number

    def do(self, command: str, **order: Any) -> Any:
        """Return the result of a command. Raises `AssertionError` with the text of an exception."""
        number = self.send(command, **order)
        answer = self.hear(lambda m: m["about"] == "done" and m["number"] == number)
        assert "error" not in answer, f"{answer['error']}: {answer['text']}"
        return answer["result"]

    def call(self, command: str, *arguments: Any) -> Any:
        return self.do(command, arguments=arguments)

    def lease(self, name: str, **options: Any) -> None:
        self.do("lease", name=name, **options)

    def end(self, name: str, error: str | None = None, **options: Any) -> None:
        self.do("end", name=name, error=error, options=options)

    # --- messages -------------------------------------------------------------------------------------------------

    def hear(self, condition: Callable[[dict[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        with self._heard:
            message = self._heard.wait_for(lambda: next(filter(condition, self.messages), None), timeout)
        assert message is not None, f"not heard within {timeout:g} s; heard was {self.messages[-20:]}"
        return message

    def granted(self, name: str, timeout: float = PATIENCE) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] in ("granted", "failed") and m["name"] == name, timeout)

    def failed(self, name: str) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] == "failed" and m["name"] == name)

    def wait_for_end(self, name: str) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] == "ended" and m["name"] == name)

    def wait_for_event(self, event: str, timeout: float = PATIENCE) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] == event, timeout)

    def has_heard(self, about: str, name: str | None = None) -> bool:
        with self._heard:
            return any(m["about"] == about and name in (None, m.get("name")) for m in self.messages)

    # --- faults and the end ---------------------------------------------------------------------------------------

    def kill(self) -> float:
        """Kill the process; return the instant on the monotonic clock."""
        self._process.kill()
        self._process.wait()
        return time.monotonic()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Close stdin, upon which the process ends by itself."""
        if self.is_alive:
            self.resume()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        self._process.stdout.close()

    def park(self) -> bool:
        """Close its pool; return whether the process is alive and answers, so that the next test can use it."""
        if not self.is_alive or self.is_changed:
            return False
        try:
            self.resume()
            self.do("close")
        except (AssertionError, OSError):
            return False
        self.messages.clear()
        return True


class Processes:
    """A pool of processes: Python starts slowly, so undisturbed processes are used again. `package`: the folder of the
    version that they import; None: this one."""

    def __init__(self, package: Path | None = None) -> None:
        self._package = package
        self._idle: list[Process] = []
        self._busy: list[Process] = []

    def open(
        self,
        store: str,
        keys: list[dict[str, Any]],
        ttl: float = 1.5,
        *,
        clock_step: float = 0.0,
        constants: Sequence[tuple[str, str, Any]] = (),
    ) -> Process:
        """Return a process that has joined a pool. `constants` (module, name, value) are set there, in a process that
        no other test uses."""
        process = self._idle.pop() if self._idle and not constants else Process(self._package)
        self._busy.append(process)
        for module, name, value in constants:
            process.is_changed = True
            process.do("set", module=module, name=name, value=value)
        if clock_step:
            process.do("step_clock", seconds=clock_step)
        process.do("open", keys=keys, store=store, ttl=ttl)
        return process

    def park(self) -> None:
        busy, self._busy = self._busy, []
        for process in busy:
            if process.park():
                self._idle.append(process)
            else:
                process.kill()
                process.stop()

    def stop(self) -> None:
        self.park()
        for process in self._idle:
            process.stop()


def keys(count: int, **limits: Any) -> list[dict[str, Any]]:
    return [{"secret": f"sk-shared-{n:06}-secret", "id": f"key-{n}", "limits": limits} for n in range(count)]
