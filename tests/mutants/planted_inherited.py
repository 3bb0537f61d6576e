"""Planted bugs about state that is inherited from the parent process, or handed on to commands."""

from __future__ import annotations

from . import Mutant, tests_of

CREDENTIALS = "pool/test_credentials"
INHERITED = "acceptance/test_inherited_state"
READERS = "acceptance/test_slow_readers"
SCREEN = "acceptance/test_screen"
DESCRIPTORS = "acceptance/test_descriptors"
HOME = "cli/test_home"
ENVIRONMENT = "workers/test_environment_properties"
STARTS = "workers/test_start_failures"

MUTANTS = (
    Mutant(
        "A program that is missing for a moment fails all items that are left",
        "workers/command/_start_failures.py",
        "    if command.program is None:\n",
        "    if command.program is not None:\n",
        tests_of(STARTS, "test_removed_program_stops_run_and_next_launch_continues"),
    ),
    Mutant(
        "The time in which the program was suspended counts as time of an attempt",
        "runs/_driver/timeouts.py",
        "        if paused > 0:",
        "        if paused < 0:",
        tests_of("runs/test_timeouts", "test_time_of_a_suspended_program_does_not_count"),
    ),
    Mutant(
        "An attempt whose worker has returned is abandoned because its result is still processed",
        "runs/_driver/timeouts.py",
        "if attempt.ended_at and not message.has_ended:",
        "if False:",
        tests_of("runs/test_timeouts", "test_result_that_is_processed_is_not_timed_out"),
    ),
    Mutant(
        "A full disk fails the items for which a file cannot be written",
        "workers/command/_start_failures.py",
        "    if error.errno in DISK_FAILURES:\n",
        "    if False:\n",
        tests_of(STARTS, "test_full_disk_for_an_item_stops_run"),
    ),
    Mutant(
        "A run without a folder for the files of its items fails them all",
        "workers/command/_files.py",
        "raise WorkerStartError(f",
        "raise ValueError(f",
        tests_of(STARTS, "test_unusable_folder_for_files_stops_run"),
    ),
    Mutant(
        "Closed descriptors stay closed, and the owner of a pool gets its lock as a descriptor that it replaces",
        "cli/__init__.py",
        "        _open_closed_descriptors()\n",
        "",
        tests_of(INHERITED, "test_closed_descriptors_let_the_pool_owner_start"),
    ),
    Mutant(
        "What a non-blocking stdout does not take at once is lost",
        "cli/__init__.py",
        "        _make_descriptors_blocking()\n",
        "",
        tests_of(INHERITED, "test_results_reach_a_non_blocking_stdout_whole"),
    ),
    Mutant(
        "The command that prints a key inherits stdin, and may read the items of the run",
        "pool/references.py",
        "        stdin=subprocess.DEVNULL,\n",
        "",
        tests_of(CREDENTIALS, "test_cmd_reads_nothing_of_our_stdin"),
    ),
    Mutant(
        "At its time-out only the command that prints a key is killed, not what it has started",
        "pool/references.py",
        "os.killpg(process.pid, signal.SIGKILL)",
        "os.kill(process.pid, signal.SIGKILL)",
        tests_of(CREDENTIALS, "test_timed_out_cmd_is_killed_with_its_descendants"),
    ),
    Mutant(
        "A lost exit status counts as a success",
        "child_status.py",
        "        return None, None\n",
        "        return 0, None\n",
        tests_of(INHERITED, "test_lost_exit_status_is_no_success"),
    ),
    Mutant(
        "The program keeps SIGCHLD ignored, as its parent did",
        "cli/__init__.py",
        "signal.signal(signal.SIGCHLD, signal.SIG_DFL)",
        "pass",
        tests_of(INHERITED, "test_failure_is_recorded_with_an_ignored_signal"),
    ),
    Mutant(
        "The program keeps the signals blocked that its parent had blocked",
        "cli/__init__.py",
        "signal.pthread_sigmask(signal.SIG_SETMASK, ())",
        "pass",
        tests_of(INHERITED, "test_blocked_sigterm_stops_the_run"),
    ),
    Mutant(
        "Commands inherit the blocked signals of the program",
        "workers/command/_process.py",
        "preexec_fn=_unblock_signals if signal.pthread_sigmask(signal.SIG_BLOCK, ()) else None",
        "preexec_fn=None",
        tests_of(INHERITED, "test_command_of_a_program_that_blocks_sigterm_can_be_stopped"),
    ),
    Mutant(
        "A run handles SIGINT although its parent has chosen to ignore it",
        "runs/signals.py",
        "if signal.getsignal(signum) != signal.SIG_IGN:",
        "if True:",
        tests_of(INHERITED, "test_ignored_sigint_stays_ignored_and_stop_works"),
    ),
    Mutant(
        "A paused reader of stdout blocks the thread that reads the output of commands",
        "terminal/_stream_writer.py",
        "flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY",
        "flags = os.O_WRONLY | os.O_NOCTTY",
        tests_of(READERS, "test_ctrl_c_ends_the_wait_for_a_slow_reader"),
    ),
    Mutant(
        "Output that waits for a slow reader is forgotten",
        "terminal/_stream_writer.py",
        "                self._backlog.put(data, is_kept=is_kept)\n",
        "",
        tests_of(SCREEN, "test_full_pipe_does_not_delay_messages"),
    ),
    Mutant(
        "Newer output overtakes output that waits for a slow reader",
        "terminal/_stream_writer.py",
        "            if not self._is_writing:\n                data",
        "            if True:\n                data",
        tests_of(SCREEN, "test_later_output_never_overtakes_waiting_output"),
    ),
    Mutant(
        "Output that was left out is not counted",
        "terminal/_backlog.py",
        'self.left_out_lines += data.count(b"\\n")',
        "pass",
        tests_of("terminal/test_backlog_properties", "test_bytes_come_out_in_order_or_are_counted"),
    ),
    Mutant(
        "A full disk under stdout is a success",
        "cli/launch/reporter.py",
        "error.errno not in (None, errno.EPIPE)",
        "False",
        tests_of(READERS, "test_full_disk_under_stdout_is_exit_status_3"),
    ),
    Mutant(
        "A run whose reader has left goes on although it was told to stop",
        "cli/launch/reporter.py",
        "            self.stop_run()\n",
        "",
        tests_of(READERS, "test_closed_output_stops_the_run_on_request"),
    ),
    Mutant(
        "What programs of Python workers print is not redacted",
        "output/descriptors.py",
        "None if self._redactor is None else self._redactor()",
        "None",
        tests_of(DESCRIPTORS, "test_no_way_of_printing_shows_the_key"),
    ),
    Mutant(
        "Programs of Python workers write to the program's stdout",
        "output/descriptors.py",
        "            os.dup2(writing, descriptor)\n",
        "",
        tests_of(DESCRIPTORS, "test_no_way_of_printing_shows_the_key"),
    ),
    Mutant(
        "The buffer of the C library is written when the program ends, unredacted",
        "output/descriptors.py",
        "ctypes.CDLL(None).fflush(None)",
        "pass",
        tests_of(DESCRIPTORS, "test_no_way_of_printing_shows_the_key"),
    ),
    Mutant(
        "The capture ends with the run although an abandoned attempt goes on printing",
        "cli/launch/reporter.py",
        "            if self._has_threads_of_workers():\n",
        "            if False:\n",
        tests_of(DESCRIPTORS, "test_thread_that_outlives_the_run_shows_no_key"),
    ),
    Mutant(
        "The descriptors stay redirected after a run",
        "output/descriptors.py",
        "                os.dup2(copy, descriptor)\n",
        "",
        tests_of(DESCRIPTORS, "test_descriptors_are_restored_after_an_exception"),
    ),
    Mutant(
        "Programs of Python workers read the items of the run from stdin",
        "cli/launch/_stdin_items.py",
        "    os.dup2(null_device, descriptor)\n",
        "",
        tests_of(DESCRIPTORS, "test_child_of_a_worker_leaves_the_items_on_stdin"),
    ),
    Mutant(
        "Folders above that of a run have the mode that the umask gives",
        "home/paths.py",
        "            folder.mkdir(PRIVATE)\n            folder.chmod(PRIVATE)  # the umask may have removed bits\n",
        "            folder.mkdir(0o777)\n",
        tests_of(HOME, "test_folders_are_private_with_any_umask"),
    ),
    Mutant(
        "The description of a run is executed although another user owns it",
        "home/paths.py",
        "if status.st_uid != os.geteuid():",
        "if False:",
        tests_of(HOME, "test_other_owner_is_refused"),
    ),
    Mutant(
        "Other users may be able to write to the home directory",
        "home/paths.py",
        "if status.st_mode & OTHERS_WRITE:",
        "if status.st_mode & 0o002:",
        tests_of(HOME, "test_folder_of_any_mode_is_private_or_refused", "test_home_that_others_can_write_is_refused"),
    ),
    Mutant(
        "The folder of a run is used although other users could have written it",
        "home/run_folder.py",
        "for path in (self.path.parent, self.path, self._spec):",
        "for path in ():",
        tests_of(HOME, "test_run_that_others_could_have_written_is_not_executed"),
    ),
    Mutant(
        "The folder of an attempt has the mode that the umask gives",
        "workers/command/_files.py",
        "    try:\n        os.mkdir(files.folder, 0o700)",
        "    try:\n        os.mkdir(files.folder, 0o777)",
        tests_of("workers/test_commands", "test_folder_passes_no_mode_link_or_descriptor_to_later_items"),
    ),
    Mutant(
        "Commands inherit variables whose value is a short secret of the pool",
        "redaction/redactor.py",
        "return value.strip() in self._short_secrets or bool(",
        "return bool(",
        tests_of(ENVIRONMENT, "test_no_inherited_variable_is_or_contains_a_secret"),
    ),
)
