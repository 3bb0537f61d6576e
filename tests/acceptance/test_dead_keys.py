"""Real programs with a dead key in the pool, against the simulated provider in another process (invariants 41, 42)."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .program import Sandbox

GOOD = {"KEY_A": "sk-good-a-0123456789", "KEY_B": "sk-good-b-0123456789", "KEY_C": "sk-good-c-0123456789"}
DEAD = {"KEY_D": "sk-dead-d-0123456789"}
BODY = '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
CURL = f"""curl -sf -o /dev/null -H "Authorization: Bearer $API_KEY" -H "Content-Type: application/json" -d '{BODY}' """
CURL += '"$PROVIDER_URL/v1/chat/completions"'
URLLIB = f"""
import os, urllib.request
headers = {{"Authorization": "Bearer " + os.environ["API_KEY"], "Content-Type": "application/json"}}
url = os.environ["PROVIDER_URL"] + "/v1/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, {BODY.encode()!r}, headers)).read()
"""
HTTPX = f"""
import os, httpx
headers = {{"Authorization": "Bearer " + os.environ["API_KEY"]}}
answer = httpx.post(os.environ["PROVIDER_URL"] + "/v1/chat/completions", headers=headers, json={BODY})
answer.raise_for_status()
"""
PROGRAMS = {
    "curl": f"{CURL} 2>/dev/null",
    "curl says so": CURL.replace("-sf", "-sSf"),
    "urllib": shlex.join(["exec", sys.executable, "-c", URLLIB]),
    "httpx": shlex.join(["exec", sys.executable, "-c", HTTPX]),
    "silent": f"{CURL} >/dev/null 2>&1 || exit 1",
}


class Provider:
    """The simulated provider, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.url = str(json.loads(process.stdout.readline())["base_url"])


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    keys = [word for key in GOOD.values() for word in ("--key", key)]
    with subprocess.Popen(
        [sys.executable, "-m", "agentos.testing", *keys, "--latency", "0.01", "--rate", "1000", "--burst", "1000"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield Provider(process)
        process.kill()


def keys_file(names: list[str], provider: str = "") -> str:
    return "".join(
        f'[[credential]]\nid = "{name}"\nsecret = "env:{name}"\ncredential_env = "API_KEY"\n{provider}'
        for name in names
    )


@pytest.fixture
def sandbox(tmp_path: Path, provider: Provider) -> Sandbox:
    sandbox = Sandbox(tmp_path)
    sandbox.environ.update({**GOOD, **DEAD, "PROVIDER_URL": provider.url})
    sandbox.write("keys.toml", keys_file(["KEY_D", *GOOD]))
    return sandbox


@pytest.mark.parametrize(
    ("program", "count"), [("curl", 300), ("curl says so", 60), ("urllib", 24), ("httpx", 16), ("silent", 60)]
)
def test_dead_key_costs_no_item_of_any_program(program: str, count: int, sandbox: Sandbox) -> None:
    """The dead key is the first one, commands have no retries, and the pool is in its default store."""
    if "curl" in PROGRAMS[program] and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    sandbox.write("items", "".join(f"item-{number}\n" for number in range(count)))
    done = sandbox.agentos(
        "run", "--keys", "keys.toml", "--parallel", "4", "--items", "items", "--json", "--", "sh", "-c",
        PROGRAMS[program],
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ended = [event for event in events if event["event"] == "ItemEnded"]
    assert done.returncode == 0, done.stdout[-2000:]
    assert len(ended) == count
    failed = [event for event in events if event["event"] == "AttemptEnded"]
    assert {event["credential_id"] for event in failed} == {"KEY_D"}
    assert len(failed) <= 15


def test_echoed_refusals_reach_no_other_run(sandbox: Sandbox) -> None:
    """Four items print a 401, one a limit of an hour. No key is quarantined or cooled, and a second run is not held
    up."""
    echo = (
        "case $AGENTOS_ITEM_ID in bad-limit) echo 'Error: 429 Too Many Requests, try again in 3600 seconds'; exit 1;; "
    )
    echo += "bad-*) echo 'Error: 401 Invalid authentication credentials'; exit 1;; esac"
    bad = [word for name in ("1", "2", "3", "4", "limit") for word in ("--item", f"bad-{name}")]
    good = [word for number in range(20) for word in ("--item", f"good-{number}")]
    sandbox.write("good.toml", keys_file(list(GOOD)))
    with sandbox.start(
        "run", "--keys", "good.toml", "--parallel", "4", *bad, *good, "--run-id", "first", "--", "sh", "-c", echo
    ) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if "rests for" in line:
                break
        second = sandbox.agentos("run", "--keys", "good.toml", "--parallel", "3", *good, "--", "true")
        assert second.returncode == 0
        assert "Cooling" not in second.stderr
        states = json.loads(sandbox.agentos("keys", "status", "--json").stdout)["pool"]
        assert len(states) == len(GOOD)
        assert not [state for state in states if state["quarantine"] or state["cooling"]]
        first.stderr.read()
        # An echo that no other item contradicts in time leaves its item unfinished (4) instead of failed (1).
        assert first.wait(60) in (1, 4)
    shown = json.loads(sandbox.agentos("show", "first", "--json").stdout)
    assert shown["succeeded"] == 20
    assert "quarantined" not in json.dumps(shown)


def test_refused_key_is_quarantined_after_the_provider_confirms(sandbox: Sandbox, provider: Provider) -> None:
    """Commands print a 401 for two keys; the provider refuses one of them when it is asked."""
    table = f'[provider.openai]\nbase_url = "{provider.url}/v1"\n'
    sandbox.write("named.toml", table + keys_file(["KEY_D", "KEY_A", "KEY_B"], 'provider = "openai"\n'))
    sandbox.write("items", "".join(f"item-{number}\n" for number in range(60)))
    script = "test $AGENTOS_CREDENTIAL_ID = KEY_B && exit 0; sleep 0.05; echo 'HTTP 401 Unauthorized'; exit 1"
    done = sandbox.agentos(
        "run", "--keys", "named.toml", "--parallel", "3", "--items", "items", "--", "sh", "-c", f"sleep 0.02; {script}"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Credential KEY_D is quarantined: the provider was asked, and refused: HTTP 401" in done.stderr
    assert "Credential KEY_A is quarantined" not in done.stderr
    states = json.loads(sandbox.agentos("keys", "status", "--json").stdout)["pool"]
    assert {state["id"] for state in states if state["quarantine"]} == {"KEY_D"}
