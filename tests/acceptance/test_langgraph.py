"""A real LangGraph with its SQLite checkpointer in an item's own file: interrupted in its second node, it continues
there after a resume."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.forks import Forks, forks
from tests.conftest import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_resume.py"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Yield a fork server that has imported LangGraph, which takes seconds."""
    folder = tmp_path_factory.mktemp("langgraph") / "output"
    with forks(folder, "langgraph.checkpoint.sqlite", "langgraph.graph", "agentos.workflows.parallel") as made:
        yield made


def write_example(path: Path, pauses: int) -> None:
    """Write the example with requests that take `pauses` pauses of 50 ms."""
    text = EXAMPLE.read_text()
    assert text.count("range(20)") == 1
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace("range(20)", f"range({pauses})"))


def nodes(output: str) -> Counter[str]:
    """Count the runs of each node by topic."""
    # Not by lines: two threads that print at the same time may share a line.
    return Counter(": ".join(node) for node in re.findall(r"(research|write|review): +(\w+)", output))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_graph_continues_in_its_second_node(
    tmp_path: Path, programs: Forks, signum: signal.Signals
) -> None:
    example, ledger = tmp_path / "example.py", tmp_path / "state" / "run.db"
    ledger.parent.mkdir()
    write_example(example, 10_000)
    program = programs.start(str(example), ledger)
    eventually(lambda: program.output_text.count("write:") == 2 or program.poll() is not None)
    program.send_signal(signum)
    output, errors = program.communicate()
    assert program.returncode == (130 if signum == signal.SIGINT else -signal.SIGKILL), errors
    assert nodes(output) == {f"{node}: {topic}": 1 for topic in ("owls", "moles") for node in ("research", "write")}
    assert len(list((ledger.parent / "run.db-files" / "main").glob("*.db"))) == 2

    write_example(example, 1)
    second_output, errors = programs.start(str(example), ledger).communicate()
    ran = nodes(second_output)
    for topic in ("owls", "moles"):
        assert (ran[f"research: {topic}"], ran[f"write: {topic}"], ran[f"review: {topic}"]) == (0, 1, 1), errors
    assert ran["research: voles"] == 1
    assert all(f"{topic}: fine" in second_output for topic in ("owls", "moles", "voles"))
    assert [entry.name for entry in ledger.parent.iterdir()] == ["run.db"]
