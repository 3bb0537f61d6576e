"""`agentos run --gateway` with unmodified SDKs as clients, and a simulated provider in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import LedgerError
from agentos.ledger.reader import Ledger
from tests.conftest import eventually

from .program import PATIENCE, Sandbox
from .test_cli_secrets import forms

LIMITED, DEAD, SPENT, OVERLOADED = KEYS = [
    f"sk-canary-{name}-7Qx9ZpL2wV" for name in ("limited", "dead", "spent", "overloaded")
]
# Prints its address, serves until stdin is closed, and then prints its log.
PROVIDER = """
import json, sys
from agentos.testing import SimulatedProvider, TokenBucket
limited, dead, spent, overloaded = keys = json.loads(sys.argv[1])
bucket = [TokenBucket(5, 3)]
provider = SimulatedProvider(keys, limits={limited: bucket, overloaded: [TokenBucket(50, 50)], dead: [], spent: []},
                             dead=[dead], out_of_quota=[spent], latency=0.05, headers="off", style=sys.argv[2])
for entry in json.loads(sys.argv[3]):
    provider.script([entry["answer"]] * entry["times"], key=keys[entry["key"]], retry_after=entry["retry_after"])
with provider:
    print(provider.base_url, flush=True)
    sys.stdin.read()
print(json.dumps([[entry.key, entry.status] for entry in provider.log]))
"""
# Sends requests as the SDK does by default, and writes down all that a program can see of itself.
CLIENTS = {
    "openai": """
from openai import OpenAI
client = OpenAI()
def ask(text):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-4o-mini", messages=messages).choices[0].message.content
""",
    "anthropic": """
from anthropic import Anthropic
client = Anthropic()
def ask(text):
    messages = [{"role": "user", "content": text}]
    return client.messages.create(model="claude-sonnet-4-5", max_tokens=50, messages=messages).content[0].text
""",
}
USE = """
import json, os, sys
from pathlib import Path
cmdline = Path("/proc/self/cmdline")
Path(f"seen-{sys.argv[1]}").write_text(json.dumps([dict(os.environ), sys.argv]) + (
    cmdline.read_text() if cmdline.exists() else ""))
for number in range(3):
    assert ask(f"{sys.argv[1]} {number}")
print("done", os.environ["AGENTOS_CLIENT_TOKEN"])
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


class Provider:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    def statuses(self) -> dict[str, Counter[int]]:
        """Stop the provider and return how it has answered, by key."""
        log, _ = self._process.communicate("", PATIENCE)
        counts: dict[str, Counter[int]] = {key: Counter() for key in KEYS}
        for key, status in json.loads(log):
            counts[key][status] += 1
        return counts


@contextmanager
def provider_of(style: str = "openai", *script: dict[str, Any]) -> Iterator[Provider]:
    arguments = [json.dumps(KEYS), style, json.dumps(script)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROVIDER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield Provider(process, process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def write_keys(sandbox: Sandbox, url: str, *keys: str, provider: str = "openai") -> None:
    tables = []
    for number, key in enumerate(keys, start=1):
        sandbox.environ[f"SECRET_{number}"] = key
        tables.append(
            f'[[credential]]\nid = "key-{number}"\nsecret = "env:SECRET_{number}"\nprovider = "{provider}"\n'
            f'base_url = "{url}"\nmax_concurrent = 4\n'
        )
    sandbox.write("keys.toml", "\n".join(tables))


def script(key: str, answer: int, times: int, retry_after: float) -> dict[str, Any]:
    return {"key": KEYS.index(key), "answer": answer, "times": times, "retry_after": retry_after}


def items(count: int) -> list[str]:
    return [argument for number in range(1, count + 1) for argument in ("--item", f"item-{number}")]


def files_with(secret: str, folder: Path) -> list[Path]:
    """Return the files below a folder that contain the secret, in any form."""
    written = forms(secret)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if any(form in path.read_bytes() for form in written)]


def test_run_bound_by_a_learned_limit_needs_no_declaration(sandbox: Sandbox) -> None:
    """The key serves 5 requests a second, which no header states."""
    sandbox.write("client.py", CLIENTS["openai"] + "for number in range(30):\n    ask(str(number))\n")
    with provider_of() as provider:
        write_keys(sandbox, provider.url, LIMITED)
        done = sandbox.agentos(
            "run", "--keys", "keys.toml", "--gateway", "--parallel", "2", *items(2), "--", sys.executable, "client.py"
        )
    assert done.returncode == 0, done.stderr
    assert "Bound by: the requests per minute learned from answers on key-1" in done.stderr
    assert "nothing has to be declared in the keys file.\n" in done.stderr


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_unmodified_clients_never_see_a_limit_or_a_key(sandbox: Sandbox, sdk: str) -> None:
    """One key is rate-limited, one refused, one out of credit, and one overloaded for a while."""
    sandbox.write("client.py", CLIENTS[sdk] + USE.replace("range(3)", "range(6)"))  # the start of an SDK takes long
    with provider_of(sdk, script(OVERLOADED, 503 if sdk == "openai" else 529, 2, 0.5)) as provider:
        write_keys(sandbox, provider.url, *KEYS, provider=sdk)
        done = sandbox.agentos(
            "run", "--keys", "keys.toml", "--gateway", "--run-id", "r", "--parallel", "4", *items(4),
            "--", sys.executable, "client.py", "{id}",
        )  # fmt: skip
        statuses = provider.statuses()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("] done") == 4
    assert "agentos-" not in done.stdout  # the client token is redacted
    assert "429" not in done.stdout
    served = sum(counts[200] for counts in statuses.values())
    assert served == 24
    assert statuses[DEAD][401] <= 3
    assert statuses[SPENT].total() <= 3
    record = json.loads(sandbox.agentos("show", "r", "--json").stdout)
    assert record["usage"]["requests"] == 24
    assert record["usage"]["input_tokens"] > 0
    assert record["usage"]["output_tokens"] > 0
    assert record["usage"]["refusals"] >= 3
    exported = [json.loads(line) for line in sandbox.agentos("export", "r").stdout.splitlines()]
    assert [row["requests"] for row in exported] == [6] * 4
    assert len(list(sandbox.path.glob("seen-*"))) == 4
    for key in KEYS:
        assert key not in done.stdout + done.stderr
        assert not files_with(key, sandbox.path.parent)


def test_item_waits_longer_than_the_hold_and_succeeds(sandbox: Sandbox) -> None:
    """The client fails with an honest 429. Its item returns by itself and spends no retry."""
    sandbox.write("client.py", CLIENTS["openai"].replace("OpenAI()", "OpenAI(max_retries=0)") + USE)
    with provider_of("openai", script(LIMITED, 429, 1, 8.0)) as provider:
        write_keys(sandbox, provider.url, LIMITED)
        done = sandbox.agentos(
            "run", "--keys", "keys.toml", "--gateway", "--hold", "3", "--run-id", "r", "--retries", "0", "--item",
            "a", "--", sys.executable, "client.py", "{id}",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    item = json.loads(sandbox.agentos("show", "r", "a", "--json").stdout)
    assert [attempt["verdict"] for attempt in item["history"]] == ["rate_limited", "succeeded"]
    first, second = item["history"]
    assert second["started_at"] - first["ended_at"] >= 6.0
    shown = sandbox.agentos("show", "r", "a").stdout
    assert "Requests: 3; tokens: " in shown
    assert re.search(r"cost \d[\d.e-]+", shown)  # of the published prices


@pytest.mark.parametrize("store", ["memory:", "runs"])
def test_unreachable_provider_is_named_by_its_address(sandbox: Sandbox, store: str) -> None:
    """No text calls it a rate limit: neither those of the run, nor `show`, nor, in a shared pool, `keys`."""
    sandbox.write("client.py", CLIENTS["openai"].replace("OpenAI()", "OpenAI(max_retries=0)") + USE)
    location = store if store == "memory:" else f"sqlite:///{sandbox.path / store}.db"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        write_keys(sandbox, f"http://{address}", LIMITED, SPENT)
        done = sandbox.agentos(
            "run", "--keys", "keys.toml", "--store", location, "--gateway", "--hold", "9", "--retries", "0",
            "--run-id", "r", "--item", "a", "--", sys.executable, "client.py", "{id}",
        )  # fmt: skip
    # At once: the keys rest for seconds, the one that was tried last for 16.
    keys = sandbox.agentos("keys", "--keys", "keys.toml", "--store", location).stdout if store == "runs" else ""
    shown = sandbox.agentos("show", "r").stdout + sandbox.agentos("show", "r", "a").stdout
    assert done.returncode == 1, done.stderr
    assert f"the provider at {address} cannot be reached" in done.stderr
    assert f"Bound by: the provider at {address}, which cannot be reached" in done.stderr
    assert f"Bound by: the provider at {address}, which cannot be reached" in shown
    assert re.search(rf"key-[12] .* {address} unreachable, rests for \d+ s", keys) or store == "memory:"
    assert not re.search("rate.limit|cooling down|refusals? that", f"{done.stderr}{shown}{keys}")


def test_run_stops_when_no_key_is_usable(sandbox: Sandbox) -> None:
    sandbox.write("client.py", CLIENTS["openai"].replace("OpenAI()", "OpenAI(max_retries=0)") + USE)
    with provider_of() as provider:
        write_keys(sandbox, provider.url, DEAD)
        run = ["run", "--keys", "keys.toml", "--gateway", "--run-id", "r", *items(3)]
        done = sandbox.agentos(*run, "--", sys.executable, "client.py", "{id}")
    assert done.returncode == 4, done.stderr
    assert "no usable credential" in done.stderr


def test_usage_survives_kill_and_resume_keeps_the_gateway(sandbox: Sandbox) -> None:
    wait = "\nimport time\nif not os.path.exists('go'):\n    time.sleep(600)\n"
    sandbox.write("client.py", CLIENTS["openai"] + USE + wait)
    ledger = sandbox.runs / "r" / "ledger.db"

    def requests() -> int | None:
        try:
            with Ledger.open(ledger) as record:
                usage = record.usage()
        except LedgerError:  # it has no launch yet
            return None
        return None if usage is None else usage.requests

    with provider_of() as provider:
        write_keys(sandbox, provider.url, LIMITED)
        run = ["run", "--keys", "keys.toml", "--gateway", "--run-id", "r", "--item", "a"]
        with sandbox.start(*run, "--", sys.executable, "client.py", "{id}") as program:
            eventually(lambda: ledger.exists() and requests() == 3, PATIENCE)
            program.send_signal(signal.SIGKILL)
            program.wait(PATIENCE)
        assert requests() == 3
        sandbox.write("go", "")
        assert sandbox.agentos("resume", "r").returncode == 0
    assert requests() == 6


def test_gateway_needs_keys_and_a_reachable_place(sandbox: Sandbox) -> None:
    sandbox.write("keys.toml", '[[credential]]\nid = "k"\nsecret = "env:K"\nprovider = "openai"\n')
    sandbox.environ["K"] = "sk-0123456789"
    without_keys = sandbox.agentos("run", "--gateway", "--item", "a", "--", "echo", "{id}")
    assert without_keys.returncode == 2
    assert "--gateway needs keys" in without_keys.stderr
    on_cluster = sandbox.agentos(
        "run", "--gateway", "--keys", "keys.toml", "--on", "dask://localhost:1", "--item", "a", "mod:func"
    )
    assert on_cluster.returncode == 2
    assert "this machine only" in on_cluster.stderr


def test_missing_extra_is_named_with_its_command(sandbox: Sandbox) -> None:
    sandbox.write("aiohttp.py", "raise ImportError('not installed')\n")
    sandbox.environ["PYTHONPATH"] = f"{sandbox.path}:{sandbox.environ['PYTHONPATH']}"
    done = sandbox.agentos("run", "--gateway", "--key-env", "PATH", "--item", "a", "--", "echo", "{id}")
    assert done.returncode == 2
    assert "pip install 'agentos-parallel[gateway]'" in done.stderr
