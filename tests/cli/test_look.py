"""`agentos runs`, `show`, `logs` and `export` over runs that were really run."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentos.cli import main
from agentos.home.paths import home
from agentos.home.run_folder import RunFolder
from agentos.workflows.parallel import Credential, CredentialCoordinator, RateLimited, current_item

from .cli_runs import INTERRUPTIBLE, execute, living, make_interrupted, make_run, prepare, write_log

AGENTOS = [sys.executable, "-m", "agentos.cli"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))


def agentos(*arguments: str, status: int = 0, **options: Any) -> Result:
    result = CliRunner().invoke(main, list(arguments), **options)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*AGENTOS, *arguments], capture_output=True, check=False, timeout=60, **options)


def same(item: str, _credential: str | None) -> str:
    return item


def failing_on(*bad: str) -> Any:
    def worker(item: str, _credential: str | None) -> str:
        if item in bad:
            raise ValueError(f"item {item} has 17 faults\nand more")
        return item

    return worker


# --- runs ---------------------------------------------------------------------------------------------------------


def test_runs_lists_the_newest_first_with_counts_and_state() -> None:
    first = make_run("first", ["a", "b", "c"], failing_on("b"))
    os.utime(first.path / "run.json", (1, 1))
    make_interrupted("second")
    done = program("runs")
    assert done.returncode == 0
    heading, *lines = done.stdout.decode().splitlines()
    assert heading.split() == ["Run", "Created", "Done", "Failed", "Left", "Command", "State"]
    assert re.fullmatch(
        r"second +\S+ \S+ +1 +0 +2  ./agent --item '\{id\}' +interrupted: agentos resume second", lines[0]
    )
    assert re.fullmatch(r"first +\S+ \S+ +2 +1 +0  ./agent --item '\{id\}' +finished", lines[1])


def test_runs_without_any_run_says_so_and_is_no_error() -> None:
    assert "There is no run in" in agentos("runs").stderr
    assert json.loads(agentos("runs", "--json").stdout) == []


def test_runs_tells_a_living_run_from_a_killed_one() -> None:
    with living("alive") as run:
        assert f"running (pid {run.pid})" in agentos("runs").stdout
        (facts,) = json.loads(agentos("runs", "--json").stdout)
        assert facts["state"] == "running"
        assert facts["pid"] == run.pid
        assert (facts["succeeded"], facts["left"], facts["total"]) == (1, 1, 2)
    assert "killed: agentos resume alive" in agentos("runs").stdout
    (facts,) = json.loads(agentos("runs", "--json").stdout)
    assert facts["state"] == "killed"
    assert facts["is_resumable"]


def test_runs_shows_what_cannot_be_read_and_passes_over_what_is_no_run() -> None:
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


def test_a_command_with_terminal_codes_is_shown_as_escapes() -> None:
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


def test_prune_removes_finished_runs_after_asking() -> None:
    make_run("done", ["a"], same)
    make_interrupted("half")
    prepare("waiting", ["a"])
    refused = agentos("runs", "--prune", input="n\n", status=1)
    assert "done" in refused.stdout
    assert "half" not in refused.stdout
    assert "Remove 1 run (" in refused.stderr
    assert names() == ["done", "half", "waiting"]
    assert "Removed 1 run" in agentos("runs", "--prune", input="y\n").stdout
    assert names() == ["half", "waiting"]
    assert "nothing to remove" in agentos("runs", "--prune", "--yes").stdout


def test_prune_all_takes_what_could_be_resumed_but_never_what_is_running() -> None:
    make_interrupted("half")
    with living("alive"):
        done = program("runs", "--prune", "--all", "--yes")
        assert done.returncode == 0, done.stderr
        assert names() == ["alive"]


def test_prune_takes_only_what_is_old_enough() -> None:
    make_run("done", ["a"], same)
    agentos("runs", "--prune", "--older-than", "1d", "--yes")
    assert names() == ["done"]
    assert "write 7d" in agentos("runs", "--prune", "--older-than", "seven", status=2).stderr
    agentos("runs", "--prune", "--older-than", "0s", "--yes")
    assert names() == []


def test_prune_follows_no_link(tmp_path: Path) -> None:
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


def test_options_of_prune_without_it_are_wrong_usage() -> None:
    for arguments in (["--yes"], ["--all"], ["--older-than", "1d"], ["--prune", "--json"]):
        agentos("runs", *arguments, status=2)


# --- show ---------------------------------------------------------------------------------------------------------


def make_failures() -> RunFolder:
    return make_run("mixed", ["a", "b", "c", "d", "e", "f"], failing_on("b", "c", "d", "e"))


def test_show_tells_what_happened_and_why_and_what_to_type_next() -> None:
    folder = make_failures()
    for item_id in "bcde":
        write_log(folder, item_id, b"")
    done = program("show", "mixed")
    out = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert out.startswith("Run mixed: finished\n  Command: ./agent --item '{id}'\n  Created: ")
    assert "  Items: 6: 2 succeeded, 4 failed, 0 left\n" in out
    assert re.search(r"  Launches:\n    1  \S+ \S+  \d+\.\d s  finished\n", out)
    assert "  Bound by: 2 workers, not the keys\n" in out
    assert re.search(
        r"Failures by cause:\n  4 x ValueError: item <id> has 17 faults\n      [b-e], [b-e], [b-e], …\n", out
    )
    assert "Slowest items:\n" in out
    assert re.search(
        r"Next:\n  agentos retry mixed\n  agentos show mixed [b-e]\n  agentos logs mixed [b-e]\n"
        r"  agentos export mixed --format jsonl\n$",
        out,
    )


def test_failures_that_differ_in_numbers_only_have_one_cause() -> None:
    def worker(item: str, _credential: str | None) -> None:
        if item.startswith("o"):
            raise OSError(
                f"connection {item} from 10.0.0.{len(item)} took {len(item) * 1.5} s at 0xdeadbeef{len(item)}"
            )
        raise ValueError(f"about {item}")

    make_run("many", ["o", "ox", "oxy", "p-1"], worker)
    failures = json.loads(agentos("show", "many", "--json").stdout)["failures"]
    assert [(cause["error_type"], cause["error"], cause["count"]) for cause in failures] == [
        ("OSError", "connection <id> from <n> took <n> s at <n>", 3),
        ("ValueError", "about <id>", 1),
    ]
    assert sorted(failures[0]["ids"]) == ["o", "ox", "oxy"]


def test_show_without_a_run_is_about_the_newest() -> None:
    old = make_run("old", ["a"], same)
    os.utime(old.path / "run.json", (1, 1))
    make_run("new", ["a"], same)
    assert agentos("show").stdout.startswith("Run new: finished")


def test_show_tells_the_use_of_each_credential() -> None:
    def worker(_item: str, _credential: str) -> None:
        current_item().report_usage(tokens=50, cost=0.5)

    pool = CredentialCoordinator([Credential("sk-secret-one", id="one")])
    make_run("paid", ["a", "b"], worker, pool=pool)
    out = agentos("show", "paid").stdout
    assert re.search(r"Credential +attempts +succeeded +requests +tokens +cost +waited\none +2 +2 +2 +100 +1 ", out)
    (totals,) = json.loads(agentos("show", "paid", "--json").stdout)["credentials"]
    assert totals["tokens"] == 100
    assert totals["cost"] == 1.0


def test_show_of_an_interrupted_run_lists_what_is_unfinished_and_how_to_resume() -> None:
    folder = make_interrupted("half")
    out = agentos("show", "half").stdout
    assert out.startswith("Run half: interrupted: agentos resume half\n")
    assert "  Items: 3: 1 succeeded, 0 failed, 2 left\n" in out
    assert "\nUnfinished: b\n" in out
    assert "Next:\n  agentos resume half\n" in out
    execute(folder, ["a", "b", "c"], same)
    launches = json.loads(agentos("show", "half", "--json").stdout)["launches"]
    assert [launch["stopped"] for launch in launches] == ["interrupted", None]


def test_show_of_a_living_run_says_how_to_stop_it_and_what_to_follow() -> None:
    with living("alive") as run:
        out = agentos("show", "alive").stdout
        assert out.startswith(f"Run alive: running (pid {run.pid})\n")
        assert "  agentos stop alive\n  agentos logs alive --follow b\n" in out
    assert re.search(r"    1  \S+ \S+ +killed\n", agentos("show", "alive").stdout)


def test_show_of_what_has_not_started_or_cannot_be_read() -> None:
    prepare("waiting", ["a"])
    assert agentos("show", "waiting").stdout.startswith("Run waiting: not started: agentos resume waiting\n")
    assert "has not started anything yet" in agentos("show", "waiting", "a", status=3).stderr
    damaged = prepare("damaged", ["a"])
    damaged.ledger.write_bytes(b"no database" * 100)
    assert "is not a ledger" in agentos("show", "damaged", status=3).stderr
    assert "there is no run 'none'" in agentos("show", "none", status=2).stderr
    assert "that is no run id" in agentos("show", "../etc", status=2).stderr


def test_show_without_any_run_is_wrong_usage() -> None:
    assert "there is no run in" in agentos("show", status=2).stderr


def test_show_of_an_item_tells_each_attempt() -> None:
    def worker(_item: str, _credential: str) -> dict[str, str]:
        if current_item().attempt == 1:
            raise RateLimited("slow \x1b[31mdown", retry_after=0.3)
        return {"answer": "yes\x07"}

    pool = CredentialCoordinator([Credential("sk-secret-one", id="one")])
    folder = make_run("tried", ["a"], worker, pool=pool)
    log = write_log(folder, "a", b"printed")
    out = agentos("show", "tried", "a").stdout
    assert re.match(r'Item a of run tried: succeeded after \d+\.\d s\n  Input: "a"\n', out)
    assert '  Value: {"answer": "yes\\u0007"}\n' in out
    seconds = r"\d+\.\d s"
    first = rf"    1\.1  one +(waited {seconds})? +{seconds}  rate_limited  slow \\x1b\[31mdown\n"
    assert re.search(r"  Attempts:\n" + first, out)
    assert re.search(rf"    1\.2  one +waited {seconds}  {seconds}  succeeded\n", out)
    assert f"  Log: {log} (7 bytes)\n\nNext:\n  agentos logs tried a\n" in out
    facts = json.loads(program("show", "tried", "a", "--json").stdout)
    assert facts["value"] == {"answer": "yes\x07"}
    assert [attempt["verdict"] for attempt in facts["history"]] == ["rate_limited", "succeeded"]
    assert facts["log"] == str(log)


def test_show_of_a_failed_item_tells_its_error_in_full() -> None:
    make_failures()
    out = agentos("show", "mixed", "b").stdout
    assert "  Error: ValueError: item b has 17 faults\n    and more\n" in out
    assert "  Traceback:\n    Traceback (most recent call last):" in out
    assert "  Log: none\n\nNext:\n  agentos retry mixed\n" in out


def test_an_item_that_is_not_there_is_wrong_usage_with_what_was_meant_maybe() -> None:
    make_run("docs", ["document-01", "document-02", "letter"], same)
    for command in ("show", "logs"):
        told = agentos(command, "docs", "document01", status=2).stderr
        assert "run docs has no item 'document01': did you mean 'document-0" in told
        assert "'letter'?" in agentos(command, "docs", "LETT", status=2).stderr
        assert "it was not started, or has another id" in agentos(command, "docs", "xyz", status=2).stderr


# --- logs ---------------------------------------------------------------------------------------------------------


def test_logs_gives_the_bytes_as_they_are() -> None:
    folder = make_run("run", ["../a b", "silent"], same)
    content = bytes(range(256)) * 10_000
    path = write_log(folder, "../a b", content)
    assert path.parent == folder.logs
    assert program("logs", "run", "../a b").stdout == content
    assert program("logs", "run", "../a b", "--follow").stdout == content  # the run is over
    silent = agentos("logs", "run", "silent")
    assert silent.stdout == ""
    assert "has no log: it printed nothing" in silent.stderr


def test_logs_lists_what_has_one() -> None:
    folder = make_run("run", ["a\x1b", "b", "silent"], same)
    paths = [write_log(folder, item_id, b"x" * 2048) for item_id in ("a\x1b", "b")]
    lines = agentos("logs", "run", "--list").stdout.splitlines()
    assert sorted(lines) == [f"     2.0 KiB  {paths[0].name}  a\\x1b", f"     2.0 KiB  {paths[1].name}  b"]
    agentos("logs", "run", status=2)
    agentos("logs", "run", "a", "--list", status=2)


def test_logs_follow_what_is_printed_while_the_run_is_alive() -> None:
    with living("alive") as run:
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


def test_logs_of_an_item_that_has_ended_are_not_followed_for_ever() -> None:
    with living("alive"):
        write_log(RunFolder("alive"), "a", b"all")
        done = program("logs", "alive", "a", "--follow")
        assert (done.returncode, done.stdout) == (0, b"all")


def test_an_item_that_never_comes_is_told_when_the_run_has_ended() -> None:
    with (
        living("alive") as run,
        subprocess.Popen([*AGENTOS, "logs", "alive", "B", "-f"], stderr=subprocess.PIPE, text=True) as following,
    ):
        assert following.stderr is not None
        assert following.stderr.readline() == "Item B has printed nothing yet.\n"
        run.kill()
        assert "did you mean 'b'" in following.stderr.read()
        assert following.wait(30) == 2


def test_who_stops_following_is_not_told_of_an_error() -> None:
    with living("alive"):
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


# --- export -------------------------------------------------------------------------------------------------------


def test_export_gives_a_row_for_each_item() -> None:
    make_failures()
    rows = {row["id"]: row for row in map(json.loads, program("export", "mixed").stdout.splitlines())}
    assert sorted(rows) == ["a", "b", "c", "d", "e", "f"]
    assert list(rows["a"]) == [
        "id",
        "outcome",
        "value",
        "error",
        "attempts",
        "duration",
        "ended_at",
        "credential_id",
        "tokens",
        "cost",
    ]
    assert (rows["a"]["outcome"], rows["a"]["value"], rows["a"]["error"]) == ("succeeded", "a", None)
    assert rows["b"]["error"] == "item b has 17 faults\nand more"
    table = list(csv.DictReader(io.StringIO(agentos("export", "mixed", "--format", "csv").stdout, newline="")))
    assert {row["id"]: row["value"] for row in table}["a"] == '"a"'
    assert {row["id"]: row["error"] for row in table}["b"] == "item b has 17 faults\nand more"
    assert {row["id"]: row["value"] for row in table}["b"] == ""


def test_export_of_one_outcome() -> None:
    make_failures()
    make_interrupted("half")
    ids = [json.loads(line)["id"] for line in agentos("export", "mixed", "--only", "succeeded").stdout.splitlines()]
    assert sorted(ids) == ["a", "f"]
    assert len(agentos("export", "mixed", "--only", "failed").stdout.splitlines()) == 4
    (row,) = map(json.loads, agentos("export", "half", "--only", "unfinished").stdout.splitlines())
    assert (row["id"], row["outcome"], row["ended_at"] is not None) == ("b", "unfinished", True)


def test_export_to_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    folder = make_failures()
    target = tmp_path / "out.csv"
    target.write_text("before")
    agentos("export", "mixed", "--format", "csv", "--output", str(target))
    assert len(list(csv.reader(io.StringIO(target.read_text(), newline="")))) == 7
    assert not list(tmp_path.glob("*.part"))
    assert "cannot be written" in agentos("export", "mixed", "--output", str(tmp_path / "no" / "x"), status=3).stderr
    assert "cannot be written" in agentos("export", "mixed", "--output", str(tmp_path), status=3).stderr
    target.write_text("before")
    folder.ledger.write_bytes(b"no database" * 100)
    agentos("export", "mixed", "--output", str(target), status=3)
    assert target.read_text() == "before"


def test_ids_that_are_no_text_are_exported() -> None:
    ids = ["caf\udce9", "\ud800", "nul\0", 'a,"b"\r\n', "=1"]
    folder = prepare("odd", [])
    execute(folder, ids, same)
    rows = [json.loads(line)["id"] for line in program("export", "odd").stdout.splitlines()]
    assert sorted(rows) == sorted(ids)
    table = program("export", "odd", "--format", "csv").stdout
    assert b"caf\xe9" in table
    assert rb"\ud800" in table
    assert b'"a,""b""\r\n"' in table
    assert b"nul\0" in table


def test_export_into_a_closed_pipe_is_quiet() -> None:
    items = [f"item-{number}-{'x' * 500}" for number in range(1000)]
    make_run("long", items, same)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m agentos.cli export long | head -1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert json.loads(done.stdout)["outcome"] == "succeeded"
    assert done.stderr == ""
