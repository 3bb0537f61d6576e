"""Two copies of the package that differ by a comment share a pool: they are one version."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentos
from tests.conftest import eventually

from .members import Process, Processes, keys

TTL = 60.0  # longer than every wait of a test: a member that is refused until leases expire does not join in time


@pytest.fixture(scope="session")
def _copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = tmp_path_factory.mktemp("copy")
    original = Path(agentos.__file__).parent
    shutil.copytree(original, folder / "agentos", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "agentos/pool/_rules/allocator.py").open("a") as rules:
        rules.write("# A comment.\n")
    copies = Processes(package=folder)
    yield copies
    copies.stop()


@pytest.fixture
def copies(_copies: Processes) -> Iterator[Processes]:
    """Return processes that import the copy with the comment."""
    yield _copies
    _copies.park()


def state_of(member: Process, key: str) -> dict[str, Any]:
    return next(state for state in member.do("states") if state["key_id"] == key)


def test_member_with_changed_comment_in_rules_loses_nothing(
    processes: Processes, copies: Processes, shared_store: str
) -> None:
    """A member of the copy joins at once, and its owner continues the journal of the original's owner."""
    limits = {"windows": [["requests", 5, "1d", "rolling"]], "max_concurrent": 9}
    shared = [{**keys(1)[0], "limits": limits}, keys(2)[1]]
    original = processes.open(shared_store, shared, TTL)
    original.call("quarantine", "key-1", "refused")
    for n in range(2):
        original.lease(f"used {n}", tokens=10)
        assert original.granted(f"used {n}")["key"] == "key-0"
    original.end("used 0")
    original.wait_for_end("used 0")
    copy = copies.open(shared_store, shared, TTL)
    assert copy.do("package") != original.do("package")
    eventually(lambda: copy.do("owner_pid") == original.do("owner_pid"))
    eventually(lambda: state_of(copy, "key-0")["live_leases"] == 1)
    assert (state_of(copy, "key-0")["requests"], state_of(copy, "key-0")["tokens"]) == (2, 20)
    assert state_of(copy, "key-1")["quarantined"] == "refused"
    copy.lease("of the copy", tokens=10)
    assert copy.granted("of the copy")["key"] == "key-0"

    before = copy.do("owner_pid")
    original.pause()  # so that the copy starts the next owner
    os.kill(before, signal.SIGKILL)
    eventually(lambda: copy.do("owner_pid") != before)
    if sys.platform == "linux":
        environment = Path(f"/proc/{copy.do('owner_pid')}/environ").read_bytes()
        assert os.fsencode(Path(copy.do("package")).parents[1]) in environment
    original.resume()
    eventually(lambda: original.do("owner_pid") == copy.do("owner_pid"))
    for member in (original, copy):
        assert state_of(member, "key-0")["live_leases"] == 2
        assert (state_of(member, "key-0")["requests"], state_of(member, "key-0")["tokens"]) == (3, 30)
        assert state_of(member, "key-1")["quarantined"] == "refused"
    for n in range(2):  # what the window of a day has left
        original.lease(f"left {n}")
        assert original.granted(f"left {n}")["key"] == "key-0"
    assert original.do("reserve_now") is False
    assert copy.do("reserve_now") is False
