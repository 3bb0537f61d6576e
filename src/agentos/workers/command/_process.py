"""Start the process of one attempt, signal its process group, and read its outputs until they have ended.

Each command leads a session and a process group of its own. A signal goes to the whole group. When the leader has ended
by itself, the rest of the group is killed, because the attempt's credential goes back to the pool.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentos.child_status import wait_for_end
from agentos.items.attempt import Attempt
from agentos.items.fields import field_of
from agentos.items.parallelism import ItemUse
from agentos.output.stream import Log, Output, log_lost
from agentos.pool.lease_pool import LeasePool

from ..machine import SessionUse
from ._files import AttemptFiles, create_client_settings, create_files, open_anonymous_file
from ._start_failures import SYSTEM_IS_FULL, execution_failure
from .command import Command, inherited_environment

# Bytes per read of an output.
READ_BYTES = 256 * 1024
# Bytes of JSON up to which an item is passed in a variable, else in a file: the system limits the size of a variable.
MAX_VARIABLE_BYTES = 100 * 1024
# Bytes read of an output after the end of the command: the size of the largest pipe. More can only come from a process
# that has left the group, and that process may never end.
MAX_BYTES_AFTER_EXIT = 1024 * 1024
# Bytes in which the system counts the largest size of a process.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024

_encode_item = json.JSONEncoder(separators=(",", ":")).encode


class CommandProcess:
    """A running command and its outputs."""

    def __init__(self, popen: subprocess.Popen[bytes], attempt: Attempt, files: AttemptFiles, log: Log | None,
                 outputs: dict[int, Output]) -> None:  # fmt: skip
        """Raise `OSError` if the system has no descriptor for the notice of its exit."""
        self._popen = popen
        self.pid = popen.pid  # also the id of its process group
        self.exit_notice, self._kqueue = _exit_notice(popen.pid)  # a descriptor: readable when the leader has ended
        self.attempt = attempt
        self.files = files
        self.outputs = outputs  # by descriptor: stdout, then stderr
        self._log = log
        # Held to signal and to reap: after the reaping, the system may give the group's id to another process.
        self._lock = threading.Lock()
        self._is_reaped = False
        self._usage: resource.struct_rusage | None = None  # once it was reaped
        self._started = time.monotonic()
        self._peak = SessionUse(0.0, 0.0)  # of all looks

    def note_use(self, use: SessionUse) -> ItemUse:
        """Remember what the command takes now, and return it."""
        self._peak = SessionUse(max(self._peak.bytes, use.bytes), max(self._peak.cpu_seconds, use.cpu_seconds))
        return ItemUse(use.bytes, use.cpu_seconds, time.monotonic() - self._started)

    def whole_use(self) -> ItemUse:
        """Return what the command has taken until its end: the peak of its memory, as far as looks have seen it or the
        system tells."""
        peak, cpu_seconds = self._peak
        if self._usage is not None:
            cpu_seconds = max(cpu_seconds, self._usage.ru_utime + self._usage.ru_stime)
            largest = self._usage.ru_maxrss
            # The figure of a child begins with that of this program, from which it was started, and means nothing then.
            if largest > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
                peak = max(peak, largest * RSS_UNIT)
        return ItemUse(peak, cpu_seconds, time.monotonic() - self._started)

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the group. Called from any thread; a no-op once the leader was reaped."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._is_reaped:
                os.killpg(self.pid, signum)

    def finish(self) -> int | None:
        """Kill the rest of the group after its leader has ended, read the outputs to their end and close them. Return
        the exit status, negative for a signal; None if it is lost, or was returned before."""
        with self._lock:
            if self._is_reaped:
                return None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # before the reaping: until then the id belongs to this group
            status, self._usage = wait_for_end(self._popen)
            self._is_reaped = True
        # Without the lock: a slow reader of this program's output can block here, and must not block `signal`.
        for descriptor, output in self.outputs.items():
            for _ in range(MAX_BYTES_AFTER_EXIT // READ_BYTES):
                if output.is_ended or not feed_output(descriptor, output, is_last=True):
                    break
            output.close()
            os.close(descriptor)
        if self._log is not None:
            self._log.close()
        if self._kqueue is None:
            os.close(self.exit_notice)
        else:
            self._kqueue.close()
        return status

    def finish_killed(self, seconds: float) -> None:
        """Finish a command that was killed at the end of the run; block for at most `seconds` until it has ended. Its
        last output is logged and not shown: a reader that blocks the commands' thread would block this one, too."""
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


class ProcessStarter:
    """Starts the commands of one run. One thread calls it."""

    def __init__(
        self,
        command: Command,
        pool: LeasePool | None,
        on_start: Callable[[int], None],
        on_failure: Callable[[int], None],
    ) -> None:
        """`on_start` is called with a process group as soon as it exists, `on_failure` if the group was killed because
        its end could not be noticed."""
        self._command = command
        self._on_start = on_start
        self._on_failure = on_failure
        self._pool = pool
        self._hides_secret = (lambda _: False) if pool is None else pool.hides_secret
        self._environment = inherited_environment(None if pool is None else pool.redactor())
        self._log_folder = None if command.folder is None else command.folder / "logs"
        self._program_paths: dict[str, str | None] = {}
        self._devnull = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # stdin of commands that read nothing
        self._is_log_lost = False

    def start(self, attempt: Attempt) -> CommandProcess:
        """Start the command of an attempt. Raise `OSError` if the system has no room or a file cannot be written,
        `CommandFailed` if the system does not execute the program for this item and `WorkerStartError` if it does for
        none, `LookupError` if the item lacks a field, and `ValueError` if an argument would show a secret."""
        command, item = self._command, attempt.item.payload
        arguments = command.filled(item, attempt.id)
        if self._hides_secret("\0".join(arguments)):
            raise ValueError(
                "an argument of the command would contain a credential's secret, visible in the list of processes: "
                "pass it in a variable (credential_env)"
            )
        files = create_files(attempt)
        environment = self._environment_of(attempt, files)
        if attempt.client_token is not None:
            self._add_access(attempt, attempt.client_token, arguments, files, environment)
        stdin = self._devnull
        if command.stdin is not None:
            text = attempt.id if command.stdin == "id" else field_of(item, command.stdin)
            if text is None:
                raise LookupError(f"the item has no field {command.stdin!r}, which the command reads on stdin")
            stdin = _readable(text.encode("utf-8", "surrogateescape"))
        try:
            popen, *pipes = self._open(arguments, stdin, environment)
            self._on_start(popen.pid)  # first of all: a run that is killed before that leaves the group running
        finally:
            if stdin != self._devnull:
                os.close(stdin)
        log = None
        if self._log_folder is not None:
            log = Log(self._log_folder, attempt.id, attempt.attempt, self._on_log_error)
        try:
            return CommandProcess(popen, attempt, files, log, self._outputs(pipes, attempt, log))
        except OSError:  # no descriptor for the notice of its exit
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            self._on_failure(popen.pid)
            popen.wait()
            for pipe in pipes:
                os.close(pipe)
            raise

    def close(self) -> None:
        os.close(self._devnull)

    def _open(
        self, arguments: list[str], stdin: int, environment: dict[str, str]
    ) -> tuple[subprocess.Popen[bytes], int, int]:
        """Return the process and the descriptors that read its stdout and stderr. The pipes are made here because
        `Popen` would wrap each of them in a buffered file."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            popen = subprocess.Popen(  # noqa: S603 - running the user's own command is the job
                arguments,
                executable=self._program_path(arguments[0]),
                stdin=stdin,
                stdout=ends[1],
                stderr=ends[3],
                env=environment,
                cwd=self._command.cwd,
                start_new_session=True,
                preexec_fn=_unblock_signals if signal.pthread_sigmask(signal.SIG_BLOCK, ()) else None,
            )
        except BaseException as error:
            for end in ends:
                os.close(end)
            if isinstance(error, OSError) and error.errno not in SYSTEM_IS_FULL:
                raise execution_failure(error, self._command) from None
            raise
        stdout, stdout_end, stderr, stderr_end = ends
        os.close(stdout_end)
        os.close(stderr_end)
        return popen, stdout, stderr

    def _program_path(self, name: str) -> str | None:
        """Return the absolute path of a program, looked up once: the system would try every folder of the PATH for each
        command. None: leave the lookup to the system."""
        if name not in self._program_paths:
            path = None if os.sep in name else shutil.which(name, path=self._environment.get("PATH"))
            self._program_paths[name] = path if path is not None and os.path.isabs(path) else None  # noqa: PTH117
        return self._program_paths[name]

    def _outputs(self, pipes: list[int], attempt: Attempt, log: Log | None) -> dict[int, Output]:
        outputs, redactor = {}, None if self._pool is None else self._pool.redactor()  # of the keys as they are now
        if redactor is not None and attempt.client_token is not None:
            redactor = redactor.with_secret(attempt.client_token)
        for name, pipe in zip(("stdout", "stderr"), pipes, strict=True):
            os.set_blocking(pipe, False)
            outputs[pipe] = Output(attempt.id, name, redactor, log, self._command.show)
        return outputs

    def _environment_of(self, attempt: Attempt, files: AttemptFiles) -> dict[str, str]:
        environment = self._environment.copy()
        environment["AGENTOS_RUN_ID"] = attempt.run_id
        environment["AGENTOS_ATTEMPT"] = str(attempt.attempt)
        environment["AGENTOS_WORKFLOW_DB"] = files.database
        environment["AGENTOS_CHECKPOINT_DIR"] = files.folder
        environment["AGENTOS_REPORT"] = files.report
        if _fits_in_variable(attempt.id):  # else the command reads it from the item
            environment["AGENTOS_ITEM_ID"] = attempt.id
        item = _encode_item(attempt.item.payload)
        if len(item) <= MAX_VARIABLE_BYTES:
            environment["AGENTOS_ITEM"] = item
        else:
            Path(files.item).write_text(item)
            environment["AGENTOS_ITEM_FILE"] = files.item
        if attempt.credential_id is not None and attempt.credential is not None:
            environment["AGENTOS_CREDENTIAL_ID"] = attempt.credential_id
            variable = self._command.variable(attempt.credential_id)
            if variable is not None:
                # Without a key of its own (a log-in in a profile folder) the command must not find an inherited one.
                environment.pop(variable, None)
            environment.update(attempt.credential.settings.command_env)
            if variable is not None and attempt.credential != "":
                environment[variable] = str(attempt.credential)
        return environment

    def _add_access(
        self, attempt: Attempt, token: str, arguments: list[str], files: AttemptFiles, environment: dict[str, str]
    ) -> None:
        """Add the address of the gateway, the client token wherever the command would look for a key, and the settings
        of the command's client."""
        access = attempt.context.access
        assert access is not None
        token = str(token)
        environment["AGENTOS_GATEWAY_URL"] = access.url
        environment["AGENTOS_CLIENT_TOKEN"] = token
        for variable in self._command.variables:
            environment[variable] = token
        for name, value in access.environment(token, arguments, create_client_settings(files)).items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value

    def _on_log_error(self, error: OSError) -> None:
        """Show the first error of a log."""
        if not self._is_log_lost and self._command.show is not None:
            self._is_log_lost = True
            self._command.show("", "stderr", log_lost(error))


def feed_output(descriptor: int, output: Output, *, is_last: bool = False) -> bool:
    """Pass on what a pipe holds. Return whether more can come. `is_last`: after the end of the command, when an empty
    pipe counts as ended although a process outside the group may still hold its other end."""
    try:
        data = os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return not is_last
    except OSError:
        return False
    output.feed(data)
    return bool(data)


def _unblock_signals() -> None:
    """Unblock all signals, in the process that becomes the command: it would inherit the mask of a program that blocks
    SIGTERM to wait for it in one thread, and could not be asked to stop."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _fits_in_variable(text: str) -> bool:
    try:
        return "\0" not in text and len(os.fsencode(text)) <= MAX_VARIABLE_BYTES
    except UnicodeEncodeError:
        return False


def _exit_notice(pid: int) -> tuple[int, Any]:
    """Return a descriptor that becomes readable when the process has ended, and the kqueue to close in its place (None
    where the system has pidfds)."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid), None
    select: Any = importlib.import_module("select")  # kqueue: macOS and the BSDs
    queue = select.kqueue()
    event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT)
    queue.control([event], 0)
    return queue.fileno(), queue


def _readable(data: bytes) -> int:
    """Return a descriptor that reads the data. A file, not a pipe: it holds any amount without a writer."""
    descriptor = open_anonymous_file()
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
