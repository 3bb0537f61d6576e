"""The main function of a worker process.

The main thread runs the worker function. A second thread reads the pipe: the process reacts at once to STOP, and to the
end of the run's process, when it kills its own process group, whatever the worker is doing.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

from agentos.errors import LedgerError
from agentos.providers import verdicts

from ..wire import SentAttempt, encode_outcome, run_worker

# Messages beside pickled attempts, which never begin like these.
STOP = b"stop"
SAVED = b"saved"  # the reply to a checkpoint: it is committed; followed by the reason if it is not

_send_lock = threading.Lock()  # the worker function may have threads of its own


def _send(pipe: Connection, message: bytes) -> None:
    with _send_lock:
        pipe.send_bytes(message)


class ChildAttempt(SentAttempt):
    """The attempt as a worker in a process of its own sees it."""

    __slots__ = ("_checkpoint", "_is_recorded", "_pipe", "_save_lock", "_save_replies", "_workflow_db")

    def __init__(self, message: dict[str, Any], pipe: Connection) -> None:
        super().__init__(message)
        self._checkpoint = message["checkpoint"]
        self._workflow_db = Path(message["workflow_db"])
        self._is_recorded = message["is_recorded"]
        self._pipe = pipe
        self._save_lock = threading.Lock()
        self._save_replies: SimpleQueue[bytes] = SimpleQueue()

    @property
    def workflow_db(self) -> Path:
        self._workflow_db.parent.mkdir(0o700, parents=True, exist_ok=True)
        _send(self._pipe, pickle.dumps(("file", None)))
        return self._workflow_db

    def observe(self, response: Any) -> None:
        _send(self._pipe, pickle.dumps(("observed", verdicts.from_observed(response))))

    def _load(self) -> Any:
        return self._checkpoint

    def _save(self, obj: Any) -> None:
        """Send the checkpoint to the run's process. With a ledger, block until it is committed there."""
        if not self._is_recorded:
            self._checkpoint = obj
            _send(self._pipe, pickle.dumps(("saved", obj)))
            return
        from agentos.items import codec  # loaded only if the run has a ledger

        encoded = codec.encode(obj, "checkpoint")
        with self._save_lock:  # one checkpoint at a time, so that the next reply belongs to it
            _send(self._pipe, pickle.dumps(("saved", encoded)))
            problem = self._save_replies.get()
            if problem:
                raise LedgerError(problem.decode())
            self._checkpoint = codec.decode(encoded)

    def on_save_reply(self, problem: bytes) -> None:
        """Wake the thread that saves a checkpoint. `problem` is empty if the checkpoint is committed."""
        self._save_replies.put(problem)


def main(pipe: Connection, pickled_func: bytes) -> None:
    """Run attempts that come through the pipe until the process is killed."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        worker_func = pickle.loads(pickled_func)  # noqa: S301 - from the run's process
    except Exception as error:
        pipe.send_bytes(pickle.dumps(f"the worker cannot be loaded in a worker process: {error!r}"))
        return
    try:
        pipe.send_bytes(pickle.dumps(None))
    except OSError:  # the run's process has ended already
        _kill_own_group()
    attempts: SimpleQueue[ChildAttempt] = SimpleQueue()
    threading.Thread(target=_read_pipe, args=(pipe, attempts), name="agentos-pipe", daemon=True).start()
    while True:
        attempt = attempts.get()
        _send(pipe, encode_outcome(*run_worker(worker_func, attempt), attempt))


def _read_pipe(pipe: Connection, attempts: SimpleQueue[ChildAttempt]) -> None:
    attempt: ChildAttempt | None = None
    try:
        while True:
            message = pipe.recv_bytes()
            if message == STOP:
                if attempt is not None:
                    attempt.should_stop = True
            elif message.startswith(SAVED):
                assert attempt is not None
                attempt.on_save_reply(message.removeprefix(SAVED))
            else:
                attempt = ChildAttempt(pickle.loads(message), pipe)  # noqa: S301 - from the run's process
                attempts.put(attempt)
    except (EOFError, OSError):
        _kill_own_group()


def _kill_own_group() -> NoReturn:
    """End this process and all that it has started: the run's process has ended, and cannot receive an outcome."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)
