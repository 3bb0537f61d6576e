"""Attempts as commands: one thread starts them, reads what they print, and learns when they end.

Each command leads a session and a process group of its own. Whoever ends it ends the whole group; and when its leader
has ended by itself, whatever it has left behind is ended too, because the attempt's credential goes back to the pool.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from agentos.errors import CommandFailed, Interrupted
from agentos.items.attempt import Attempt
from agentos.items.fields import field_of
from agentos.items.file_names import log_name
from agentos.output.stream import Log, Output
from agentos.pool.lease_pool import LeasePool
from agentos.providers import verdicts
from agentos.verdict import PERMANENT, TRANSIENT, Verdict
from agentos.wakeup import Wakeup

from ..base import EndedCall, Workers
from ._files import AttemptFiles, Folders, open_anonymous_file
from ._guard import Guard
from .command import Command, inherited_environment
from .reports import read_reports

READ_BYTES = 256 * 1024
# An item with more than this is handed over in a file: the system has a limit for one variable.
MOST_IN_VARIABLE = 100 * 1024
# What is read of a command's output after its end: the largest pipe that there is.
MOST_LEFT = 1024 * 1024
# Of what was printed last, own patterns are tried on so much: an unlucky one may take very long.
MOST_MATCHED = 8 * 1024
# How long a killed process may take to be gone; it has no say in it.
REAP_SECONDS = 2.0
# How long the end of a run waits for the commands' thread, which whoever reads our output may hold up.
LET_GO_SECONDS = 0.5
# The system has no room for another process or descriptor now, but will have when one of ours has ended.
_FULL = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class CommandWorkers(Workers):
    can_kill = True
    can_submit = True

    def __init__(self, command: Command, ended: EndedCall, pool: LeasePool | None) -> None:
        self._command = command
        self._ended = ended
        self._redactor = None if pool is None else pool.redactor()
        self._hides_secret = (lambda _: False) if pool is None else pool.hides_secret
        self._environment = inherited_environment(self._hides_secret)
        self._programs: dict[str, str | None] = {}  # where each was found
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # what most commands get to read
        self._folder = command.folder
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._called, self._call = os.pipe()
        os.set_blocking(self._called, False)
        os.set_blocking(self._call, False)
        self._selector.register(self._called, selectors.EVENT_READ, self._drain_calls)
        self._todo: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup(self._wake, is_armed=True)
        self._postponed: deque[Attempt] = deque()  # until one that runs has ended
        self._lock = threading.Lock()  # guards _running, _is_closed and _guard
        self._running: dict[int, _Process] = {}  # by process group
        self._is_closed = False
        self._has_let_go = threading.Event()  # of all descriptors
        self._is_log_lost = False
        self._guard: Guard | None = None
        self._folders = Folders()

    # --- what the driver asks for ---------------------------------------------------------------------------------

    def start(self, attempt: Attempt, _running: int, /) -> None:
        if self._thread is None:
            if self._folder is not None:
                with contextlib.suppress(OSError):  # it is told when a log cannot be written
                    (self._folder / "logs").mkdir(parents=True, exist_ok=True)
            self._guard = Guard()
            self._thread = threading.Thread(target=self._work, name="agentos-commands", daemon=True)
            self._thread.start()
        attempt.is_preparing = True
        self._in_thread(partial(self._launch, attempt))

    def run_on_worker_thread(self, call: Callable[[], None], /) -> bool:
        self._in_thread(call)
        return True

    def submit(self, call: Callable[[], None], /) -> None:
        self._in_thread(call)

    def interrupt(self, attempt: Attempt, /) -> None:
        self._signal(attempt, signal.SIGTERM)

    def kill(self, attempt: Attempt, /) -> None:
        self._signal(attempt, signal.SIGKILL)

    def close(self) -> None:
        """On any thread. Only the commands' own lets go of descriptors: it may be about to read from them. If whoever
        reads our output holds it up, that is left to the end of the program; but the commands have ended."""
        with self._lock:
            self._is_closed = True
            left = list(self._running.values())
        for process in left:
            process.signal(signal.SIGKILL)
        if self._thread is None or self._thread is threading.current_thread():
            self._let_go()
        else:
            self._wakeup.notify()
            self._has_let_go.wait(LET_GO_SECONDS)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _in_thread(self, call: Callable[[], None]) -> None:
        self._todo.append(call)
        if self._wakeup.is_armed and threading.current_thread() is not self._thread:
            self._wakeup.notify()

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._has_let_go.is_set():
                os.write(self._call, b"\0")

    def _drain_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._called, 4096)
        self._wakeup.arm()  # after the read, which takes all signals, and before the thread looks for work

    def _work(self) -> None:
        while not self._is_closed:
            while self._todo and not self._is_closed:
                self._todo.popleft()()
            if not self._is_closed:
                for key, _ in self._selector.select():
                    cast(Callable[[], None], key.data)()
        self._let_go()

    def _let_go(self) -> None:
        if self._has_let_go.is_set():
            return
        for process in tuple(self._running.values()):
            process.give_up(REAP_SECONDS)
        self._folders.close()
        self._selector.close()
        with self._lock:
            if self._guard is not None:
                self._guard.close()
            for descriptor in (self._nothing, self._called, self._call):
                os.close(descriptor)
            self._has_let_go.set()

    def _launch(self, attempt: Attempt) -> None:
        if attempt.should_stop or self._is_closed:
            self._end(attempt, None, Interrupted("stopped before it started"))
            return
        try:
            process = self._started(attempt)
        except OSError as error:
            if error.errno in _FULL and self._running:
                self._postponed.append(attempt)
                return
            self._end(attempt, None, _cannot_start(error, self._command))
            return
        except Exception as error:  # the item lacks a field, or holds what no argument can
            self._end(attempt, None, error)
            return
        with self._lock:
            self._running[process.pid] = process
            is_too_late = self._is_closed
            attempt.task = process
            attempt.process_group = process.pid
        attempt.is_preparing = False  # who sees that sees its group, too
        if is_too_late or attempt.should_stop:
            process.signal(signal.SIGKILL if is_too_late else signal.SIGTERM)
        for descriptor, output in process.outputs.items():
            self._selector.register(descriptor, selectors.EVENT_READ, partial(self._read, descriptor, output))
        self._selector.register(process.exit_notice, selectors.EVENT_READ, partial(self._exited, process))

    def _started(self, attempt: Attempt) -> _Process:
        command, item = self._command, attempt.item.payload
        arguments = command.filled(item, attempt.id)
        if self._hides_secret("\0".join(arguments)):
            raise ValueError(
                "an argument of the command would hold a credential's secret, for all to see in the list of processes: "
                "hand it over in a variable (credential_env)"
            )
        files = self._folders.create(attempt)
        environment = self._environment_of(attempt, files)
        stdin = self._nothing
        if command.stdin is not None:
            text = attempt.id if command.stdin == "id" else field_of(item, command.stdin)
            if text is None:
                raise LookupError(f"the item has no field {command.stdin!r}, which the command is to read")
            stdin = _readable(text.encode("utf-8", "surrogateescape"))
        try:
            popen, *pipes = self._opened(arguments, stdin, environment)
            self._watch(popen.pid)  # before all else: a run that is killed until then leaves it behind
        finally:
            if stdin != self._nothing:
                os.close(stdin)
        log = None
        if self._folder is not None:
            log = Log(self._folder / "logs", attempt.id, attempt.attempt, self._on_log_error)
        try:
            return _Process(popen, attempt, files, log, self._outputs(pipes, attempt, log))
        except OSError:  # nobody would notice its end
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            self._forget(popen.pid)
            popen.wait()
            for pipe in pipes:
                os.close(pipe)
            raise

    def _watch(self, group: int) -> None:
        with self._lock:
            if self._guard is not None:
                self._guard.watch(group)

    def _forget(self, group: int) -> None:
        with self._lock:
            if self._guard is not None:
                self._guard.forget(group)

    def _opened(
        self, arguments: list[str], stdin: int, environment: dict[str, str]
    ) -> tuple[subprocess.Popen[bytes], int, int]:
        """The process, and where its stdout and stderr are read: `Popen` would put a file with a buffer around each."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            popen = subprocess.Popen(  # noqa: S603 - running the user's own command is the job
                arguments,
                executable=self._program(arguments[0]),
                stdin=stdin,
                stdout=ends[1],
                stderr=ends[3],
                env=environment,
                cwd=self._command.cwd,
                start_new_session=True,
            )
        except BaseException:
            for end in ends:
                os.close(end)
            raise
        stdout, stdout_end, stderr, stderr_end = ends
        os.close(stdout_end)
        os.close(stderr_end)
        return popen, stdout, stderr

    def _program(self, name: str) -> str | None:
        """Looked for once: the system would try it in every folder of the PATH, each time. None: let it."""
        if name not in self._programs:
            found = None if os.sep in name else shutil.which(name, path=self._environment.get("PATH"))
            self._programs[name] = found if found is not None and os.path.isabs(found) else None  # noqa: PTH117
        return self._programs[name]

    def _outputs(self, pipes: list[int], attempt: Attempt, log: Log | None) -> dict[int, Output]:
        outputs = {}
        for name, pipe in zip(("stdout", "stderr"), pipes, strict=True):
            os.set_blocking(pipe, False)
            outputs[pipe] = Output(attempt.id, name, self._redactor, log, self._command.show)
        return outputs

    def _environment_of(self, attempt: Attempt, files: AttemptFiles) -> dict[str, str]:
        environment = self._environment.copy()
        environment["AGENTOS_RUN_ID"] = attempt.run_id
        environment["AGENTOS_ATTEMPT"] = str(attempt.attempt)
        environment["AGENTOS_WORKFLOW_DB"] = files.database
        environment["AGENTOS_CHECKPOINT_DIR"] = files.folder
        environment["AGENTOS_REPORT"] = files.report
        if _fits_in_variable(attempt.id):  # else it is told in the item
            environment["AGENTOS_ITEM_ID"] = attempt.id
        item = json.dumps(attempt.item.payload, separators=(",", ":"))
        if len(item) <= MOST_IN_VARIABLE:
            environment["AGENTOS_ITEM"] = item
        else:
            Path(files.item).write_text(item)
            environment["AGENTOS_ITEM_FILE"] = files.item
        if attempt.credential_id is not None and attempt.credential is not None:
            environment["AGENTOS_CREDENTIAL_ID"] = attempt.credential_id
            variable = self._command.variable(attempt.credential_id)
            if variable is not None:
                environment[variable] = str(attempt.credential)
        return environment

    def _read(self, descriptor: int, output: Output) -> None:
        if not output.is_ended and not _feed(descriptor, output):
            self._selector.unregister(descriptor)
            output.is_ended = True

    def _exited(self, process: _Process) -> None:
        """Its leader has ended."""
        self._selector.unregister(process.exit_notice)
        for descriptor, output in process.outputs.items():
            if not output.is_ended:
                self._selector.unregister(descriptor)
        status = process.finish()
        for output in process.outputs.values():
            output.is_ended = True  # one of them may be among those that were found ready together with the end
        with self._lock:
            self._running.pop(process.pid, None)
        self._forget(process.pid)
        attempt = process.attempt
        attempt.task = None
        attempt.context.process_ended(attempt, process.pid)
        value, error = self._outcome(process, status)
        self._clean(process)
        self._end(attempt, value, error)
        while self._postponed:
            self._todo.append(partial(self._launch, self._postponed.popleft()))

    def _end(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        attempt.is_preparing = False
        self._ended(attempt, value, error)

    def _outcome(self, process: _Process, status: int) -> tuple[Any, BaseException | None]:
        attempt = process.attempt
        stdout, stderr = process.outputs.values()
        reported = self._report(process)
        verdict = self._judged(process, status) if reported is None else reported
        told = {"exit_status": status, "log": None if self._folder is None else log_name(attempt.id)}
        if status == 0 and verdict.kind is None:
            return {**told, "stdout": stdout.tail.decode("utf-8", "replace"), "is_cut": stdout.is_cut}, None
        if attempt.should_stop and not attempt.is_timed_out:
            return None, Interrupted(f"stopped ({_status_text(status)})")
        own_words = b"" if reported is None else reported.message.encode("utf-8", "replace")
        last = _last_line(own_words) or _last_line(stderr.tail) or _last_line(stdout.tail)
        text = _status_text(status) + (f": {last}" if last else "")
        told["stderr"] = stderr.tail[-4096:].decode("utf-8", "replace")
        return None, CommandFailed(text, exit_status=status, verdict=verdict, details=told)

    def _report(self, process: _Process) -> Verdict | None:
        """What the command itself has said."""
        attempt = process.attempt
        said: Verdict | None = None
        for report in read_reports(process.files.report):
            if "usage" in report:
                attempt.report_usage(**report["usage"])
            else:
                said = _reported(report)
        return said

    def _judged(self, process: _Process, status: int) -> Verdict:
        """By what it has printed, and by own patterns first."""
        attempt = process.attempt
        text = b"\n".join(output.tail for output in process.outputs.values()).decode("utf-8", "replace")
        if status != 0:
            for pattern in self._command.patterns:
                if (verdict := pattern.read(text[-MOST_MATCHED:])) is not None:
                    return verdict
        return verdicts.from_output(text, status, provider=attempt.provider, now=time.time())

    def _clean(self, process: _Process) -> None:
        """What the command has saved is kept until its item's success is on record."""
        if self._folders.remove(process.files):
            process.attempt.context.has_files = True
        if os.path.exists(process.files.database):  # noqa: PTH110
            _ = process.attempt.workflow_db  # it is on record from now on

    def _signal(self, attempt: Attempt, signum: signal.Signals) -> None:
        process: _Process | None = attempt.task
        if process is not None:
            process.signal(signum)

    def _on_log_error(self, error: OSError) -> None:
        if not self._is_log_lost and self._command.show is not None:
            self._is_log_lost = True
            self._command.show("", "stderr", f"agentos: logs cannot be written any more: {error}\n".encode())


class _Process:
    """A running command."""

    def __init__(self, popen: subprocess.Popen[bytes], attempt: Attempt, files: AttemptFiles, log: Log | None,
                 outputs: dict[int, Output]) -> None:  # fmt: skip
        self._popen = popen
        self.pid = popen.pid  # of its group, too
        self.exit_notice, self._notifier = _exit_notice(popen.pid)
        self.attempt = attempt
        self.files = files
        self.outputs = outputs  # by descriptor: stdout, then stderr
        self._log = log
        self._lock = threading.Lock()  # guards the number of the group, which is somebody else's once it was reaped
        self._is_reaped = False

    def signal(self, signum: signal.Signals) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._is_reaped:
                os.killpg(self.pid, signum)

    def finish(self) -> int:
        """The leader has ended: so does the rest. Returns the exit status, negative for a signal."""
        with self._lock:
            if self._is_reaped:
                return self._popen.returncode
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # before it is reaped: until then the number is its own
            status = self._popen.wait()
            self._is_reaped = True
        # Without the lock: whoever reads our output may hold this up, and nobody should have to wait for that.
        for descriptor, output in self.outputs.items():
            # So much fits into a pipe; more comes only from somebody who has left the group, and may never end.
            for _ in range(MOST_LEFT // READ_BYTES):
                if output.is_ended or not _feed(descriptor, output, is_last=True):
                    break
            output.close()
            os.close(descriptor)
        if self._log is not None:
            self._log.close()
        if self._notifier is None:
            os.close(self.exit_notice)
        else:
            self._notifier.close()
        return status

    def give_up(self, seconds: float) -> None:
        """It was killed, and the run is over. What it has printed last is only logged: whoever reads our output may
        have held up the other thread, and would hold up this one too."""
        poll = selectors.DefaultSelector()
        try:
            with contextlib.suppress(OSError, ValueError):  # finished already
                poll.register(self.exit_notice, selectors.EVENT_READ)
                if not poll.select(seconds):
                    return
        finally:
            poll.close()
        for output in self.outputs.values():
            output.mute()
        self.finish()


def _feed(descriptor: int, output: Output, *, is_last: bool = False) -> bool:
    """Whether there may be more. At the last, somebody who has left the group may still hold the other end."""
    try:
        data = os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return not is_last
    except OSError:
        return False
    output.feed(data)
    return bool(data)


def _fits_in_variable(text: str) -> bool:
    try:
        return "\0" not in text and len(os.fsencode(text)) <= MOST_IN_VARIABLE
    except UnicodeEncodeError:
        return False


def _reported(report: dict[str, Any]) -> Verdict:
    wait = report.get("retry_after")
    if wait is None and "until" in report:
        wait = max(0.0, report["until"] - time.time())
    return Verdict(report["verdict"], wait, message=report.get("message", ""))


def _exit_notice(pid: int) -> tuple[int, Any]:
    """A descriptor that can be read from as soon as the process has ended, and what has to be closed instead of it."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid), None
    select: Any = importlib.import_module("select")  # as it is on macOS
    queue = select.kqueue()
    event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT)
    queue.control([event], 0)
    return queue.fileno(), queue


def _readable(data: bytes) -> int:
    """A descriptor from which data can be read, however much it is."""
    descriptor = open_anonymous_file()
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _cannot_start(error: OSError, command: Command) -> CommandFailed:
    if error.errno == errno.E2BIG:
        text = "its arguments are longer than the system allows: hand the item over on stdin (stdin=FIELD)"
    else:
        text = error.strerror or str(error)
        if command.cwd is not None and not os.path.isdir(command.cwd):  # noqa: PTH112
            text = f"its folder {command.cwd} is gone"
    kind = TRANSIENT if error.errno in _FULL else PERMANENT
    return CommandFailed(
        f"{command.arguments[0]} cannot be started: {text}",
        exit_status=None,
        verdict=Verdict(kind, message=text),
        details={},
    )


def _status_text(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"ended by signal {-status} ({signal.Signals(-status).name})"
    return f"ended by signal {-status}"


def _last_line(output: bytes) -> str:
    lines = output[-2048:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""
