"""Processes that share a pool, as a test sees them."""

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
from collections.abc import Callable
from typing import Any

PATIENCE = 30.0  # seconds: what is waited for comes at once, on a machine that has nothing else to do


class Process:
    """`tests.pool.conformance.member` in a process of its own."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._heard = threading.Condition()
        self.messages: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pool.conformance.member"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
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

    # --- telling it what to do ------------------------------------------------------------------------------------

    def send(self, what: str, **order: Any) -> int:
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, "number": number, **order}) + "\n")
        self._process.stdin.flush()
        return number

    def do(self, what: str, **order: Any) -> Any:
        """Its result; an `AssertionError` with the text of what it raised."""
        number = self.send(what, **order)
        answer = self.hear(lambda m: m["about"] == "done" and m["number"] == number)
        assert "error" not in answer, f"{answer['error']}: {answer['text']}"
        return answer["result"]

    def call(self, what: str, *arguments: Any) -> Any:
        return self.do(what, arguments=arguments)

    def lease(self, name: str, **options: Any) -> None:
        self.do("lease", name=name, **options)

    def end(self, name: str, error: str | None = None, **options: Any) -> None:
        self.do("end", name=name, error=error, options=options)

    # --- hearing what happens -------------------------------------------------------------------------------------

    def hear(self, condition: Callable[[dict[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        with self._heard:
            found = self._heard.wait_for(lambda: next(filter(condition, self.messages), None), timeout)
        assert found is not None, f"not heard within {timeout:g} s; heard was {self.messages[-20:]}"
        return found

    def granted(self, name: str, timeout: float = PATIENCE) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] in ("granted", "failed") and m["name"] == name, timeout)

    def failed(self, name: str) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] == "failed" and m["name"] == name)

    def ended(self, name: str) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] == "ended" and m["name"] == name)

    def told(self, event: str, timeout: float = PATIENCE) -> dict[str, Any]:
        return self.hear(lambda m: m["about"] == event, timeout)

    def has_heard(self, about: str, name: str | None = None) -> bool:
        with self._heard:
            return any(m["about"] == about and name in (None, m.get("name")) for m in self.messages)

    # --- what can happen to a process -----------------------------------------------------------------------------

    def kill(self) -> float:
        """Returns when, on the machine's monotonic clock."""
        self._process.kill()
        self._process.wait()
        return time.monotonic()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """It ends by itself, as a process does."""
        if self.is_alive:
            self.resume()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        self._process.stdout.close()

    def rest(self) -> bool:
        """Leaves its pool, to be used by the next test. Not if it is dead, or does not answer."""
        if not self.is_alive:
            return False
        try:
            self.resume()
            self.do("close")
        except (AssertionError, OSError):
            return False
        self.messages.clear()
        return True


class Processes:
    """Python takes its time to start, so those that were not harmed are used again."""

    def __init__(self) -> None:
        self._idle: list[Process] = []
        self._busy: list[Process] = []

    def open(self, store: str, keys: list[dict[str, Any]], ttl: float = 1.5, *, clock_step: float = 0.0) -> Process:
        process = self._idle.pop() if self._idle else Process()
        self._busy.append(process)
        if clock_step:
            process.do("step_clock", seconds=clock_step)
        process.do("open", keys=keys, store=store, ttl=ttl)
        return process

    def rest(self) -> None:
        busy, self._busy = self._busy, []
        for process in busy:
            if process.rest():
                self._idle.append(process)
            else:
                process.kill()
                process.stop()

    def stop(self) -> None:
        self.rest()
        for process in self._idle:
            process.stop()


def keys(count: int, **limits: Any) -> list[dict[str, Any]]:
    return [{"secret": f"sk-shared-{n:06}-secret", "id": f"key-{n}", "limits": limits} for n in range(count)]
