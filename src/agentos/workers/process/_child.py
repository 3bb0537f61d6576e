"""What runs inside a worker process.

The main thread carries out attempts. A second thread reads the pipe, so that the process notices at once when it is
told to stop, and when the other end is gone: then it ends itself and everything it has started, whatever the worker is
doing.
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

from ..wire import SentAttempt, answer, ended

# Beside pickled attempts, which never look like these.
STOP = b"stop"
SAVED = b"saved"  # the checkpoint is on record; followed by the reason if it is not


_sending = threading.Lock()  # a worker may have threads of its own


def _send(pipe: Connection, message: bytes) -> None:
    with _sending:
        pipe.send_bytes(message)


class ChildAttempt(SentAttempt):
    """The attempt as a worker in a process of its own sees it."""

    __slots__ = ("_answers", "_is_recorded", "_pipe", "_saved", "_saving", "_workflow_db")

    def __init__(self, message: dict[str, Any], pipe: Connection) -> None:
        super().__init__(message)
        self._saved = message["saved"]
        self._workflow_db = Path(message["workflow_db"])
        self._is_recorded = message["is_recorded"]
        self._pipe = pipe
        self._saving = threading.Lock()
        self._answers: SimpleQueue[bytes] = SimpleQueue()  # to a checkpoint that was sent

    @property
    def workflow_db(self) -> Path:
        self._workflow_db.parent.mkdir(parents=True, exist_ok=True)
        _send(self._pipe, pickle.dumps(("file", None)))
        return self._workflow_db

    def observe(self, response: Any) -> None:
        _send(self._pipe, pickle.dumps(("observed", verdicts.from_observed(response))))

    def _load(self) -> Any:
        return self._saved

    def _save(self, obj: Any) -> None:
        if not self._is_recorded:
            self._saved = obj
            _send(self._pipe, pickle.dumps(("saved", obj)))
            return
        from agentos.items import codec  # only where there is a ledger

        saved = codec.encode(obj, "checkpoint")
        with self._saving:  # the answer is for this one
            _send(self._pipe, pickle.dumps(("saved", saved)))
            problem = self._answers.get()
            if problem:
                raise LedgerError(problem.decode())
            self._saved = codec.decode(saved)

    def answered(self, problem: bytes) -> None:
        self._answers.put(problem)


def main(pipe: Connection, pickled_func: bytes) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        worker_func = pickle.loads(pickled_func)  # noqa: S301 - from our own parent
    except Exception as error:
        pipe.send_bytes(pickle.dumps(f"the worker cannot be loaded in a worker process: {error!r}"))
        return
    try:
        pipe.send_bytes(pickle.dumps(None))
    except OSError:  # the coordinator is gone already
        _end_all()
    todo: SimpleQueue[ChildAttempt] = SimpleQueue()
    threading.Thread(target=_read, args=(pipe, todo), name="agentos-pipe", daemon=True).start()
    while True:
        attempt = todo.get()
        _send(pipe, ended(*answer(worker_func, attempt), attempt))


def _read(pipe: Connection, todo: SimpleQueue[ChildAttempt]) -> None:
    attempt: ChildAttempt | None = None
    try:
        while True:
            message = pipe.recv_bytes()
            if message == STOP:
                if attempt is not None:
                    attempt.should_stop = True
            elif message.startswith(SAVED):
                assert attempt is not None
                attempt.answered(message.removeprefix(SAVED))
            else:
                attempt = ChildAttempt(pickle.loads(message), pipe)  # noqa: S301 - from our own parent
                todo.put(attempt)
    except (EOFError, OSError):
        _end_all()


def _end_all() -> NoReturn:
    """The coordinator is gone: nobody would ever hear of what is done here."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)
