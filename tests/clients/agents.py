"""How each agent is started, and a sandbox that runs it by `agentos run --gateway`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.program import AGENTOS, Sandbox

from .provider import RunningProvider

# Seconds after which a run counts as stuck.
PATIENCE = 420


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    provider: str
    arguments: tuple[str, ...]
    version_path: str = ""  # after the address of the provider, in a keys file


AGENTS = (
    Agent("claude", "anthropic", ("claude", "-p", "Answer {}.")),
    Agent("codex", "openai", ("codex", "exec", "--skip-git-repo-check", "Answer {}."), "/v1"),
    Agent("gemini", "gemini", ("gemini", "--skip-trust", "-m", "gemini-2.5-pro", "-p", "Answer {}.")),
)


def canary_key() -> str:
    """Return a key that occurs nowhere else on this machine."""
    return f"sk-canary-{secrets.token_hex(16)}"


class AgentSandbox(Sandbox):
    """A sandbox whose programs find the installed agents, with temporary files inside it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.root = path
        self.keys_file = self.path / "keys.toml"
        (path / "tmp").mkdir()
        self.environ["PATH"] = f"{os.environ['AGENTOS_CLIENTS']}:{self.environ['PATH']}"
        self.environ["TMPDIR"] = str(path / "tmp")

    def write_keys(self, agent: Agent, provider: RunningProvider, keys: Mapping[str, str], more: str = "") -> None:
        """Write a keys file: id -> key. `more` are further lines of the last credential."""
        lines = [f'[provider.{agent.provider}]\nbase_url = "{provider.base_url}{agent.version_path}"\n']
        lines += [
            f'[[credential]]\nid = "{id_}"\nsecret = "{key}"\nprovider = "{agent.provider}"\n'
            for id_, key in keys.items()
        ]
        self.write("keys.toml", "\n".join([*lines, more]), mode=0o600)

    def run_agent(self, agent: Agent, items: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
        """Run the agent on each item behind a gateway, without retries of the run."""
        command = [*AGENTOS, "run", "--gateway", "--keys", "keys.toml", "--retries", "0", *options]
        command += [word for item in items for word in ("--item", item)]
        return self.run([*command, "--", *agent.arguments], timeout=PATIENCE)

    def results(self) -> list[dict[str, Any]]:
        """Return the records of `agentos export` for the only run."""
        (run,) = (path.name for path in self.runs.iterdir())
        exported = self.agentos("export", run, "--format", "jsonl")
        assert exported.returncode == 0, exported.stderr
        return [json.loads(line) for line in exported.stdout.splitlines()]
