"""Claude Code, Codex and Gemini CLI behind the gateway of a run: every item succeeds, whatever troubles the keys have.

The judge is the log of the provider, a process of its own. Most of the time of these tests is waiting.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import eventually

from .agents import AGENTS, Agent, AgentSandbox, canary_key
from .canaries import files_with, watched_processes
from .provider import running_provider

ITEMS = [f"question-{number}" for number in range(1, 21)]
ANSWER = "A simulated answer."
# Requests per minute of the limited key, which is declared in the keys file. Few: half of all requests would pass it.
PER_MINUTE = 6
OVERLOADED_SECONDS = 10
# Refusals that the rules of the pool allow. A dead key is tried by two requests, or three times by one; a key without
# credit once, and once more by a request in flight. An overload pauses the provider for half a second to a second,
# doubled until another key succeeds.
MAX_DEAD = 3
MAX_OUT_OF_CREDIT = 2
MAX_OVERLOADED = 2 * OVERLOADED_SECONDS
# How agents print a refusal.
LIMIT_TEXT = re.compile(
    r"API Error|rate.?limit|quota|overloaded|credit|retry|too many requests|unauthorized|status:? [45]\d\d|\(429\)",
    re.IGNORECASE,
)

each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


@pytest.fixture
def sandbox(tmp_path: Path) -> AgentSandbox:
    return AgentSandbox(tmp_path)


def test_watch_and_search_find_a_canary(tmp_path: Path) -> None:
    """The searches of the next test can fail: a key in an environment, in an argument and in a file is found."""
    canary, besides = canary_key(), tmp_path / "keys.toml"
    (tmp_path / "log").write_text(f"key {canary}")
    besides.write_text(canary)
    command = ["sleep", "60"]
    with watched_processes([canary]) as watch:
        for environ, arguments in (
            ({"KEY": canary}, command),
            ({}, [sys.executable, "-c", "import time; time.sleep(60)", canary]),
        ):
            with subprocess.Popen(arguments, env={"PATH": os.environ["PATH"], **environ}) as process:
                name = "environ" if environ else "cmdline"
                eventually(lambda name=name: [leak for leak in watch.leaks if leak.startswith(name)])
                process.kill()
    assert files_with([canary], tmp_path, besides=besides) == [tmp_path / "log"]


@each_agent
def test_twenty_items_succeed_over_four_troubled_keys(agent: Agent, sandbox: AgentSandbox) -> None:
    """One key is rate-limited, one dead, one out of credit, one overloaded for a while. No agent prints a limit; the
    provider refuses no key more often than the rules allow; keys are in no environment, argument list, log or file."""
    keys = {name: canary_key() for name in ("dead", "out_of_credit", "overloaded", "limited")}
    troubles = {**keys, "keys": list(keys.values()), "per_minute": PER_MINUTE, "overloaded_seconds": OVERLOADED_SECONDS}
    with running_provider(**troubles) as provider, watched_processes(list(keys.values())) as watch:
        sandbox.write_keys(agent, provider, keys, f"requests_per_minute = {PER_MINUTE}\nmax_concurrent = 4")
        ended = sandbox.run_agent(agent, ITEMS, "--parallel", "4")
        statuses = {name: provider.statuses(key) for name, key in keys.items()}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = sandbox.results()
    assert sorted(result["id"] for result in results) == sorted(ITEMS)
    assert all(ANSWER in str(result["value"]) for result in results)
    printed = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith("[question-")]
    assert len(printed) >= len(ITEMS)
    assert not [line for line in printed if LIMIT_TEXT.search(line)]
    assert sum(counts[200] for counts in statuses.values()) >= len(ITEMS)
    assert statuses["limited"][200] >= 1, statuses
    assert statuses["limited"][429] == 0, statuses
    assert 1 <= statuses["dead"].total() <= MAX_DEAD, statuses
    assert 1 <= statuses["out_of_credit"].total() <= MAX_OUT_OF_CREDIT, statuses
    assert 1 <= statuses["overloaded"].total() - statuses["overloaded"][200] <= MAX_OVERLOADED, statuses
    assert watch.token_holders, "no process had a client token: nothing was watched"
    assert not watch.leaks
    assert not files_with(list(keys.values()), sandbox.root, besides=sandbox.keys_file)


@each_agent
def test_request_is_held_for_a_minute(agent: Agent, sandbox: AgentSandbox) -> None:
    """The only key is refused with a wait of 60 s: the agent sees one slow answer."""
    key = canary_key()
    with running_provider(keys=[key], refused_seconds=60) as provider:
        sandbox.write_keys(agent, provider, {"only": key})
        started_at = time.monotonic()
        ended = sandbox.run_agent(agent, ["question"], "--hold", "90")
        seconds = time.monotonic() - started_at
        log = provider.log()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ANSWER in ended.stdout
    assert [row["status"] for row in log] == [429, 200]
    assert log[1]["at"] - log[0]["at"] >= 60
    assert 60 <= seconds < 120
    (result,) = sandbox.results()
    assert result["attempts"] == 1


@each_agent
def test_item_outlasts_a_wait_longer_than_the_hold(agent: Agent, sandbox: AgentSandbox) -> None:
    """The agent is told of the limit at once and ends; the item returns to the queue and succeeds without a retry."""
    key = canary_key()
    with running_provider(keys=[key], refused_seconds=75) as provider:
        sandbox.write_keys(agent, provider, {"only": key})
        ended = sandbox.run_agent(agent, ["question"], "--hold", "5")
        log = provider.log()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ANSWER in ended.stdout
    assert [row["status"] for row in log] == [429, 200]
    assert log[1]["at"] - log[0]["at"] >= 75
