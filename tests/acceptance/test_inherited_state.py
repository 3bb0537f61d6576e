"""What the program inherits from its parent: signals, masks, descriptors, limits. Real programs in real processes."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
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
    return sandbox.run([sys.executable, "-c", _AFTER.format(change=change), *AGENTOS, *arguments], **options)


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


# --- folder and descriptors ---------------------------------------------------------------------------------------


def test_removed_folder_is_named(sandbox: Sandbox) -> None:
    program = shlex.join([*AGENTOS, "run", "--item", "a", "--", "true"])
    script = f"mkdir gone; cd gone; rmdir ../gone; {program}"
    done = sandbox.run(["sh", "-c", script])
    assert (done.returncode, done.stderr) == (
        3,
        "Error: the current folder was removed: change to another one and run again\n",
    )


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_lose_no_item_and_no_log(closed: str, sandbox: Sandbox) -> None:
    program = shlex.join([*AGENTOS, "run", "--run-id", "r", "--item", "a", "--item", "b", "--"])
    command = "sh -c 'echo out; echo err >&2'"
    done = sandbox.run(["sh", "-c", f"{program} {command} {closed}"])
    assert done.returncode == 0
    assert sorted(sandbox.agentos("logs", "r", "b").stdout.split()) == ["err", "out"]


@pytest.mark.parametrize("command", [("export", "r"), ("logs", "r", "a"), ("show", "r"), ("runs",)])
def test_results_are_dropped_if_stdout_is_closed(command: tuple[str, ...], sandbox: Sandbox) -> None:
    sandbox.agentos("run", "--run-id", "r", "--item", "a", "--", "echo", "hi")
    done = sandbox.run(["sh", "-c", f"{shlex.join([*AGENTOS, *command])} >&-"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_let_the_pool_owner_start(closed: str, sandbox: Sandbox) -> None:
    """The owner inherits its lock and its socket, which had the numbers of closed descriptors."""
    sandbox.environ["OPENAI_API_KEY"] = "sk-closed-descriptors-1"
    program = shlex.join([*AGENTOS, "run", "--item", "a", "--key-env", "OPENAI_API_KEY", "--", "true"])
    done = sandbox.run(["sh", "-c", f"{program} {closed}"])
    assert done.returncode == 0


def non_blocking_pipe(*, writes: bool) -> tuple[int, int]:
    """Return the two ends of a pipe; that of the program, which `writes` or reads, does not block."""
    reading, writing = os.pipe()
    os.set_blocking(writing if writes else reading, False)
    return reading, writing


def test_items_of_a_non_blocking_stdin_are_waited_for(sandbox: Sandbox) -> None:
    reading, writing = non_blocking_pipe(writes=False)
    with sandbox.start("run", "--items", "-", "--", "touch", "{}", stdin=reading) as program:
        os.close(reading)
        with open(writing, "wb", buffering=0) as items:  # noqa: PTH123
            items.write(b"first\n")
            eventually(lambda: (sandbox.path / "first").exists() or program.poll() is not None, PATIENCE)
            items.write(b"second\n")
        _, messages = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, messages
    assert (sandbox.path / "second").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_results_reach_a_non_blocking_stdout_whole(sandbox: Sandbox, unbuffered: str) -> None:
    """With PYTHONUNBUFFERED, as in many containers, a short write was no error."""
    sandbox.environ["PYTHONUNBUFFERED"] = unbuffered
    items = [word for number in range(5) for word in ("--item", str(number))]
    sandbox.agentos("run", "--run-id", "r", *items, "--", "sh", "-c", "head -c 60000 /dev/zero | tr '\\0' x")
    expected = sandbox.agentos("export", "r").stdout
    reading, writing = non_blocking_pipe(writes=True)
    with sandbox.start("export", "r", stdout=writing) as program, open(reading, "rb") as pipe:  # noqa: PTH123
        os.close(writing)
        eventually(lambda: bytes_in(reading) >= 60000 or program.poll() is not None, PATIENCE)
        assert pipe.read().decode() == expected
        assert program.wait(PATIENCE) == 0


def bytes_in(pipe: int) -> int:
    """Return how many bytes can be read from a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


# --- limits -------------------------------------------------------------------------------------------------------

WORKER = "import time\n\ndef work(item, credential):\n    print('hi', item)\n    time.sleep(0.02)\n"
COMMAND = ("--", "sh", "-c", "echo {}; sleep 0.02")
KINDS = pytest.mark.parametrize("worker", [COMMAND, ("workers:work",)], ids=["command", "function"])


def run_limited(
    sandbox: Sandbox, limit: str, worker: tuple[str, ...], *before: str
) -> subprocess.CompletedProcess[str]:
    sandbox.write("workers.py", WORKER)
    sandbox.write("items.txt", "".join(f"{number}\n" for number in range(100)))
    run = ["run", "--run-id", "r", "--parallel", "50", "--max-parallelism", "50", "--items", "items.txt", *worker]
    return sandbox.run([*before, "/bin/bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *AGENTOS, *run])


@KINDS
@pytest.mark.parametrize("files", [48, 64, 100])
def test_few_open_files_start_fewer_workers(sandbox: Sandbox, files: int, worker: tuple[str, ...]) -> None:
    done = run_limited(sandbox, f"-n {files}", worker)
    assert done.returncode == 0, done.stderr
    assert "Succeeded: 100" in done.stderr
    assert ("leaves room for" in done.stderr) == (files < 100 or worker is COMMAND)
    assert len(list((sandbox.runs / "r" / "logs").iterdir())) == 100


@KINDS
@pytest.mark.parametrize("files", [16, 24, 32])
def test_too_few_open_files_stop_the_run_before_it_starts(
    sandbox: Sandbox, files: int, worker: tuple[str, ...]
) -> None:
    done = run_limited(sandbox, f"-n {files}", worker)
    assert done.returncode == 3
    assert f"ulimit -n {files} is too low, raise it" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (sandbox.runs / "r").exists()


def as_another_user() -> list[str]:
    """Return the start of a command line: limits of processes do not apply to root."""
    if os.geteuid() != 0:
        return []
    rights = "+dac_read_search,+dac_override"  # the files of this test belong to root
    words = ["setpriv", "--reuid=54321", "--clear-groups", f"--inh-caps={rights}", f"--ambient-caps={rights}"]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("another user is needed, and setpriv is not allowed")
    return words


@KINDS
@pytest.mark.parametrize("tasks", [8, 20])
def test_few_processes_start_fewer_workers_or_none(sandbox: Sandbox, tasks: int, worker: tuple[str, ...]) -> None:
    before = as_another_user()
    if not before:
        pytest.skip("the other processes of this user count, too")
    sandbox.path.parent.chmod(0o777)
    done = run_limited(sandbox, f"-u {tasks}", worker, *before)
    assert "Traceback" not in done.stderr
    if tasks == 8:
        assert done.returncode == 3
        assert "ulimit -u 8 is too low, raise it" in done.stderr
    else:
        assert "ulimit -u 20 leaves room for" in done.stderr
        assert "Succeeded: 100" in done.stderr


def test_library_without_descriptors_fails_no_item(tmp_path: Path) -> None:
    script = """
import resource, sys
from agentos.workflows.parallel import Command, ParallelCoordinator, WorkerStartError
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
run = ParallelCoordinator(30, max_parallelism=30, reporter=None, retries=0)
try:
    stats, _ = run.execute_parallel(map(str, range(60)), Command(["echo", "{}"], folder=sys.argv[2]))
    print(stats.success_count, stats.failed)
except WorkerStartError as error:
    print(error)
"""
    outputs = {}
    for files in (13, 60):
        command = [sys.executable, "-c", script, str(files), str(tmp_path / str(files))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        outputs[files] = done.stdout + done.stderr
    assert "not even one command can be started: Too many open files (ulimit -n 13)" in outputs[13]
    assert outputs[60] == "60 0\n"
    assert len(list((tmp_path / "60" / "logs").iterdir())) == 60


# --- process 1 ----------------------------------------------------------------------------------------------------

LEAVES_ORPHANS = """
[ "$1" = last ] || { (setsid sleep 0.02 > /dev/null 2>&1 &); exit 0; }
for _ in $(seq 200); do
  zombies=$(cat /proc/[0-9]*/stat 2> /dev/null | grep -c ' Z ')
  [ "$zombies" = 0 ] && exit 0
  sleep 0.05
done
echo "$zombies zombies"; exit 1
"""


def as_process_1() -> list[str]:
    words = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("a process namespace is needed, and unshare is not allowed")
    return words


def test_process_1_reaps_orphans_and_keeps_exit_statuses(sandbox: Sandbox) -> None:
    command = sandbox.script(LEAVES_ORPHANS)
    sandbox.write("items.txt", "".join(f"{number}\n" for number in range(10)) + "last\n")
    words = ["run", "--parallel", "1", "--items", "items.txt", "--", command, "{}"]
    done = sandbox.run([*as_process_1(), *AGENTOS, *words])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_process_1_passes_on_signals(sandbox: Sandbox, signum: signal.Signals, status: int) -> None:
    sandbox.script("touch started; exec sleep 600")
    words = ["run", "--grace", "0.2", "--item", "a", "--", "./command.sh"]
    namespace = subprocess.Popen(
        [*as_process_1(), *AGENTOS, *words],
        cwd=sandbox.path, env=sandbox.environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process_1 = 0
    try:
        eventually(lambda: (sandbox.path / "started").exists(), PATIENCE)
        (process_1,) = map(int, Path(f"/proc/{namespace.pid}/task/{namespace.pid}/children").read_text().split())
        os.kill(process_1, signum)
        assert namespace.wait(PATIENCE) == status
        process_1 = 0
    finally:
        if process_1:
            os.kill(process_1, signal.SIGKILL)  # and with it all of its namespace
        namespace.communicate()
