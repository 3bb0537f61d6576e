"""The settings of each agent alone, without a gateway: the simulated provider takes its place, the token is the key."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agentos.gateway.client_settings import settings_for
from agentos.testing import SimulatedProvider

from .agents import AGENTS, Agent, AgentSandbox
from .other_hosts import refusing_proxy

TOKEN = "agentos-token-of-a-test"
ANSWER = "A simulated answer."
each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


@pytest.fixture
def sandbox(tmp_path: Path) -> AgentSandbox:
    return AgentSandbox(tmp_path)


def run(agent: Agent, sandbox: AgentSandbox, url: str) -> subprocess.CompletedProcess[str]:
    """Run the agent once with nothing but its settings."""
    inherited = sandbox.environ
    settings = settings_for(url, TOKEN, [agent.provider], agent.arguments, str(sandbox.path), inherited)
    environ = {name: value for name, value in {**inherited, **settings}.items() if value is not None}
    return sandbox.run(agent.arguments, environ=environ, timeout=120)


@each_agent
def test_agent_answers_and_asks_no_other_host(agent: Agent, sandbox: AgentSandbox) -> None:
    """Telemetry and updater are off, and the inherited proxy is not used for the gateway."""
    with refusing_proxy() as proxy, SimulatedProvider([TOKEN]) as provider:
        sandbox.environ |= proxy.variables
        ended = run(agent, sandbox, provider.base_url)
        answered = provider.answered
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ANSWER in ended.stdout
    assert answered == 1
    assert proxy.targets == []


@each_agent
def test_agent_repeats_a_request_twice(agent: Agent, sandbox: AgentSandbox) -> None:
    with SimulatedProvider([TOKEN]) as provider:
        provider.script([503] * 20)
        ended = run(agent, sandbox, provider.base_url)
        requests = len(provider.log)
    assert ended.returncode == 1
    assert requests == 3
