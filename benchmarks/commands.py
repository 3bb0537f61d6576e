"""The command line: 2,000 short commands against GNU parallel, the start of the program, a million lines of output.

GNU parallel is taken from the PATH or from the path in AGENTOS_BENCH_PARALLEL. Without it, its row says that it was not
measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from . import disk
from .measuring import Ratio, Row, Series, at_most, compared, measure, per_operation, spread

ROW_NAMES = ["true", "help", "lines"]
COMMANDS = 2000
AT_ONCE = 10
COMMAND_ROUNDS = 5
HELP_ROUNDS = 25
HELP_SECONDS, HELP_TIMES = 0.150, 6.0
LINES = 100_000  # per item; AT_ONCE items
LINE_ROUNDS = 7
READ_BYTES = 256 * 1024
PARALLEL = "AGENTOS_BENCH_PARALLEL"
ROOT = Path(__file__).parent.parent
AGENTOS = [sys.executable, "-m", "agentos.cli"]


class Workspace:
    """A folder and an environment for the measured programs."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=disk.PREFIX, dir=disk.parent()))
        (self.path / "parallel").mkdir()
        # An installed program has compiled files: the warm-up round writes them, also if bytecode is disabled here.
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPYCACHEPREFIX": str(self.path / "compiled"),
            "AGENTOS_HOME": str(self.path / "home"),
            "PARALLEL_HOME": str(self.path / "parallel"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }

    def run(self, command: list[str], *, stdin: Path | None = None) -> None:
        with (stdin or Path(os.devnull)).open("rb") as stdin_file:
            subprocess.run(
                command,
                cwd=self.path,
                env=self._environment,
                check=True,
                stdin=stdin_file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def printed(self, command: list[str]) -> bytes:
        """Run a command and return its output, read from a pipe without delay."""
        run = subprocess.run(
            command, cwd=self.path, env=self._environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return run.stdout

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def gnu_parallel() -> tuple[list[str], str] | None:
    """Return the command that starts it, and its name and version. Return None if the program of that name is not GNU
    parallel."""
    configured = os.environ.get(PARALLEL)
    path = str(Path(configured).resolve()) if configured else shutil.which("parallel")
    if path is None:
        return None
    command = [path] if os.access(path, os.X_OK) else ["perl", path]
    version = subprocess.run([*command, "--version"], check=False, capture_output=True, text=True).stdout
    return (command, version.splitlines()[0]) if version.startswith("GNU parallel") else None


def of_short_commands(workspace: Workspace) -> Iterator[Row]:
    items = workspace.path / "items.txt"
    items.write_text("".join(f"{number}\n" for number in range(1, COMMANDS + 1)))
    ours = [*AGENTOS, "run", "--items", str(items), "--parallel", str(AT_ONCE), "--", "true"]
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: workspace.run(ours),
        "xargs, no record": lambda: workspace.run(["xargs", f"-P{AT_ONCE}", "-n1", "true"], stdin=items),
    }
    peer = gnu_parallel()
    if peer is not None:
        command, version = peer
        joblog = ["--joblog", str(workspace.path / "joblog"), "true", "::::", str(items)]
        sides[f"{version} --joblog"] = lambda: workspace.run([*command, "--will-cite", f"-j{AT_ONCE}", *joblog])
    rounds = {name: per_operation(call, COMMANDS) for name, call in sides.items()}
    series, xargs, *peers = measure(rounds, rounds=COMMAND_ROUNDS)
    name = f"{COMMANDS:,} x true, {AT_ONCE} at once, ledger and logs, per command"
    if peers:
        yield at_most(0.5, name, series, peers[0])
    else:
        reason = f"not measured: not on the PATH, and {PARALLEL} is not set"
        yield Row(name, "", "GNU parallel --joblog", reason, None, "<= 0.5 x", None)
    yield compared(name, series, xargs)


def of_help(workspace: Workspace) -> Iterator[Row]:
    ours, python = measure(
        {
            "ours": per_operation(lambda: workspace.run([*AGENTOS, "--help"]), 1),
            "python -c pass": per_operation(lambda: workspace.run([sys.executable, "-c", "pass"]), 1),
        },
        rounds=HELP_ROUNDS,
    )
    ratio = Ratio.of(ours, python)
    yield Row(
        "agentos --help",
        _milli(ours),
        python.name,
        _milli(python),
        ratio,
        f"<= {HELP_SECONDS * 1000:.0f} ms, <= {HELP_TIMES:g} x",
        ours.median <= HELP_SECONDS and ratio.median <= HELP_TIMES,
    )


def _milli(series: Series) -> str:
    return f"{spread(series.values, lambda seconds: f'{seconds * 1000:.0f}')} ms"


def of_lines(workspace: Workspace) -> Iterator[Row]:
    ids = [f"item-{number}" for number in range(AT_ONCE)]
    for item in ids:
        lines = (f"{number:06d} {item} has something of an ordinary length to say\n" for number in range(LINES))
        (workspace.path / item).write_text("".join(lines))
    items = [argument for item in ids for argument in ("--item", item)]
    ours = [*AGENTOS, "run", "--quiet", *items, "--parallel", str(AT_ONCE), "--", "cat", "{id}"]
    alone = [sys.executable, "-m", "benchmarks.commands", *ids]
    expected = {item: _prefixed(f"[{item}] ".encode(), (workspace.path / item).read_bytes()) for item in ids}

    def round_of(command: list[str]) -> Callable[[], float]:
        def run_round() -> float:
            start = time.perf_counter()
            printed = workspace.printed(command)
            elapsed = time.perf_counter() - start
            check_lines(printed, expected)
            return elapsed / (LINES * len(ids))

        return run_round

    sides = {"ours": round_of(ours), "cat, through the prefixer alone": round_of(alone)}
    series, peer = measure(sides, rounds=LINE_ROUNDS)
    yield at_most(2.0, f"{len(ids)} x {LINES:,} lines into a pipe, with logs, per line", series, peer)


def check_lines(printed: bytes, expected: dict[str, bytes]) -> None:
    """Raise unless every line was printed, unbroken, and the lines of each item are in order."""
    by_prefix: dict[bytes, list[bytes]] = {}
    for line in printed.splitlines(keepends=True):
        by_prefix.setdefault(line[: line.find(b"]") + 1], []).append(line)
    assert {prefix.decode(): b"".join(lines) for prefix, lines in by_prefix.items()} == {
        f"[{item}]": lines for item, lines in expected.items()
    }, "lines are missing, broken or out of order"


def _prefixed(prefix: bytes, lines: bytes) -> bytes:
    """Prefix every line without using the measured code."""
    return b"".join(prefix + line for line in lines.splitlines(keepends=True))


def prefix_alone(paths: Iterable[str]) -> None:
    """Do the minimum for the same output: start `cat`, split its output into lines, prefix them, write them."""
    from agentos.output.prefix import prefix_lines
    from agentos.output.stream import Lines

    for path in paths:
        lines = Lines()
        prefix = f"[{path}] ".encode()
        with subprocess.Popen(["cat", path], stdout=subprocess.PIPE, bufsize=0) as cat:
            assert cat.stdout is not None
            while data := cat.stdout.read(READ_BYTES):
                unwritten = prefix_lines(prefix, lines.feed(data))
                while unwritten:
                    unwritten = unwritten[os.write(1, unwritten) :]


MEASURED = {"true": of_short_commands, "help": of_help, "lines": of_lines}


def rows(names: Iterable[str] = ()) -> Iterator[Row]:
    chosen = list(names) or ROW_NAMES
    with Workspace() as workspace:
        for name in ROW_NAMES:
            if name in chosen:
                yield from MEASURED[name](workspace)


if __name__ == "__main__":
    prefix_alone(sys.argv[1:])
