"""Requests to read the keys again: from `agentos keys reload` to the processes that use them.

Each run with keys and each gateway has the file NAME.json in `$AGENTOS_HOME/reload` while it runs. A request is the
file NAME.request, with a random id; the answer to it is NAME.answer. Files and not signals, because SIGHUP is ignored
in a process that was started with nohup, and because the process may be on another machine that shares the folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from agentos.home.paths import home, make_private, write_atomically

RUN, GATEWAY = "run", "gateway"


class Process(msgspec.Struct, frozen=True):
    """A process that can read its keys again."""

    name: str  # of the run; of a gateway: gateway-PID
    kind: str  # RUN or GATEWAY
    pid: int
    host: str
    since: float  # epoch

    @property
    def has_ended(self) -> bool:
        """Whether it has ended without removing its file, as far as this machine can tell."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class Answer(msgspec.Struct, frozen=True):
    request: str  # its id
    is_done: bool  # False: nothing has changed
    text: str  # what has changed, or why nothing has


class ReloadInbox:
    """The files of one process, as a context manager. A folder that cannot be written is no error of the run: it then
    reads its keys again on SIGHUP only."""

    def __init__(self, name: str, kind: str = RUN) -> None:
        self._process = Process(name, kind, os.getpid(), socket.gethostname(), time.time())
        self._answered: str | None = None

    def __enter__(self) -> ReloadInbox:
        with contextlib.suppress(OSError):
            make_private(_folder())
            self._remove()
            write_atomically(_path(self._process.name, "json"), msgspec.json.encode(self._process))
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._remove()

    def request(self) -> str | None:
        """Return the id of a request that was not answered yet; None if there is none."""
        try:
            request = _path(self._process.name, "request").read_text()
        except (OSError, UnicodeDecodeError):
            return None
        return None if request == self._answered else request

    def answer(self, request: str, *, is_done: bool, text: str) -> None:
        """Answer a request."""
        self._answered = request
        with contextlib.suppress(OSError):
            answer = Answer(request, is_done, text)
            write_atomically(_path(self._process.name, "answer"), msgspec.json.encode(answer))

    def _remove(self) -> None:
        _remove(self._process.name)


def processes() -> Iterator[Process]:
    """Yield the processes of this user that can read their keys again. Remove files of processes that have ended."""
    for path in sorted(_folder().glob("*.json")):
        try:
            process = msgspec.json.decode(path.read_bytes(), type=Process)
        except (OSError, msgspec.DecodeError):
            continue
        if process.has_ended:
            _remove(process.name)
        else:
            yield process


def request_reload(process: Process) -> str:
    """Ask a process to read its keys again; return the id of the request. Raises `OSError`."""
    request = secrets.token_hex(8)
    write_atomically(_path(process.name, "request"), request.encode())
    return request


def answer_to(process: Process, request: str) -> Answer | None:
    """Return the answer to a request; None if there is none yet."""
    try:
        answer = msgspec.json.decode(_path(process.name, "answer").read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError):
        return None
    return answer if answer.request == request else None


def _folder() -> Path:
    return home() / "reload"


def _path(name: str, ending: str) -> Path:
    return _folder() / f"{name}.{ending}"


def _remove(name: str) -> None:
    for ending in ("json", "request", "answer"):
        with contextlib.suppress(OSError):
            _path(name, ending).unlink()
