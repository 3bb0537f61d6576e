"""Carry out attempts as commands: one thread starts processes, reads their outputs and notices their ends.

That thread sleeps in a selector. Other threads enqueue calls for it and wake it through a pipe.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from agentos.child_status import UNKNOWN_STATUS, ignores_children
from agentos.errors import Interrupted, WorkerStartError
from agentos.items.attempt import Attempt
from agentos.items.parallelism import ItemUse, MachineUse
from agentos.output.stream import Output
from agentos.pool.lease_pool import LeasePool
from agentos.wakeup import Wakeup

from ..base import EndedCall, Workers
from ..capacity import Room, room_for_commands
from ..machine import Machine
from ._files import remove_empty_folder, remove_files
from ._guard import Guard
from ._outcome import outcome_of
from ._process import CommandProcess, ProcessStarter, feed_output
from ._start_failures import SYSTEM_IS_FULL, file_failure, no_room_error
from .command import Command
from .reports import read_reports

# Seconds that the end of a run waits for each killed process to be gone.
REAP_SECONDS = 2.0
# Seconds that the end of a run waits for the commands' thread, which a slow reader of this program's output can block.
CLOSE_SECONDS = 0.5
# Commands that ended between two looks at the machine, of which the use is kept.
MAX_ENDED_USES = 64


class CommandWorkers(Workers):
    can_kill = True
    sends_sigterm = True
    can_submit = True

    def __init__(self, command: Command, ended: EndedCall, pool: LeasePool | None) -> None:
        """Raise `WorkerStartError` if no exit status could be known: a failed command would look like a success."""
        if ignores_children():
            raise WorkerStartError(f"no command is started: {UNKNOWN_STATUS}")
        self._command = command
        self._ended = ended
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._drain_wake_pipe)
        self._calls: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup(self._wake, is_armed=True)
        self._postponed_attempts: deque[Attempt] = deque()  # until a running command has ended
        self._lock = threading.Lock()  # held while using _running, _is_closed and _guard
        self._running: dict[int, CommandProcess] = {}  # by process group
        self._is_closed = False
        self._room: Room | None = None  # for commands at once
        self._descriptors_closed = threading.Event()
        self._guard: Guard | None = None
        self._machine: Machine | None = None  # once it was looked at
        self._ended_uses: deque[ItemUse] = deque(maxlen=MAX_ENDED_USES)  # of commands that succeeded, for the next look
        self._starter = ProcessStarter(command, pool, self._watch_group, self._forget_group)

    # --- called by the run ----------------------------------------------------------------------------------------

    def start(self, attempt: Attempt, _running: int, /) -> None:
        if self._thread is None:
            if self._command.folder is not None:
                with contextlib.suppress(OSError):  # the first log that cannot be written reports it
                    (self._command.folder / "logs").mkdir(0o700, parents=True, exist_ok=True)
            self._guard = Guard()
            self._room = room_for_commands()
            self._thread = threading.Thread(target=self._run_loop, name="agentos-commands", daemon=True)
            self._thread.start()
        attempt.is_preparing = True
        self._enqueue(partial(self._launch, attempt))

    def run_on_worker_thread(self, call: Callable[[], None], /) -> bool:
        self._enqueue(call)
        return True

    def submit(self, call: Callable[[], None], /) -> None:
        self._enqueue(call)

    def interrupt(self, attempt: Attempt, /) -> None:
        _signal(attempt, signal.SIGTERM)

    def kill(self, attempt: Attempt, /) -> None:
        _signal(attempt, signal.SIGKILL)

    def machine_use(self) -> MachineUse:
        """Return what is free on this machine, and what the commands take of it."""
        machine = self._machine = self._machine or Machine()
        with self._lock:
            running = dict(self._running)
        sessions = machine.sessions(running)
        uses = [process.note_use(sessions[pid]) for pid, process in running.items()]
        ended = [self._ended_uses.popleft() for _ in range(len(self._ended_uses))]
        return machine.use()._replace(running=uses, ended=ended)

    def close(self) -> None:
        """Kill all commands, from any thread. Blocks for at most CLOSE_SECONDS.

        Only the commands' thread closes descriptors, because it may be about to read them. If a slow reader of this
        program's output blocks that thread, the descriptors stay open until the program ends.
        """
        with self._lock:
            self._is_closed = True
            processes = list(self._running.values())
        for process in processes:
            process.signal(signal.SIGKILL)
        if self._thread is None or self._thread is threading.current_thread():
            self._close_descriptors()
        else:
            self._wakeup.notify()
            self._descriptors_closed.wait(CLOSE_SECONDS)

    # --- the selector loop, on the commands' thread ---------------------------------------------------------------

    def _enqueue(self, call: Callable[[], None]) -> None:
        """Have the commands' thread make the call. Called from any thread."""
        self._calls.append(call)
        if self._wakeup.is_armed and threading.current_thread() is not self._thread:
            self._wakeup.notify()

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._descriptors_closed.is_set():
                os.write(self._wake_writer, b"\0")

    def _drain_wake_pipe(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        self._wakeup.arm()  # after the read, which takes all signals, and before the thread looks for work

    def _run_loop(self) -> None:
        while not self._is_closed:
            while self._calls and not self._is_closed:
                self._calls.popleft()()
            if not self._is_closed:
                for key, _ in self._selector.select():
                    cast(Callable[[], None], key.data)()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        if self._descriptors_closed.is_set():
            return
        for process in tuple(self._running.values()):
            process.finish_killed(REAP_SECONDS)
        self._selector.close()
        with self._lock:
            if self._guard is not None:
                self._guard.close()
            self._starter.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            self._descriptors_closed.set()

    def _launch(self, attempt: Attempt) -> None:
        if attempt.should_stop or self._is_closed:
            self._end(attempt, None, Interrupted("stopped before it started"))
            return
        if self._room is not None and self._running and len(self._running) >= self._room.attempts:
            self._postponed_attempts.append(attempt)
            return
        try:
            process = self._starter.start(attempt)
        except OSError as error:
            if error.errno not in SYSTEM_IS_FULL:
                self._end(attempt, None, file_failure(error, self._command))
            elif self._running:
                self._postponed_attempts.append(attempt)
            else:  # no item is at fault
                self._end(attempt, None, no_room_error(error, self._room))
            return
        except Exception as error:  # the item lacks a field, an argument cannot hold what it has, or nothing can start
            self._end(attempt, None, error)
            return
        with self._lock:
            self._running[process.pid] = process
            is_too_late = self._is_closed
            attempt.task = process
            attempt.process_group = process.pid
        attempt.is_preparing = False  # after the group: a thread that reads False here can rely on the group
        if is_too_late or attempt.should_stop:
            process.signal(signal.SIGKILL if is_too_late else signal.SIGTERM)
        for descriptor, output in process.outputs.items():
            self._selector.register(descriptor, selectors.EVENT_READ, partial(self._read_output, descriptor, output))
        self._selector.register(process.exit_notice, selectors.EVENT_READ, partial(self._on_exit, process))

    def _read_output(self, descriptor: int, output: Output) -> None:
        if not output.is_ended and not feed_output(descriptor, output):
            self._selector.unregister(descriptor)
            output.is_ended = True

    def _on_exit(self, process: CommandProcess) -> None:
        """Handle the end of a group's leader: finish the group and report the attempt's outcome."""
        self._selector.unregister(process.exit_notice)
        for descriptor, output in process.outputs.items():
            if not output.is_ended:
                self._selector.unregister(descriptor)
        status = process.finish()
        for output in process.outputs.values():
            output.is_ended = True  # the selector may have returned it as ready together with the exit
        with self._lock:
            self._running.pop(process.pid, None)
        self._forget_group(process.pid)
        if status == 0 and self._machine is not None:
            self._ended_uses.append(process.whole_use())
        attempt = process.attempt
        attempt.task = None
        attempt.context.process_ended(attempt, process.pid)
        value, error = outcome_of(process, status, self._take_reports(process), self._command)
        self._end(attempt, value, error)
        while self._postponed_attempts:
            self._calls.append(partial(self._launch, self._postponed_attempts.popleft()))

    def _end(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        attempt.is_preparing = False
        self._ended(attempt, value, error)

    def _take_reports(self, process: CommandProcess) -> list[dict[str, Any]]:
        """Return what the command has reported, and remove the attempt's folder. What the command has saved stays until
        the success of its item is recorded."""
        files, attempt = process.files, process.attempt
        reports: list[dict[str, Any]] = []
        if not remove_empty_folder(files):
            reports = read_reports(files.report)
            if not remove_files(files):
                attempt.context.has_files = True
        if os.path.exists(files.database):  # noqa: PTH110
            _ = attempt.workflow_db  # reading it records that the item has a database
        return reports

    def _watch_group(self, group: int) -> None:
        with self._lock:
            if self._guard is not None:
                self._guard.watch(group)

    def _forget_group(self, group: int) -> None:
        with self._lock:
            if self._guard is not None:
                self._guard.forget(group)


def _signal(attempt: Attempt, signum: signal.Signals) -> None:
    process: CommandProcess | None = attempt.task
    if process is not None:
        process.signal(signum)
