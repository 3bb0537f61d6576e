"""docs/cli.md equals the help of the program, and the examples in every `--help` work."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from agentos.cli import main
from agentos.testing import SimulatedProvider
from agentos.workers.command import _process
from tests.acceptance.cli_reference import commands, examples_of, page
from tests.cli.cli_runs import INTERRUPTIBLE
from tests.conftest import eventually
from tests.support.programs import run_program

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
RUN = "20261116-093012-1f3a5c"  # as in the examples
KEYS = {"TEAM_A_KEY": "sk-team-a-0123456789", "TEAM_B_KEY": "sk-team-b-0123456789"}
KEYS_FILE = """
[[credential]]
id = "team-a"
secret = "env:TEAM_A_KEY"
provider = "anthropic"
requests_per_minute = 600
tokens_per_minute = 100000
[[credential]]
id = "team-b"
secret = "env:TEAM_B_KEY"
provider = "anthropic"
requests_per_minute = 600
tokens_per_minute = 100000
"""
PROGRAMS = {
    "claude": 'test -n "$ANTHROPIC_API_KEY" && test "$1" = -p && echo "did: $2"',
    "ruff": 'test "$1" = check && test -f "$2" && echo "All checks passed!"',
}
# The demo, which takes a while, has tests of its own.
EXAMPLES = [(name, text) for name, command in commands() for text in examples_of(command) if text != "agentos demo"]
# Patterns that the output must match; other examples need only succeed.
EXPECTED = {
    "agentos gateway --keys keys.toml": "(?m)^Gateway on http://127.0.0.1:",
    "agentos gateway serve --keys keys.toml --hold 60 --allow-host gateway.internal": "(?m)^Gateway on http://127.0.0.1:",
    "agentos gateway token laptop": "^agentos-[A-Za-z0-9]{32}$",
    f"agentos show {RUN} a": r"^Item .*a|succeeded",
    "agentos runs": RUN,
    f"agentos logs {RUN} --list": r"bytes",
    f"agentos logs {RUN} a --follow": "hello a",
    "agentos run --item a --item b --item c -- echo hello {id}": r"(?m)^\[b\] hello b$",
    'agentos run --items issues.jsonl --keys keys.toml -- claude -p "Fix {title}"': r"(?m)^\[2\] did: Fix the door$",
    'agentos run --items issues.jsonl --keys keys.toml --gateway -- claude -p "Fix {title}"': (
        r"(?m)^\[2\] did: Fix the door$"
    ),
    "ls *.py | agentos run --items - --parallel 8 -- ruff check {}": r"(?m)^\[workers.py\] All checks passed!$",
    "agentos run --items prompts.txt --key-env 'OPENAI_API_KEY*' workers:answer": r"(?m)^\[what\?\] asked$",
    f"agentos plan --items issues.jsonl --keys keys.toml --like {RUN}": "2 items",
    "agentos keys": r"(?m)^team-b +anthropic .*usable",
    "agentos keys check --keys keys.toml": r"team-b +anthropic +ok",
    "agentos keys --keys keys.toml check": r"team-b +anthropic +ok",
}


def test_cli_page_equals_the_generated_one() -> None:
    assert PAGE.read_text() == page(PAGE.read_text()), "docs/cli.md is not up to date: run make docs"


def test_every_command_has_examples_and_option_help() -> None:
    for name, command in commands():
        assert command is main or examples_of(command), name
        assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option)), name


def test_cli_page_lists_every_command_variable() -> None:
    source = Path(_process.__file__).read_text()
    variables = set(re.findall(r"AGENTOS_[A-Z_]+", source))
    assert len(variables) > 7
    assert not [name for name in variables if f"| `{name}` |" not in PAGE.read_text()]


# --- the examples, as they are typed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield an environment with the files and programs that the examples mention."""
    folder = tmp_path_factory.mktemp("world")
    programs = folder / "programs"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    work = folder / "work"
    work.mkdir()
    (work / "keys.toml").write_text(KEYS_FILE)
    (work / "issues.jsonl").write_text('{"id": 1, "title": "the roof"}\n{"id": 2, "title": "the door"}\n')
    (work / "prompts.txt").write_text("why?\nwhat?\n")
    (work / "workers.py").write_text(
        "def answer(item, key):\n    assert key.startswith('sk-openai')\n    print('asked')\n"
    )
    (folder / ".config" / "fish" / "completions").mkdir(parents=True)
    with SimulatedProvider(list(KEYS.values()), style="anthropic") as provider:
        path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")}
        openai = {f"OPENAI_API_KEY_{number}": f"sk-openai-{number}-0123456789" for number in (1, 2)}
        yield {
            **inherited, **KEYS, **openai, "PATH": path, "PWD": str(work), "HOME": str(folder),
            "ANTHROPIC_BASE_URL": provider.url,
        }  # fmt: skip


def run_line(line: str, world: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    return run_program(["bash", "-o", "pipefail", "-c", line], Path(world["PWD"]), {**world, **variables})


def run_server(line: str, world: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that serves until a signal ends it, and send the signal when it listens."""
    output = Path(world["PWD"]) / "server.txt"
    with output.open("w") as file, subprocess.Popen(
        ["bash", "-c", f"exec {line}"], cwd=world["PWD"], env={**world, **variables}, stdout=file, stderr=file
    ) as server:  # fmt: skip
        try:
            eventually(lambda: "Gateway on" in output.read_text() or server.poll() is not None)
        finally:
            server.send_signal(signal.SIGINT)
    return subprocess.CompletedProcess(line, server.returncode, output.read_text(), output.read_text())


@pytest.fixture(scope="module")
def finished(world: dict[str, str]) -> Path:
    """Return a home with a run that has the id of the examples."""
    home = Path(world["HOME"]) / "finished"
    done = run_line(f"agentos run --run-id {RUN} --item a --item b -- echo hello {{id}}", world, AGENTOS_HOME=str(home))
    assert done.returncode == 0, done.stderr
    return home


@contextmanager
def needed_by(name: str, example: str, world: dict[str, str], finished: Path) -> Iterator[dict[str, str]]:
    """Set up what one example needs beyond `world`; yield further variables."""
    home = Path(world["AGENTOS_HOME"])
    start = f"agentos run --run-id {RUN} --item a --item b --parallel 1 --"
    (Path(world["PWD"]) / "go").unlink(missing_ok=True)
    if name == "agentos resume":
        interrupted = run_line(f"{start} sh -c 'test -e go || {{ kill -TERM $PPID; sleep 60; }}'", world)
        assert interrupted.returncode == 128 + signal.SIGTERM, interrupted.stderr
        (Path(world["PWD"]) / "go").touch()
    elif name == "agentos retry":
        failing = start.replace(" --item a", " --timeout 0.2 --item a") if "--only" in example else start
        assert run_line(f"{failing} sh -c 'test -e go || sleep 1 && test -e go'", world).returncode == 1
        (Path(world["PWD"]) / "go").touch()
    elif name == "agentos stop":
        with subprocess.Popen(
            [*INTERRUPTIBLE, *start.split()[1:], "sh", "-c", "touch go; exec sleep 60"],
            cwd=world["PWD"], env=world, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as running:  # fmt: skip
            try:
                eventually((Path(world["PWD"]) / "go").exists, timeout=60)
                yield {}
                running.wait(60)
            finally:
                running.kill()
        return
    elif name == "agentos keys reload":
        reloading = f"agentos run --run-id {RUN} --item a --keys keys.toml --store memory: --"
        with subprocess.Popen(
            [*INTERRUPTIBLE, *reloading.split()[1:], "sh", "-c", "touch go; exec sleep 60"],
            cwd=world["PWD"], env=world, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as running:  # fmt: skip
            try:
                eventually((Path(world["PWD"]) / "go").exists, timeout=60)
                yield {}
            finally:
                running.terminate()
                running.wait(60)
        return
    elif name == "agentos report":
        report = Path(world["PWD"]) / "report"
        report.touch()
        yield {"AGENTOS_REPORT": str(report)}
        assert report.read_text().endswith("}\n")
        return
    else:
        shutil.copytree(finished, home)
        if example == "agentos keys":
            assert run_line("agentos run --item a --keys keys.toml -- true", world).returncode == 0
        if name == "agentos keys repair":
            (home / "pool.db").write_bytes(b"no database" * 1000)
        if name.startswith("agentos gateway"):
            token = "agentos-" + "x" * 32
            (Path(world["PWD"]) / "token").write_text(token)
            run_line("agentos gateway token laptop", world)
            yield {
                "AGENTOS_LISTEN": "127.0.0.1:0",
                "AGENTOS_GATEWAY_URL": "http://127.0.0.1:1",
                "AGENTOS_CLIENT_TOKEN": token,
            }
            return
    yield {}


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_documented_example_does_what_it_says(
    name: str, example: str, world: dict[str, str], finished: Path, tmp_path: Path
) -> None:
    world = {**world, "AGENTOS_HOME": str(tmp_path / "home")}  # a pool of the last example may still write to its own
    if example.startswith("eval") and "completion" in example and "bash" not in example:
        shell = example.split()[-1].rstrip(')"')
        example = f"agentos completion {shell}" if shutil.which(shell) is None else f"{shell} -ic {example!r}"
    with needed_by(name, example, world, finished) as variables:
        run = run_server if example.startswith(("agentos gateway --", "agentos gateway serve")) else run_line
        done = run(example, world, **variables)
    assert done.returncode == 0, done.stderr
    assert re.search(EXPECTED.get(example, ""), done.stdout), done.stdout
    assert not any(key in done.stdout + done.stderr for key in KEYS.values())
