"""What the program inherits from its parent: signals, masks, descriptors, limits. Real programs in real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentos.workflows.parallel import Command, ParallelCoordinator, WorkerStartError
from tests.conftest import eventually

from .program import AGENTOS, PATIENCE, Sandbox

# Runs a command line after a line of Python that changes what the command inherits.
_AFTER = "import os, signal, sys\n{change}\nos.execvp(sys.argv[1], sys.argv[1:])"
SIGNALS_OF_SELF = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def run_after(sandbox: Sandbox, change: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the program in a process in which a line of Python was executed before."""
    return subprocess.run(
        [sys.executable, "-c", _AFTER.format(change=change), *AGENTOS, *arguments],
        cwd=sandbox.path,
        env=sandbox.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **{"stdin": subprocess.DEVNULL, **options},  # type: ignore[call-overload]
    )


def signal_bit(signum: signal.Signals) -> int:
    return 1 << (signum - 1)


def signal_sets(output: str) -> dict[str, int]:
    """Return the blocked and the ignored signals of a process, from lines of /proc/PID/status."""
    words = [line.split() for line in output.splitlines() if "Sig" in line]
    return {name.strip(":"): int(bits, 16) for *_, name, bits in words}


# --- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", ["SIGCHLD", "SIGPIPE"])
def test_failure_is_recorded_with_an_ignored_signal(sandbox: Sandbox, signum: str) -> None:
    done = run_after(sandbox, f"signal.signal(signal.{signum}, signal.SIG_IGN)", "run", "--item", "a", "--", "false")
    assert done.returncode == 1, done.stderr
    assert "exit status 1" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_commands_start_with_default_signals(sandbox: Sandbox) -> None:
    change = (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.signal(signal.SIGPIPE, signal.SIG_IGN); "
        "signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT})"
    )
    done = run_after(sandbox, change, "run", "--item", "a", "--", *SIGNALS_OF_SELF)
    sets = signal_sets(done.stdout)
    assert sets["SigBlk"] == 0
    assert not sets["SigIgn"] & (signal_bit(signal.SIGCHLD) | signal_bit(signal.SIGPIPE))
    assert sets["SigIgn"] & signal_bit(signal.SIGHUP)  # nohup is kept


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_command_of_a_program_that_blocks_sigterm_can_be_stopped() -> None:
    """Programs that wait for signals in one thread block them in all."""
    lines: list[bytes] = []
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        command = Command(SIGNALS_OF_SELF, show=lambda _id, _stream, data: lines.append(data))
        _, (result,) = ParallelCoordinator(1).execute_parallel(["a"], command)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    assert result.success
    assert signal_sets(b"".join(lines).decode())["SigBlk"] == 0


def test_program_that_ignores_sigchld_starts_no_command() -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(WorkerStartError, match="exit status is lost"):
            ParallelCoordinator(1).execute_parallel(["a"], Command(["false"]))
    finally:
        signal.signal(signal.SIGCHLD, previous)


def test_lost_exit_status_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may start to ignore SIGCHLD, or wait for all children, while its run goes on."""
    monkeypatch.setattr("agentos.workers.command.runner.ignores_children", lambda: False)
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        _, results = ParallelCoordinator(1, retries=0).execute_parallel(["a"], Command(["sleep", "0.2"]))
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert [result.success for result in results] == [False]
    assert "exit status is lost" in (results[0].error or "")


def test_ignored_sigint_stays_ignored_and_stop_works(sandbox: Sandbox) -> None:
    """A shell without job control starts background jobs with SIGINT ignored."""
    sandbox.script("echo $$ >> pids; exec sleep 600")
    with subprocess.Popen(
        [sys.executable, "-c", _AFTER.format(change="signal.signal(signal.SIGINT, signal.SIG_IGN)"),
         *AGENTOS, "run", "--run-id", "r", "--grace", "0.2", "--item", "a", "--", "./command.sh"],
        cwd=sandbox.path, env=sandbox.environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        try:
            sandbox.pids("pids", 1)
            for _ in range(3):
                program.send_signal(signal.SIGINT)
            assert sandbox.agentos("stop", "r", "--wait").returncode == 0
            eventually(lambda: program.poll() is not None, PATIENCE)
            assert program.returncode == 143
        finally:
            program.kill()


def test_blocked_sigterm_stops_the_run(sandbox: Sandbox) -> None:
    sandbox.script("echo $$ >> pids; exec sleep 600")
    change = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})"
    with subprocess.Popen(
        [sys.executable, "-c", _AFTER.format(change=change),
         *AGENTOS, "run", "--grace", "0.2", "--item", "a", "--", "./command.sh"],
        cwd=sandbox.path, env=sandbox.environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        try:
            sandbox.pids("pids", 1)
            program.terminate()
            assert program.wait(PATIENCE) == 143
        finally:
            program.kill()


# --- environment --------------------------------------------------------------------------------------------------


def test_short_keys_are_not_inherited_by_other_commands(sandbox: Sandbox) -> None:
    sandbox.environ |= {"SHORT_A": "ka-1", "SHORT_B": "kb-22", "URL_OF_B": "https://user:kb-22@host"}
    done = sandbox.agentos(
        "run", "--key-env", "SHORT_*", "--credential-env", "KEY", "--parallel", "2", "--item", "a", "--item", "b",
        "--", "env",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for item in ("a", "b"):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{item}]")]
        assert sum("ka-1" in line or "kb-22" in line for line in lines) == 1  # its own


# --- stdin --------------------------------------------------------------------------------------------------------


def test_secret_helper_leaves_the_items_on_stdin(sandbox: Sandbox) -> None:
    keys = sandbox.write("keys.toml", '[[credential]]\nid = "a"\nsecret = "cmd:./helper.sh"\n', mode=0o600)
    sandbox.script("cat > swallowed; echo sk-canary-0123456789", "helper.sh")
    done = sandbox.agentos(
        "run", "--keys", str(keys), "--credential-env", "KEY", "--items", "-", "--", "echo", "{}", input="one\ntwo\n"
    )
    assert "Succeeded: 2" in done.stderr
    assert sandbox.lines("swallowed") == []
