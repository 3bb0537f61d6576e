"""Two short runs, one after the other, with the default store: the pool's owner has ended in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import eventually

from .program import Sandbox

GOOD, DEAD = "sk-good-0123456789", "sk-dead-0123456789"
ASK = """
import os, urllib.request
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
body = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def run(sandbox: Sandbox, name: str) -> list[str]:
    """Run one item through a gateway; return the names of the events that concern keys."""
    options = ["--run-id", name, "--keys", "keys.toml", "--gateway", "--json", "--item", name]
    done = sandbox.agentos("run", *options, "--", sys.executable, "-c", ASK)
    assert done.returncode == 0, done.stderr
    eventually(lambda: [file.name for file in sandbox.home.glob("pool.db*")] == ["pool.db"])  # no owner
    names = ("CoolDownStarted", "CredentialQuarantined")
    return [event for line in done.stdout.splitlines() if (event := json.loads(line)["event"]) in names]


def states(sandbox: Sandbox) -> dict[str, dict[str, object]]:
    done = sandbox.agentos("keys", "--keys", "keys.toml", "--json")
    return {record["id"]: record for record in json.loads(done.stdout)["pool"]}


def test_second_run_quarantines_the_key_refused_in_the_first(sandbox: Sandbox) -> None:
    provider = [sys.executable, "-m", "agentos.testing", "--key", GOOD]
    with subprocess.Popen(provider, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["base_url"]
        table = '[[credential]]\nid = "{}"\nsecret = "env:{}"\nprovider = "openai"\nbase_url = "{}/v1"\n'
        sandbox.write("keys.toml", "".join(table.format(name.lower(), name, url) for name in ("DEAD", "GOOD")))
        sandbox.environ.update(GOOD=GOOD, DEAD=DEAD)
        assert run(sandbox, "first") == ["CoolDownStarted"]
        assert states(sandbox)["dead"]["quarantine"] is None
        eventually(lambda: states(sandbox)["dead"]["is_available"])  # a refused key rests for five seconds
        assert run(sandbox, "second") == ["CredentialQuarantined"]
        assert "refused by the provider 2 times in a row" in str(states(sandbox)["dead"]["quarantine"])
        process.kill()
