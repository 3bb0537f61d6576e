"""The examples, run as they are documented, against the simulated provider."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.testing import SimulatedProvider
from tests.support.programs import run_program

from .test_langgraph import write_example

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
KEYS = ["sk-example-key-one-0123456789", "sk-example-key-two-0123456789"]


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which the program is installed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOS_", "OPENAI_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**inherited, "PATH": path, "AGENTOS_HOME": str(home), **variables}


def typed(line: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run_program(["bash", "-c", line], folder, env)


def commands_in(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(("$ ", "    agentos ", "    python ")):
            yield line.removeprefix("$ ").strip()


def test_example_reviews_files_with_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "review_files"
    shutil.copytree(EXAMPLES / "review_files", folder)
    lines = list(commands_in((folder / "README.md").read_text()))
    assert len(lines) == 5
    with SimulatedProvider(KEYS, requests_per_second=0.5, burst=1, style="openai") as provider:
        env = environment(
            tmp_path / "home", OPENAI_BASE_URL=f"{provider.base_url}/v1", TEAM_A_KEY=KEYS[0], TEAM_B_KEY=KEYS[1]
        )
        outputs = []
        for line in lines:
            done = typed(line, folder, env)
            assert done.returncode == 0, (line, done.stderr)
            outputs.append(done.stdout)
            assert not any(key in done.stdout + done.stderr for key in KEYS)
        assert provider.limited > 0
        served = Counter(entry.key for entry in provider.log if entry.status == 200)
    files = (folder / "files.txt").read_text().split()
    assert sorted(re.findall(r"^\[(.*?)\] ", outputs[2], re.MULTILINE)) == sorted(files)
    assert set(served) == set(KEYS)
    rows = [json.loads(line) for line in (folder / "reviews.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == sorted(files)
    assert all(row["tokens"] > 0 for row in rows)


@pytest.mark.parametrize("by", ["agentos", "python"])
def test_example_answers_questions_with_the_async_client(tmp_path: Path, by: str) -> None:
    (line,) = [line for line in commands_in((EXAMPLES / "async_openai.py").read_text()) if line.startswith(by)]
    (tmp_path / "questions.txt").write_text("".join(f"question {number}\n" for number in range(12)))
    (tmp_path / "examples").symlink_to(EXAMPLES)
    with SimulatedProvider(KEYS, requests_per_second=10, burst=4, style="openai") as provider:
        keys = {f"OPENAI_API_KEY_{number}": key for number, key in enumerate(KEYS, start=1)}
        env = environment(tmp_path / "home", OPENAI_BASE_URL=f"{provider.base_url}/v1", **keys)
        done = typed(line, tmp_path, env)
        assert done.returncode == 0, done.stderr
        served = sum(entry.status == 200 for entry in provider.log)
    assert served == 24  # no request was sent twice
    assert "Succeeded: 12" in done.stdout + done.stderr
    assert not any(key in done.stdout + done.stderr for key in KEYS)


def test_killed_langgraph_example_resumes_in_its_second_node(tmp_path: Path) -> None:
    (line,) = [
        line for line in commands_in((EXAMPLES / "langgraph_resume.py").read_text()) if line.startswith("agentos")
    ]
    line = line.replace("agentos run", "exec agentos run --run-id articles")
    env = environment(tmp_path / "home", PYTHONWARNINGS="ignore")
    write_example(tmp_path / "examples" / "langgraph_resume.py", 10_000)  # it is killed long before that
    with subprocess.Popen(
        ["bash", "-c", line], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        lines = []
        for output in run.stdout:
            lines.append(output)
            if sum("write:" in line for line in lines) == 2:
                break
        run.kill()
        lines += run.stdout.readlines()
    assert nodes(lines) == {f"{node}: {topic}": 1 for topic in ("owls", "moles") for node in ("research", "write")}
    write_example(tmp_path / "examples" / "langgraph_resume.py", 1)
    done = typed("agentos resume articles", tmp_path / "home", env)
    assert done.returncode == 0, done.stderr
    ran = nodes(done.stdout.splitlines())
    for topic in ("owls", "moles"):
        assert (ran[f"research: {topic}"], ran[f"write: {topic}"], ran[f"review: {topic}"]) == (0, 1, 1)
    assert ran["research: voles"] == 1


def nodes(lines: list[str]) -> Counter[str]:
    """Count the runs of each node by topic, from lines such as `[owls]   write:    owls`."""
    return Counter(" ".join(line.split()[1:]) for line in lines)
