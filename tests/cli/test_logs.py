"""`agentos logs`: the log of an item, followed or listed."""

from __future__ import annotations

import subprocess

from agentos.home.run_folder import RunFolder

from .cli_runs import (
    AGENTOS,
    INTERRUPTIBLE,
    agentos,
    live_run,
    make_run,
    program,
    same,
    write_log,
)


def test_logs_prints_bytes_unchanged() -> None:
    folder = make_run("run", ["../a b", "silent"], same)
    content = bytes(range(256)) * 10_000
    path = write_log(folder, "../a b", content)
    assert path.parent == folder.logs
    assert program("logs", "run", "../a b").stdout == content
    assert program("logs", "run", "../a b", "--follow").stdout == content  # the run has ended: nothing to follow
    silent = agentos("logs", "run", "silent")
    assert silent.stdout == ""
    assert "has no log: it printed nothing" in silent.stderr


def test_logs_lists_items_with_a_log() -> None:
    folder = make_run("run", ["a\x1b", "b", "silent"], same)
    paths = [write_log(folder, item_id, b"x" * 2048) for item_id in ("a\x1b", "b")]
    lines = agentos("logs", "run", "--list").stdout.splitlines()
    assert sorted(lines) == [f"     2.0 KiB  {paths[0].name}  a\\x1b", f"     2.0 KiB  {paths[1].name}  b"]
    agentos("logs", "run", status=2)
    agentos("logs", "run", "a", "--list", status=2)


def test_follow_prints_output_of_live_run() -> None:
    with live_run("alive") as run:
        path = write_log(RunFolder("alive"), "b", b"one\n")
        with subprocess.Popen([*AGENTOS, "logs", "alive", "b", "-f"], stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"one\n"
            with path.open("ab", buffering=0) as file:
                file.write(b"two\n")
                assert following.stdout.readline() == b"two\n"
                file.write(b"last")
            assert following.poll() is None
            run.kill()
            assert following.stdout.read() == b"last"
            assert following.wait(30) == 0


def test_follow_ends_for_item_that_ended() -> None:
    with live_run("alive"):
        write_log(RunFolder("alive"), "a", b"all")
        process = program("logs", "alive", "a", "--follow")
        assert (process.returncode, process.stdout) == (0, b"all")


def test_follow_reports_unknown_item_after_run_ended() -> None:
    with (
        live_run("alive") as run,
        subprocess.Popen([*AGENTOS, "logs", "alive", "B", "-f"], stderr=subprocess.PIPE, text=True) as following,
    ):
        assert following.stderr is not None
        assert following.stderr.readline() == "Item B has printed nothing yet.\n"
        run.kill()
        assert "did you mean 'b'" in following.stderr.read()
        assert following.wait(30) == 2


def test_interrupted_follow_prints_no_error() -> None:
    with live_run("alive"):
        write_log(RunFolder("alive"), "b", b"one\n")
        with subprocess.Popen(
            [*INTERRUPTIBLE, "logs", "alive", "b", "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as following:
            assert following.stdout is not None
            assert following.stderr is not None
            assert following.stdout.readline() == b"one\n"
            following.send_signal(2)
            assert following.wait(30) == 130
            assert following.stderr.read() == b""
