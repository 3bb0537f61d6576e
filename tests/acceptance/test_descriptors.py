"""What Python workers print past Python's streams: by programs that they start, by C code, by forked processes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from agentos.output.descriptors import DescriptorCapture
from agentos.redaction.redactor import Redactor
from tests.conftest import BUSY

from .program import Sandbox
from .test_cli_secrets import CANARY

WORKERS = """
import ctypes, os, subprocess, sys, threading, time

def program(key):
    subprocess.run(["sh", "-c", 'echo "out $0"; echo "err $0" >&2', key], check=True)

def shell(key):
    os.environ["WORKER_KEY"] = key
    os.system('echo "shell $WORKER_KEY"')

def c_code(key):
    libc = ctypes.CDLL(None)
    libc.printf(b"printf %s\\n", key.encode())  # in the buffer of the C library until the end

def descriptor(key):
    half = len(key) // 2
    os.write(1, b"write " + key[:half].encode())
    time.sleep(0.05)
    os.write(1, key[half:].encode() + b"\\n")

def original(key):
    print("original", key, file=sys.__stdout__)

def forked(key):
    pid = os.fork()
    if not pid:
        print("forked", key, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

def work(item, credential):
    globals()[item](str(credential))

def leaves(item, credential):
    subprocess.Popen(["sh", "-c", "echo $$ > pids; echo started; exec sleep 600"])

def outlives(item, credential):
    def print_late():
        threading.main_thread().join()
        print("late", credential)
        os.write(1, f"late {credential}\\n".encode())
    threading.Thread(target=print_late, daemon=False).start()

def reads(item, credential):
    subprocess.run(["sh", "-c", "[ /dev/stdin -ef /dev/null ]"], check=True)
    assert subprocess.run(["cat"], capture_output=True, check=True).stdout == b""
"""
WAYS = {
    "program": ["out ****", "err ****"],
    "shell": ["shell ****"],
    "c_code": ["printf ****"],
    "descriptor": ["write ****"],
    "original": ["original ****"],
    "forked": ["forked ****"],
}


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    made = Sandbox(tmp_path)
    made.write("workers.py", WORKERS)
    made.environ["SOME_KEY"] = CANARY
    return made


def run_all_ways(sandbox: Sandbox, *options: str) -> tuple[str, str]:
    items = [word for way in WAYS for word in ("--item", way)]
    # One at a time: the halves of a key in two writes must follow each other.
    options = ("--parallel", "1", "--key-env", "SOME_KEY", "--retries", "0", *options)
    done = sandbox.agentos("run", *options, *items, "workers:work")
    assert done.returncode == 0, done.stderr
    assert CANARY not in done.stdout + done.stderr
    return done.stdout, done.stderr


def test_no_way_of_printing_shows_the_key(sandbox: Sandbox) -> None:  # invariant 29
    stdout, stderr = run_all_ways(sandbox)
    for line in (line for lines in WAYS.values() for line in lines):
        assert line in (stderr if line.startswith("err") else stdout).splitlines()


def test_json_output_stays_json_whatever_prints(sandbox: Sandbox) -> None:
    stdout, _ = run_all_ways(sandbox, "--json")
    events = [json.loads(line) for line in stdout.splitlines()]
    printed = [event["line"] for event in events if event["event"] == "Output"]
    assert {line for lines in WAYS.values() for line in lines} <= set(printed)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_thread_that_outlives_the_run_shows_no_key(sandbox: Sandbox, options: tuple[str, ...]) -> None:  # invariant 29
    """So does an attempt that its time-out has abandoned: it prints until the program ends."""
    done = sandbox.agentos("run", *options, "--key-env", "SOME_KEY", "--item", "a", "workers:outlives")
    assert done.returncode == 0, done.stderr
    assert "Succeeded: 1" in done.stderr or options
    assert CANARY not in done.stdout + done.stderr
    if options:
        assert [json.loads(line) for line in done.stdout.splitlines()][-1]["event"] == "RunEnded"


def test_child_of_a_worker_leaves_the_items_on_stdin(sandbox: Sandbox) -> None:
    items = "".join(f"item {number}\n" for number in range(50))
    done = sandbox.agentos("run", "--items", "-", "workers:reads", input=items)
    assert done.returncode == 0, done.stderr
    assert "Succeeded: 50" in done.stderr


def test_child_that_outlives_the_run_does_not_delay_its_end(sandbox: Sandbox) -> None:
    began = time.monotonic()
    try:
        done = sandbox.agentos("run", "--item", "a", "workers:leaves")
        assert time.monotonic() - began < 5 + BUSY
        assert "started" in done.stdout
    finally:
        (pid,) = sandbox.pids("pids", 1)
        os.kill(pid, signal.SIGKILL)


def test_descriptors_are_restored_after_an_exception() -> None:
    shown: list[bytes] = []
    before = [os.fstat(descriptor) for descriptor in (1, 2)]
    redactor = Redactor([CANARY])
    capture = DescriptorCapture(lambda: redactor, lambda _id, _stream, data: shown.append(data))
    with pytest.raises(KeyboardInterrupt), capture:
        os.write(1, f"secret {CANARY}\nno end".encode())
        raise KeyboardInterrupt
    assert [os.fstat(descriptor).st_ino for descriptor in (1, 2)] == [status.st_ino for status in before]
    assert b"".join(shown) == b"secret ****\nno end\n"
