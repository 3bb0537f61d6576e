"""`agentos stop`, of runs in another process."""

from __future__ import annotations

import os
import subprocess

import pytest

from agentos.home import run_status
from agentos.ledger.ownership import Owner

from .cli_runs import (
    AGENTOS,
    agentos,
    live_run,
    make_interrupted,
    make_run,
    prepare,
)


def test_stop_interrupts_run_in_another_process() -> None:
    with live_run("alive") as run:
        process = subprocess.run([*AGENTOS, "stop", "alive", "--wait"], capture_output=True, text=True, timeout=60)
        assert process.returncode == 0, process.stderr
        assert process.stdout == (
            f"Stopping run alive (pid {run.pid}). A second agentos stop ends it at once.\n"
            "Run alive has ended: interrupted: agentos resume alive\n"
        )
        assert run.wait(30) == 0
    assert "run alive is not running: interrupted: agentos resume alive" in agentos("stop", "alive", status=1).stderr


def test_second_stop_ends_run_at_once() -> None:
    with live_run("alive", "stubborn") as run:
        agentos("stop", "alive")
        assert run.stdout is not None
        assert run.stdout.readline() == "stopping\n"
        assert "running" in agentos("runs").stdout  # the worker ignores the first stop
        agentos("stop", "alive", "--wait")
        assert run.wait(30) != 0


def test_stop_of_ended_run_prints_its_state() -> None:
    make_run("done", ["a"], lambda item, _: item)
    make_interrupted("half")
    prepare("waiting", ["a"])
    assert "run done is not running: finished" in agentos("stop", "done", status=1).stderr
    assert "agentos resume half" in agentos("stop", "half", status=1).stderr
    assert "not started" in agentos("stop", "waiting", status=1).stderr
    assert "there is no run" in agentos("stop", "none", status=2).stderr
    assert "not a run id" in agentos("stop", "a/b", status=2).stderr


def test_stop_refuses_run_on_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare("far", ["a"])
    owner = Owner(os.getpid(), "elsewhere", 0.0, "far", is_here=False)
    monkeypatch.setattr(run_status, "owner_of", lambda _path: owner)
    message = agentos("stop", "far", status=1).stderr
    assert f"run far is running as pid {os.getpid()} on elsewhere: stop it there" in message


@pytest.mark.parametrize(
    ("error", "message"), [(ProcessLookupError, "has just ended"), (PermissionError, "belongs to another user")]
)
def test_stop_reports_process_it_cannot_signal(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError], message: str
) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise error

    with live_run("alive"):
        monkeypatch.setattr(os, "kill", refuse)
        assert message in agentos("stop", "alive", status=1).stderr
        monkeypatch.undo()
