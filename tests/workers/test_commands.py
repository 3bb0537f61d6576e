"""Commands as workers: real processes, their output, their end and their reports about the provider."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentos.events import AttemptEnded
from agentos.items.attempt import Attempt
from agentos.items.file_names import folder_name, log_name
from agentos.limits import backoff
from agentos.runs._driver import periodic
from agentos.workers.command._process import CommandProcess, ProcessStarter
from agentos.workers.command.runner import CommandWorkers
from agentos.workflows.parallel import (
    Command,
    Credential,
    CredentialCoordinator,
    Ledger,
    Limits,
    ParallelCoordinator,
    Pattern,
    WorkerStartError,
    WorkflowResult,
)
from tests.conftest import BUSY, eventually

from .test_processes import is_alive

CANARY = "sk-canary-0123456789abcdef"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)


class OutputRecorder:
    """Records what a run shows."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, bytes]] = []

    def __call__(self, item_id: str, stream: str, lines: bytes) -> None:
        self.calls.append((item_id, stream, lines))

    def of(self, item_id: str, stream: str = "stdout") -> bytes:
        return b"".join(lines for id_, name, lines in self.calls if (id_, name) == (item_id, stream))


def id_of(item: Any) -> str:
    return item if isinstance(item, str) else str(item["id"])


def run(
    items: list[Any], command: Command, pool: CredentialCoordinator | None = None, workers: int = 3, **options: Any
) -> dict[str, WorkflowResult]:
    options = {"retries": 0, "reporter": None, **options}
    _, results = ParallelCoordinator(workers, pool, **options).execute_parallel(items, command, id_of)
    return {result.item_id: result for result in results}


def sh(script: str, **options: Any) -> Command:
    return Command(["sh", "-c", script], **options)


def python(script: str, *arguments: str, **options: Any) -> Command:
    return Command([sys.executable, "-c", script, *arguments], **options)


# --- arguments ----------------------------------------------------------------------------------------------------


def test_arguments_are_filled_from_id_item_and_fields() -> None:
    command = Command(["echo", '{id}|{}|{title}|{deep.er}|{{id}}|{{|{ |{"a":{"b":1}}|{n}'])
    item = {"id": "a b", "title": "x; rm -rf /", "deep": {"er": True}, "n": 7}
    output = OutputRecorder()
    command.show = output
    assert run([item], command)["a b"].success
    assert output.of("a b").decode() == (
        'a b|{"id":"a b","title":"x; rm -rf /","deep":{"er":true},"n":7}|x; rm -rf /|true|{id}|{|{ |{"a":{"b":1}}|7\n'
    )


def test_text_item_fills_the_empty_placeholder() -> None:
    output = OutputRecorder()
    run(["it's me"], Command(["echo", "hello {}"], show=output))
    assert output.of("it's me") == b"hello it's me\n"


def test_braces_of_shell_curl_and_awk_are_literal() -> None:
    command = Command(["echo", "${HOME}|%{http_code}|{print}|{print $1}|{next}|{id}"])
    assert command.fields == []
    assert command.filled({"id": "a"}, "a") == ["echo", "${HOME}|%{http_code}|{print}|{print $1}|{next}|a"]
    assert command.filled({"id": "a", "print": "p"}, "a")[1].startswith("${HOME}|%{http_code}|p|")


def test_whole_command_in_quotes_is_recognised() -> None:
    problem = Command(["echo hello {id}"]).problem() or ""
    assert "without quotes around the whole of it (-- echo hello {id})" in problem
    assert "sh -c 'echo hello {id}'" in problem


def test_program_beside_the_run_suggests_its_path(tmp_path: Path) -> None:
    (tmp_path / "review").write_text("#!/bin/sh\n")
    assert "write ./review" in (Command(["review", "{id}"], cwd=tmp_path).problem() or "")


def test_missing_field_fails_the_item_and_is_checkable() -> None:
    command = Command(["echo", "{title}"])
    assert command.fields == ["title"]
    assert command.missing({"id": "a"}) == "title"
    result = run([{"id": "a"}], command)["a"]
    assert not result.success
    assert "title" in (result.error or "")


@pytest.mark.parametrize("wrong", ["echo", [], [1], None])
def test_command_must_be_a_list_of_texts(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Command(wrong)


def test_missing_program_is_reported_before_start() -> None:
    command = Command(["no-such-program-anywhere", "{id}"])
    assert "no-such-program-anywhere" in (command.problem() or "")
    with pytest.raises(WorkerStartError, match="no-such-program-anywhere cannot be started"):
        run(["a"], command, retries=5)
    assert Command(["echo"]).problem() is None
    assert Command(["{program}"]).problem() is None


def test_too_long_argument_suggests_stdin() -> None:
    result = run([{"id": "a", "text": "x" * 3_000_000}], Command(["echo", "{text}"]))["a"]
    assert "stdin" in (result.error or "")


# --- environment and input ----------------------------------------------------------------------------------------


def test_command_environment_names_item_run_and_credential(tmp_path: Path) -> None:
    pool = CredentialCoordinator([Credential(CANARY, id="one")])
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    output = OutputRecorder()
    # The canary is redacted in the output, so the command itself checks that it has it.
    check = f"import os, sys; sys.exit(0 if os.environ['MY_KEY'] == {CANARY[:9]!r} + {CANARY[9:]!r} else 9)"
    assert run(["a"], python(check, credential_env="MY_KEY", folder=tmp_path), pool)["a"].success
    run([{"id": "b", "n": 1}], python(script, credential_env={"one": "MY_KEY"}, folder=tmp_path, show=output), pool)
    environment = json.loads(output.of("b"))
    assert environment["AGENTOS_ITEM_ID"] == "b"
    assert json.loads(environment["AGENTOS_ITEM"]) == {"id": "b", "n": 1}
    assert environment["AGENTOS_ATTEMPT"] == "1"
    assert environment["AGENTOS_CREDENTIAL_ID"] == "one"
    assert environment["MY_KEY"] == "****"
    assert environment["PATH"] == os.environ["PATH"]
    for name in ("AGENTOS_RUN_ID", "AGENTOS_WORKFLOW_DB", "AGENTOS_CHECKPOINT_DIR", "AGENTOS_REPORT"):
        assert environment[name]


def test_workflow_db_survives_until_the_next_attempt(tmp_path: Path) -> None:
    script = """
import os, sqlite3, sys
with sqlite3.connect(os.environ["AGENTOS_WORKFLOW_DB"]) as database:
    database.execute("CREATE TABLE IF NOT EXISTS steps (name)")
    steps = database.execute("SELECT count(*) FROM steps").fetchone()[0]
    database.execute("INSERT INTO steps VALUES ('one')")
print(steps)
sys.exit(0 if steps else 1)
"""
    command, ledger = python(script, folder=tmp_path), tmp_path / "ledger.db"
    assert not run(["a"], command, ledger=ledger)["a"].success
    assert run(["a"], command, ledger=ledger, retry_failed=True)["a"].value["stdout"] == "1\n"
    assert not (tmp_path / "ledger.db-files").exists()


def test_command_environment_holds_only_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_ONE", "sk-secret-number-one")
    monkeypatch.setenv("KEY_TWO", "sk-secret-number-two")
    monkeypatch.setenv("HEADER", "Bearer sk-secret-number-two")
    pool = CredentialCoordinator([Credential("env:KEY_ONE", id="one"), Credential("env:KEY_TWO", id="two")])
    pool.quarantine("two", "not today")
    output = OutputRecorder()
    run(["a"], python("import os; print(sorted(os.environ))", credential_env="USED", show=output), pool)
    names = eval(output.of("a"))
    assert "USED" in names
    assert not {"KEY_ONE", "KEY_TWO", "HEADER"} & set(names)


def test_large_item_is_passed_in_a_file(tmp_path: Path) -> None:
    script = (
        "import json, os; item = json.load(open(os.environ['AGENTOS_ITEM_FILE']));"
        "assert 'AGENTOS_ITEM' not in os.environ; print(len(item['text']))"
    )
    output = OutputRecorder()
    assert run([{"id": "a", "text": "x" * 200_000}], python(script, folder=tmp_path, show=output))["a"].success
    assert output.of("a") == b"200000\n"
    assert not list((tmp_path / "checkpoints").iterdir())


def test_stdin_is_empty_unless_a_field_is_named() -> None:
    output = OutputRecorder()
    run([{"id": "a", "text": "line\nanother"}], Command(["cat"], show=output))
    assert output.of("a") == b""
    run([{"id": "b", "text": "line\nanother" * 50_000}], Command(["wc", "-c"], stdin="text", show=output))
    assert output.of("b").split() == [str(12 * 50_000).encode()]


def test_secret_in_an_argument_is_refused() -> None:
    pool = CredentialCoordinator([CANARY])
    result = run([{"id": "a", "text": f"the key is {CANARY}"}], Command(["echo", "{text}"], credential_env="K"), pool)[
        "a"
    ]
    assert not result.success
    assert "credential_env" in (result.error or "")
    assert CANARY not in repr(result)


# --- output -------------------------------------------------------------------------------------------------------


def test_output_is_shown_by_lines_and_logged_unchanged(tmp_path: Path) -> None:
    output = OutputRecorder()
    script = "import os; [os.write(1, p) for p in (b'a\\nb', b'c\\n\\xff\\xfe\\n', b'end')]; os.write(2, b'err')"
    run(["x"], python(script, folder=tmp_path, show=output))
    assert output.of("x") == b"a\nbc\n\xff\xfe\nend\n"
    assert output.of("x", "stderr") == b"err\n"
    assert all(lines.endswith(b"\n") for _, _, lines in output.calls)
    log = (tmp_path / "logs" / log_name("x")).read_bytes()
    assert sorted(log) == sorted(b"a\nbc\n\xff\xfe\nenderr")


def test_long_line_is_shown_in_pieces_and_logged_whole(tmp_path: Path) -> None:
    output = OutputRecorder()
    run(["x"], python("print('y' * 200_000)", folder=tmp_path, show=output))
    pieces = output.of("x").split(b"\n")
    assert [len(piece) for piece in pieces] == [65536, 65536, 65536, 200_000 - 3 * 65536, 0]
    assert (tmp_path / "logs" / log_name("x")).read_bytes() == b"y" * 200_000 + b"\n"


def test_every_item_id_has_its_own_log(tmp_path: Path) -> None:
    ids = ["a", "A", "../a", "/etc/passwd", "a/b", "a\\b", "CON", "a.", "a ", "é", "e\u0301", "x" * 5000, "\u202eb"]
    run(list(ids), Command(["echo", "hello"], folder=tmp_path))
    logs = list((tmp_path / "logs").iterdir())
    assert len({log.name.casefold() for log in logs}) == len(ids)
    assert all(re.fullmatch(r"[\w.-]+\.log", log.name, re.ASCII) for log in logs)
    assert {path.parent for path in tmp_path.rglob("*.log")} == {tmp_path / "logs"}


def test_result_holds_the_printed_output(tmp_path: Path) -> None:
    results = run(
        ["a", "b"],
        sh("echo out-$AGENTOS_ITEM_ID; echo first >&2; echo last >&2; test $AGENTOS_ITEM_ID = a", folder=tmp_path),
    )
    assert results["a"].value == {"exit_status": 0, "log": log_name("a"), "stdout": "out-a\n", "is_cut": False}
    failed = results["b"]
    assert failed.error == "exit status 1: last"
    assert failed.metadata["exit_status"] == 1
    assert failed.metadata["stderr"] == "first\nlast\n"
    assert failed.metadata["log"] == log_name("b")


def test_log_separates_attempts(tmp_path: Path) -> None:
    run(["a"], sh("echo try $AGENTOS_ATTEMPT; test $AGENTOS_ATTEMPT = 2", folder=tmp_path), retries=3)
    assert (tmp_path / "logs" / log_name("a")).read_text() == "try 1\n--- attempt 2 ---\ntry 2\n"


# --- the end of a command -----------------------------------------------------------------------------------------


def test_failed_command_is_retried_up_to_retries() -> None:
    assert run(["a"], sh("exit 3"))["a"].attempts == 1
    assert run(["a"], sh("exit 3"), retries=2)["a"].attempts == 3


def test_error_names_the_signal() -> None:
    assert "SIGSEGV" in (run(["a"], sh("kill -SEGV $$"))["a"].error or "")


def test_time_out_kills_the_process_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; wait"
    for timeout in (0.3, 3.0, 30.0):  # until the command had time to start a child
        result = run(["a"], sh(script), timeout=timeout)["a"]
        assert result.metadata["error_type"] == "AttemptTimeout"
        if pids.exists() and len(pids.read_text().split()) >= 2:
            break
    assert len(pids.read_text().split()) >= 2
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))


def test_processes_left_by_a_command_are_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    result = run(["a"], sh(f"sleep 1000 & echo $! > {pid_file}; echo done"))["a"]
    assert result.success
    assert result.value["stdout"] == "done\n"
    eventually(lambda: not is_alive(int(pid_file.read_text())))


@pytest.mark.parametrize(
    ("trap", "grace", "expected"), [("trap 'echo bye; exit 7' TERM", 60.0, b"bye\n"), ("trap '' TERM", 0.2, b"")]
)
def test_shutdown_sends_sigterm_then_sigkill_to_the_group(
    trap: str, grace: float, expected: bytes, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    output = OutputRecorder()
    coordinator = ParallelCoordinator(2, reporter=None, grace_seconds=grace, retries=0)
    command = sh(f"{trap}; echo $$ >> {pids}; while :; do sleep 0.05; done", show=output)
    stream = coordinator.stream(["a", "b"], command, id_of)
    eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    started = time.monotonic()
    coordinator.request_shutdown()
    assert list(stream) == []
    assert time.monotonic() - started < 0.2 + 1 + BUSY
    assert stream.stats.stopped == "interrupted"
    assert sorted(coordinator.get_checkpoints()) == ["a", "b"]
    assert output.of("a") == output.of("b") == expected
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))


@pytest.mark.parametrize("has_ledger", [True, False])
def test_killing_the_run_kills_its_commands(tmp_path: Path, has_ledger: bool) -> None:
    pids = tmp_path / "pids"
    script = f"""
from agentos.workflows.parallel import Command, ParallelCoordinator
def show(item_id, stream, lines):
    print(lines.decode(), end="", flush=True)
command = Command(["sh", "-c", "echo $$ >> {pids}; sleep 1000 & echo $! >> {pids}; echo started; wait"], show=show)
ledger = {str(tmp_path / "ledger.db")!r} if {has_ledger} else None
ParallelCoordinator(3, ledger=ledger, reporter=None).execute_parallel(["a", "b", "c"], command)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run_process:
        assert run_process.stdout is not None
        # The run has listed a process group before it reads its output.
        assert [run_process.stdout.readline() for _ in range(3)] == ["started\n"] * 3
        assert len(pids.read_text().split()) == 6
        run_process.kill()
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))


def test_process_group_of_a_slow_start_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of starts is written before the command runs, as on a busy machine: the group is recorded later."""
    monkeypatch.setattr(periodic, "STARTS_SECONDS", 0.01)
    start = ProcessStarter.start

    def start_late(self: ProcessStarter, attempt: Attempt) -> CommandProcess:
        threading.Event().wait(0.2)
        return start(self, attempt)

    monkeypatch.setattr(ProcessStarter, "start", start_late)
    go, ledger = tmp_path / "go", tmp_path / "ledger.db"
    command = sh(f"echo $$ > {tmp_path / 'pid'}; while [ ! -e {go} ]; do sleep 0.02; done")
    with ParallelCoordinator(1, ledger=ledger, reporter=None).stream(["a"], command) as results:
        eventually(lambda: ledger.exists() and _groups(ledger))
        assert _groups(ledger) == [int((tmp_path / "pid").read_text())]
        go.touch()
        assert [result.success for result in results] == [True]
    assert _groups(ledger) == []


def _groups(ledger: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(ledger)) as connection:
        return [row[0] for row in connection.execute("SELECT pgid FROM processes")]


def test_every_attempt_gets_a_new_empty_folder(tmp_path: Path) -> None:
    """What the command of one item does to its folder does not reach the folder of another item."""
    output = OutputRecorder()
    script = """
cd "$AGENTOS_CHECKPOINT_DIR"; ls -A; pwd
case $AGENTOS_ITEM_ID in
  saved) touch state;;
  said) echo nonsense > .report;;
  linked) ln -sf /dev/null .report;;
  removed) touch .report; rm .report;;
  moved) cd ..; rmdir "$AGENTOS_CHECKPOINT_DIR" 2>/dev/null || rm -r "$AGENTOS_CHECKPOINT_DIR";;
esac"""
    items = ["first", "saved", "second", "said", "third", "linked", "fourth", "removed", "fifth", "moved", "sixth"]
    results = run(items, sh(script, folder=tmp_path, show=output), workers=1, ledger=tmp_path / "ledger.db")
    assert all(result.success for result in results.values())
    checkpoints = tmp_path / "checkpoints"
    for item in items:
        folder = checkpoints / folder_name(item)
        assert output.of(item).decode().splitlines() == [str(folder)]
    assert not list(checkpoints.iterdir())


def test_folder_passes_no_mode_link_or_descriptor_to_later_items(tmp_path: Path) -> None:
    """Folders are never recycled: each item finds a private folder, and no later report reaches an earlier file."""
    output = OutputRecorder()
    script = """
cd "$AGENTOS_CHECKPOINT_DIR"; stat -c %a .; ls -A
case $AGENTOS_ITEM_ID in
  mode) chmod 777 .;;
  link) echo old > "$OLDPWD/kept"; ln "$OLDPWD/kept" .report;;
  descriptor)
    exec 9> .report
    setsid sh -c 'while [ ! -e "$0/over" ]; do echo late >&9; done' "$OLDPWD" > /dev/null 2>&1 &;;
esac
agentos_report='{"usage": {"tokens": 1}}'; [ "$AGENTOS_ITEM_ID" = later ] && echo "$agentos_report" >> .report; true"""
    items = ["mode", "link", "descriptor", "later"]
    try:
        results = run(items, sh(script, folder=tmp_path, show=output, cwd=tmp_path), workers=1)
    finally:
        (tmp_path / "over").touch()
    assert all(result.success for result in results.values())
    assert [output.of(item) for item in items] == [b"700\n"] * 4
    assert (tmp_path / "kept").read_text() == "old\n"
    assert results["later"].metadata["usage"]["tokens"] == 1


def test_leftover_report_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """A launch that was killed leaves the report of its attempt, which the command may have linked to another file."""
    folder, target = tmp_path / "checkpoints" / folder_name("a"), tmp_path / "target"
    folder.mkdir(parents=True)
    target.write_text("precious")
    (folder / ".report").symlink_to(target)
    assert run(["a"], sh('echo x >> "$AGENTOS_REPORT"', folder=tmp_path))["a"].success
    assert target.read_text() == "precious"


def test_leftover_folder_in_place_of_report_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / folder_name("a") / ".report"
    folder.mkdir(parents=True)
    (folder / "x").touch()
    assert run(["a"], sh('echo "{}" >> "$AGENTOS_REPORT"', folder=tmp_path))["a"].success


def test_three_hundred_short_commands_are_all_recorded(tmp_path: Path) -> None:
    items = [f"item-{number}" for number in range(300)]
    results = run(items, Command(["true"], folder=tmp_path), workers=10, ledger=tmp_path / "ledger.db")
    assert all(result.success for result in results.values())
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.counts().succeeded == 300


def test_lack_of_descriptors_delays_commands(tmp_path: Path) -> None:
    script = """
import resource
from agentos.workflows.parallel import Command, ParallelCoordinator
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
stats, _ = ParallelCoordinator(30, max_parallelism=30, reporter=None, retries=0).execute_parallel(
    [str(n) for n in range(60)], Command(["sh", "-c", "sleep 0.02"])
)
print(stats.success_count)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "60\n", done.stderr


# --- verdicts on the provider -------------------------------------------------------------------------------------


def two_keys(**limits: Any) -> CredentialCoordinator:
    return CredentialCoordinator(
        [Credential(f"sk-two-keys-{n}", id=f"key-{n}", limits=Limits(**limits)) for n in (1, 2)]
    )


AIDER = r"Aider v0.86.2\n\nlitellm.AuthenticationError: OpenAIException - no\nThe API provider is not able to help.\n"


def in_first(script: str) -> str:
    """Return a script that runs `script` in the first attempt of an item and succeeds in the next."""
    return f"test $AGENTOS_ATTEMPT != 1 && exit 0; {script}"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 75", "rate_limited"),
        ('echo "You\'ve hit your usage limit. Try again at 11:30 PM."; exit 1', "quota_exhausted"),
        ("echo 'Error: 529 Overloaded' >&2; exit 1", "overloaded"),
        ("echo 'MAGIC: wait 1 please'; exit 1", "rate_limited"),
        ("echo 'MAGIC: wait 1 please'; exit 0", "rate_limited"),
        ("echo 'curl: (22) The requested URL returned error: 401' >&2; exit 22", "auth_failed"),
        ("echo 'HTTP 401 Unauthorized' >&2; exit 1", "auth_failed"),
        (f"printf '{AIDER}'; exit 0", "auth_failed"),
        (f"{sys.executable} -m agentos.cli report rate-limited --retry-after 1; exit 1", "rate_limited"),
        (f"{sys.executable} -m agentos.cli report quota-exhausted; exit 0", "quota_exhausted"),
        (f"{sys.executable} -m agentos.cli report auth-failed; exit 1", "auth_failed"),
    ],
)
def test_reported_limit_moves_the_item_to_another_key(script: str, expected: str, tmp_path: Path) -> None:
    pool = two_keys()
    command = sh(
        in_first(script), credential_env="KEY", patterns=[Pattern(re.compile(r"MAGIC: wait (?P<seconds>\d+)"))]
    )
    result = run(["a"], command, pool, ledger=tmp_path / "ledger.db")["a"]
    assert result.success
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        first, second = ledger.attempts("a")
    assert first.verdict == expected
    assert second.verdict == "succeeded"
    if expected != "overloaded":
        assert first.credential_id != second.credential_id


def test_command_reports_usage(tmp_path: Path) -> None:
    script = f"{sys.executable} -m agentos.cli report usage --tokens 1200 --cost 0.5"
    result = run(["a"], sh(script, credential_env="KEY"), two_keys(), ledger=tmp_path / "ledger.db")["a"]
    assert result.metadata["usage"] == {"requests": 0, "tokens": 1200, "cost": 0.5}


def test_permanent_report_fails_without_retry() -> None:
    script = f"{sys.executable} -m agentos.cli report permanent --message 'will never work'; exit 1"
    assert run(["a"], sh(script), retries=5)["a"].attempts == 1


# --- checkpoints --------------------------------------------------------------------------------------------------


def test_checkpoint_folder_lasts_until_the_item_succeeds(tmp_path: Path) -> None:
    script = 'cd "$AGENTOS_CHECKPOINT_DIR"; cat state 2>/dev/null; echo saved > state; test $AGENTOS_ATTEMPT = 2'
    output = OutputRecorder()
    result = run(["a"], sh(script, folder=tmp_path, show=output), retries=1, ledger=tmp_path / "ledger.db")["a"]
    assert result.success
    assert output.of("a") == b"saved\n"
    assert not list((tmp_path / "checkpoints").iterdir())


def test_failed_item_keeps_its_checkpoint_folder(tmp_path: Path) -> None:
    script = 'cd "$AGENTOS_CHECKPOINT_DIR"; cat state 2>/dev/null && exit 0; echo saved > state; exit 1'
    output = OutputRecorder()
    command = sh(script, folder=tmp_path, show=output)
    assert not run(["a"], command, ledger=tmp_path / "ledger.db")["a"].success
    assert run(["a"], command, ledger=tmp_path / "ledger.db", retry_failed=True)["a"].success
    assert output.of("a") == b"saved\n"
    assert not list((tmp_path / "checkpoints").iterdir())


# --- secrets ------------------------------------------------------------------------------------------------------


def test_printed_secret_is_redacted_everywhere(tmp_path: Path) -> None:
    pool = CredentialCoordinator([Credential(CANARY, id="canary")])
    script = (
        "import base64, os, sys; key = os.environ['KEY'];"
        "[print('x' * pad + t) for pad in range(3) for t in (key, key.encode().hex(), repr(key))];"
        "[print(base64.b64encode(b'p' * pad + key.encode()).decode()) for pad in range(3)];"
        "print('\\x1b[31m'.join(key));"
        "sys.stderr.write(key); sys.exit(3)"
    )
    output = OutputRecorder()
    result = run(
        ["a"], python(script, credential_env="KEY", folder=tmp_path, show=output), pool, ledger=tmp_path / "l.db"
    )["a"]
    everything = repr(result).encode() + b"".join(lines for _, _, lines in output.calls)
    everything += b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"****" in everything
    import base64

    for pad in range(3):
        inner = base64.b64encode(b"p" * pad + CANARY.encode())[4:-4]
        assert inner not in everything
    assert CANARY.encode() not in everything
    assert CANARY.encode().hex().encode() not in everything
    assert CANARY.encode() not in re.sub(rb"\x1b\[[0-9;]*m", b"", everything)


def test_parallel_output_is_never_mixed(tmp_path: Path) -> None:
    lines: list[bytes] = []
    lock = threading.Lock()

    def show(item_id: str, stream: str, data: bytes) -> None:
        with lock:
            lines.extend(f"{item_id} ".encode() + line for line in data.splitlines())

    run([f"i{n}" for n in range(10)], python("[print(n, 'x' * 100) for n in range(5000)]", show=show), workers=10)
    for number in range(10):
        own = [line for line in lines if line.startswith(f"i{number} ".encode())]
        assert own == [f"i{number} {n} {'x' * 100}".encode() for n in range(5000)]


def test_without_pool_a_limited_item_waits_alone(tmp_path: Path) -> None:
    ended: list[AttemptEnded] = []
    script = in_first("echo 'Rate limit reached. Please try again in 1s.'; exit 1")
    options = {"reporter": lambda event: ended.append(event) if isinstance(event, AttemptEnded) else None}
    started = time.monotonic()
    assert run(["a"], sh(script), **options)["a"].success
    assert time.monotonic() - started >= 1.0
    assert [(event.verdict, event.retry_in) for event in ended] == [("rate_limited", 1.0)]


def test_without_pool_a_refused_key_fails_its_item() -> None:
    result = run(["a"], sh("echo 'HTTP 401: invalid api key'; exit 1"), retries=5)["a"]
    assert (result.success, result.attempts) == (False, 1)


def test_process_outside_the_group_cannot_hold_an_attempt() -> None:
    script = "setsid sh -c 'i=0; while [ $i -lt 1200 ]; do echo more; i=$((i+1)); sleep 0.05; done' & sleep 0.2"
    started = time.monotonic()
    assert run(["a"], sh(script))["a"].success
    assert time.monotonic() - started < 1 + BUSY  # not the minute of the process outside


def test_id_unfit_for_a_variable_is_in_the_item(tmp_path: Path) -> None:
    script = "import json, os; print('AGENTOS_ITEM_ID' in os.environ)"
    for item in ("x" * 200_000, "lone \ud800 surrogate"):
        output = OutputRecorder()
        assert run([item], python(script, folder=tmp_path, show=output))[item].success
        assert output.of(item) == b"False\n"


def test_keys_beyond_the_limit_are_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_CREDENTIAL_LIMIT", "1")
    monkeypatch.setenv("SECOND", "sk-beyond-the-limit")
    pool = CredentialCoordinator(["sk-within-the-limit", "sk-beyond-the-limit"])
    output = OutputRecorder()
    run(["a"], sh("echo $SECOND; echo sk-beyond-the-li''mit", credential_env="KEY", show=output), pool)
    assert output.of("a") == b"\n****\n"


def test_call_during_drain_does_not_lose_the_next_wakeup(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = CommandWorkers(Command(["true"]), lambda *_: None, None)
    drained, done = threading.Event(), threading.Event()
    read = os.read

    def interrupted_read(descriptor: int, size: int) -> bytes:
        if descriptor == workers._wake_reader and not drained.is_set():
            drained.set()
            caller = threading.Thread(target=workers._enqueue, args=(lambda: None,))
            caller.start()
            caller.join()
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", interrupted_read)
    workers._thread = threading.Thread(target=workers._run_loop, daemon=True)
    workers._thread.start()
    workers._enqueue(lambda: None)
    assert drained.wait(BUSY)
    eventually(lambda: not workers._calls)
    workers._enqueue(done.set)
    assert done.wait(BUSY)
    workers.close()
