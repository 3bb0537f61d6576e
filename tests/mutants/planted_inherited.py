"""Planted bugs about state that is inherited from the parent process, or handed on to commands."""

from __future__ import annotations

from . import Mutant, tests_of

CREDENTIALS = "pool/test_credentials"
INHERITED = "acceptance/test_inherited_state"
ENVIRONMENT = "workers/test_environment_properties"

MUTANTS = (
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
        "        return None\n",
        "        return 0\n",
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
        "Commands inherit variables whose value is a short secret of the pool",
        "redaction/redactor.py",
        "return value.strip() in self._short_secrets or bool(",
        "return bool(",
        tests_of(ENVIRONMENT, "test_no_inherited_variable_is_or_contains_a_secret"),
    ),
)
