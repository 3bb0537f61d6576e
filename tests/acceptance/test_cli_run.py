"""`agentos run`, `resume` and `retry` with the real program, in a pseudo-terminal where that matters."""

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

from .program import AGENTOS, KEYS, PATIENCE, SECRETS, Sandbox, all_gone

ITEMS = ("--item", "a", "--item", "b", "--item", "c")
# Prints its id, waits for a file, and records that it has ended.
WAITS = """
echo $$ >> pids
while [ ! -e go ]; do sleep 0.02; done
echo "$1" >> done
"""
# This script and its child ignore SIGTERM.
STUBBORN = """
trap '' TERM INT HUP
echo $$ >> pids
sh -c 'trap "" TERM INT HUP; echo $$ >> pids; while :; do sleep 0.05; done' &
while [ ! -e go ]; do sleep 0.05; done
kill -9 $!
echo "$1" >> done
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def numbered(count: int) -> list[str]:
    return [argument for number in range(count) for argument in ("--item", f"item-{number}")]


def outcomes(sandbox: Sandbox, run_id: str) -> dict[str, str]:
    with sqlite3.connect(sandbox.runs / run_id / "ledger.db") as ledger:
        return dict(ledger.execute("SELECT id, outcome FROM items").fetchall())


# --- the first run ------------------------------------------------------------------------------------------------


def test_first_run_needs_no_setup(sandbox: Sandbox) -> None:
    done = sandbox.agentos("run", *ITEMS, "--", "echo", "hello", "{id}")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[a] hello a", "[b] hello b", "[c] hello c"]
    run_id = re.match(r"Run (\S+) in ", done.stderr)
    assert run_id is not None
    assert "Succeeded: 3" in done.stderr
    _, printed = sandbox.run_each(["show", run_id[1], "a"], ["logs", run_id[1], "b"])
    assert f"Item a of run {run_id[1]}: succeeded" in printed.stdout
    assert printed.stdout.endswith("\nhello b\n")


def test_max_wait_without_keys_prints_a_warning(sandbox: Sandbox) -> None:
    done = sandbox.agentos("run", "--max-wait", "1", "--item", "a", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "Warning: --max-wait has no effect in a run without keys" in done.stderr


# --- the live display ---------------------------------------------------------------------------------------------

# One item meets a limit of more than half a minute, one fails, the others wait for a file.
BUSY_COMMAND = """
case $AGENTOS_ITEM_ID in
  limited) [ "$AGENTOS_ATTEMPT" = 1 ] &&
    echo '{"verdict": "rate_limited", "retry_after": 39}' >> "$AGENTOS_REPORT" && exit 1 ;;
  failing) echo oh no >&2; echo '{"verdict": "permanent"}' >> "$AGENTOS_REPORT"; exit 7 ;;
esac
while [ ! -e go ]; do sleep 0.02; done
echo done
"""


FRAME = [
    r"^run shown  0:\d\d elapsed",
    r"━+─+ 1/4 done, 1 failed$",
    r"running 1",
    r"^  (first|second)-key +rate-limited for 3\d s$",
    r"^  (first|second)-key +in use$",
    r"^  0:\d\d  (limited|an-item-with.*…x*)  (first|second)-key",
    r"^failed failing: CommandFailed: exit status 7: oh no$",
]


def test_live_display_shows_everything_at_any_size(sandbox: Sandbox) -> None:
    sandbox.write("keys.toml", KEYS)
    command = sandbox.script(BUSY_COMMAND)
    name = "an-item-with-a-very-long-name-" + "x" * 200
    items = ("--item", "failing", "--item", "limited", "--item", name, "--item", "last")
    run = ("run", "--run-id", "shown", "--keys", "keys.toml", "--parallel", "2", *items, "--", command)
    with sandbox.in_terminal(*run, **SECRETS) as session:
        # All patterns match in one frame; a read may end in the middle of a frame.
        session.until(lambda text: all(re.search(line, text, re.MULTILINE) for line in FRAME))
        assert not session.emulator.is_cursor_visible
        counted = re.search(r"rate-limited for (\d+) s", session.text)
        assert counted is not None
        session.until(lambda text: any(f"rate-limited for {number} s" in text for number in range(1, int(counted[1]))))
        drawn = session.emulator.drawn
        session.resize(20, 5)
        session.until(lambda _: session.emulator.drawn > drawn + 1)
        assert all(len(line) <= 20 for line in session.lines[-4:])
        drawn = session.emulator.drawn
        session.resize(100, 30)
        session.until(lambda text: session.emulator.drawn > drawn + 1 and "in use" in text)
        sandbox.write("go", "")
        assert session.end() == 1
    assert session.emulator.is_cursor_visible
    assert "elapsed" not in session.lines[-1]
    assert "agentos retry shown" in session.text
    assert sum("[COORDINATOR] Failed: failing:" in line for line in session.lines) == 1
    assert not any(secret.encode() in session.bytes.getvalue() for secret in SECRETS.values())


def test_without_display_no_cursor_codes_are_written(sandbox: Sandbox) -> None:
    run = ("--item", "a", "--", "sh", "-c", "echo out; exit 3")
    with (
        sandbox.in_terminal("run", "--no-progress", *run) as plain,
        sandbox.in_terminal("run", "--quiet", *run) as quiet,
        sandbox.in_terminal("run", "--json", *run) as json_session,
    ):
        for session in (plain, quiet, json_session):
            assert session.end() == 1
            assert b"\x1b" not in session.bytes.getvalue()
            assert "out" in session.text
    assert plain.text.startswith("Run ")
    assert quiet.text.startswith("[a] out\n[COORDINATOR] Failed: a: ")
    assert json_session.text.startswith('{"event": "RunStarted"')


def test_display_without_colour_writes_no_colour_codes(sandbox: Sandbox) -> None:
    command = sandbox.script(WAITS)
    with sandbox.in_terminal("run", "--item", "a", "--", command, NO_COLOR="1") as session:
        session.until(lambda text: "elapsed" in text)
        sandbox.write("go", "")
        assert session.end() == 0
    assert b"\x1b[?7l" in session.bytes.getvalue()
    assert not re.search(rb"\x1b\[\d+m", session.bytes.getvalue())


# --- stopping and going on ----------------------------------------------------------------------------------------


def finish(sandbox: Sandbox, run_id: str, count: int) -> None:
    """Resume the run and check that every item was executed exactly once."""
    sandbox.write("go", "")
    done = sandbox.agentos("resume", run_id)
    assert done.returncode == 0, done.stderr
    assert Counter(sandbox.lines("done")) == {f"item-{number}": 1 for number in range(count)}
    assert Counter(outcomes(sandbox, run_id).values()) == {"succeeded": count}


def test_ctrl_c_ends_stubborn_commands_and_resume_continues(sandbox: Sandbox) -> None:  # invariant 25
    command = sandbox.script('case $1 in item-0) echo "$1" >> done; exit;; esac' + STUBBORN)
    with sandbox.in_terminal("run", "--run-id", "r", "--grace", "0.5", *numbered(4), "--", command, "{id}") as session:
        pids = sandbox.pids("pids", 6)
        session.until(lambda text: "1/4 done" in text)
        began = time.monotonic()
        session.child.sendintr()
        assert session.end() == 130, session.text
        assert time.monotonic() - began < 0.5 + 1 + BUSY
    eventually(lambda: all_gone(pids))
    # In the bytes: it was on the screen for half a second only.
    assert b"still running (Ctrl-C again stops at once)" in session.bytes.getvalue()
    assert "Received SIGINT (Ctrl-C or agentos stop), graceful shutdown: nothing new starts; " in session.text
    assert "told to end (SIGTERM)" in session.text
    assert session.text.count("agentos resume r") == 1
    assert "Traceback" not in session.text
    assert session.emulator.is_cursor_visible
    finish(sandbox, "r", 4)


def test_second_ctrl_c_ends_at_once(sandbox: Sandbox) -> None:  # invariant 25
    command = sandbox.script(STUBBORN)
    with sandbox.in_terminal("run", "--run-id", "r", "--grace", "60", *numbered(3), "--", command, "{id}") as session:
        pids = sandbox.pids("pids", 6)
        session.child.sendintr()
        session.until(lambda text: "Received SIGINT" in text)
        began = time.monotonic()
        session.child.sendintr()
        assert session.end() == 130
        assert time.monotonic() - began < 1 + BUSY
    eventually(lambda: all_gone(pids))
    assert "Stopped at once." in session.text
    assert session.text.count("agentos resume r") == 1
    assert "Traceback" not in session.text
    assert session.emulator.is_cursor_visible
    finish(sandbox, "r", 3)


def test_sigterm_exits_with_143_and_stop_with_130(sandbox: Sandbox) -> None:
    command = sandbox.script(WAITS)
    with (
        sandbox.start("run", "--run-id", "by-signal", *numbered(2), "--", command, "{id}") as first,
        sandbox.start("run", "--run-id", "by-stop", *numbered(2), "--", command, "{id}") as second,
    ):
        pids = sandbox.pids("pids", 4)
        first.terminate()
        assert first.wait(PATIENCE) == 143
        stopped = sandbox.agentos("stop", "by-stop", "--wait")
        assert (stopped.returncode, second.wait(PATIENCE)) == (0, 130)
        assert "Stopping run by-stop" in stopped.stdout + stopped.stderr
        assert "agentos resume by-stop continues" in second.communicate()[1]
    eventually(lambda: all_gone(pids))
    assert sandbox.agentos("stop", "by-stop").returncode == 1


def test_closed_terminal_leaves_no_process_behind(sandbox: Sandbox) -> None:
    command = sandbox.script(STUBBORN)
    with sandbox.in_terminal("run", "--run-id", "r", "--grace", "0.2", *numbered(2), "--", command, "{id}") as session:
        pids = sandbox.pids("pids", 4)
        program = session.child.pid
        session.child.ptyproc.fileobj.close()
        eventually(lambda: all_gone([*pids, program]), PATIENCE)
    finish(sandbox, "r", 2)


def test_unread_output_does_not_prevent_stopping(sandbox: Sandbox) -> None:
    reading, writing = os.pipe()
    try:
        with sandbox.start(
            "run", "--grace", "0.2", *numbered(2), "--",
            "sh", "-c", "head -c 3000000 /dev/zero; echo; echo $$ >> pids; exec sleep 600", stdout=writing,
        ) as program:  # fmt: skip
            pids = sandbox.pids("pids", 2)  # their output was taken from them, although the pipe is full
            began = time.monotonic()
            program.send_signal(signal.SIGINT)
            assert program.wait(PATIENCE) == 130
            assert time.monotonic() - began < 0.2 + 1 + BUSY
        eventually(lambda: all_gone(pids))
    finally:
        os.close(reading)
        os.close(writing)


def test_sigkill_ends_commands_and_resume_finishes_each_once(sandbox: Sandbox) -> None:  # invariant 20
    command = sandbox.script('case $1 in item-[01]) echo "$1" >> done; exit;; esac' + STUBBORN)
    run = ("run", "--run-id", "r", "--parallel", "4", *numbered(6), "--", command, "{id}")
    with sandbox.start(*run) as program:
        pids = sandbox.pids("pids", 8)
        # Recorded attempts have started, and the guard lists their groups.
        eventually(lambda: Counter(outcomes(sandbox, "r").values()) == {"succeeded": 2, None: 4})
        program.kill()
        program.wait()
    eventually(lambda: all_gone(pids))
    finish(sandbox, "r", 6)


def test_ctrl_c_before_the_run_exits_with_130(sandbox: Sandbox) -> None:
    sandbox.write("slow.py", "import os, threading\nopen('ready', 'w')\nthreading.Event().wait()\n")
    with sandbox.start("run", "--item", "a", "slow:work") as program:
        eventually(lambda: (sandbox.path / "ready").exists(), PATIENCE)
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 130
        assert program.communicate()[1] == "Interrupted.\n"
    assert not sandbox.home.exists()


# --- where the output goes ----------------------------------------------------------------------------------------


def test_closed_output_pipe_does_not_change_the_run(sandbox: Sandbox) -> None:
    done = sandbox.shell(
        "agentos run --run-id r --item a --item b --item c -- seq 20000 | head -1; echo ${PIPESTATUS[0]}"
    )
    assert re.fullmatch(r"\[[abc]\] 1\n0\n", done.stdout)
    assert "Succeeded: 3" in done.stderr
    assert done.stderr.count("stdout was closed by its reader: the run continues") == 1
    assert "Traceback" not in done.stderr
    assert "rror" not in done.stderr


LOST = "stdout cannot be written any more; the run continues without it"
REDIRECTED = [
    (">&-", "", "1"),
    ("2>&-", "", "1"),
    (">&- 2>&-", "", "1"),
    ("> /dev/full", LOST, "3"),
    ("2> /dev/full", "", "1"),
    ("--json > /dev/full", LOST, "3"),
]


def test_run_continues_without_usable_output(sandbox: Sandbox) -> None:
    command = sandbox.script('echo "$1"; echo "$1" >&2; echo "$1" >> done; [ "$1" != c ]')
    line = ""
    for number, (where, *_) in enumerate(REDIRECTED):
        option, _, redirect = where.rpartition(" > ") if "--" in where else ("", "", where)
        run = f"agentos run {option} {shlex.join(ITEMS)} -- ../{command} {{id}} {'> ' if option else ''}{redirect}"
        line += f"(mkdir {number}; cd {number}; ({run}) 2> errors; echo $? > status) &\n"
    sandbox.shell(line + "wait")
    for number, (where, expected, status) in enumerate(REDIRECTED):
        assert sandbox.lines(f"{number}/status") == [status], where
        assert sorted(sandbox.lines(f"{number}/done")) == ["a", "b", "c"], where
        errors = "\n".join(sandbox.lines(f"{number}/errors"))
        assert expected in errors, where
        assert "Traceback" not in errors, where


OUTPUT = r"""
case $1 in
  odd) printf 'one\n\n\377\376 bytes\nno end' ;;
  long) head -c 200000 /dev/zero | tr '\0' x; echo; echo after ;;
  err) echo to stderr >&2 ;;
esac
"""


def test_output_is_prefixed_and_bytes_are_unchanged(sandbox: Sandbox) -> None:
    command = sandbox.script(OUTPUT)
    items = ("--item", "odd", "--item", "long", "--item", "err")
    done = subprocess.run(
        [*AGENTOS, "run", "--quiet", "--run-id", "r", *items, "--", command, "{id}"],
        cwd=sandbox.path,
        env=sandbox.environ,
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


def test_lines_of_parallel_commands_are_never_mixed(sandbox: Sandbox) -> None:
    script = 'for n in $(seq 5000); do echo "$1 $n $1$1$1$1$1$1$1$1$1$1 end"; done'
    run = ("run", "--quiet", "--parallel", "10", *numbered(10), "--", "sh", "-c", script, "sh", "{id}")
    lines = sandbox.agentos(*run).stdout.splitlines()
    session: dict[str, int] = Counter()
    for line in lines:
        item, number = re.match(r"\[(item-\d)\] \1 (\d+) (?:\1){10} end$", line).groups()  # type: ignore[union-attr]
        session[item] += 1
        assert int(number) == session[item]
    assert session == {f"item-{number}": 5000 for number in range(10)}


def test_json_output_is_json_throughout(sandbox: Sandbox) -> None:
    sandbox.script(OUTPUT + "exit 0", "command.sh")
    items = ("--item", "odd", "--item", "long", "--item", "err")
    done = sandbox.agentos("run", "--json", *items, "--", "./command.sh", "{id}")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert {"RunStarted", "Output", "ItemEnded", "RunEnded"} == {event["event"] for event in events}
    printed = [(event["item_id"], event["stream"], event["line"]) for event in events if event["event"] == "Output"]
    assert ("odd", "stdout", r"\xff\xfe bytes") in printed
    assert ("odd", "stdout", "") in printed
    assert ("err", "stderr", "to stderr") in printed
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


def test_python_workers_get_prefixed_prints_logs_and_tracebacks(sandbox: Sandbox) -> None:
    sandbox.write("workers.py", WORKERS)
    done = sandbox.agentos("run", "--run-id", "r", *ITEMS, "workers:plain")
    assert done.returncode == 1, done.stderr
    out = [line for line in done.stdout.splitlines() if line]
    assert sorted(out) == sorted(f"[{id_}] {text}" for id_ in "abc" for text in (f"hello {id_}", "no end"))
    logged = [line for line in done.stderr.splitlines() if "logged" in line]
    assert sorted(logged) == ["[a] logged a", "[b] logged b", "[c] logged c"]
    _, printed = sandbox.run_each(["logs", "r", "a"], ["show", "r", "b"], ["show", "r", "c"])
    assert printed.stdout.startswith("hello a\n\nlogged a\nno end")
    assert "ValueError: no b here" in printed.stdout
    assert 'raise ValueError(f"no {item} here")' in printed.stdout
    assert "SystemExit: 7" in printed.stdout
    assert outcomes(sandbox, "r") == {"a": "succeeded", "b": "failed", "c": "failed"}


def test_async_workers_get_prefixed_prints(sandbox: Sandbox) -> None:
    sandbox.write("workers.py", WORKERS)
    done = sandbox.agentos("run", "--run-id", "r", *ITEMS, "workers:later")
    assert done.returncode == 1, done.stderr
    for id_ in "abc":
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{id_}] ")]
        assert mine == [f"[{id_}] hello {id_} {number}" for number in range(3)]
    assert outcomes(sandbox, "r") == {"a": "succeeded", "b": "failed", "c": "failed"}
    assert "ValueError: no b here" in sandbox.agentos("show", "r", "b").stdout


# --- items --------------------------------------------------------------------------------------------------------


def test_items_from_stdin_are_kept_for_resume(sandbox: Sandbox) -> None:
    command = sandbox.script(WAITS)
    run = ("run", "--run-id", "r", "--items", "-", "--parallel", "5", "--", command, "{id}")
    with sandbox.start(*run, stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        program.stdin.write("".join(f"item-{number}\n" for number in range(5)))
        program.stdin.flush()
        kept = sandbox.runs / "r" / "items.jsonl"
        eventually(lambda: kept.exists() and kept.read_text().count("\n") == 5, PATIENCE)
        pids = sandbox.pids("pids", 5)
        # Recorded attempts have started, and the guard lists their groups.
        eventually(lambda: Counter(outcomes(sandbox, "r").values()) == {None: 5})
        program.kill()
        program.wait()
    eventually(lambda: all_gone(pids))
    sandbox.write("go", "")
    done = sandbox.agentos("resume", "r", input="never read\n")
    assert done.returncode == 4, done.stderr  # the end of the input is unknown
    assert "stdin was not read to its end" in done.stderr
    assert sorted(sandbox.lines("done")) == [f"item-{number}" for number in range(5)]
    whole = "".join(f"item-{number}\n" for number in range(7))
    done = sandbox.agentos(*run, input=whole)
    assert done.returncode == 0, done.stderr
    assert sorted(sandbox.lines("done")) == [f"item-{number}" for number in range(7)]


@pytest.mark.parametrize(
    ("arguments", "given", "problem"),
    [
        (("--format", "csv", "--", "echo", "{name}"), "name,x\na,1\n", "expected a field 'id' as its id"),
        (("--format", "jsonl", "--", "echo", "{nmae}"), '{"id": 1, "name": 2}\n', "has no field 'nmae'"),
        (("--", "echo", "{id}"), "", "expected items, and found none"),
    ],
    ids=["no id", "no such field", "no items"],
)
def test_bad_first_item_of_stdin_leaves_no_run(
    sandbox: Sandbox, arguments: tuple[str, ...], given: str, problem: str
) -> None:
    done = sandbox.agentos("run", "--run-id", "r", "--items", "-", *arguments, input=given)
    assert done.returncode == 2
    assert "Error: stdin" in done.stderr or "Error: item 1" in done.stderr
    assert problem in done.stderr
    assert "Starting" not in done.stderr
    assert not (sandbox.home / "runs" / "r").exists()


def test_mistake_on_stdin_ends_the_run_after_earlier_items(sandbox: Sandbox) -> None:
    lines = '{"id": "a"}\n{"name": "b"}\n'
    done = sandbox.agentos("run", "--run-id", "r", "--items", "-", "--", "echo", "{id}", input=lines)
    assert done.returncode == 2
    assert "stopped early: the input failed: BadItems: stdin, line 2: expected a field 'id' as its id" in done.stderr
    assert "Usage:" not in done.stderr
    resumed = sandbox.agentos("resume", "r")
    assert resumed.returncode == 4  # the rest of the input never came
    assert done.stdout + resumed.stdout == "[a] a\n"


def test_same_run_id_continues_and_refuses_another_command(sandbox: Sandbox) -> None:
    items = sandbox.write("items.txt", "a\nb\n")
    command = sandbox.script('echo "$1" >> done; [ "$1" != b ] || [ -e go ]')
    run = ("run", "--run-id", "named", "--items", "items.txt", "--", command, "{id}")
    assert sandbox.agentos(*run).returncode == 1
    assert sorted(sandbox.lines("done")) == ["a", "b"]
    resumed = sandbox.agentos(*run)
    assert "Resuming run named" in resumed.stderr
    refused = sandbox.agentos("run", "--run-id", "named", "--items", "items.txt", "--", "echo", "{id}")
    assert refused.returncode == 2
    assert "another command" in refused.stderr
    items.write_text("a\nb\nnew\n")
    sandbox.write("go", "")
    changed = sandbox.agentos("retry", "named")
    assert "items.txt has changed since the run was created" in changed.stderr
    assert changed.returncode == 0, changed.stderr
    assert outcomes(sandbox, "named")["b"] == "succeeded"


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


def test_wrong_usage_exits_with_2_and_leaves_no_run(sandbox: Sandbox) -> None:
    sandbox.write("bad.jsonl", "not json\n")
    sandbox.write("broken.py", "1 / 0\n")
    sandbox.write("keys.toml", KEYS)
    statuses, done = sandbox.run_each(*WRONG.values())
    assert dict(zip(WRONG, statuses, strict=True)) == dict.fromkeys(WRONG, 2)
    assert f"\n{done.stderr}".count("\nError: ") == len(WRONG)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not sandbox.home.exists()


def test_failed_and_halted_runs_exit_with_1(sandbox: Sandbox) -> None:
    run = ("run", "--run-id", "halted", "--parallel", "1", "--halt", "now,fail=1", *ITEMS, "--", "false")
    done = sandbox.agentos(*run)
    assert done.returncode == 1
    assert "halted: 1 failed" in done.stderr
    assert Counter(outcomes(sandbox, "halted").values())["failed"] == 1
    assert "Try again:  agentos retry halted" in done.stderr


def test_busy_damaged_and_unwritable_runs_exit_with_3(sandbox: Sandbox) -> None:
    command = sandbox.script(WAITS)
    run = ("run", "--run-id", "r", *numbered(2), "--", command, "{id}")
    with sandbox.start(*run) as first:
        sandbox.pids("pids", 2)
        second = sandbox.agentos("resume", "r")
        assert second.returncode == 3
        assert f"pid {first.pid}" in second.stderr
        sandbox.write("go", "")
        assert first.wait(PATIENCE) == 0
    assert sorted(sandbox.lines("done")) == ["item-0", "item-1"]
    ledger = sandbox.runs / "r" / "ledger.db"
    ledger.write_bytes(b"not a database, but as long as one" * 500)
    damaged = sandbox.agentos("resume", "r")
    assert damaged.returncode == 3
    assert str(ledger) in damaged.stderr
    sandbox.environ["AGENTOS_HOME"] = "/proc/nowhere"
    unwritable = sandbox.agentos("run", "--item", "a", "--", "echo")
    assert unwritable.returncode == 3
    assert "/proc/nowhere" in unwritable.stderr
    for process in (second, damaged, unwritable):
        assert "Traceback" not in process.stderr


def test_dead_keys_and_long_waits_exit_with_4(sandbox: Sandbox) -> None:
    sandbox.write("keys.toml", KEYS)
    sandbox.environ.update(SECRETS)
    keys = ("--keys", "keys.toml")
    assert sandbox.run_each(*(["keys", "disable", id_, *keys] for id_ in ("first-key", "second-key")))[0] == [0, 0]
    dead = sandbox.agentos("run", "--run-id", "dead", *keys, *ITEMS, "--", "true")
    assert dead.returncode == 4, dead.stderr
    assert "second-key: disabled" in dead.stderr
    assert "agentos resume dead continues them" in dead.stderr
    assert re.search(r"agentos keys enable first-key --keys \S*keys\.toml\n", dead.stderr)
    assert sandbox.run_each(*(["keys", "enable", id_, *keys] for id_ in ("first-key", "second-key")))[0] == [0, 0]
    limited = sandbox.script(
        """[ -e go ] && exit
        echo '{"verdict": "rate_limited", "retry_after": 99}' >> "$AGENTOS_REPORT"; exit 1"""
    )
    alone = ("--store", "memory:")  # a shared store would keep the refusal for the resume
    waits = sandbox.agentos("run", "--run-id", "waits", *keys, *alone, "--max-wait", "1", *ITEMS, "--", limited)
    assert waits.returncode == 4, waits.stderr
    assert "Execution stopped early: nothing could start within 1 s" in waits.stderr
    sandbox.write("go", "")
    for run_id in ("dead", "waits"):
        resumed = sandbox.agentos("resume", run_id)
        assert resumed.returncode == 0, resumed.stderr
        assert set(outcomes(sandbox, run_id).values()) == {"succeeded"}


def test_command_reports_limits_by_status_or_report(
    sandbox: Sandbox,
) -> None:
    sandbox.write("keys.toml", KEYS)
    sandbox.environ.update(SECRETS)
    command = sandbox.script(
        f"""[ "$AGENTOS_ATTEMPT" = 2 ] && exit
        [ "$AGENTOS_ITEM_ID" = status ] && exit 75
        {shlex.join(AGENTOS)} report rate-limited --retry-after 0.2 --message slow; exit 1"""
    )
    items = ("--item", "status", "--item", "report")
    done = sandbox.agentos("run", "--run-id", "r", "--keys", "keys.toml", "--parallel", "1", *items, "--", command)
    assert done.returncode == 0, done.stderr
    shown = sandbox.agentos("show", "r", "report").stdout
    assert re.search(r"1\.1 +(first|second)-key .* rate_limited +exit status 1: slow", shown), shown
    assert re.search(r"1\.2 +(first|second)-key .* succeeded", shown), shown


# --- what would be ------------------------------------------------------------------------------------------------


def test_dry_run_shows_the_plan_and_changes_nothing(sandbox: Sandbox) -> None:
    dry = sandbox.agentos("run", "--dry-run", "--item-seconds", "2", *ITEMS, "--", "touch", "{id}")
    assert dry.returncode == 0
    assert dry.stdout.startswith("3 items would run; nothing is started:\n  touch a\n  touch b\n  touch c\n")
    assert "3 items: about 2.0 s" in dry.stdout
    stdin = sandbox.agentos("run", "--dry-run", "--items", "-", "--", "touch", "{id}", input="a\nb\n")
    assert "2 items" in stdin.stdout
    plan = sandbox.agentos("plan", *ITEMS, "--parallel", "1", "--item-seconds", "2")
    assert "3 items: about 6.0 s" in plan.stdout
    assert plan.returncode == 0
    assert not sandbox.home.exists()
    assert [path.name for path in sandbox.path.iterdir()] == []
