"""Attempts in processes of our own (spawned, never forked): a worker may crash, exit, or be killed.

Every process is looked after by one thread here, which sends it an attempt and waits for the answer; so all that
`ThreadWorkers` does holds for processes too. A process that ends without an answer is an answer as well: `WorkerDied`.
Each process leads a process group of its own, so that whatever it has started goes with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

from agentos.errors import LedgerError, WorkerDied, WorkerStartError
from agentos.items.attempt import Attempt
from agentos.items.context import current_item

from ..base import EndedCall
from ..threads import ThreadWorkers
from ..wire import message_of, outcome, packed
from . import _child

# Python and the worker's own imports may take long on a cold disk.
START_SECONDS = 120.0
# How long a killed process may take to be gone; it has no say in it.
REAP_SECONDS = 2.0
NEEDS_GUARD = (
    "a worker process ended while it started: with workers='processes' the program's main module is imported again in "
    "each of them, so whatever it runs must stand under  if __name__ == '__main__':"
)


class ProcessWorkers(ThreadWorkers):
    can_kill = True

    def __init__(
        self,
        worker_func: Callable[[Any, Any], Any],
        ended: EndedCall,
        on_process: Callable[[int], None] | None = None,
    ) -> None:
        """`on_process` is told the id of each process that was started, which is its group's too."""
        self._on_process = on_process
        try:
            self._pickled_func = pickle.dumps(worker_func)
        except Exception as error:
            raise WorkerStartError(
                f"the worker cannot be sent to another process ({error}): with workers='processes' it must be a "
                "function at the top level of a module"
            ) from error
        self._local = threading.local()  # .child: the process that this thread looks after
        self._children_lock = threading.Lock()  # guards _children and _is_closed
        self._children: set[Child] = set()
        self._is_closed = False
        super().__init__(self._in_child, ended)

    def interrupt(self, attempt: Attempt, /) -> None:
        child: Child | None = attempt.task
        if child is not None:
            child.tell_stop()

    def kill(self, attempt: Attempt, /) -> None:
        child: Child | None = attempt.task
        if child is not None:
            child.kill()

    def close(self) -> None:
        super().close()
        with self._children_lock:
            self._is_closed = True
            children = tuple(self._children)
        for child in children:
            child.kill()
        for child in children:
            child.reap()

    def _work(self) -> None:
        super()._work()
        self._drop(getattr(self._local, "child", None))

    def _in_child(self, _payload: Any, credential: Any) -> Any:
        """The worker function of this side: carries the attempt out in this thread's process."""
        attempt = current_item()
        assert isinstance(attempt, Attempt)
        message = packed(
            message_of(
                attempt,
                credential=None if credential is None else str(credential),
                saved=attempt._load(),
                workflow_db=str(attempt.context.database_path(attempt.id)),
                is_recorded=attempt.context.is_recorded,
            )
        )
        child = self._child(attempt)
        attempt.task = child
        try:
            if attempt.should_stop:  # it was told before there was a process to tell
                raise WorkerDied("stopped before it started")
            return child.carry_out(attempt, message)
        except WorkerDied:
            self._drop(child)
            raise
        finally:
            attempt.task = None

    def _child(self, attempt: Attempt) -> Child:
        child: Child | None = getattr(self._local, "child", None)
        if child is None:
            attempt.is_preparing = True  # its time does not run yet
            child = Child(self._pickled_func)
            with self._children_lock:
                is_closed = self._is_closed
                if not is_closed:
                    self._children.add(child)
            if is_closed:
                child.kill()
                child.reap()
                raise WorkerDied("the run is over")
            self._local.child = child
            child.wait_until_ready()
            if self._on_process is not None:
                self._on_process(child.pid)
            attempt.is_preparing = False
        return child

    def _drop(self, child: Child | None) -> None:
        if child is not None:
            child.kill()
            child.reap()
            self._local.child = None
            with self._children_lock:
                self._children.discard(child)


class Child:
    """One worker process, seen from here."""

    def __init__(self, pickled_func: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._send_lock = threading.Lock()  # an attempt and a "stop" may be sent at the same time
        # daemon: should this program end without having closed the run, its exit does not wait for the process.
        self._process = context.Process(
            target=_child.main, args=(other, pickled_func), name="agentos-worker", daemon=True
        )
        # Ctrl-C goes to the whole foreground group; until the process has left that group it must not see it.
        try:
            with _blocked(signal.SIGINT):
                self._process.start()
        except RuntimeError as error:  # this is a worker process that imports the main module, and got here by that
            raise WorkerStartError(NEEDS_GUARD) from error
        except OSError as error:
            raise WorkerStartError(f"a worker process cannot be started: {error}") from error
        finally:
            other.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_until_ready(self) -> None:
        try:
            if not self._pipe.poll(START_SECONDS):
                raise WorkerStartError(f"a worker process did not start within {START_SECONDS:.0f} s")
            problem = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - from our own process
        except (EOFError, OSError):
            problem = NEEDS_GUARD
        if problem is not None:
            raise WorkerStartError(problem)

    def carry_out(self, attempt: Attempt, message: bytes) -> Any:
        try:
            self._send(message)
            while True:
                kind, content = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - from our own process
                if kind == "saved":
                    self._save(attempt, content)
                elif kind == "file":
                    attempt.context.workflow_db(attempt.id)
                elif kind == "observed":
                    attempt.observed(content)
                else:
                    break
        except (EOFError, OSError):
            raise WorkerDied(self._how_it_ended()) from None
        return outcome(attempt, content)

    def _save(self, attempt: Attempt, saved: Any) -> None:
        if not attempt.context.is_recorded:
            attempt.context.save_encoded(attempt, saved)
            return
        try:
            attempt.context.save_encoded(attempt, saved)
        except LedgerError as error:
            self._send(_child.SAVED + str(error).encode())
        else:
            self._send(_child.SAVED)

    def tell_stop(self) -> None:
        with contextlib.suppress(OSError):
            self._send(_child.STOP)

    def kill(self) -> None:
        """Ends the process and everything it has started."""
        pid = self._process.pid
        if pid is not None and self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may not lead a group of its own yet

    def reap(self) -> None:
        self._process.join(REAP_SECONDS)

    def _send(self, message: bytes) -> None:
        with self._send_lock:
            self._pipe.send_bytes(message)

    def _how_it_ended(self) -> str:
        self.reap()
        code = self._process.exitcode
        if code is None:
            return "the worker process closed its pipe"
        if code < 0:
            return f"the worker process was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the worker process ended with exit status {code} in the middle of an attempt"


class _blocked:  # noqa: N801 - reads as a phrase
    """A signal that this thread, and what it starts, does not get for a moment."""

    def __init__(self, signum: signal.Signals) -> None:
        self._signum = signum

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {self._signum})

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
