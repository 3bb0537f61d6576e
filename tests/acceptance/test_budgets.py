"""Budgets of `agentos run`, judged by the log of a provider in a process of its own (invariant 40)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually

from .program import PATIENCE, Sandbox

# Money per million tokens in the keys file.
INPUT, OUTPUT = 1000.0, 2000.0
WORKERS, REQUESTS = 3, 3
# Sends requests one after the other, and fails if one is refused.
CLIENT = """
import json, os, sys, urllib.error, urllib.request
from pathlib import Path
for number in range(int(sys.argv[2])):
    content = json.dumps({"model": sys.argv[3], "messages": [{"role": "user", "content": f"{sys.argv[1]} {number}"}]})
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", content.encode(), headers={
        "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        print(error.code, error.headers.get("x-should-retry"), error.read().decode())
        sys.exit(1)
"""


class Provider:
    """A provider in a process of its own; its log is the judge."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that were carried out."""
        records = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [record for record in records if record["status"] == 200]

    def costs(self) -> list[float]:
        return [(r["input_tokens"] * INPUT + r["output_tokens"] * OUTPUT) / 1e6 for r in self.requests()]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.fixture
def provider(sandbox: Sandbox) -> Iterator[Provider]:
    log = sandbox.path / "provider.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "agentos.testing", "--key", "sk-0123456789", "--latency", "0.1", "--words", "20",
         "--log", str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        sandbox.environ["SECRET"] = "sk-0123456789"
        sandbox.write("client.py", CLIENT)
        sandbox.write(
            "keys.toml",
            f'[[credential]]\nid = "k"\nsecret = "env:SECRET"\nprovider = "openai"\n'
            f'base_url = "{started["base_url"]}"\nmax_concurrent = 20\n'
            f'[price."sim-*"]\ninput = {INPUT:g}\noutput = {OUTPUT:g}\n',
        )
        yield Provider(started["url"], log)
    finally:
        process.kill()
        process.communicate()


def run(*options: str, items: int = 20, requests: int = REQUESTS, model: str = "sim-1") -> list[str]:
    """Return the arguments of a run whose items send requests one after the other."""
    named = [argument for number in range(items) for argument in ("--item", f"item-{number:02}")]
    return [
        "run", "--keys", "keys.toml", "--gateway", "--run-id", "r", "--parallel", str(WORKERS), *options, *named,
        "--", sys.executable, "client.py", "{id}", str(requests), model,
    ]  # fmt: skip


def shown(sandbox: Sandbox) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(sandbox.agentos("show", "r", "--json").stdout)
    return record


def test_soft_budget_is_passed_by_running_items_only(sandbox: Sandbox, provider: Provider) -> None:
    done = sandbox.agentos(*run("--budget", "0.5"))
    assert done.returncode == 4, done.stderr
    assert "the budget of 0.50 is used up" in done.stderr
    # Twice what was spent: items that ran when the budget was used up have spent a little more.
    (suggested,) = re.findall(r"agentos resume r --budget ([\d.]+) continues them", done.stderr)
    assert float(suggested) == pytest.approx(2 * max(0.5, shown(sandbox)["cost"]))
    costs = provider.costs()
    item = REQUESTS * max(costs)
    assert 0.5 - item < sum(costs) < 0.5 + WORKERS * item
    record = shown(sandbox)
    assert record["cost"] == pytest.approx(sum(costs))
    assert (record["failed"], record["budget"]) == (0, 0.5)
    assert record["expected_cost"] == pytest.approx(20 * item, rel=0.2)
    assert "agentos resume r --budget 1" in record["next"]
    # A budget that is spent is refused; a larger one continues.
    refused = sandbox.agentos("resume", "r", "--budget", "0.1")
    assert refused.returncode == 2
    assert f"has spent {sum(costs):.2f}, and its budget is 0.10" in refused.stderr
    assert len(provider.requests()) == len(costs)
    done = sandbox.agentos("resume", "r", "--budget", "100")
    assert done.returncode == 0, done.stderr
    assert f"  Cost: {sum(provider.costs()):.2f} of 100.00" in done.stderr
    assert shown(sandbox)["budget"] == 100  # recorded: also for the next launch
    assert len(provider.requests()) == 20 * REQUESTS
    exported = [json.loads(line) for line in sandbox.agentos("export", "r").stdout.splitlines()]
    assert sum(row["cost"] for row in exported) == pytest.approx(sum(provider.costs()))


def test_hard_budget_is_passed_by_requests_in_flight_only(sandbox: Sandbox, provider: Provider) -> None:
    done = sandbox.agentos(*run("--budget", "0.5", "--budget-hard", requests=1000))
    assert done.returncode == 4, done.stderr
    costs = provider.costs()
    assert 0.5 <= sum(costs) <= 0.5 + WORKERS * max(costs)
    record = shown(sandbox)
    assert (record["succeeded"], record["failed"]) == (0, 0)
    assert record["cost"] == pytest.approx(sum(costs))
    refusals = [line for line in done.stdout.splitlines() if "] 402 false " in line]
    assert len(refusals) == WORKERS
    assert all("insufficient_quota" in line and "the budget of 0.50 is used up" in line for line in refusals)


def test_item_at_its_budget_fails_alone(sandbox: Sandbox, provider: Provider) -> None:
    done = sandbox.agentos(*run("--item-budget", "0.1", items=2, requests=1000))
    assert done.returncode == 1, done.stderr
    assert "BudgetExceeded: the item has spent" in done.stderr
    costs = provider.costs()
    assert sum(costs) <= 2 * (0.1 + max(costs))
    assert "  Item budget: 2 items spent more than 0.10 (at most 0." in done.stderr
    assert any(command.startswith("agentos retry r --item-budget 0.2") for command in shown(sandbox)["next"])


def test_kill_forgets_no_spending(sandbox: Sandbox, provider: Provider) -> None:
    """Requests that were under way count as expected: the provider may have carried them out."""
    command = run("--budget", "1000", items=40)
    for launch in (1, 2):
        with sandbox.start(*(command if launch == 1 else ["resume", "r"])) as program:
            enough = 8 * launch
            eventually(lambda enough=enough: len(provider.requests()) >= enough, PATIENCE)  # type: ignore[misc]
            program.send_signal(signal.SIGKILL)
            program.wait(PATIENCE)
        eventually(lambda: shown(sandbox)["state"] == "killed", PATIENCE)
        record, costs = shown(sandbox), provider.costs()
        assert record["usage"]["requests"] >= len(costs)
        assert record["usage"]["requests"] <= len(costs) + launch * WORKERS
        assert record["cost"] >= sum(costs)
    spent = record["cost"]
    refused = sandbox.agentos("resume", "r", "--budget", f"{spent * 0.9:g}")
    assert refused.returncode == 2, refused.stderr
    done = sandbox.agentos("resume", "r", "--budget", f"{spent * 1.2:g}")
    assert done.returncode in (0, 4), done.stderr
    assert sum(provider.costs()) <= spent * 1.2 + WORKERS * REQUESTS * max(provider.costs())


def test_budget_that_cannot_be_counted_is_refused(sandbox: Sandbox, provider: Provider) -> None:
    command = run("--budget", "1", "--no-gateway", items=1)
    done = sandbox.agentos(*command)
    assert done.returncode == 2
    assert "nothing counts what the items spend: add --gateway" in done.stderr
    done = sandbox.agentos(*run("--budget", "1", items=1)[:-5], "--", "agent", "--model", "no-such-model")
    assert done.returncode == 2
    assert 'add [price."no-such-model"]' in done.stderr
    assert not (sandbox.runs / "r").exists()
    # A model that only the requests name: the first one is not sent.
    done = sandbox.agentos(*run("--budget", "1", items=3, model="no-such-model"))
    assert done.returncode == 4, done.stderr
    assert 'add [price."no-such-model"]' in done.stderr
    assert shown(sandbox)["failed"] == 0
    assert provider.costs() == []


def test_plan_and_dry_run_show_the_cost(sandbox: Sandbox, provider: Provider) -> None:
    assert sandbox.agentos(*run(items=4)).returncode == 0
    costs = provider.costs()
    item = sum(costs) / 4
    plan = sandbox.agentos("plan", "--count", "100", "--keys", "keys.toml", "--like", "r", "--budget", "5").stdout
    assert f"Cost: about {100 * item:.2f} ({item:.2f} per item); the budget is 5.00, enough for about" in plan
    dry_run = sandbox.agentos(*run("--dry-run", "--item-cost", "0.5", items=4)).stdout
    assert "Cost: about 2.00 (0.50 per item)" in dry_run


def test_reported_spending_stops_a_run(sandbox: Sandbox) -> None:
    command = sandbox.script(f"{sys.executable} -m agentos.cli report usage --tokens 100 --cost 1\n")
    named = [argument for number in range(5) for argument in ("--item", f"item-{number}")]
    budget = ["--budget", "2", "--budget-reported", "--parallel", "1"]
    done = sandbox.agentos("run", "--run-id", "r", *budget, *named, "--", command)
    assert done.returncode == 4, done.stderr
    assert shown(sandbox)["cost"] == 2.0
    assert "agentos resume r --budget 4 continues them" in done.stderr


def test_kill_forgets_no_reported_spending(sandbox: Sandbox) -> None:
    report = f"{sys.executable} -m agentos.cli report usage --cost 1"
    command = sandbox.script(f"{report} && touch reported\n[ -e go ] || sleep 600\n")
    arguments = ["run", "--run-id", "r", "--budget", "9", "--budget-reported", "--item", "a", "--", command]
    with sandbox.start(*arguments) as program:
        eventually((sandbox.path / "reported").exists, PATIENCE)
        program.send_signal(signal.SIGKILL)
        program.wait(PATIENCE)
    sandbox.write("go", "")
    done = sandbox.agentos("resume", "r")
    assert done.returncode == 0, done.stderr
    assert shown(sandbox)["cost"] == 2.0
