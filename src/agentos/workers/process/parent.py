"""Carry out attempts in worker processes (spawned, never forked): a worker may crash, exit, or be killed.

Each process belongs to one thread, which sends it an attempt and waits for the outcome; so `ThreadWorkers` schedules
the attempts here, too. A process that ends without an outcome fails its attempt with `WorkerDied`. Each process leads a
process group of its own, which is killed as a whole.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from agentos.errors import LedgerError, WorkerDied, WorkerStartError
from agentos.items.attempt import Attempt
from agentos.items.context import current_item

from ..base import EndedCall
from ..threads import ThreadWorkers
from ..wire import attempt_message, decode_outcome, encode
from . import _child

# Seconds until a worker process must be ready. Python and the worker's imports may take long on a cold disk.
START_SECONDS = 120.0
# Seconds to wait until a killed process is gone.
REAP_SECONDS = 2.0
NEEDS_MAIN_GUARD = (
    "a worker process ended while it started: with workers='processes' each of them imports the program's main module "
    "again, so code that it runs must stand under  if __name__ == '__main__':"
)


class ProcessWorkers(ThreadWorkers):
    can_kill = True

    def __init__(
        self,
        worker_func: Callable[[Any, Any], Any],
        ended: EndedCall,
        on_process: Callable[[int], None] | None = None,
    ) -> None:
        """`on_process` is called with the id of each process that was started; it is the id of its group, too. Raise
        `WorkerStartError` if the worker function cannot be pickled."""
        self._on_process = on_process
        try:
            self._pickled_func = pickle.dumps(worker_func)
        except Exception as error:
            raise WorkerStartError(
                f"the worker cannot be sent to another process ({error}): with workers='processes' it must be a "
                "function at the top level of a module"
            ) from error
        self._local = threading.local()  # .process: the worker process of this thread
        self._processes_lock = threading.Lock()  # held while using _processes and _is_closed
        self._processes: set[WorkerProcess] = set()
        self._is_closed = False
        super().__init__(self._run_in_process, ended)

    def interrupt(self, attempt: Attempt, /) -> None:
        process: WorkerProcess | None = attempt.task
        if process is not None:
            process.send_stop()

    def kill(self, attempt: Attempt, /) -> None:
        process: WorkerProcess | None = attempt.task
        if process is not None:
            process.kill()

    def close(self) -> None:
        super().close()
        with self._processes_lock:
            self._is_closed = True
            processes = tuple(self._processes)
        for process in processes:
            process.kill()
        for process in processes:
            process.reap()

    def _run_thread(self) -> None:
        super()._run_thread()
        self._end_process(getattr(self._local, "process", None))

    def _run_in_process(self, _payload: Any, credential: Any) -> Any:
        """Run the current attempt in this thread's process: the worker function that `ThreadWorkers` calls. Return the
        worker's value, or raise its error."""
        attempt = current_item()
        assert isinstance(attempt, Attempt)
        message = encode(
            attempt_message(
                attempt,
                **_credential_fields(credential),
                checkpoint=attempt.checkpoint.load(),
                workflow_db=attempt.context.database_path(attempt.id),
                is_recorded=attempt.context.is_recorded,
            )
        )
        process = self._process_for(attempt)
        attempt.task = process
        try:
            if attempt.should_stop:  # it was set before there was a process that `interrupt` could reach
                raise WorkerDied("stopped before it started")
            return process.run(attempt, message)
        except WorkerDied:
            self._end_process(process)
            raise
        finally:
            attempt.task = None

    def _process_for(self, attempt: Attempt) -> WorkerProcess:
        """Return this thread's process. Block until it is ready, if it has to be started."""
        process: WorkerProcess | None = getattr(self._local, "process", None)
        if process is None:
            attempt.is_preparing = True  # its time-out does not run yet
            process = WorkerProcess(self._pickled_func)
            with self._processes_lock:
                is_closed = self._is_closed
                if not is_closed:
                    self._processes.add(process)
            if is_closed:
                process.kill()
                process.reap()
                raise WorkerDied("the run is over")
            self._local.process = process
            process.wait_until_ready()
            if self._on_process is not None:
                self._on_process(process.pid)
            attempt.is_preparing = False
        return process

    def _end_process(self, process: WorkerProcess | None) -> None:
        if process is not None:
            process.kill()
            process.reap()
            self._local.process = None
            with self._processes_lock:
                self._processes.discard(process)


class WorkerProcess:
    """One worker process, as the run's process sees it."""

    def __init__(self, pickled_func: bytes) -> None:
        """Start the process. Raise `WorkerStartError` if that is not possible."""
        context = multiprocessing.get_context("spawn")
        self._pipe, child_end = context.Pipe()
        self._send_lock = threading.Lock()  # an attempt and a STOP may be sent at the same time
        # daemon: the exit of a program that has not closed its run must not wait for the process.
        self._process = context.Process(
            target=_child.main, args=(child_end, pickled_func), name="agentos-worker", daemon=True
        )
        # Ctrl-C goes to the whole foreground group: block it until the process has left that group.
        try:
            with _blocked_signal(signal.SIGINT):
                self._process.start()
        except RuntimeError as error:  # this is a worker process that imports the main module, which starts a run
            raise WorkerStartError(NEEDS_MAIN_GUARD) from error
        except OSError as error:
            raise WorkerStartError(f"a worker process cannot be started: {error}") from error
        finally:
            child_end.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Block until the process has loaded the worker function. Raise `WorkerStartError` if it cannot."""
        try:
            if not self._pipe.poll(START_SECONDS):
                raise WorkerStartError(f"a worker process did not start within {START_SECONDS:.0f} s")
            problem = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - from a worker of this run
        except (EOFError, OSError):
            problem = NEEDS_MAIN_GUARD
        if problem is not None:
            raise WorkerStartError(problem)

    def run(self, attempt: Attempt, message: bytes) -> Any:
        """Send an attempt and block until its outcome comes. Return the worker's value or raise its error; raise
        `WorkerDied` if the process ends before that."""
        try:
            self._send(message)
            while True:
                kind, content = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - from a worker of this run
                if kind == "saved":
                    self._save(attempt, content)
                elif kind == "file":
                    attempt.context.workflow_db(attempt.id)
                elif kind == "observed":
                    attempt.observed(content)
                else:
                    break
        except (EOFError, OSError):
            raise WorkerDied(self._exit_text()) from None
        return decode_outcome(attempt, content)

    def _save(self, attempt: Attempt, checkpoint: Any) -> None:
        if not attempt.context.is_recorded:
            attempt.context.save_encoded(attempt, checkpoint)
            return
        try:
            attempt.context.save_encoded(attempt, checkpoint)
        except LedgerError as error:
            self._send(_child.SAVED + str(error).encode())
        else:
            self._send(_child.SAVED)

    def send_stop(self) -> None:
        with contextlib.suppress(OSError):
            self._send(_child.STOP)

    def kill(self) -> None:
        """Kill the process and everything it has started. Does not wait for its end."""
        pid = self._process.pid
        if pid is not None and self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may not lead a group of its own yet

    def reap(self) -> None:
        """Wait for the end of a killed process, at most REAP_SECONDS."""
        self._process.join(REAP_SECONDS)

    def _send(self, message: bytes) -> None:
        with self._send_lock:
            self._pipe.send_bytes(message)

    def _exit_text(self) -> str:
        self.reap()
        code = self._process.exitcode
        if code is None:
            return "the worker process closed its pipe"
        if code < 0:
            return f"the worker process was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the worker process ended with exit status {code} during an attempt"


def _credential_fields(key: Any) -> dict[str, Any]:
    """Return the fields of a message that give the worker its credential."""
    if key is None:
        return {}
    return {"credential": str(key), "base_url": key.base_url, "headers": dict(key.headers)}


@contextlib.contextmanager
def _blocked_signal(signum: signal.Signals) -> Iterator[None]:
    """Block a signal for this thread, and for the processes that it starts meanwhile."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signum})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
