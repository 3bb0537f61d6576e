"""`agentos run` and what goes with it, as people use it: the real program, in a real terminal where that matters."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import BUSY, eventually

from .program import AGENTOS, PATIENCE, Place, all_gone

ITEMS = ("--item", "a", "--item", "b", "--item", "c")
# Says who it is, waits for a file to appear, and notes that it was done.
WAITS = """
echo $$ >> pids
while [ ! -e go ]; do sleep 0.02; done
echo "$1" >> done
"""
# Neither it nor its child care about being asked to end.
STUBBORN = """
trap '' TERM INT HUP
echo $$ >> pids
sh -c 'trap "" TERM INT HUP; echo $$ >> pids; while :; do sleep 0.05; done' &
while [ ! -e go ]; do sleep 0.05; done
kill -9 $!
echo "$1" >> done
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def numbered(count: int) -> list[str]:
    return [argument for number in range(count) for argument in ("--item", f"item-{number}")]


def outcomes(place: Place, run_id: str) -> dict[str, str]:
    with sqlite3.connect(place.runs / run_id / "ledger.db") as ledger:
        return dict(ledger.execute("SELECT id, outcome FROM items").fetchall())


# --- the first run ------------------------------------------------------------------------------------------------


def test_first_run_needs_no_setup(place: Place) -> None:
    done = place.agentos("run", *ITEMS, "--", "echo", "hello", "{id}")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[a] hello a", "[b] hello b", "[c] hello c"]
    run_id = re.match(r"Run (\S+) in ", done.stderr)
    assert run_id is not None
    assert "Succeeded: 3" in done.stderr
    _, said = place.each(["show", run_id[1], "a"], ["logs", run_id[1], "b"])
    assert f"Item a of run {run_id[1]}: succeeded" in said.stdout
    assert said.stdout.endswith("\nhello b\n")


# --- the live display ---------------------------------------------------------------------------------------------

KEYS = """
[[credential]]
id = "first-key"
secret = "env:KEY_A"
credential_env = "API_KEY"

[[credential]]
id = "second-key"
secret = "env:KEY_B"
credential_env = "API_KEY"
"""
SECRETS = {"KEY_A": "sk-key-a-0123456789", "KEY_B": "sk-key-b-0123456789"}
# One is told to wait for more than half a minute, one fails, the others wait for a file.
BUSY_COMMAND = """
case $AGENTOS_ITEM_ID in
  limited) [ "$AGENTOS_ATTEMPT" = 1 ] &&
    echo '{"verdict": "rate_limited", "retry_after": 39}' >> "$AGENTOS_REPORT" && exit 1 ;;
  failing) echo oh no >&2; exit 7 ;;
esac
while [ ! -e go ]; do sleep 0.02; done
echo done
"""


FRAME = [
    r"^run shown  0:\d\d elapsed",
    r"━+─+ 1/4 done, 1 failed$",
    r"running 1",
    r"^  (first|second)-key +cooling 3\d s: rate_limited$",
    r"^  (first|second)-key +in use$",
    r"^  0:\d\d  (limited|an-item-with.*…x*)  (first|second)-key",
    r"^failed failing: CommandFailed: exit status 7: oh no$",
]


def test_live_display_shows_everything_at_any_size(place: Place) -> None:
    place.write("keys.toml", KEYS)
    command = place.script(BUSY_COMMAND)
    name = "an-item-with-a-very-long-name-" + "x" * 200
    items = ("--item", "failing", "--item", "limited", "--item", name, "--item", "last")
    run = ("run", "--run-id", "shown", "--keys", "keys.toml", "--parallel", "2", *items, "--", command)
    with place.in_terminal(*run, **SECRETS) as seen:
        # All in one frame; what is read may end within one.
        seen.until(lambda text: all(re.search(line, text, re.MULTILINE) for line in FRAME))
        assert not seen.emulator.is_cursor_visible
        counted = re.search(r"cooling (\d+) s", seen.text)
        assert counted is not None
        seen.until(lambda text: any(f"cooling {number} s" in text for number in range(1, int(counted[1]))))
        drawn = seen.emulator.drawn
        seen.resize(20, 5)
        seen.until(lambda _: seen.emulator.drawn > drawn + 1)
        assert all(len(line) <= 20 for line in seen.lines[-4:])
        drawn = seen.emulator.drawn
        seen.resize(100, 30)
        seen.until(lambda text: seen.emulator.drawn > drawn + 1 and "in use" in text)
        place.write("go", "")
        assert seen.end() == 1
    assert seen.emulator.is_cursor_visible
    assert "elapsed" not in seen.lines[-1]
    assert "agentos retry shown" in seen.text
    assert sum("[COORDINATOR] Failed: failing:" in line for line in seen.lines) == 1
    assert not any(secret.encode() in seen.bytes.getvalue() for secret in SECRETS.values())


def test_without_display_no_cursor_codes_are_written(place: Place) -> None:
    run = ("--item", "a", "--", "sh", "-c", "echo out; exit 3")
    with (
        place.in_terminal("run", "--no-progress", *run) as plain,
        place.in_terminal("run", "--quiet", *run) as quiet,
        place.in_terminal("run", "--json", *run) as told,
    ):
        for seen in (plain, quiet, told):
            assert seen.end() == 1
            assert b"\x1b" not in seen.bytes.getvalue()
            assert "out" in seen.text
    assert plain.text.startswith("Run ")
    assert quiet.text.startswith("[a] out\n[COORDINATOR] Failed: a: ")
    assert told.text.startswith('{"event": "RunStarted"')


def test_display_without_colour_writes_no_colour_codes(place: Place) -> None:
    command = place.script(WAITS)
    with place.in_terminal("run", "--item", "a", "--", command, NO_COLOR="1") as seen:
        seen.until(lambda text: "elapsed" in text)
        place.write("go", "")
        assert seen.end() == 0
    assert b"\x1b[?7l" in seen.bytes.getvalue()
    assert not re.search(rb"\x1b\[\d+m", seen.bytes.getvalue())


# --- stopping and going on ----------------------------------------------------------------------------------------


def finish(place: Place, run_id: str, count: int) -> None:
    """A resume does what is left; in the end everything was done exactly once."""
    place.write("go", "")
    done = place.agentos("resume", run_id)
    assert done.returncode == 0, done.stderr
    assert Counter(place.lines("done")) == {f"item-{number}": 1 for number in range(count)}
    assert Counter(outcomes(place, run_id).values()) == {"succeeded": count}


def test_ctrl_c_ends_stubborn_commands_and_resume_continues(place: Place) -> None:  # invariant 25
    command = place.script('case $1 in item-0) echo "$1" >> done; exit;; esac' + STUBBORN)
    with place.in_terminal("run", "--run-id", "r", "--grace", "0.5", *numbered(4), "--", command, "{id}") as seen:
        pids = place.pids("pids", 6)
        seen.until(lambda text: "1/4 done" in text)
        began = time.monotonic()
        seen.child.sendintr()
        assert seen.end() == 130, seen.text
        assert time.monotonic() - began < 0.5 + 1 + BUSY
    eventually(lambda: all_gone(pids))
    # It stood there for half a second, in which nobody may have looked.
    assert b"still running (Ctrl-C once more: at once)" in seen.bytes.getvalue()
    assert "Received signal 2, graceful shutdown: nothing new starts; waiting for 3 running" in seen.text
    assert seen.text.count("agentos resume r") == 1
    assert "Traceback" not in seen.text
    assert seen.emulator.is_cursor_visible
    finish(place, "r", 4)


def test_second_ctrl_c_ends_at_once(place: Place) -> None:  # invariant 25
    command = place.script(STUBBORN)
    with place.in_terminal("run", "--run-id", "r", "--grace", "60", *numbered(3), "--", command, "{id}") as seen:
        pids = place.pids("pids", 6)
        seen.child.sendintr()
        seen.until(lambda text: "Received signal 2" in text)
        began = time.monotonic()
        seen.child.sendintr()
        assert seen.end() == 130
        assert time.monotonic() - began < 1 + BUSY
    eventually(lambda: all_gone(pids))
    assert "Ended at once." in seen.text
    assert seen.text.count("agentos resume r") == 1
    assert "Traceback" not in seen.text
    assert seen.emulator.is_cursor_visible
    finish(place, "r", 3)


def test_sigterm_exits_with_143_and_stop_with_130(place: Place) -> None:
    command = place.script(WAITS)
    with (
        place.started("run", "--run-id", "by-signal", *numbered(2), "--", command, "{id}") as first,
        place.started("run", "--run-id", "by-stop", *numbered(2), "--", command, "{id}") as second,
    ):
        pids = place.pids("pids", 4)
        first.terminate()
        assert first.wait(PATIENCE) == 143
        stopped = place.agentos("stop", "by-stop", "--wait")
        assert (stopped.returncode, second.wait(PATIENCE)) == (0, 130)
        assert "Told run by-stop" in stopped.stdout + stopped.stderr
        assert "agentos resume by-stop continues" in second.communicate()[1]
    eventually(lambda: all_gone(pids))
    assert place.agentos("stop", "by-stop").returncode == 1


def test_closed_terminal_leaves_no_process_behind(place: Place) -> None:
    command = place.script(STUBBORN)
    with place.in_terminal("run", "--run-id", "r", "--grace", "0.2", *numbered(2), "--", command, "{id}") as seen:
        pids = place.pids("pids", 4)
        program = seen.child.pid
        seen.child.ptyproc.fileobj.close()
        eventually(lambda: all_gone([*pids, program]), PATIENCE)
    finish(place, "r", 2)


def test_unread_output_does_not_prevent_stopping(place: Place) -> None:
    reading, writing = os.pipe()
    try:
        with place.started(
            "run", "--grace", "0.2", *numbered(2), "--", "sh", "-c", "echo $$ >> pids; exec yes", stdout=writing
        ) as program:
            pids = place.pids("pids", 2)
            # Full, and so is every pipe before it.
            eventually(lambda: all(_sleeps_writing(pid) for pid in pids), PATIENCE)
            began = time.monotonic()
            program.send_signal(signal.SIGINT)
            assert program.wait(PATIENCE) == 130
            assert time.monotonic() - began < 0.2 + 1 + BUSY
        eventually(lambda: all_gone(pids))
    finally:
        os.close(reading)
        os.close(writing)


def _sleeps_writing(pid: int) -> bool:
    return "pipe_w" in Path(f"/proc/{pid}/wchan").read_text()


def test_sigkill_ends_commands_and_resume_finishes_each_once(place: Place) -> None:  # invariant 20
    command = place.script('case $1 in item-[01]) echo "$1" >> done; exit;; esac' + STUBBORN)
    run = ("run", "--run-id", "r", "--parallel", "4", *numbered(6), "--", command, "{id}")
    with place.started(*run) as program:
        pids = place.pids("pids", 8)
        # Those on record have been started, and the guard knows of them.
        eventually(lambda: Counter(outcomes(place, "r").values()) == {"succeeded": 2, None: 4})
        program.kill()
        program.wait()
    eventually(lambda: all_gone(pids))
    finish(place, "r", 6)


def test_ctrl_c_before_the_run_exits_with_130(place: Place) -> None:
    place.write("slow.py", "import os, threading\nopen('ready', 'w')\nthreading.Event().wait()\n")
    with place.started("run", "--item", "a", "slow:work") as program:
        eventually(lambda: (place.path / "ready").exists(), PATIENCE)
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 130
        assert program.communicate()[1] == "Interrupted.\n"
    assert not place.home.exists()


# --- where the output goes ----------------------------------------------------------------------------------------


def test_closed_output_pipe_does_not_change_the_run(place: Place) -> None:
    done = place.shell(
        "agentos run --run-id r --item a --item b --item c -- seq 20000 | head -1; echo ${PIPESTATUS[0]}"
    )
    assert re.fullmatch(r"\[[abc]\] 1\n0\n", done.stdout)
    assert "Succeeded: 3" in done.stderr
    assert "Traceback" not in done.stderr
    assert "rror" not in done.stderr


LOST = "stdout cannot be written any more, the run goes on without it"
REDIRECTED = [
    (">&-", ""),
    ("2>&-", ""),
    (">&- 2>&-", ""),
    ("> /dev/full", LOST),
    ("2> /dev/full", ""),
    ("--json > /dev/full", LOST),
]


def test_run_continues_without_usable_output(place: Place) -> None:
    command = place.script('echo "$1"; echo "$1" >&2; echo "$1" >> done; [ "$1" != c ]')
    line = ""
    for number, (where, _) in enumerate(REDIRECTED):
        option, _, redirect = where.rpartition(" > ") if "--" in where else ("", "", where)
        run = f"agentos run {option} {shlex.join(ITEMS)} -- ../{command} {{id}} {'> ' if option else ''}{redirect}"
        line += f"(mkdir {number}; cd {number}; ({run}) 2> errors; echo $? > status) &\n"
    place.shell(line + "wait")
    for number, (where, told) in enumerate(REDIRECTED):
        assert place.lines(f"{number}/status") == ["1"], where
        assert sorted(place.lines(f"{number}/done")) == ["a", "b", "c"], where
        errors = "\n".join(place.lines(f"{number}/errors"))
        assert told in errors, where
        assert "Traceback" not in errors, where


OUTPUT = r"""
case $1 in
  odd) printf 'one\n\n\377\376 bytes\nno end' ;;
  long) head -c 200000 /dev/zero | tr '\0' x; echo; echo after ;;
  err) echo to stderr >&2 ;;
esac
"""


def test_output_is_prefixed_and_bytes_are_unchanged(place: Place) -> None:
    command = place.script(OUTPUT)
    items = ("--item", "odd", "--item", "long", "--item", "err")
    done = subprocess.run(
        [*AGENTOS, "run", "--quiet", "--run-id", "r", *items, "--", command, "{id}"],
        cwd=place.path,
        env=place.environ,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    lines = done.stdout.split(b"\n")
    odd = [line for line in lines if not line.startswith(b"[long] ")]
    assert odd == [b"[odd] one", b"", b"[odd] \xff\xfe bytes", b"[odd] no end", b""]
    long = [line.removeprefix(b"[long] ") for line in lines if line.startswith(b"[long] ")]
    assert [len(line) for line in long] == [65536, 65536, 65536, 200_000 - 3 * 65536, len("after")]
    assert done.stderr.startswith(b"[err] to stderr\n")


def test_lines_of_parallel_commands_are_never_mixed(place: Place) -> None:
    script = 'for n in $(seq 5000); do echo "$1 $n $1$1$1$1$1$1$1$1$1$1 end"; done'
    run = ("run", "--quiet", "--parallel", "10", *numbered(10), "--", "sh", "-c", script, "sh", "{id}")
    lines = place.agentos(*run).stdout.splitlines()
    seen: dict[str, int] = Counter()
    for line in lines:
        item, number = re.match(r"\[(item-\d)\] \1 (\d+) (?:\1){10} end$", line).groups()  # type: ignore[union-attr]
        seen[item] += 1
        assert int(number) == seen[item]
    assert seen == {f"item-{number}": 5000 for number in range(10)}


def test_json_output_is_json_throughout(place: Place) -> None:
    place.script(OUTPUT + "exit 0", "command.sh")
    items = ("--item", "odd", "--item", "long", "--item", "err")
    done = place.agentos("run", "--json", *items, "--", "./command.sh", "{id}")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert {"RunStarted", "Output", "ItemEnded", "RunEnded"} == {event["event"] for event in events}
    said = [(event["item_id"], event["stream"], event["line"]) for event in events if event["event"] == "Output"]
    assert ("odd", "stdout", r"\xff\xfe bytes") in said
    assert ("odd", "stdout", "") in said
    assert ("err", "stderr", "to stderr") in said
    assert events[-1]["event"] == "RunEnded"
    ended = [event["result"]["item_id"] for event in events if event["event"] == "ItemEnded"]
    assert sorted(ended) == ["err", "long", "odd"]


# --- Python workers -----------------------------------------------------------------------------------------------

WORKERS = """
import asyncio, logging, os, sys

logging.basicConfig(level=logging.INFO, format="%(message)s")  # takes stderr as it is now

def plain(item, credential):
    print("hello", item)
    print()
    logging.info("logged %s", item)
    sys.stdout.write("no end")
    if item == "b":
        raise ValueError(f"no {item} here")
    if item == "c":
        raise SystemExit(7)
    return {"seen": item}

async def later(item, credential):
    for number in range(3):
        print("hello", item, number)
        await asyncio.sleep(0.001)
    if item == "b":
        raise ValueError(f"no {item} here")
    if item == "c":
        raise SystemExit(7)
    return item
"""


def test_python_workers_get_prefixed_prints_logs_and_tracebacks(place: Place) -> None:
    place.write("workers.py", WORKERS)
    done = place.agentos("run", "--run-id", "r", *ITEMS, "workers:plain")
    assert done.returncode == 1, done.stderr
    out = [line for line in done.stdout.splitlines() if line]
    assert sorted(out) == sorted(f"[{id_}] {text}" for id_ in "abc" for text in (f"hello {id_}", "no end"))
    logged = [line for line in done.stderr.splitlines() if "logged" in line]
    assert sorted(logged) == ["[a] logged a", "[b] logged b", "[c] logged c"]
    _, said = place.each(["logs", "r", "a"], ["show", "r", "b"], ["show", "r", "c"])
    assert said.stdout.startswith("hello a\n\nlogged a\nno end")
    assert "ValueError: no b here" in said.stdout
    assert 'raise ValueError(f"no {item} here")' in said.stdout
    assert "SystemExit: 7" in said.stdout
    assert outcomes(place, "r") == {"a": "succeeded", "b": "failed", "c": "failed"}


def test_async_workers_get_prefixed_prints(place: Place) -> None:
    place.write("workers.py", WORKERS)
    done = place.agentos("run", "--run-id", "r", *ITEMS, "workers:later")
    assert done.returncode == 1, done.stderr
    for id_ in "abc":
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{id_}] ")]
        assert mine == [f"[{id_}] hello {id_} {number}" for number in range(3)]
    assert outcomes(place, "r") == {"a": "succeeded", "b": "failed", "c": "failed"}
    assert "ValueError: no b here" in place.agentos("show", "r", "b").stdout


# --- items --------------------------------------------------------------------------------------------------------


def test_items_from_stdin_are_kept_for_resume(place: Place) -> None:
    command = place.script(WAITS)
    run = ("run", "--run-id", "r", "--items", "-", "--parallel", "5", "--", command, "{id}")
    with place.started(*run, stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        program.stdin.write("".join(f"item-{number}\n" for number in range(5)))
        program.stdin.flush()
        kept = place.runs / "r" / "items.jsonl"
        eventually(lambda: kept.exists() and kept.read_text().count("\n") == 5, PATIENCE)
        pids = place.pids("pids", 5)
        # Those on record have been started, and the guard knows of them.
        eventually(lambda: Counter(outcomes(place, "r").values()) == {None: 5})
        program.kill()
        program.wait()
    eventually(lambda: all_gone(pids))
    place.write("go", "")
    done = place.agentos("resume", "r", input="never read\n")
    assert done.returncode == 4, done.stderr  # nobody knows what else would have come
    assert "stdin was not read to its end" in done.stderr
    assert sorted(place.lines("done")) == [f"item-{number}" for number in range(5)]
    whole = "".join(f"item-{number}\n" for number in range(7))
    done = place.agentos(*run, input=whole)
    assert done.returncode == 0, done.stderr
    assert sorted(place.lines("done")) == [f"item-{number}" for number in range(7)]


def test_mistake_on_stdin_ends_the_run_after_earlier_items(place: Place) -> None:
    given = '{"id": "a"}\n{"name": "b"}\n'
    done = place.agentos("run", "--run-id", "r", "--items", "-", "--", "echo", "{id}", input=given)
    assert done.returncode == 2
    assert "stopped early: the input failed: BadItems: stdin, line 2: expected a field 'id' as its id" in done.stderr
    assert "Usage:" not in done.stderr
    resumed = place.agentos("resume", "r")
    assert resumed.returncode == 4  # the rest never came
    assert done.stdout + resumed.stdout == "[a] a\n"


def test_same_run_id_continues_and_refuses_another_command(place: Place) -> None:
    items = place.write("items.txt", "a\nb\n")
    command = place.script('echo "$1" >> done; [ "$1" != b ] || [ -e go ]')
    run = ("run", "--run-id", "named", "--items", "items.txt", "--", command, "{id}")
    assert place.agentos(*run).returncode == 1
    assert sorted(place.lines("done")) == ["a", "b"]
    again = place.agentos(*run)
    assert "Resuming run named" in again.stderr
    other = place.agentos("run", "--run-id", "named", "--items", "items.txt", "--", "echo", "{id}")
    assert other.returncode == 2
    assert "another command" in other.stderr
    items.write_text("a\nb\nnew\n")
    place.write("go", "")
    changed = place.agentos("retry", "named")
    assert "items.txt has changed since the run was created" in changed.stderr
    assert changed.returncode == 0, changed.stderr
    assert outcomes(place, "named")["b"] == "succeeded"


# --- exit statuses ------------------------------------------------------------------------------------------------

WRONG = {
    "no command": ["run", "--item", "a"],
    "no items": ["run", "--", "echo"],
    "no such program": ["run", "--item", "a", "--", "no-such-program"],
    "no such field": ["run", "--item", "a", "--", "echo", "{title}"],
    "no such file": ["run", "--items", "nowhere.txt", "--", "echo"],
    "not JSON": ["run", "--items", "bad.jsonl", "--", "echo"],
    "an id twice": ["run", "--item", "a", "--item", "a", "--", "echo"],
    "no such module": ["run", "--item", "a", "nowhere:work"],
    "no such function": ["run", "--item", "a", "json:work"],
    "no function": ["run", "--item", "a", "json:__name__"],
    "a module that fails": ["run", "--item", "a", "broken:work"],
    "a wrong halt": ["run", "--item", "a", "--halt", "never", "--", "echo"],
    "a wrong number": ["run", "--item", "a", "--parallel", "0", "--", "echo"],
    "a wrong run id": ["run", "--item", "a", "--run-id", "../a", "--", "echo"],
    "an unknown option": ["run", "--item", "a", "--nope", "--", "echo"],
    "no keys file": ["run", "--item", "a", "--keys", "nowhere.toml", "--", "echo"],
    "a wrong keys file": ["run", "--item", "a", "--keys", "bad.jsonl", "--", "echo"],
    "no such variables": ["run", "--item", "a", "--key-env", "NOWHERE_*", "--", "echo"],
    "a key that is not set": ["run", "--item", "a", "--keys", "keys.toml", "--", "echo"],
    "no tokens": ["run", "--item", "a", "--tokens", "size", "--", "echo"],
    "both": ["run", "--item", "a", "--json", "--quiet", "--", "echo"],
    "no such run": ["resume", "nowhere"],
    "no name of a run": ["resume", "../nowhere"],
}


def test_wrong_usage_exits_with_2_and_leaves_no_run(place: Place) -> None:
    place.write("bad.jsonl", "not json\n")
    place.write("broken.py", "1 / 0\n")
    place.write("keys.toml", KEYS)
    statuses, done = place.each(*WRONG.values())
    assert dict(zip(WRONG, statuses, strict=True)) == dict.fromkeys(WRONG, 2)
    assert done.stderr.count("\nError: ") == len(WRONG)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not place.home.exists()


def test_failed_and_halted_runs_exit_with_1(place: Place) -> None:
    run = ("run", "--run-id", "halted", "--parallel", "1", "--halt", "now,fail=1", *ITEMS, "--", "false")
    done = place.agentos(*run)
    assert done.returncode == 1
    assert "halted: 1 failed" in done.stderr
    assert Counter(outcomes(place, "halted").values())["failed"] == 1
    assert "agentos retry halted tries again" in done.stderr


def test_busy_damaged_and_unwritable_runs_exit_with_3(place: Place) -> None:
    command = place.script(WAITS)
    run = ("run", "--run-id", "r", *numbered(2), "--", command, "{id}")
    with place.started(*run) as first:
        place.pids("pids", 2)
        second = place.agentos("resume", "r")
        assert second.returncode == 3
        assert f"pid {first.pid}" in second.stderr
        place.write("go", "")
        assert first.wait(PATIENCE) == 0
    assert sorted(place.lines("done")) == ["item-0", "item-1"]
    ledger = place.runs / "r" / "ledger.db"
    ledger.write_bytes(b"not a database, but as long as one" * 500)
    damaged = place.agentos("resume", "r")
    assert damaged.returncode == 3
    assert str(ledger) in damaged.stderr
    place.environ["AGENTOS_HOME"] = "/proc/nowhere"
    unwritable = place.agentos("run", "--item", "a", "--", "echo")
    assert unwritable.returncode == 3
    assert "/proc/nowhere" in unwritable.stderr
    for told in (second, damaged, unwritable):
        assert "Traceback" not in told.stderr


def test_dead_keys_and_long_waits_exit_with_4(place: Place) -> None:
    place.write("keys.toml", KEYS)
    place.environ.update(SECRETS)
    keys = ("--keys", "keys.toml")
    assert place.each(*(["keys", "disable", id_, *keys] for id_ in ("first-key", "second-key")))[0] == [0, 0]
    dead = place.agentos("run", "--run-id", "dead", *keys, *ITEMS, "--", "true")
    assert dead.returncode == 4, dead.stderr
    assert "second-key: disabled" in dead.stderr
    assert "agentos resume dead continues them" in dead.stderr
    assert "(disabled: by hand). To put it back: agentos keys enable first-key\n" in dead.stderr
    assert place.each(*(["keys", "enable", id_, *keys] for id_ in ("first-key", "second-key")))[0] == [0, 0]
    limited = place.script(
        """[ -e go ] && exit
        echo '{"verdict": "rate_limited", "retry_after": 99}' >> "$AGENTOS_REPORT"; exit 1"""
    )
    alone = ("--store", "memory:")  # what the provider has said would count for the resume, too
    waits = place.agentos("run", "--run-id", "waits", *keys, *alone, "--max-wait", "1", *ITEMS, "--", limited)
    assert waits.returncode == 4, waits.stderr
    assert re.search(r"nothing can start within 1 s: the next credential is usable in [6-9]\d s", waits.stderr)
    place.write("go", "")
    for run_id in ("dead", "waits"):
        resumed = place.agentos("resume", run_id)
        assert resumed.returncode == 0, resumed.stderr
        assert set(outcomes(place, run_id).values()) == {"succeeded"}


def test_command_reports_limits_by_status_or_report(
    place: Place,
) -> None:
    place.write("keys.toml", KEYS)
    place.environ.update(SECRETS)
    command = place.script(
        f"""[ "$AGENTOS_ATTEMPT" = 2 ] && exit
        [ "$AGENTOS_ITEM_ID" = status ] && exit 75
        {shlex.join(AGENTOS)} report rate-limited --retry-after 0.2 --message slow; exit 1"""
    )
    items = ("--item", "status", "--item", "report")
    done = place.agentos("run", "--run-id", "r", "--keys", "keys.toml", "--parallel", "1", *items, "--", command)
    assert done.returncode == 0, done.stderr
    shown = place.agentos("show", "r", "report").stdout
    assert re.search(r"1\.1  (first|second)-key .* rate_limited +exit status 1: slow", shown), shown
    assert re.search(r"1\.2  (first|second)-key .* succeeded", shown), shown


# --- what would be ------------------------------------------------------------------------------------------------


def test_dry_run_shows_the_plan_and_changes_nothing(place: Place) -> None:
    dry = place.agentos("run", "--dry-run", "--item-seconds", "2", *ITEMS, "--", "touch", "{id}")
    assert dry.returncode == 0
    assert "Dry run mode: 3 items would be processed, nothing is started:\n  - a\n  - b\n  - c" in dry.stderr
    assert "3 items take about 2.0 s" in dry.stdout
    stdin = place.agentos("run", "--dry-run", "--items", "-", "--", "touch", "{id}", input="a\nb\n")
    assert "2 items" in stdin.stdout
    plan = place.agentos("plan", *ITEMS, "--parallel", "1", "--item-seconds", "2")
    assert "3 items take about 6.0 s" in plan.stdout
    assert plan.returncode == 0
    assert not place.home.exists()
    assert [path.name for path in place.path.iterdir()] == []
