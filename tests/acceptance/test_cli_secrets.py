"""A canary key that commands and workers leak in every promised form must appear nowhere."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.conftest import eventually

from .program import PATIENCE, Sandbox

# With characters that have other forms in a URL, JSON, HTML, a shell and Python.
CANARY = "sk-canary/\"'<&>+$ 7Qx9ZpL2"
OTHER_KEY = "sk-other-0123456789abcdef"
KEYS = """
[[credential]]
id = "canary"
secret = "env:CANARY"
credential_env = "API_KEY"

[[credential]]
id = "other"
secret = "env:OTHER_KEY"
credential_env = "API_KEY"
"""


def forms(secret: str) -> list[bytes]:
    """Without what is around it, as far as that depends on it."""
    raw = secret.encode()
    written = [raw, raw.hex().encode(), raw.hex().upper().encode()]
    for alignment in range(3):
        encoded = base64.b64encode(b"x" * alignment + raw)
        # Those characters at the ends into which neighbours have a say are not the secret's own.
        written.append(encoded[(0, 2, 3)[alignment] : len(encoded.rstrip(b"=")) - 1])
    texts = [quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], html.escape(secret), shlex.quote(secret)]
    texts += [repr(secret)[1:-1], repr(raw)[2:-1]]
    return written + [text.encode() for text in texts]


FORMS = forms(CANARY)

# Leaks the secret in every form; `say` prints it in pieces, with a flush after each.
GIVEN_AWAY = """
import base64, html, json, os, shlex, sys, time
from urllib.parse import quote

def ways(secret):
    raw = secret.encode()
    yield secret
    for alignment in range(3):
        yield base64.b64encode(b"x" * alignment + raw + b"y" * (3 - alignment)).decode()
    yield raw.hex()
    yield raw.hex().upper()
    yield quote(secret)
    yield quote(secret, safe="")
    yield json.dumps({"key": secret})
    yield html.escape(secret)
    yield shlex.quote(secret)
    yield repr(secret)
    yield repr(raw)
    yield "".join(f"\\x1b[3{number % 8}m{char}" for number, char in enumerate(secret)) + "\\x1b[m"
    yield secret[:9] + "\\x1b[1m" + secret[9:]

def give_away(secret):
    for way in ways(secret):
        print("before", way, "after")
        print(way, file=sys.stderr)
        for cut in (1, len(way) // 2, len(way) - 1):
            sys.stdout.write(way[:cut])
            sys.stdout.flush()
            sys.stdout.write(way[cut:] + "\\n")
            sys.stdout.flush()
    print("end without a newline", secret, end="")
    sys.stdout.flush()
"""
COMMAND = (
    GIVEN_AWAY
    + """
secret = os.environ["API_KEY"]
give_away(secret)
with open(os.environ["AGENTOS_REPORT"], "a") as report:
    if os.environ["AGENTOS_ITEM_ID"] == "limited" and os.environ["AGENTOS_ATTEMPT"] == "1":
        message = f"too much for {secret}"
        print(json.dumps({"verdict": "overloaded", "retry_after": 0.01, "message": message}), file=report)
        sys.exit(1)
with open(f"environ-{os.environ['AGENTOS_ITEM_ID']}.json", "w") as file:
    json.dump(dict(os.environ), file)
while not os.path.exists("go"):
    open("waiting-" + os.environ["AGENTOS_ITEM_ID"], "w")
    time.sleep(0.01)
if os.environ["AGENTOS_ITEM_ID"] == "failing":
    sys.exit(f"bad key {secret}")
"""
)
WORKER = (
    GIVEN_AWAY
    + """
import logging
from agentos.workflows.parallel import RateLimited, current_item
logging.basicConfig(level=logging.INFO)
seen = set()

def work(item, credential):
    secret = str(credential)
    give_away(secret)
    logging.warning("logged %s", secret)
    current_item().checkpoint.save({"key": secret, secret: [secret]})
    if item == "limited" and item not in seen:
        seen.add(item)
        raise RateLimited(f"{secret} is at its limit", retry_after=0.01)
    if item == "failing":
        try:
            raise ValueError(secret)
        except ValueError as error:
            raise RuntimeError(f"no luck with {secret!r}") from error
    return {"answer": secret, secret: list(ways(secret))}
"""
)
ITEMS = ("--item", "good", "--item", "failing", "--item", "limited")


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    sandbox = Sandbox(tmp_path)
    sandbox.write("keys.toml", KEYS)
    sandbox.write("command.py", COMMAND)
    sandbox.write("worker.py", WORKER)
    sandbox.environ.update(CANARY=CANARY, OTHER_KEY=OTHER_KEY)
    return sandbox


def assert_clean(data: bytes, where: object, secrets: list[bytes] = FORMS) -> None:
    plain = _without_codes(data)
    for number, form in enumerate(secrets):
        assert form not in data, (where, number)
        assert form not in plain, (where, number, "across terminal codes")


def _without_codes(data: bytes) -> bytes:
    return re.sub(rb"\x1b\[[\d;?]*[A-Za-z]", b"", data)


def assert_all_clean(sandbox: Sandbox, run_id: str) -> None:
    """Check every file of the state, and the output of the other commands about the run."""
    files = [path for path in sandbox.home.rglob("*") if path.is_file()]
    assert any(path.name == "ledger.db" for path in files)
    assert any(path.parent.name == "logs" and path.stat().st_size > 1000 for path in files)
    for path in files:
        assert_clean(path.read_bytes(), path)
    statuses, done = sandbox.run_each(
        ["show", run_id],
        ["show", run_id, "failing"],
        ["show", run_id, "limited"],
        ["logs", run_id, "good"],
        ["logs", run_id, "failing"],
        ["export", run_id, "--format", "jsonl"],
        ["export", run_id, "--format", "csv"],
        ["keys", "status", "--keys", "keys.toml"],
    )
    assert statuses == [0] * 8, done.stderr
    assert_clean((done.stdout + done.stderr).encode(), "the other commands")


def command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:  # the process has just ended
            continue


def python(name: str) -> list[str]:
    return [sys.executable, name]


def test_secret_printed_by_a_command_is_nowhere(sandbox: Sandbox) -> None:  # invariant 29
    run = ("run", "--run-id", "r", "--keys", "keys.toml", "--parallel", "2", *ITEMS, "--", *python("command.py"))
    with sandbox.in_terminal(*run) as session:
        eventually(lambda: len(list(sandbox.path.glob("waiting-*"))) >= 2, PATIENCE)
        for line in command_lines():
            assert_clean(line, "a list of processes")
        environs = {path.name: json.loads(path.read_text()) for path in sandbox.path.glob("environ-*")}
        for path in sandbox.home.rglob("*"):  # while it is running: the write-ahead log, the pool's note, reports
            with suppress(FileNotFoundError):  # the file was replaced meanwhile
                if path.is_file():
                    assert_clean(path.read_bytes(), path)
        sandbox.write("go", "")
        assert session.end() == 1
    assert_clean(session.bytes.getvalue(), "the terminal")
    assert b"before **** after" in session.bytes.getvalue().replace(b'"', b"")
    keys = {environ["API_KEY"] for environ in environs.values()}
    assert keys == {CANARY, OTHER_KEY}
    for environ in environs.values():
        other_keys = {CANARY, OTHER_KEY} - {environ["API_KEY"]}
        assert not [name for name, value in environ.items() if any(key in value for key in other_keys)]
        assert [name for name, value in environ.items() if environ["API_KEY"] in value] == ["API_KEY"]
    assert_all_clean(sandbox, "r")


def test_secret_leaked_by_a_function_is_nowhere(sandbox: Sandbox) -> None:  # invariant 29
    run = ("run", "--run-id", "r", "--keys", "keys.toml", *ITEMS, "worker:work")
    done = sandbox.agentos(*run)
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: no luck with" in done.stderr
    assert_clean((done.stdout + done.stderr).encode(), "the output")
    assert "[good] before **** after" in done.stdout
    assert_all_clean(sandbox, "r")


def test_json_output_holds_no_secret(sandbox: Sandbox) -> None:  # invariant 29
    sandbox.write("go", "")
    keys = ("--keys", "keys.toml", "--json", *ITEMS)
    for run in (["run", *keys, "worker:work"], ["run", *keys, "--", *python("command.py")]):
        done = sandbox.agentos(*run)
        assert done.returncode == 1, done.stderr
        assert_clean((done.stdout + done.stderr).encode(), run)
        for line in done.stdout.splitlines():
            assert_clean(json.dumps(json.loads(line), ensure_ascii=False).encode(), line)
            assert_clean("\n".join(_texts(json.loads(line))).encode(), line)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, element in value.items():
            yield name
            yield from _texts(element)
    elif isinstance(value, list):
        for element in value:
            yield from _texts(element)
    elif isinstance(value, str):
        yield value


REFUSED = "expected an item without secrets, and it contains the secret of a credential"


@pytest.mark.parametrize(
    "item",
    [{"id": "careless", "note": f"use {CANARY}", "more": "x" * 200_000}, {"id": CANARY}, f"\x1b[1m{CANARY}"],
    ids=["in a field", "as the id", "as the item"],
)
def test_stdin_item_with_a_secret_is_refused_unwritten(sandbox: Sandbox, item: object) -> None:
    sandbox.write("go", "")
    run = ("run", "--run-id", "r", "--keys", "keys.toml", "--items", "-", "--", *python("command.py"))
    done = sandbox.agentos(*run, input='{"id": "first"}\n' + json.dumps(item) + "\n")
    assert done.returncode == 2, done.stderr
    assert f"stdin, line 2: {REFUSED}" in done.stderr
    assert_clean((done.stdout + done.stderr).encode(), "the output")
    assert (sandbox.runs / "r" / "items.jsonl").read_text() == '{"id":"first"}\n'
    for path in sandbox.home.rglob("*"):
        if path.is_file():
            assert_clean(path.read_bytes(), path)


def test_items_and_commands_with_secrets_are_refused_unwritten(sandbox: Sandbox) -> None:
    line = json.dumps({"id": "careless", "note": f"use {CANARY}"})
    sandbox.write("careless.jsonl", line + "\n")
    run = ["run", "--keys", "keys.toml"]
    statuses, done = sandbox.run_each(
        [*run, "--items", "careless.jsonl", "--", "echo"],
        [*run, "--item", line, "--", "echo"],
        [*run, "--dry-run", "--item", CANARY, "--", "echo"],
        [*run, "--item", "a", "--", "echo", f"--key={CANARY}"],
    )
    assert statuses == [2] * 4, done.stderr
    assert f"careless.jsonl, line 1: {REFUSED}" in done.stderr
    assert done.stderr.count(f"--item 1: {REFUSED}") == 2
    assert "the command contains the secret of a credential" in done.stderr
    assert_clean((done.stdout + done.stderr).encode(), "the output")
    assert not sandbox.runs.exists()
    for path in sandbox.home.iterdir():  # the state of the keys
        assert_clean(path.read_bytes(), path)
