"""`agentos demo` through the gateway where its extra is installed, and with keys in its commands where it is not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from agentos.cli.commands import _demo_item
from agentos.ledger.reader import Ledger

from .program import Sandbox

# Runs the demo with a few items, whose command writes down its environment before it does its work.
SHORT = """
import sys
from agentos.cli import main
from agentos.cli.commands import _demo_item, demo
demo.ITEMS = 4
_demo_item.__file__ = sys.argv[1]
main(["demo", "--no-progress"])
"""
SPY = """
import json, os, runpy, sys
with open(os.environ["SEEN"], "a") as file:
    file.write(json.dumps(dict(os.environ)) + "\\n")
runpy.run_path({program!r}, run_name="__main__")
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def run_demo(sandbox: Sandbox) -> tuple[str, list[dict[str, str]]]:
    """Return what the demo prints, and the environment of each of its commands."""
    spy = sandbox.write("spy.py", SPY.format(program=_demo_item.__file__))
    seen = sandbox.path / "seen.jsonl"
    sandbox.environ["SEEN"] = str(seen)
    done = sandbox.run([sys.executable, "-c", SHORT, str(spy)])
    assert done.returncode == 0, done.stderr
    return done.stderr, [json.loads(line) for line in seen.read_text().splitlines()]


def test_demo_uses_gateway_and_gives_commands_no_key(sandbox: Sandbox) -> None:
    printed, environments = run_demo(sandbox)
    assert "no program gets a key" in printed
    assert "No command noticed." in printed
    assert len(environments) == 4
    for environment in environments:
        assert environment["DEMO_API_KEY"].startswith("agentos-")
        assert not any(value.startswith("demo-") and len(value) > 30 for value in environment.values())
        assert not any(name.startswith("DEMO_KEY_") for name in environment)
    (ledger,) = sandbox.home.rglob("ledger.db")
    with Ledger.open(ledger) as recorded:
        usage = recorded.usage()
    assert usage is not None
    assert usage.requests == 4
    (refused,) = re.findall(r"The provider refused (\d+) requests?: (\d+) .* limit, (\d+) .*, (\d+) ", printed)
    assert int(refused[0]) == sum(map(int, refused[1:])) == usage.refusals


def test_demo_without_extra_gives_commands_a_key(sandbox: Sandbox) -> None:
    sandbox.write("aiohttp.py", "raise ImportError('not installed')\n")
    sandbox.environ["PYTHONPATH"] = f"{sandbox.path}:{sandbox.environ['PYTHONPATH']}"
    printed, environments = run_demo(sandbox)
    assert "pip install 'agentos-parallel[gateway]'" in printed
    assert all(environment["DEMO_API_KEY"].startswith("demo-") for environment in environments)
