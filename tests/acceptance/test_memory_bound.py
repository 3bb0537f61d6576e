"""`agentos run` with keys and no `--parallel`: items that take 1 GB each, in a cgroup with 4 GB."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agentos.workers.machine import CGROUPS, Machine

LIMIT = 4_000_000_000
ITEM = 1_000_000_000
ITEMS = 9
HOLD = (
    "import sys, time; memory = bytearray(int(sys.argv[1])); memory[::4096] = b'x' * len(memory[::4096]); "
    "time.sleep(float(sys.argv[2]))"
)


class Group(NamedTuple):
    """A cgroup of this test."""

    folder: Path
    limit: str
    events: str  # the file that counts kills

    def kills(self) -> int:
        lines = (self.folder / self.events).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.split()[0] == "oom_kill")


@pytest.fixture
def group() -> Iterator[Group]:
    """A cgroup of version 1 or 2 with LIMIT bytes, or a skip that says why there is none."""
    if (Machine().free_bytes() or 0) < 1.5 * LIMIT:
        pytest.skip("needs 6 GB of free memory")
    name = f"agentos-test-{os.getpid()}"
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    candidates = [
        Group(CGROUPS / "memory" / path.strip("/") / name, "memory.limit_in_bytes", "memory.oom_control")
        for _, controllers, path in own
        if "memory" in controllers.split(",")
    ]
    candidates.append(Group(CGROUPS / name, "memory.max", "memory.events"))
    reasons = []
    for candidate in candidates:
        try:
            candidate.folder.mkdir()
            (candidate.folder / candidate.limit).write_text(str(LIMIT))
        except OSError as error:
            reasons.append(str(error))
            with contextlib.suppress(OSError):
                candidate.folder.rmdir()
            continue
        yield candidate
        for _ in range(50):  # the kernel may still count processes that have ended
            with contextlib.suppress(OSError):
                candidate.folder.rmdir()
                return
            time.sleep(0.1)
        return
    pytest.skip(f"no cgroup can be made: {'; '.join(reasons)}")


def test_run_in_a_cgroup_is_bound_by_its_memory(tmp_path: Path, group: Group) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[credential]]\nid = "a"\nsecret = "env:TEST_KEY"\ncredential_env = "X"\nmax_concurrent = 64\n')
    items = [argument for number in range(ITEMS) for argument in ("--item", str(number))]
    command = [sys.executable, "-m", "agentos.cli", "run", "--json", "--keys", str(keys), *items, "--"]
    command += [sys.executable, "-c", HOLD, str(ITEM), "1.5"]
    run = subprocess.run(
        ["/bin/sh", "-c", f'echo $$ > "{group.folder}/cgroup.procs"; exec "$@"', "sh", *command],
        env={**os.environ, "AGENTOS_HOME": str(tmp_path / "home"), "TEST_KEY": "key-of-the-test"},
        stdout=subprocess.PIPE,
        check=False,
        timeout=120,
    )
    ended = next(event for line in run.stdout.splitlines() if (event := json.loads(line))["event"] == "RunEnded")
    assert (run.returncode, group.kills()) == (0, 0)
    assert ended["stats"]["success_count"] == ITEMS
    bound = ended["stats"]["at_once"]
    assert (bound["by"], bound["at_once"]) == ("memory", 3)  # neither too many, nor one by one
    assert ended["bound_by"].startswith("memory, ")
    assert ended["bound_by"].endswith(": room for 3 items at once")
