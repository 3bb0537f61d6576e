"""What runs inside a worker process.

The main thread carries out attempts. A second thread reads the pipe, so that the process notices at once when it is
told to stop, and when the other end is gone: then it ends itself and everything it has started, whatever the worker is
doing.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

from . import verdicts
from .context import CurrentItem, _current
from .credentials import MASK
from .errors import LedgerError

# Beside pickled attempts, which never look like these.
STOP = b"stop"
SAVED = b"saved"  # the checkpoint is on record; followed by the reason if it is not


_sending = threading.Lock()  # a worker may have threads of its own


def _send(pipe: Connection, message: bytes) -> None:
    with _sending:
        pipe.send_bytes(message)


class ChildAttempt(CurrentItem):
    """The attempt as a worker in a process of its own sees it."""

    __slots__ = (
        "_answers",
        "_is_recorded",
        "_pipe",
        "_run_id",
        "_saved",
        "_saving",
        "_workflow_db",
        "credential",
        "is_lent",
        "payload",
    )

    def __init__(self, message: dict[str, Any], pipe: Connection) -> None:
        self.id = message["id"]
        self.attempt = message["attempt"]
        self._run_id = message["run_id"]
        self.credential_id = message["credential_id"]
        self.credential: str | None = message["credential"]
        self.payload = message["payload"]
        self.is_lent = False
        self.should_stop = False
        self.usage = None
        self._saved = message["saved"]
        self._workflow_db = Path(message["workflow_db"])
        self._is_recorded = message["is_recorded"]
        self._pipe = pipe
        self._saving = threading.Lock()
        self._answers: SimpleQueue[bytes] = SimpleQueue()  # to a checkpoint that was sent

    @property
    def run_id(self) -> str:
        return str(self._run_id)

    @property
    def workflow_db(self) -> Path:
        self._workflow_db.parent.mkdir(parents=True, exist_ok=True)
        _send(self._pipe, pickle.dumps(("file", None)))
        return self._workflow_db

    def observe(self, response: Any) -> None:
        _send(self._pipe, pickle.dumps(("observed", verdicts.from_observed(response))))

    def lease(
        self, *, requests: int = 1, tokens: int = 0, scope: str | None = None, timeout: float | None = None
    ) -> ChildLease:
        """The attempt's own; there is no pool in this process to give a second one."""
        if self.credential is None or self.is_lent:
            raise RuntimeError(
                "a worker process has only the one credential that it was given, and it is in use or there is none: "
                "use threads or async workers for more"
            )
        return ChildLease(self)

    def _load(self) -> Any:
        return self._saved

    def _save(self, obj: Any) -> None:
        if not self._is_recorded:
            self._saved = obj
            _send(self._pipe, pickle.dumps(("saved", obj)))
            return
        from . import _values  # only where there is a ledger

        saved = _values.encode(obj, "checkpoint")
        with self._saving:  # the answer is for this one
            _send(self._pipe, pickle.dumps(("saved", saved)))
            problem = self._answers.get()
            if problem:
                raise LedgerError(problem.decode())
            self._saved = _values.decode(saved)

    def answered(self, problem: bytes) -> None:
        self._answers.put(problem)


class ChildLease:
    """The attempt's own lease, lent to a block of its worker. It ends with the attempt, where the coordinator is."""

    def __init__(self, attempt: ChildAttempt) -> None:
        self._attempt = attempt

    @property
    def secret(self) -> str:
        return self._attempt.credential or ""

    @property
    def credential_id(self) -> str:
        return self._attempt.credential_id or ""

    def settle(self, *, requests: int | None = None, tokens: int | None = None) -> None:
        self._attempt.report_usage(requests=requests or 0, tokens=tokens or 0)

    def observe(self, response: Any) -> None:
        self._attempt.observe(response)

    def __enter__(self) -> ChildLease:
        self._attempt.is_lent = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._attempt.is_lent = False

    async def __aenter__(self) -> ChildLease:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__(*exc)

    def __repr__(self) -> str:
        return f"<Lease of {self.credential_id} {MASK}>"


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
        _send(pipe, _answer(worker_func, attempt))


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


def _answer(worker_func: Any, attempt: ChildAttempt) -> bytes:
    _current.set(attempt)
    try:
        value = worker_func(attempt.payload, attempt.credential)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return _packed(value, attempt)
    except BaseException as exc:
        return pickle.dumps(("ended", (None, _described(exc), attempt.usage)))


def _packed(value: Any, attempt: ChildAttempt) -> bytes:
    try:
        return pickle.dumps(("ended", (value, None, attempt.usage)))
    except Exception as error:
        kind = type(value).__name__
        raise TypeError(
            f"the worker's result, a {kind}, cannot leave its process: return plain data ({error})"
        ) from error


def _described(exc: BaseException) -> dict[str, Any]:
    """All that can be said of an exception, and the exception itself (pickled apart) if it can travel."""
    described: dict[str, Any] = {
        "type_name": type(exc).__name__,
        "text": str(exc) or type(exc).__name__,
        "trace": "".join(traceback.format_exception(exc)),
        "verdict": verdicts.from_exception(exc),
        "original": None,
    }
    try:
        described["original"] = pickle.dumps(exc)
    except Exception:  # there are as many ways not to be picklable as there are exceptions
        return described
    return described
