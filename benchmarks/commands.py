"""The command line: 2,000 short commands against GNU parallel, the start of the program, a million lines of output.

GNU parallel is looked for on the PATH; a copy elsewhere is named by AGENTOS_BENCH_PARALLEL. Without it, its row is left
out and says so.
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
LINES = 100_000  # of each of as many items as run at once
LINE_ROUNDS = 7
READ_BYTES = 256 * 1024
PARALLEL = "AGENTOS_BENCH_PARALLEL"
ROOT = Path(__file__).parent.parent
AGENTOS = [sys.executable, "-m", "agentos.cli"]


class Place:
    """A folder for what programs read and write."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=disk.PREFIX, dir=disk.parent()))
        (self.path / "parallel").mkdir()
        # An installed program has been compiled, whatever the settings here are: the first round, which is not counted,
        # does so.
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPYCACHEPREFIX": str(self.path / "compiled"),
            "AGENTOS_HOME": str(self.path / "home"),
            "PARALLEL_HOME": str(self.path / "parallel"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }

    def run(self, command: list[str], *, stdin: Path | None = None) -> None:
        with (stdin or Path(os.devnull)).open("rb") as given:
            subprocess.run(
                command,
                cwd=self.path,
                env=self._environment,
                check=True,
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def printed(self, command: list[str]) -> bytes:
        """What it prints into a pipe that is read as fast as it comes."""
        run = subprocess.run(
            command, cwd=self.path, env=self._environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return run.stdout

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def gnu_parallel() -> tuple[list[str], str] | None:
    """How to start it, and its name and version. Another program of that name is not taken for it."""
    named = os.environ.get(PARALLEL)
    found = str(Path(named).resolve()) if named else shutil.which("parallel")
    if found is None:
        return None
    command = [found] if os.access(found, os.X_OK) else ["perl", found]
    told = subprocess.run([*command, "--version"], check=False, capture_output=True, text=True).stdout
    return (command, told.splitlines()[0]) if told.startswith("GNU parallel") else None


def of_short_commands(place: Place) -> Iterator[Row]:
    items = place.path / "items.txt"
    items.write_text("".join(f"{number}\n" for number in range(1, COMMANDS + 1)))
    ours = [*AGENTOS, "run", "--items", str(items), "--parallel", str(AT_ONCE), "--", "true"]
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: place.run(ours),
        "xargs, no record": lambda: place.run(["xargs", f"-P{AT_ONCE}", "-n1", "true"], stdin=items),
    }
    peer = gnu_parallel()
    if peer is not None:
        command, name = peer
        joblog = ["--joblog", str(place.path / "joblog"), "true", "::::", str(items)]
        sides[f"{name} --joblog"] = lambda: place.run([*command, "--will-cite", f"-j{AT_ONCE}", *joblog])
    rounds = {name: per_operation(call, COMMANDS) for name, call in sides.items()}
    series, xargs, *peers = measure(rounds, rounds=COMMAND_ROUNDS)
    what = f"{COMMANDS:,} x true, {AT_ONCE} at once, ledger and logs, per command"
    if peers:
        yield at_most(0.5, what, series, peers[0])
    else:
        told = f"not measured: it is not on the PATH, and {PARALLEL} names none"
        yield Row(what, "", "GNU parallel --joblog", told, None, "<= 0.5 x", None)
    yield compared(what, series, xargs)


def of_help(place: Place) -> Iterator[Row]:
    ours, python = measure(
        {
            "ours": per_operation(lambda: place.run([*AGENTOS, "--help"]), 1),
            "python -c pass": per_operation(lambda: place.run([sys.executable, "-c", "pass"]), 1),
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


def of_lines(place: Place) -> Iterator[Row]:
    ids = [f"item-{number}" for number in range(AT_ONCE)]
    for item in ids:
        lines = (f"{number:06d} {item} has something of an ordinary length to say\n" for number in range(LINES))
        (place.path / item).write_text("".join(lines))
    items = [argument for item in ids for argument in ("--item", item)]
    ours = [*AGENTOS, "run", "--quiet", *items, "--parallel", str(AT_ONCE), "--", "cat", "{id}"]
    alone = [sys.executable, "-m", "benchmarks.commands", *ids]
    expected = {item: _prefixed(f"[{item}] ".encode(), (place.path / item).read_bytes()) for item in ids}

    def round_of(command: list[str]) -> Callable[[], float]:
        def run_round() -> float:
            start = time.perf_counter()
            printed = place.printed(command)
            elapsed = time.perf_counter() - start
            check_lines(printed, expected)
            return elapsed / (LINES * len(ids))

        return run_round

    sides = {"ours": round_of(ours), "cat, through the prefixer alone": round_of(alone)}
    series, peer = measure(sides, rounds=LINE_ROUNDS)
    yield at_most(2.0, f"{len(ids)} x {LINES:,} lines into a pipe, with logs, per line", series, peer)


def check_lines(printed: bytes, expected: dict[str, bytes]) -> None:
    """All lines are there, each is whole, and those of an item are in their order."""
    by_prefix: dict[bytes, list[bytes]] = {}
    for line in printed.splitlines(keepends=True):
        by_prefix.setdefault(line[: line.find(b"]") + 1], []).append(line)
    assert {prefix.decode(): b"".join(lines) for prefix, lines in by_prefix.items()} == {
        f"[{item}]": lines for item, lines in expected.items()
    }, "lines are missing, broken or out of order"


def _prefixed(prefix: bytes, lines: bytes) -> bytes:
    """Without the code that is measured."""
    return b"".join(prefix + line for line in lines.splitlines(keepends=True))


def prefix_alone(paths: Iterable[str]) -> None:
    """What the least program would do: a process, its whole lines, a prefix, stdout."""
    from agentos.output.prefix import prefix_lines
    from agentos.output.stream import Lines

    for path in paths:
        held = Lines()
        prefix = f"[{path}] ".encode()
        with subprocess.Popen(["cat", path], stdout=subprocess.PIPE, bufsize=0) as cat:
            assert cat.stdout is not None
            while data := cat.stdout.read(READ_BYTES):
                left = prefix_lines(prefix, held.feed(data))
                while left:
                    left = left[os.write(1, left) :]


MEASURED = {"true": of_short_commands, "help": of_help, "lines": of_lines}


def rows(names: Iterable[str] = ()) -> Iterator[Row]:
    wanted = list(names) or ROW_NAMES
    with Place() as place:
        for name in ROW_NAMES:
            if name in wanted:
                yield from MEASURED[name](place)


if __name__ == "__main__":
    prefix_alone(sys.argv[1:])
