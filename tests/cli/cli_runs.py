"""Helpers for tests of commands: runs in their folders, and ways to invoke `agentos`.

`python -m tests.cli.cli_runs RUN` is a run that goes on until it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from agentos.cli import main
from agentos.home.run_folder import SPEC_VERSION, ItemSource, LaunchEnd, RunFolder, RunSpec
from agentos.items.file_names import log_name
from agentos.workflows.parallel import CredentialCoordinator, Interrupted, ParallelCoordinator, current_item
from tests.support.patience import eventually

COMMAND = ["./agent", "--item", "{id}"]
AGENTOS = [sys.executable, "-m", "agentos.cli"]


def agentos(*arguments: str, status: int = 0, **options: Any) -> Result:
    """Invoke the command in this process, and check its exit status."""
    result = CliRunner().invoke(main, list(arguments), **options)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a process."""
    return subprocess.run([*AGENTOS, *arguments], capture_output=True, check=False, timeout=60, **options)


def same(item: str, _credential: str | None) -> str:
    """Return the item: the simplest worker."""
    return item


def failing_on(*bad: str) -> Any:
    """Return a worker that fails for these items."""

    def worker(item: str, _credential: str | None) -> str:
        if item in bad:
            raise ValueError(f"item {item} has 17 faults\nand more")
        return item

    return worker


def prepare(run_id: str, items: list[str], **more: Any) -> RunFolder:
    """Return the folder of a run that has not started."""
    folder = RunFolder(run_id)
    folder.make()
    source = ItemSource("inline", items=items)
    folder.write_spec(RunSpec(SPEC_VERSION, run_id, time.time(), "/somewhere", [source], command=COMMAND, **more))
    return folder


def execute(
    folder: RunFolder,
    items: list[Any],
    worker: Callable[..., Any],
    pool: CredentialCoordinator | None = None,
    **more: Any,
) -> ParallelCoordinator:
    coordinator = ParallelCoordinator(2, pool, ledger=folder.ledger, reporter=None, **more)
    coordinator.execute_parallel(items, worker, run_id=folder.run_id)
    return coordinator


def make_run(run_id: str, items: list[str], worker: Callable[..., Any], **more: Any) -> RunFolder:
    """Return the folder of a run that has ended."""
    folder = prepare(run_id, items, total=len(items))
    execute(folder, items, worker, **more)
    folder.write_end(LaunchEnd(1, 0, "2 workers, not the keys", 1.5))
    return folder


def make_failures() -> RunFolder:
    return make_run("mixed", ["a", "b", "c", "d", "e", "f"], failing_on("b", "c", "d", "e"))


def write_log(folder: RunFolder, item_id: str, content: bytes) -> Path:
    folder.logs.mkdir(exist_ok=True)
    path = folder.logs / log_name(item_id)
    path.write_bytes(content)
    return path


def stop_at_second(coordinator: list[ParallelCoordinator]) -> Callable[..., str]:
    """Return a worker that interrupts its run at item `b`."""

    def worker(item: str, _credential: str | None) -> str:
        if item != "b":
            return item
        coordinator[0].request_shutdown()
        eventually(lambda: current_item().should_stop)
        raise Interrupted

    return worker


def make_interrupted(run_id: str) -> RunFolder:
    folder = prepare(run_id, ["a", "b", "c"], total=3)
    coordinators: list[ParallelCoordinator] = []
    coordinators.append(ParallelCoordinator(1, ledger=folder.ledger, reporter=None))
    coordinators[0].execute_parallel(["a", "b", "c"], stop_at_second(coordinators), run_id=run_id)
    return folder


# `agentos` that SIGINT interrupts: a test run in the background inherits "ignore".
INTERRUPTIBLE = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from agentos.cli import main; main(prog_name='agentos')",
]


@contextmanager
def live_run(run_id: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Yield the process of a run that has finished `a` and is executing `b`."""
    prepare(run_id, ["a", "b"], total=2)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.cli_runs", run_id, *flags], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "busy\n"
            yield program
        finally:
            program.kill()


def _wait_until_stopped(item: str, _credential: str | None) -> str:
    if item == "a":
        return "done"
    here = current_item()
    here.checkpoint.save("busy")  # writes the record of `a`, too
    print("busy", flush=True)
    while not here.should_stop:
        time.sleep(0.01)
    print("stopping", flush=True)
    while "stubborn" in sys.argv:
        time.sleep(0.01)
    raise Interrupted


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits "ignore"
    run = ParallelCoordinator(1, ledger=RunFolder(sys.argv[1]).ledger, reporter=None, grace_seconds=60)
    run.execute_parallel(["a", "b"], _wait_until_stopped, run_id=sys.argv[1])
