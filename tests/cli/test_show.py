"""`agentos show`, of runs and items that were really run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from agentos.cli.launch.item_facts import recorded_facts
from agentos.home.run_folder import LaunchEnd, RunFolder
from agentos.workflows.parallel import Credential, CredentialCoordinator, RateLimited, current_item
from tests.support.fake_access import FakeAccess

from .cli_runs import (
    agentos,
    execute,
    live_run,
    make_failures,
    make_interrupted,
    make_run,
    prepare,
    program,
    same,
    write_log,
)


def test_show_prints_run_failures_and_next_commands() -> None:
    folder = make_failures()
    for item_id in "bcde":
        write_log(folder, item_id, b"")
    process = program("show", "mixed")
    out = process.stdout.decode()
    assert process.returncode == 0, process.stderr
    assert out.startswith("Run mixed: finished\n  Command: ./agent --item '{id}'\n  Created: ")
    assert "  Items: 6: 2 succeeded, 4 failed, 0 unfinished\n" in out
    assert re.search(r"  Launches:\n    1  \S+ \S+  \d+\.\d s  finished\n", out)
    assert "  Bound by: 2 workers, not the keys\n" in out
    assert re.search(
        r"Failures by cause:\n  4 x ValueError: item <id> has 17 faults\n      items: [b-e], [b-e], [b-e], …\n"
        r"      example: ([b-e]): item \1 has 17 faults\n",
        out,
    )
    assert "Slowest items:\n" in out
    assert re.search(
        r"Next:\n  agentos retry mixed\n  agentos show mixed [b-e]\n  agentos logs mixed [b-e]\n"
        r"  agentos export mixed --format jsonl\n$",
        out,
    )


def test_failures_differing_in_numbers_share_a_cause() -> None:
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


def test_failures_of_numbered_items_share_a_cause() -> None:
    """An id that equals the exit status is not masked in it."""

    def worker(item: str, _credential: str | None) -> None:
        raise ValueError("exit status 1" if item != "7" else "exit status 7")

    make_run("numbered", ["1", "2", "3"], worker)
    (cause,) = json.loads(agentos("show", "numbered", "--json").stdout)["failures"]
    assert (cause["error"], cause["count"]) == ("exit status 1", 3)
    make_run("named", ["1", "7"], worker)
    (cause,) = json.loads(agentos("show", "named", "--json").stdout)["failures"]
    assert (cause["error"], cause["count"]) == ("exit status <n>", 2)


def test_show_of_gateway_run_has_keys_with_refusals() -> None:
    access = FakeAccess()

    def worker(_item: str, token: str) -> None:
        access.use(token, "good", requests=2, input_tokens=30, cached_tokens=7, cost=0.5, held_seconds=4.0)
        access.use(token, "dead", refusals=3)

    pool = CredentialCoordinator([Credential("sk-secret-one", id="good")])
    folder = make_run("gated", ["a", "b"], worker, pool=pool, gateway=access)
    out = agentos("show", "gated").stdout
    used = "Requests: 4; tokens: 60 input, 0 output, 14 cached; cost 1; held for 8.0 s; 6 refusals that no item saw"
    assert used in out
    assert recorded_facts(folder).requests_per_item == 2.0  # from which the plan of a next run is made
    assert re.search(
        r"Credential +attempts +succeeded +requests +tokens +cost +refusals\ngood +2 +2 +4 +60 +1 +0\n", out
    )
    assert re.search(r"\ndead +2 +2 +0 +0 +0 +6\n", out)
    assert "2 requests with good, dead" in agentos("show", "gated", "a").stdout
    row = json.loads(agentos("export", "gated").stdout.splitlines()[0])
    assert row["credential_id"] == "good, dead"


def test_unknown_usage_is_a_dash() -> None:
    pool = CredentialCoordinator([Credential("sk-secret-one", id="one")])
    make_run("silent", ["a"], same, pool=pool)
    assert re.search(r"\none +1 +1 +1 +- +- ", agentos("show", "silent").stdout)
    row = json.loads(agentos("export", "silent").stdout)
    assert (row["tokens"], row["cost"]) == (None, None)


def test_retry_without_failures_says_so() -> None:
    make_run("good", ["a"], same)
    assert agentos("retry", "good").stderr == "Nothing to retry: no item of run good has failed\n"
    assert len(json.loads(agentos("show", "good", "--json").stdout)["launches"]) == 1


def test_attempts_have_a_header() -> None:
    make_failures()
    assert "launch.attempt  key" in agentos("show", "mixed", "b").stdout


def test_show_defaults_to_newest_run() -> None:
    old = make_run("old", ["a"], same)
    os.utime(old.path / "run.json", (1, 1))
    make_run("new", ["a"], same)
    assert agentos("show").stdout.startswith("Run new: finished")


def test_show_prints_usage_per_credential() -> None:
    def worker(_item: str, _credential: str) -> None:
        current_item().report_usage(tokens=50, cost=0.5)

    pool = CredentialCoordinator([Credential("sk-secret-one", id="one")])
    make_run("paid", ["a", "b"], worker, pool=pool)
    out = agentos("show", "paid").stdout
    assert re.search(r"Credential +attempts +succeeded +requests +tokens +cost +waited\none +2 +2 +2 +100 +1 ", out)
    (totals,) = json.loads(agentos("show", "paid", "--json").stdout)["credentials"]
    assert totals["tokens"] == 100
    assert totals["cost"] == 1.0


def test_show_of_interrupted_run_lists_unfinished_items() -> None:
    folder = make_interrupted("half")
    out = agentos("show", "half").stdout
    assert out.startswith("Run half: interrupted: agentos resume half\n")
    assert "  Items: 3: 1 succeeded, 0 failed, 2 unfinished (1 of them started)\n" in out
    assert "\nStarted, not finished: b\n" in out
    assert "Next:\n  agentos resume half\n" in out
    execute(folder, ["a", "b", "c"], same)
    launches = json.loads(agentos("show", "half", "--json").stdout)["launches"]
    assert [launch["stopped"] for launch in launches] == ["interrupted", None]


def test_show_of_live_run_suggests_stop_and_follow() -> None:
    with live_run("alive") as run:
        out = agentos("show", "alive").stdout
        assert out.startswith(f"Run alive: running (pid {run.pid})\n")
        assert "  agentos stop alive\n  agentos logs alive --follow b\n" in out
    assert re.search(r"    1  \S+ \S+ +killed\n", agentos("show", "alive").stdout)


def test_show_of_unstarted_or_unreadable_run() -> None:
    prepare("waiting", ["a"])
    assert agentos("show", "waiting").stdout.startswith("Run waiting: not started: agentos resume waiting\n")
    assert "has not started any item yet" in agentos("show", "waiting", "a", status=3).stderr
    damaged = prepare("damaged", ["a"])
    damaged.ledger.write_bytes(b"no database" * 100)
    assert "is not a ledger" in agentos("show", "damaged", status=3).stderr
    assert "there is no run 'none'" in agentos("show", "none", status=2).stderr
    assert "not a run id" in agentos("show", "../etc", status=2).stderr


def test_show_without_any_run_is_refused() -> None:
    assert "there is no run in" in agentos("show", status=2).stderr


def test_show_of_item_lists_attempts() -> None:
    def worker(_item: str, _credential: str) -> dict[str, str]:
        if current_item().attempt == 1:
            raise RateLimited("slow \x1b[31mdown", retry_after=1.0)
        return {"answer": "yes\x07"}

    pool = CredentialCoordinator([Credential("sk-secret-one", id="one")])
    folder = make_run("tried", ["a"], worker, pool=pool)
    log = write_log(folder, "a", b"printed")
    out = agentos("show", "tried", "a").stdout
    assert re.match(r'Item a of run tried: succeeded after \d+\.\d s\n  Input: "a"\n', out)
    assert '  Value: {"answer": "yes\\u0007"}\n' in out
    seconds = r"\d+\.\d s"
    header = r"    launch\.attempt  key +(waited +)?took  verdict.*\n"
    first = header + rf"    1\.1 +one +({seconds})? +{seconds}  rate_limited +slow \\x1b\[31mdown\n"
    assert re.search(r"  Attempts:\n" + first, out)
    assert re.search(rf"    1\.2 +one +{seconds} +{seconds}  succeeded *\n", out)
    assert f"  Log: {log} (7 bytes)\n\nNext:\n  agentos logs tried a\n" in out
    record = json.loads(program("show", "tried", "a", "--json").stdout)
    assert record["value"] == {"answer": "yes\x07"}
    assert [attempt["verdict"] for attempt in record["history"]] == ["rate_limited", "succeeded"]
    assert record["log"] == str(log)


def test_show_of_failed_item_prints_whole_error() -> None:
    make_failures()
    out = agentos("show", "mixed", "b").stdout
    assert "  Error: ValueError: item b has 17 faults\n    and more\n" in out
    assert "  Traceback:\n    Traceback (most recent call last):" in out
    assert "  Log: none\n\nNext:\n  agentos retry mixed\n" in out


def test_unknown_item_is_refused_with_suggestions() -> None:
    make_run("docs", ["document-01", "document-02", "letter"], same)
    for command in ("show", "logs"):
        message = agentos(command, "docs", "document01", status=2).stderr
        assert "run docs has no item 'document01': did you mean 'document-0" in message
        assert "'letter'?" in agentos(command, "docs", "LETT", status=2).stderr
        hint = "it has not started, or has another id (agentos export docs lists those that have)"
        assert hint in agentos(command, "docs", "xyz", status=2).stderr


def damage(folder: RunFolder, text: bytes) -> None:
    data = folder.ledger.read_bytes()
    folder.ledger.write_bytes(data.replace(text, bytes([text[0] ^ 1]) + text[1:]))


def test_damaged_record_is_named_with_its_repair() -> None:
    folder = make_run("flipped", ["a", "b", "c"], lambda item, _: f"value of {item}")
    damage(folder, b"value of b")
    shown = agentos("show", "flipped").stdout
    assert "Damaged: the records of 1 item do not match their checksums: b\n" in shown
    assert "agentos retry flipped\n" in shown
    assert "damaged" in agentos("show", "flipped", "b").stdout
    assert json.loads(agentos("show", "flipped", "--json").stdout)["damaged_ids"] == ["b"]
    exported = agentos("export", "flipped")
    outcomes = [json.loads(line)["outcome"] for line in exported.stdout.splitlines()]
    assert outcomes == ["succeeded", "damaged", "succeeded"]
    assert "see agentos show flipped" in exported.stderr


def test_unfinished_items_are_counted_alike_everywhere() -> None:
    make_interrupted("half")
    shown = agentos("show", "half").stdout
    record = json.loads(agentos("show", "half", "--json").stdout)
    counted = re.search(r"(\d+) unfinished(?: \((\d+) of them started\))?", shown)
    assert counted is not None
    assert int(counted[1]) == record["unfinished"] == record["total"] - record["succeeded"] - record["failed"]
    assert int(counted[2] or counted[1]) == record["started"] == len(record["unfinished_ids"])


def test_run_without_usable_key_names_its_commands(tmp_path: Path) -> None:
    """One short reason in `runs` and the header, a line for each key, and what to type before the resume."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[[credential]]\nid = "good"\nsecret = "env:SHOW_TEST_KEY"\n')
    environment = {"SHOW_TEST_KEY": "key-value-12345", "AGENTOS_KEYS": None}
    run = ("run", "--run-id", "r", "--item", "a", "--keys", str(keys), "--credential-env", "KEY", "--", "true")
    agentos("keys", "disable", "good", "--reason", "testing", "--keys", str(keys), env=environment)
    stopped = agentos(*run, status=4, env=environment).stderr
    assert "stopped early: no usable credential: 1 disabled:\n  good: disabled: testing\n" in stopped
    assert f"Before the run is resumed:\n  agentos keys check --keys {keys}\n" in stopped
    assert agentos("runs").stdout.splitlines()[1].endswith("  no usable credential: 1 disabled")
    shown = agentos("show", "r").stdout
    assert shown.startswith("Run r: no usable credential: 1 disabled\n")
    assert "\n  Credentials:\n    good: disabled: testing\n" in shown
    assert shown.endswith(
        f"\nNext:\n  agentos keys check --keys {keys}\n  agentos keys enable good --keys {keys}\n  agentos resume r\n"
    )


def test_launch_without_work_leaves_the_bound_of_the_run() -> None:
    folder = make_run("again", ["a", "b"], lambda item, _: item)
    folder.write_end(LaunchEnd(2, 0, None, 0.1))
    assert "Bound by: 2 workers, not the keys\n" in agentos("show", "again").stdout
    folder.write_end(LaunchEnd(3, 0, "pauses before retries", 0.1))
    assert "Bound by: 2 workers, not the keys\n" in agentos("show", "again").stdout
    folder.write_end(LaunchEnd(4, 4, "the lack of a usable key", 0.1, "no usable credential"))
    assert "Bound by: the lack of a usable key\n" in agentos("show", "again").stdout
