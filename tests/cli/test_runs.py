"""`agentos runs`: the list of runs, and pruning."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from agentos.home.paths import home
from agentos.home.run_folder import RunFolder
from agentos.home.run_status import read_status
from agentos.workflows.parallel import LedgerError
from tests.ledger.runs import fill_disk

from .cli_runs import (
    agentos,
    failing_on,
    live_run,
    make_failures,
    make_interrupted,
    make_run,
    prepare,
    program,
    same,
)


def test_runs_lists_newest_first_with_counts() -> None:
    first = make_run("first", ["a", "b", "c"], failing_on("b"))
    os.utime(first.path / "run.json", (1, 1))
    make_interrupted("second")
    process = program("runs")
    assert process.returncode == 0
    heading, *lines = process.stdout.decode().splitlines()
    assert heading.split() == ["Run", "Created", "Done", "Failed", "Left", "Command", "State"]
    assert re.fullmatch(
        r"second +\S+ \S+ +1 +0 +2  ./agent --item '\{id\}' +interrupted: agentos resume second", lines[0]
    )
    assert re.fullmatch(r"first +\S+ \S+ +2 +1 +0  ./agent --item '\{id\}' +finished", lines[1])


def test_runs_without_runs_succeeds() -> None:
    assert "There is no run in" in agentos("runs").stderr
    assert json.loads(agentos("runs", "--json").stdout) == []


def test_runs_distinguishes_live_from_killed_run() -> None:
    with live_run("alive") as run:
        assert f"running (pid {run.pid})" in agentos("runs").stdout
        (record,) = json.loads(agentos("runs", "--json").stdout)
        assert record["state"] == "running"
        assert record["pid"] == run.pid
        assert (record["succeeded"], record["unfinished"], record["total"]) == (1, 1, 2)
    assert "killed: agentos resume alive" in agentos("runs").stdout
    (record,) = json.loads(agentos("runs", "--json").stdout)
    assert record["state"] == "killed"
    assert record["is_resumable"]


def test_runs_lists_unreadable_runs_and_skips_other_folders() -> None:
    broken = prepare("broken", ["a"])
    (broken.path / "run.json").write_text("{")
    damaged = prepare("damaged", ["a"])
    damaged.ledger.write_bytes(b"no database" * 100)
    prepare("waiting", ["a"])
    for name in ("no.run", "empty-folder"):
        (home() / "runs" / name).mkdir()
    (home() / "runs" / "no.run" / "run.json").write_text("{}")
    out = agentos("runs").stdout
    assert re.search(r"broken .*cannot be read: .*run.json", out)
    assert re.search(r"damaged .*cannot be read: .*not a ledger", out)
    assert re.search(r"waiting .*0 +0 +0\+ .*not started: agentos resume waiting", out)
    assert "no.run" not in out
    assert "empty-folder" not in out


def test_terminal_codes_in_command_are_escaped() -> None:
    folder = prepare("codes", ["a"])
    spec = folder.read_spec()
    spec.command = ["\x1b[2Jevil", "\udcff"]
    folder.write_spec(spec)
    for arguments in (["runs"], ["show", "codes"]):
        out = program(*arguments).stdout
        assert b"\x1b" not in out
        assert rb"\x1b[2Jevil" in out
        assert rb"\udcff" in out


# --- pruning ------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    return sorted(path.name for path in (home() / "runs").iterdir())


def test_prune_removes_finished_runs_after_confirmation() -> None:
    make_run("done", ["a"], same)
    make_interrupted("half")
    prepare("waiting", ["a"])
    refused = agentos("runs", "--prune", input="n\n", status=1)
    assert refused.stdout.splitlines()[0].split()[:3] == ["Run", "Created", "Done"]
    assert "done" in refused.stdout
    assert "half" not in refused.stdout
    assert "Remove 1 run (" in refused.stderr
    assert names() == ["done", "half", "waiting"]
    assert "Removed 1 run" in agentos("runs", "--prune", input="y\n").stdout
    assert names() == ["half", "waiting"]
    assert "nothing to remove" in agentos("runs", "--prune", "--yes").stdout


def test_prune_all_spares_running_runs() -> None:
    make_interrupted("half")
    with live_run("alive"):
        process = program("runs", "--prune", "--all", "--yes")
        assert process.returncode == 0, process.stderr
        assert names() == ["alive"]


def test_prune_respects_minimum_age() -> None:
    make_run("done", ["a"], same)
    agentos("runs", "--prune", "--older-than", "1d", "--yes")
    assert names() == ["done"]
    assert "7d, or a number of seconds" in agentos("runs", "--prune", "--older-than", "seven", status=2).stderr
    agentos("runs", "--prune", "--older-than", "0s", "--yes")
    assert names() == []


def test_prune_does_not_follow_links(tmp_path: Path) -> None:
    folder = make_run("done", ["a"], same)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (folder.path / "link").symlink_to(outside)
    elsewhere = make_run("elsewhere", ["a"], same)
    elsewhere.path.rename(tmp_path / "elsewhere")
    elsewhere.path.symlink_to(tmp_path / "elsewhere")
    (home() / "runs" / "no-run").mkdir()
    agentos("runs", "--prune", "--all", "--yes")
    assert names() == ["elsewhere", "no-run"]
    assert (outside / "precious").exists()
    assert (tmp_path / "elsewhere" / "run.json").exists()


def test_prune_options_without_prune_are_refused() -> None:
    for arguments in (["--yes"], ["--all"], ["--older-than", "1d"], ["--prune", "--json"]):
        agentos("runs", *arguments, status=2)


def test_run_stopped_by_full_disk_is_not_shown_as_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch, free_pages=1)
    with pytest.raises(LedgerError, match="the disk is full"):
        make_run("full", [str(number) for number in range(500)], same)
    status = read_status(RunFolder("full"))
    assert status.state == "stopped"
    assert "the disk is full" in status.state_text
    assert "killed" not in agentos("show", "full").stdout


def test_resume_warns_of_a_ledger_older_than_its_folder() -> None:
    """Restored from a copy: items that have ended since then would run again without a word."""
    program("run", "--run-id", "r", "--item", "a", "--item", "b", "--limit", "1", "--", "true")
    ledger = RunFolder("r").ledger
    copy = ledger.read_bytes()
    assert b"older than its folder" not in program("resume", "r").stderr
    ledger.write_bytes(copy)
    assert b"launch 2 has ended, the ledger ends with launch 1" in program("resume", "r").stderr


def test_resume_of_a_finished_run_says_that_nothing_is_left() -> None:
    make_run("done", ["a", "b"], same)
    assert agentos("resume", "done").stderr == "Nothing to resume: 2 items of run done ended, all with success\n"
    make_failures()
    assert agentos("resume", "mixed", status=1).stderr == (
        "Nothing to resume: 6 items of run mixed ended, 4 as failures. To try these again: agentos retry mixed\n"
    )
