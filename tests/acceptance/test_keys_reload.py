"""Keys of a run and of a gateway that are going on are read again: `agentos keys reload` and SIGHUP."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import eventually

AGENTOS = [sys.executable, "-m", "agentos.cli"]
# Writes the id and the key of the credential to a file of its item, and ends when the file `go` exists.
WORK = 'echo "$AGENTOS_CREDENTIAL_ID $X" > "started-$1"; echo "key $X"; while [ ! -e go ]; do sleep 0.05; done'


class Folder:
    """A working folder with keys, and the environment of its programs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(path), "AGENTOS_HOME": str(path / "home")}
        self.output = path / "output"

    def keys(self, *ids: str, at_once: int = 1) -> None:
        """Write a keys file, and the file with the key of each of its credentials."""
        for id_ in ids:
            file = self.path / f"{id_}.key"
            file.touch(0o600)
            if not file.read_text():
                file.write_text(f"secret-of-{id_}")
        table = '[[credential]]\nid = "{0}"\nsecret = "file:{0}.key"\ncredential_env = "X"\nmax_concurrent = {1}\n'
        (self.path / "keys.toml").write_text("".join(table.format(id_, at_once) for id_ in ids))

    def agentos(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*AGENTOS, *arguments], cwd=self.path, env=self.environ, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    @contextlib.contextmanager
    def running(self, *arguments: str, prefix: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """Start the program in a session without a terminal, from a shell that executes `prefix` before."""
        command = ["/bin/sh", "-c", f'{prefix} exec "$@"', "sh", *AGENTOS, *arguments]
        with self.output.open("wb") as output, subprocess.Popen(
            command, cwd=self.path, env=self.environ, stdout=output, stderr=output, start_new_session=True
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    def run(self, prefix: str = "") -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        items = [argument for number in "1234" for argument in ("--item", number)]
        return self.running(
            "run", "--run-id", "r", "--store", "memory:", "--keys", "keys.toml", "--no-progress", *items, "--",
            "sh", "-c", WORK, "sh", "{}", prefix=prefix,
        )  # fmt: skip

    def started(self) -> list[str]:
        """Return id and key of each item that has started."""
        return [file.read_text().strip() for file in sorted(self.path.glob("started-*"))]

    def finish(self, process: subprocess.Popen[bytes]) -> str:
        """Let all items end; return what the program printed."""
        (self.path / "go").touch()
        assert process.wait(60) == 0, self.output.read_text()
        return self.output.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.keys("a")
    return folder


def test_reload_adds_and_retires_keys_of_an_executing_run(folder: Folder) -> None:
    with folder.run() as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        folder.keys("b", "c")
        result = folder.agentos("keys", "reload")
        assert (result.returncode, result.stdout) == (0, "run r: added b, c; retired a\n")
        eventually(lambda: len(folder.started()) == 3)  # while the first item holds the retired key
        output = folder.finish(process)
    assert folder.started()[0] == "a secret-of-a"
    assert set(folder.started()[1:]) <= {"b secret-of-b", "c secret-of-c"}
    assert "The keys were read again: added b, c; retired a" in output
    assert output.count("key ****") == 4  # old and new keys are redacted
    assert "secret-of" not in output


def test_reload_replaces_a_key_for_the_next_items(folder: Folder) -> None:
    with folder.run() as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        (folder.path / "a.key").write_text("rotated-key")
        folder.keys("a", at_once=2)
        result = folder.agentos("keys", "reload", "r")
        assert result.stdout == "run r: changed a\n"
        eventually(lambda: folder.started() == ["a secret-of-a", "a rotated-key"])
        assert folder.agentos("keys", "reload", "r").stdout == "run r: nothing has changed\n"
        output = folder.finish(process)
    assert "secret-of-a" not in output
    assert "rotated-key" not in output


def test_refused_second_process_leaves_the_run_reachable(folder: Folder) -> None:
    with folder.run() as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        assert "is in use by another process" in folder.agentos("resume", "r").stderr
        assert folder.agentos("keys", "reload", "r").stdout == "run r: nothing has changed\n"
        folder.finish(process)


def test_bad_file_changes_nothing_and_says_why(folder: Folder) -> None:
    with folder.run() as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        (folder.path / "keys.toml").write_text('[[credential]]\nid = "b"\nsecret = "file:missing.key"\n')
        result = folder.agentos("keys", "reload")
        assert result.returncode == 3
        assert "nothing has changed" in result.stdout
        assert "the key 'b' has no variable" in result.stdout
        (folder.path / "keys.toml").write_text("[[credential]]\nsecret =\n")
        assert "keys.toml, line 2" in folder.agentos("keys", "reload").stdout
        output = folder.finish(process)
    assert folder.started() == ["a secret-of-a"] * 4
    assert "the keys were not read again, and nothing has changed" in output


def test_hang_up_signal_reads_the_keys_again(folder: Folder) -> None:
    with folder.run() as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        folder.keys("a", "b")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: len(folder.started()) == 2)
        folder.finish(process)


def test_reload_reaches_a_run_under_nohup(folder: Folder) -> None:
    """SIGHUP stays ignored: the run is asked by a file."""
    with folder.run(prefix="trap '' HUP;") as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        folder.keys("a", "b")
        process.send_signal(signal.SIGHUP)
        assert folder.agentos("keys", "reload").stdout == "run r: added b\n"
        eventually(lambda: len(folder.started()) == 2)
        folder.finish(process)


def test_closed_terminal_stops_a_run_with_keys(folder: Folder) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder.path)
        arguments = ["run", "--run-id", "r", "--store", "memory:", "--keys", "keys.toml", "--item", "1", "--grace", "0"]
        os.execve(sys.executable, [*AGENTOS, *arguments, "--", "sh", "-c", WORK, "sh", "{}"], folder.environ)
    eventually(lambda: folder.started() == ["a secret-of-a"])
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) != 0
    assert "interrupted" in folder.agentos("runs").stdout


def test_keys_of_the_environment_cannot_be_read_again(folder: Folder) -> None:
    folder.environ["TEST_KEY_1"] = "secret-of-the-variable"
    work = ["sh", "-c", WORK, "sh", "{}"]
    options = ["--key-env", "TEST_KEY_*", "--credential-env", "X", "--store", "memory:", "--item", "1"]
    with folder.running("run", "--run-id", "r", *options, "--", *work) as process:
        eventually(lambda: len(folder.started()) == 1)
        result = folder.agentos("keys", "reload")
        assert (result.returncode, "use a keys file" in result.stdout) == (3, True)
        folder.finish(process)


def test_reload_without_an_executing_run_says_so(folder: Folder) -> None:
    result = folder.agentos("keys", "reload")
    assert result.returncode == 3
    assert "no run or gateway with keys is executing" in result.stderr


def test_disabled_key_stays_disabled_when_it_is_added(folder: Folder) -> None:
    folder.keys("a", "b")
    assert folder.agentos("keys", "disable", "b", "--keys", "keys.toml").returncode == 0
    folder.keys("a")
    with folder.run() as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        folder.keys("a", "b")
        assert folder.agentos("keys", "reload").stdout == "run r: nothing has changed; b stays disabled\n"
        folder.finish(process)
    assert {line.split()[0] for line in folder.started()} == {"a"}


def test_added_key_is_used_once_it_is_enabled(folder: Folder) -> None:
    folder.keys("a", "b")
    assert folder.agentos("keys", "disable", "b", "--keys", "keys.toml").returncode == 0
    folder.keys("a")
    with folder.run() as process:
        eventually(lambda: folder.started() == ["a secret-of-a"])
        folder.keys("a", "b")
        assert folder.agentos("keys", "reload").returncode == 0
        assert folder.agentos("keys", "enable", "b").returncode == 0
        eventually(lambda: "b secret-of-b" in folder.started())
        assert "added b" in folder.finish(process)


def test_gateway_reads_its_keys_again(folder: Folder) -> None:
    pytest.importorskip("aiohttp")
    folder.keys("a")
    options = ["--keys", "keys.toml", "--listen", "127.0.0.1:0", "--store", "memory:"]
    with folder.running("gateway", *options) as process:
        eventually(lambda: "Gateway on" in folder.output.read_text())
        folder.keys("a", "b")
        result = folder.agentos("keys", "reload")
        assert (result.returncode, result.stdout) == (0, f"gateway (pid {process.pid}): added b\n")
        folder.keys("b")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "retired a" in folder.output.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
