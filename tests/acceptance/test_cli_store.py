"""The store that runs share, with the real program: checked by the log that the commands of the runs write."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.workflows.parallel import Credential, CredentialCoordinator
from tests.conftest import eventually
from tests.support.valkey import Valkey, running, settle

from .program import KEYS, PATIENCE, SECRETS, Sandbox

ONE_KEY = KEYS.partition("\n\n")[0] + "\n"
PASSWORD = "pass/word-canary-42"
ESCAPED = PASSWORD.replace("/", "%2F")
# Logs the key that it holds, and waits for a file.
HOLDS = """
echo "+ $AGENTOS_CREDENTIAL_ID $AGENTOS_RUN_ID $AGENTOS_ITEM_ID" >> held
while [ ! -e go ]; do sleep 0.02; done
echo "- $AGENTOS_CREDENTIAL_ID $AGENTOS_RUN_ID $AGENTOS_ITEM_ID" >> held
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    sandbox = Sandbox(tmp_path)
    sandbox.write("keys.toml", KEYS)
    sandbox.write("one.toml", ONE_KEY)
    sandbox.environ.update(SECRETS)
    return sandbox


@pytest.fixture
def server() -> Iterator[Valkey]:
    with running(PASSWORD) as server:
        yield server


@pytest.fixture
def url(server: Valkey) -> str:
    """Return the URL of a new pool."""
    url = server.url("runs", password=ESCAPED)
    settle(url)
    return url


def run(
    run_id: str, keys: str, count: int, *command: str, parallel: int = 1, options: tuple[str, ...] = ()
) -> list[str]:
    items = [word for number in range(count) for word in ("--item", f"{run_id}-{number}")]
    return ["run", "--run-id", run_id, "--keys", keys, "--parallel", str(parallel), *options, *items, "--", *command]


def held(sandbox: Sandbox) -> list[list[str]]:
    return [line.split() for line in sandbox.lines("held")]


def files_with(text: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


# --- any text ---------------------------------------------------------------------------------------------------------


def test_item_id_that_is_not_utf8_runs_with_default_store(sandbox: Sandbox) -> None:  # invariant 46
    (sandbox.path / "items").write_bytes(b"good1\ncaf\xe9.txt\ngood2\n")
    done = sandbox.agentos("run", "--keys", "one.toml", "--items", "items", "--", "echo", "{id}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("good") == 4
    assert "caf" in done.stdout


def test_reported_message_that_is_not_utf8_harms_no_other(sandbox: Sandbox) -> None:  # invariant 46
    command = sandbox.script(
        'if [ "$AGENTOS_ITEM_ID" = bad-0 ]; then\n'
        "agentos report auth-failed --message \"$(printf 'no \\351 key')\"; exit 1\nfi\nexit 0\n"
    )
    sandbox.agentos(*run("bad", "keys.toml", 3, command))
    done = sandbox.agentos(*run("good", "keys.toml", 3, command, options=("--timeout", "20")))
    assert done.returncode == 0, done.stderr


# --- two runs, one pool -----------------------------------------------------------------------------------------------


def test_two_runs_share_limits_and_see_all_holders(sandbox: Sandbox) -> None:
    command = sandbox.script(HOLDS)
    with sandbox.start(*run("one", "keys.toml", 4, command)) as first:
        eventually(lambda: len(held(sandbox)) == 1)
        with sandbox.start(*run("two", "keys.toml", 4, command, parallel=3)) as two:
            eventually(lambda: len(held(sandbox)) == 2)
            status = json.loads(sandbox.agentos("keys", "status", "--json").stdout)
            table = sandbox.agentos("keys").stdout
            sandbox.write("go", "")
            assert (first.wait(PATIENCE), two.wait(PATIENCE)) == (0, 0)
    holders = {(holder["run"], holder["item"], holder["pid"]) for key in status["pool"] for holder in key["holders"]}
    assert holders == {("one", "one-0", first.pid), ("two", "two-0", two.pid)}
    for id_, item, run_id, pid in (("first-key", "one-0", "one", first.pid), ("second-key", "two-0", "two", two.pid)):
        assert re.search(rf"^\S+-key +{item} +{run_id} +\S+ s +{socket.gethostname()}, pid {pid}$", table, re.MULTILINE)
        assert re.search(rf"^{id_} +- +- +1 of 1 +- +usable$", table, re.MULTILINE)

    at_once: Counter[str] = Counter()
    for change, key, _, _ in held(sandbox):
        at_once[key] += 1 if change == "+" else -1
        assert at_once[key] <= 1, held(sandbox)
    assert len(held(sandbox)) == 16
    assert "0 of 1" in sandbox.agentos("keys").stdout  # both have released their leases


def test_interrupted_run_releases_its_keys_at_once(sandbox: Sandbox) -> None:
    command = sandbox.script(HOLDS)
    with sandbox.start(*run("one", "one.toml", 1, command)) as first:
        eventually(lambda: len(held(sandbox)) == 1)
        first.send_signal(signal.SIGINT)
        assert first.wait(PATIENCE) == 130
    sandbox.write("go", "")
    done = sandbox.agentos(*run("two", "one.toml", 1, command, options=("--max-wait", "5")))
    assert done.returncode == 0, done.stderr


def test_killed_runs_keys_are_free_before_lease_expiry(sandbox: Sandbox) -> None:
    sandbox.environ["AGENTOS_LEASE_TTL"] = "600"
    command = sandbox.script(HOLDS)
    with sandbox.start(*run("one", "one.toml", 1, command)) as first:
        eventually(lambda: len(held(sandbox)) == 1)
        with sandbox.start(*run("two", "one.toml", 1, command)) as two:
            eventually(lambda: "two" in sandbox.agentos("runs").stdout)
            assert len(held(sandbox)) == 1
            first.kill()
            first.wait()  # until it is reaped, other processes see it alive
            eventually(lambda: len(held(sandbox)) == 2)
            sandbox.write("go", "")
            assert two.wait(PATIENCE) == 0
    assert held(sandbox)[1] == ["+", "first-key", "two", "two-0"]


def test_refused_key_stays_quarantined_for_all_runs(sandbox: Sandbox) -> None:
    def refuse() -> None:
        store = f"sqlite:///{sandbox.home}/pool.db"
        with CredentialCoordinator([Credential(SECRETS["KEY_A"], id="first-key")], store=store) as pool:
            pool.quarantine("first-key", "HTTP 401: no such key")

    refuse()
    for stopped in (sandbox.agentos(*run("r", "one.toml", 1, "touch", "{id}")), sandbox.agentos("resume", "r")):
        assert stopped.returncode == 4
        assert "first-key: quarantined: HTTP 401: no such key" in stopped.stderr
        assert "agentos resume r" in stopped.stderr
    assert not (sandbox.path / "r-0").exists()
    assert sandbox.agentos("keys", "enable", "first-key").stdout == "first-key is enabled.\n"
    assert sandbox.agentos("resume", "r").returncode == 0
    refuse()
    sandbox.environ["KEY_A"] = "sk-another-0123456789"
    assert sandbox.agentos(*run("s", "one.toml", 1, "touch", "{id}")).returncode == 0


def test_run_with_quarantined_keys_starts_with_a_warning(sandbox: Sandbox) -> None:
    disable = ["keys", "disable", "first-key", "--reason", "too dear", "--keys", "keys.toml"]
    assert sandbox.agentos(*disable).returncode == 0
    done = sandbox.agentos(*run("one", "keys.toml", 1, "true", options=("--store", "sqlite:///mine.db")))
    assert done.returncode == 0
    warning = "the credential first-key is disabled: too dear. To use it again: agentos keys enable first-key"
    assert f"Warning: {warning} --store sqlite:///{sandbox.path}/mine.db\n" in done.stderr


# --- which store ------------------------------------------------------------------------------------------------------


def test_resume_uses_the_store_from_any_folder(sandbox: Sandbox) -> None:
    done = sandbox.agentos(*run("r", "one.toml", 1, "false", options=("--store", "sqlite:///mine.db")))
    assert done.returncode == 1
    (sandbox.path / "mine.db").unlink()
    (sandbox.path / "elsewhere").mkdir()
    sandbox.path /= "elsewhere"
    assert sandbox.agentos("retry", "r").returncode == 1
    assert (sandbox.path.parent / "mine.db").exists()
    assert not (sandbox.home / "pool.db").exists()


def test_store_option_overrides_the_keys_file(sandbox: Sandbox) -> None:
    sandbox.write("keys.toml", 'store = "sqlite:///theirs.db"\n' + KEYS)
    assert sandbox.agentos(*run("b", "keys.toml", 1, "true", options=("--store", "memory:"))).returncode == 0
    assert not (sandbox.path / "theirs.db").exists()
    assert sandbox.agentos(*run("a", "keys.toml", 1, "true")).returncode == 0
    assert (sandbox.path / "theirs.db").exists()
    assert "Usage and leases: sqlite:///" in sandbox.agentos("keys", "--keys", "keys.toml").stdout
    assert not (sandbox.home / "pool.db").exists()


# Its exception reaches the pool; what a command prints or reports would rest the key for its run only.
LIMITED_WORKER = """
from agentos.workflows.parallel import RateLimited
def ask(item, key):
    raise RateLimited(retry_after=600)
"""


def test_plan_reads_the_store_and_changes_nothing(sandbox: Sandbox) -> None:
    sandbox.write("one.toml", ONE_KEY.replace("max_concurrent = 1\n", ""))  # its first requests are spaced
    plan = ["plan", "--count", "1", "--item-seconds", "1", "--keys", "one.toml"]
    assert "1 item: about 1.0 s" in sandbox.agentos(*plan).stdout
    assert not sandbox.home.exists()
    sandbox.write("limits.py", LIMITED_WORKER)
    limited = ["run", "--run-id", "r", "--keys", "one.toml", "--item", "a", "--max-wait", "0.1", "limits:ask"]
    assert sandbox.agentos(*limited).returncode == 4
    eventually(lambda: not (sandbox.home / "pool.db-wal").exists(), PATIENCE)  # the owner has ended
    before = (sandbox.home / "pool.db").read_bytes()
    assert re.search(r"1 item: about (10\.0|9\.\d) minutes", sandbox.agentos(*plan).stdout)
    dry = sandbox.agentos(*run("dry", "one.toml", 1, "true", options=("--dry-run", "--item-seconds", "1")))
    assert re.search(r"1 item: about (10\.0|9\.\d) minutes", dry.stdout)
    assert (sandbox.home / "pool.db").read_bytes() == before
    assert "rate-limited until" in sandbox.agentos("keys").stdout


WRONG = {
    "mysql://hunter2@host/x": (2, "'memory:', 'sqlite:///PATH'"),
    "hunter2": (2, "'memory:', 'sqlite:///PATH'"),
    "sqlite:///": (2, "'memory:', 'sqlite:///PATH'"),
    "redis://host:hunter2": (2, "must look like redis://USER:PASSWORD@HOST:PORT/DB"),
    "redis://:hun/ter2@host/0": (2, "such as %2F for /"),
    "redis://:hunter2@localhost/0?socket_timeout=soon": (2, "an unknown option"),
    "redis://:hunter2@localhost/0?no_such_option=1": (2, "an unknown option"),
    "redis://:hunter2@127.0.0.1:1/0": (3, "redis://127.0.0.1:1/0 cannot be used"),
    "sqlite:////proc/nowhere/pool.db": (3, "sqlite:////proc/nowhere/pool.db cannot be used"),
    "sqlite:///one.toml": (3, "file is not a database"),
}


def test_store_errors_hide_the_password(sandbox: Sandbox) -> None:
    calls = [run("r", "one.toml", 1, "true", options=("--store", url)) for url in WRONG]
    calls += [["keys", "status", "--store", url] for url in WRONG]
    impatient = "from agentos.pool.shared._member import member; member.LOST_SECONDS = 0.1"
    statuses, done = sandbox.run_each(*calls, first=impatient)
    assert dict(zip(WRONG, statuses, strict=False)) == {url: status for url, (status, _) in WRONG.items()}
    expected = {url: status for url, (status, _) in WRONG.items()}
    expected["sqlite:////proc/nowhere/pool.db"] = 2  # a missing file is not created
    assert dict(zip(WRONG, statuses[len(WRONG) :], strict=True)) == expected
    for _, words in WRONG.values():
        assert words in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert "ter2@" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not sandbox.runs.exists()


def test_missing_redis_names_the_extra(sandbox: Sandbox) -> None:
    sandbox.write("redis.py", "raise ModuleNotFoundError('no redis')")
    done = sandbox.agentos(*run("r", "one.toml", 1, "true", options=("--store", "redis://localhost")))
    assert done.returncode == 2
    assert "pip install 'agentos-parallel[redis]'" in done.stderr
    assert sandbox.agentos(*run("r", "one.toml", 1, "true")).returncode == 0


# --- a server ---------------------------------------------------------------------------------------------------------


def test_lost_server_is_reported_and_the_run_recovers(sandbox: Sandbox, server: Valkey, url: str) -> None:
    sandbox.environ.update(AGENTOS_STORE=url, AGENTOS_LEASE_TTL="4")
    command = sandbox.script(HOLDS)
    with (
        sandbox.in_terminal(*run("display", "keys.toml", 2, command)) as session,
        sandbox.start(*run("json", "keys.toml", 2, command, options=("--json",))) as json_run,
    ):
        assert json_run.stdout is not None
        eventually(lambda: len(held(sandbox)) == 2)
        server.pause()
        lines = [json_run.stdout.readline()]
        while lines[-1] and '"StoreUnreachable"' not in lines[-1]:
            lines.append(json_run.stdout.readline())
        session.until(lambda text: "the pool's store is unreachable for 0:" in text)
        assert re.search(r"The pool's store is unreachable since \d\d:\d\d:\d\d: ", session.text)
        server.resume()
        session.until(lambda text: "The pool's store answers again, after" in text)
        sandbox.write("go", "")
        assert session.end() == 0
        lines += json_run.communicate(timeout=PATIENCE)[0].splitlines()
        assert json_run.returncode == 0
    events = [json.loads(line) for line in lines]
    unreachable = next(event for event in events if event["event"] == "StoreUnreachable")
    reached = next(event for event in events if event["event"] == "StoreReached")
    assert unreachable["store"] == reached["store"] == f"unix://{server.socket}?pool=runs"
    assert unreachable["since"] > 1e9
    done = {item for change, _, _, item in held(sandbox) if change == "-"}
    assert done == {"display-0", "display-1", "json-0", "json-1"}


def test_store_password_is_in_no_file_or_output(sandbox: Sandbox, server: Valkey, url: str) -> None:
    spies = sandbox.script(f"env; echo '{url}' '{PASSWORD}'; [ -e go ]")

    def call(*arguments: str, store: str | None = url) -> subprocess.CompletedProcess[str]:
        sandbox.environ.pop("AGENTOS_STORE", None)
        if store is not None:
            sandbox.environ["AGENTOS_STORE"] = store
        return sandbox.agentos(*arguments)

    calls = [
        call(*run("a", "one.toml", 1, spies)),
        call("retry", "a", store=None),
        call("retry", "a", store=url.replace("canary", "wrong")),
        call("keys"),
        call("logs", "a", "a-0"),
    ]
    sandbox.write("go", "")
    calls += [call("retry", "a"), call(*run("b", "one.toml", 1, spies, options=("--store", url)), store=None)]
    assert [done.returncode for done in calls] == [1, 2, 3, 0, 0, 0, 0], [done.stderr for done in calls]
    assert "give the whole address again, in AGENTOS_STORE" in calls[1].stderr
    assert f"unix://{server.socket}?pool=runs" in calls[1].stderr
    assert "first-key" in calls[3].stdout
    for secret in (PASSWORD, ESCAPED):
        assert not files_with(secret, sandbox.home)
        assert not [done.args for done in calls if secret in done.stdout + done.stderr]
    assert "AGENTOS_STORE" not in calls[0].stdout
    recorded_url = json.loads((sandbox.runs / "b" / "run.json").read_text())["options"]["store"]
    assert recorded_url == f"unix://:****@{server.socket}?pool=runs"
