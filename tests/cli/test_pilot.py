"""Pilots and cleanup: `--limit` and resume, `--filter`, `--shuffle`, `--dry-run`, and retries by class of failure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentos.cli import main
from agentos.cli.launch import prepare, reporter
from agentos.cli.launch.item_input import read_items
from agentos.home.run_folder import RunFolder
from tests.support.patience import eventually

from .cli_runs import agentos, program

ITEMS = "id,status\n" + "".join(f"item-{n},{'open' if n % 2 else 'closed'}\n" for n in range(1, 11))
WORKERS = """
import time
from agentos.workflows.parallel import Overloaded

def same(item, key):
    return item if isinstance(item, str) else item["id"]

def fail(item, key):
    if item == "slow":
        time.sleep(30)
    if item == "busy":
        raise Overloaded("come back later", retry_after=0.01)
    if item == "bad":
        raise ValueError("no such item")
    return item
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("items.csv").write_text(ITEMS)
    Path("pilot_workers.py").write_text(WORKERS)


def run(*arguments: str, status: int = 0, **options: Any) -> str:
    """Run `agentos run --run-id r` in a process of its own; return what it prints for people."""
    done = program("run", "--run-id", "r", *arguments, **options)
    assert done.returncode == status, done.stderr.decode()
    return done.stderr.decode()


def ended_ids() -> list[str]:
    rows = map(json.loads, agentos("export", "r").stdout.splitlines())
    return [row["id"] for row in rows if row["outcome"] != "unfinished"]


def ids(*numbers: int) -> list[str]:
    return [f"item-{number}" for number in numbers]


# --- --limit -------------------------------------------------------------------------------------------------------


def test_pilot_runs_the_first_items_resume_the_rest() -> None:
    text = run("--items", "items.csv", "--limit", "3", "pilot_workers:same")
    assert "7 items of 10 are left after --limit. To run them: agentos resume r" in text
    assert sorted(ended_ids()) == ids(1, 2, 3)
    (record,) = json.loads(agentos("runs", "--json").stdout)
    assert (record["state"], record["total"], record["unfinished"], record["is_resumable"]) == ("stopped", 10, 7, True)
    assert "7 left after --limit: agentos resume r" in agentos("runs").stdout
    assert "  agentos resume r\n" in agentos("show").stdout
    assert program("resume", "r", "--limit", "2").returncode == 0
    assert sorted(ended_ids()) == ids(1, 2, 3, 4, 5)
    assert program("resume", "r").returncode == 0
    assert len(ended_ids()) == 10
    (record,) = json.loads(agentos("runs", "--json").stdout)
    assert (record["state"], record["unfinished"]) == ("finished", 0)


def test_copy_of_a_run_is_named_like_its_folder() -> None:
    """A backup: the command that continues it must not continue the other one."""
    run("--item", "a", "--item", "b", "--item", "c", "--limit", "1", "pilot_workers:same")
    shutil.copytree(RunFolder("r").path, RunFolder("copy").path)
    text = program("resume", "copy", "--limit", "1").stderr.decode()
    assert "Run copy in " in text
    assert "To run it: agentos resume copy" in text


def test_limit_counts_new_items_of_a_changed_file() -> None:
    """Items on record may be gone, or stand behind others."""
    Path("items.txt").write_text("a\nb\nc\nd\n")
    run("--items", "items.txt", "--limit", "2", "pilot_workers:same")
    Path("items.txt").write_text("d\nc\nb\n")
    assert program("resume", "r", "--limit", "1").returncode == 0
    assert sorted(ended_ids()) == ["a", "b", "d"]


def test_pilot_of_stdin_keeps_the_rest_for_resume() -> None:
    lines = b"".join(b"line-%d\n" % number for number in range(1, 8))
    text = run("--items", "-", "--limit", "2", "pilot_workers:same", input=lines)
    assert "5 items of 7 are left" in text
    (record,) = json.loads(agentos("runs", "--json").stdout)
    assert (record["succeeded"], record["unfinished"], record["state"]) == (2, 5, "stopped")
    assert program("resume", "r").returncode == 0
    assert len(ended_ids()) == 7


def test_retry_of_a_pilot_starts_no_further_items() -> None:
    run("--item", "bad", "--item", "a", "--item", "b", "--limit", "2", "pilot_workers:fail", status=1)
    assert program("retry", "r").returncode == 1
    assert sorted(ended_ids()) == ["a", "bad"]


def test_retry_of_a_halted_run_starts_its_other_items() -> None:
    """As the help says: it is a resume that tries the failed items, too."""
    items = ["--item", "bad", "--item", "a", "--item", "b"]
    run(*items, "--parallel", "1", "--halt", "now,fail=1", "pilot_workers:fail", status=1)
    assert ended_ids() == ["bad"]
    assert program("retry", "r", "--halt", "now,fail=9").returncode == 1
    assert sorted(ended_ids()) == ["a", "b", "bad"]


def test_pilot_that_failed_names_resume_and_retry() -> None:
    text = run("--item", "bad", "--item", "good", "--limit", "1", "pilot_workers:fail", status=1)
    assert "1 item of 2 is left after --limit. To run it: agentos resume r" in text
    shown = agentos("show", "r").stdout
    assert "Next:\n  agentos resume r\n  agentos retry r\n" in shown


def test_limit_above_the_number_of_items_is_a_whole_run() -> None:
    assert "left after" not in run("--items", "items.csv", "--limit", "50", "pilot_workers:same")
    assert json.loads(agentos("runs", "--json").stdout)[0]["state"] == "finished"


# --- --filter and --shuffle ----------------------------------------------------------------------------------------


def test_filter_and_limit_choose_items_for_every_launch() -> None:
    run("--items", "items.csv", "--filter", "status=open", "--limit", "2", "pilot_workers:same")
    assert sorted(ended_ids()) == ids(1, 3)
    assert program("resume", "r").returncode == 0
    assert sorted(ended_ids()) == sorted(ids(1, 3, 5, 7, 9))
    assert json.loads(agentos("runs", "--json").stdout)[0]["total"] == 5


def test_all_filters_must_match_also_on_stdin() -> None:
    lines = ITEMS.encode()
    arguments = ("--items", "-", "--format", "csv", "--filter", "status=open", "--filter", "id=item-5")
    run(*arguments, "pilot_workers:same", input=lines)
    assert ended_ids() == ids(5)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("status=opne", "no item of the input has status=opne; its first item has 'id', 'status'"),
        ("status", "'status' is not FIELD=VALUE"),
        ("=open", "'=open' is not FIELD=VALUE"),
    ],
)
def test_filter_that_chooses_nothing_is_refused(condition: str, message: str) -> None:
    result = agentos("run", "--items", "items.csv", "--filter", condition, "--", "echo", status=2)
    assert message in result.stderr


def test_shuffle_gives_one_order_for_one_seed() -> None:
    arguments = ("run", "--items", "items.csv", "--dry-run", "--parallel", "1")
    first, second, other = (
        agentos(*arguments, f"--shuffle={seed}", "--", "echo", "{id}").stdout.splitlines()[1:4] for seed in (7, 7, 8)
    )
    assert first == second
    assert first != other
    assert agentos(*arguments, "--shuffle", "--", "echo", "{id}").stdout.startswith("10 items would run")
    refused = agentos(*arguments, "--shuffle", "echo", "{id}", status=2)
    assert "'echo' is not a number: write --shuffle -- COMMAND, or --shuffle=SEED" in refused.stderr


def test_shuffled_pilot_is_continued_with_the_other_items() -> None:
    run("--items", "items.csv", "--shuffle", "--limit", "4", "pilot_workers:same")
    pilot = ended_ids()
    assert len(pilot) == 4
    assert program("resume", "r").returncode == 0
    assert sorted(ended_ids()) == sorted(ids(*range(1, 11)))


# --- --dry-run -----------------------------------------------------------------------------------------------------


def test_dry_run_shows_first_commands_filled_in() -> None:
    out = agentos("run", "--items", "items.csv", "--dry-run", "--", "echo", "{id} is {status}").stdout
    assert out.splitlines()[:5] == [
        "10 items would run; nothing is started:",
        "  echo 'item-1 is open'",
        "  echo 'item-2 is closed'",
        "  echo 'item-3 is open'",
        "  … and 7 more",
    ]
    assert agentos("runs").stdout == ""


def test_dry_run_of_a_pilot_counts_both() -> None:
    out = agentos("run", "--items", "items.csv", "--limit", "2", "--dry-run", "pilot_workers:same").stdout
    assert out.splitlines()[:3] == [
        "2 items of 10 would run; nothing is started:",
        "  pilot_workers:same with item item-1",
        "  pilot_workers:same with item item-2",
    ]


# --- retry --only --------------------------------------------------------------------------------------------------


def test_retry_by_class_runs_only_those_failures() -> None:
    items = [word for name in ("slow", "busy", "bad", "good") for word in ("--item", name)]
    run(*items, "--timeout", "0.2", "--retries", "0", "pilot_workers:fail", status=1)
    out = agentos("show", "r").stdout
    assert "  1 x [timeout] AttemptTimeout: " in out
    assert "  1 x ValueError: no such item\n      items: bad\n" in out

    def attempts() -> dict[str, int]:
        return {name: json.loads(agentos("show", "r", name, "--json").stdout)["launch"] for name in ("slow", "bad")}

    done = program("retry", "r", "--only", "Timeout", "--timeout", "0.1")
    assert (done.returncode, attempts()) == (1, {"slow": 2, "bad": 1})
    assert program("retry", "r", "--only", "ValueError, timeout").returncode == 1
    assert attempts() == {"slow": 3, "bad": 3}
    for nothing in ("", " , "):  # such as "$CLASS" of a variable that is not set: not a retry of everything
        assert "--only names no class" in agentos("retry", "r", "--only", nothing, status=2).stderr
    refused = agentos("retry", "r", "--only", "rate-limited", status=2)
    assert "no item of run r failed with rate_limited; it has " in refused.stderr
    assert "timeout (1)" in refused.stderr


# --- before the start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("pilot_workers:sane", "the module 'pilot_workers' has no function 'sane': did you mean same?"),
        ("failing_module:one", "cannot be imported: RuntimeError: no settings ({folder}/failing_module.py, line 1)"),
        ("short_worker:one", "the worker one(item) cannot be called with (item, credential): too many positional"),
    ],
)
def test_function_that_cannot_work_is_refused(function: str, message: str) -> None:
    Path("short_worker.py").write_text("def one(item):\n    return item\n")
    Path("failing_module.py").write_text("raise RuntimeError('no settings')\n")
    done = program("run", "--item", "a", function)
    assert done.returncode == 2
    assert message.format(folder=Path.cwd()) in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_reading_that_takes_long_is_announced(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """The reader of the items waits here until the person has been told."""
    written: list[str] = []

    def read_slowly(*arguments: Any, **options: Any) -> Any:
        eventually(lambda: written.append(capfd.readouterr().err) or "Reading items…" in "".join(written))
        return read_items(*arguments, **options)

    monkeypatch.setattr(prepare, "read_items", read_slowly)
    monkeypatch.setattr(reporter, "READING_SECONDS", 0.01)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--items", "items.csv", "--", "true"])
    assert ended.value.code == 0


def test_quick_reading_is_not_announced() -> None:
    assert "Reading" not in run("--items", "items.csv", "pilot_workers:same")
