"""Names of runs: ids, unambiguous prefixes and `last`, in every command that takes a run."""

from __future__ import annotations

import os

import pytest

from agentos.home.run_folder import RunFolder

from .cli_runs import agentos, execute, failing_on, make_interrupted, make_run, prepare, same, write_log


def _make_runs() -> None:
    older = make_run("20261116-093012-aaaaaa", ["a"], same)
    os.utime(older.path / "run.json", (1, 1))
    newer = make_run("20261117-101500-bbbbbb", ["b"], same)
    write_log(newer, "b", b"output of b\n")


@pytest.mark.parametrize("name", ["last", "20261117", "20261117-101500-bbbbbb"])
def test_commands_accept_last_and_prefixes(name: str) -> None:
    _make_runs()
    assert agentos("show", name).stdout.startswith("Run 20261117-101500-bbbbbb: finished")
    assert "output of b" in agentos("logs", name, "b").stdout
    assert '"id":"b"' in agentos("export", name).stdout.replace(" ", "")
    assert agentos("plan", "--count", "3", "--like", name).stdout.startswith("3 items: about")
    assert "run 20261117-101500-bbbbbb is not running" in agentos("stop", name, status=1).stderr


def test_resume_accepts_a_prefix() -> None:
    make_interrupted("nightly-1")
    assert "there is no program './agent'" in agentos("resume", "night", status=2).stderr


@pytest.mark.parametrize("command", ["resume", "retry"])
def test_demo_is_not_continued(command: str) -> None:
    """Its provider has ended; a run of a user whose id begins alike is continued."""
    run_id = "demo-20261116-093012-1f3a"
    keys_file = RunFolder(run_id).path / "keys.toml"
    demo = prepare(run_id, ["a", "b"], total=2, options={"keys": str(keys_file)})
    execute(demo, ["a", "b"], failing_on("a"))
    assert (
        "was a demo: its keys and its provider existed only while it ran" in agentos(command, "demo", status=2).stderr
    )
    assert "agentos retry" not in agentos("show", "demo").stdout
    make_interrupted("demo-of-mine")
    assert "there is no program './agent'" in agentos(command, "demo-of", status=2).stderr


def test_ambiguous_prefix_is_an_error_naming_runs() -> None:
    _make_runs()
    error = agentos("show", "2026111", status=2).stderr
    assert "2 runs begin with '2026111' (20261117-101500-bbbbbb, 20261116-093012-aaaaaa): type more" in error


def test_run_named_last_wins_over_newest_run() -> None:
    named = make_run("last", ["x"], same)
    os.utime(named.path / "run.json", (1, 1))
    make_run("newer", ["y"], same)
    assert agentos("show", "last").stdout.startswith("Run last: finished")


def test_id_wins_over_longer_id_with_same_beginning() -> None:
    make_run("night", ["x"], same)
    make_run("nightly", ["y"], same)
    assert agentos("show", "night").stdout.startswith("Run night: finished")


def test_unknown_name_and_empty_home_say_what_to_do() -> None:
    assert "there is no run in" in agentos("show", "last", status=2).stderr
    prepare("one", ["a"])
    assert "there is no run 'two'" in agentos("show", "two", status=2).stderr
