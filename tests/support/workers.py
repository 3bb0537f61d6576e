"""Workers for tests with processes: they must be importable."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

from agentos.workflows.parallel import Interrupted, RateLimited, Transient, current_item


def double(item: int, _credential: str | None) -> int:
    return 2 * item


def tell(item: Any, credential: str | None) -> dict[str, Any]:
    here = current_item()
    return {
        "id": here.id,
        "attempt": here.attempt,
        "run_id": here.run_id,
        "credential_id": here.credential_id,
        "credential": credential,
        "pid": os.getpid(),
        "db": str(here.workflow_db),
    }


async def async_double(item: int, _credential: str | None) -> int:
    return 2 * item


def die_of(item: str, _credential: str | None) -> str:
    """Items say how to die."""
    if item == "segfault":
        ctypes.string_at(0)
    if item == "exit":
        os._exit(3)
    if item == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "sys.exit":
        sys.exit(4)
    return f"{item} lived"


def die_once(item: str, _credential: str | None) -> int:
    if current_item().attempt == 1:
        os._exit(1)
    return current_item().attempt


def hang(_item: str, _credential: str | None) -> None:
    """Ignores everything that can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def hang_first(item: str, _credential: str | None) -> int:
    if item == "slow" and current_item().attempt == 1:
        hang(item, None)
    return current_item().attempt


def hang_with_a_child(item: str, _credential: str | None) -> None:
    """Starts a process of its own, says which, and hangs. The item is a folder."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    (Path(item) / "pids").write_text(f"{os.getpid()} {child.pid}")
    hang(item, None)


def until_told(item: str, _credential: str | None) -> None:
    """Marks that it runs, and stops when it is told to. The item is a file's path."""
    Path(item).touch()
    while not current_item().should_stop:
        time.sleep(0.005)
    raise Interrupted


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.handle = open(os.devnull)  # noqa: SIM115, PTH123


class LosesItsArguments(Exception):
    """Can be pickled, but not read back."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Flaky(Exception):
    pass


def fail_with(item: str, _credential: str | None) -> Any:
    if item == "unpicklable":
        raise Unpicklable("the text of it")
    if item == "loses":
        raise LosesItsArguments("lost", "arguments")
    if item == "value":
        return lambda: None
    if item == "limited" and current_item().attempt == 1:
        raise RateLimited(retry_after=0.01)
    if item == "transient" and current_item().attempt == 1:
        raise Transient("once")
    if item == "flaky" and current_item().attempt == 1:
        raise Flaky("once")
    return item


def remember(_item: str, _credential: str | None) -> Any:
    """Saves on the first attempt, fails, and finds it on the second."""
    saved = current_item().checkpoint.load()
    if saved is None:
        current_item().checkpoint.save({"step": 1})
        current_item().report_usage(requests=2, tokens=30)
        raise Transient("half-way")
    return saved


def lease_twice(_item: str, credential: str | None) -> tuple[bool, str]:
    with current_item().lease() as lease:
        lease.settle(tokens=7)
        try:
            current_item().lease()
        except RuntimeError as error:
            return lease.secret == credential and credential not in repr(lease), str(error)
    return False, "no error"


def save_a_function(_item: str, _credential: str | None) -> str:
    try:
        current_item().checkpoint.save(lambda: None)
    except TypeError as error:
        return str(error)
    return "no error"


async def save_many(_item: str, _credential: str | None) -> bool:
    here = current_item()
    await asyncio.gather(*(here.checkpoint.asave({"x": "y" * 200_000}) for _ in range(6)))
    return bool(here.checkpoint.load() == {"x": "y" * 200_000})


def touch_and_wait(item: dict[str, str], _credential: str | None) -> int:
    """Says that it has begun (which attempt, and in which process) and goes on when it may."""
    number = current_item().attempt
    with Path(f"{item['begun']}-{number}").open("a") as file:
        file.write(f"{os.getpid()} ")
    while not Path(item["go"]).exists() and not Path(f"{item['go']}-{number}").exists():
        time.sleep(0.005)
    Path(f"{item['begun']}-{number}-ended").touch()
    return number


def report_and_observe(_item: str, _credential: str | None) -> list[str]:
    here = current_item()
    here.report_usage(requests=2, tokens=30)
    with here.lease() as lease:
        lease.settle(tokens=5)
    here.observe(types.SimpleNamespace(status_code=200, headers={"x-ratelimit-limit-requests": "120"}))
    refused = []
    for ask in (here.checkpoint.load, lambda: here.checkpoint.save(1), lambda: here.workflow_db):
        try:
            ask()
        except RuntimeError as error:
            refused.append(str(error))
    return refused


def blurt(item: str, credential: str | None) -> Any:
    """Tells its key, in one way or another."""
    if item == "value":
        return {"key": credential}
    raise OSError(f"401 for {credential}")


def short(item: dict[str, str], _credential: str | None) -> int:
    """Takes a moment; the first attempt at an item with `tell` says where it is, and never ends."""
    number = current_item().attempt
    if "tell" in item and number == 1:
        Path(item["tell"]).write_text(str(os.getpid()))
        threading.Event().wait()
    time.sleep(0.01)
    return number


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raise_mute(_item: str, _credential: str | None) -> None:
    raise Mute


def answer_for(_item: str, credential: str | None) -> dict[str, Any]:
    """What a worker behind an executor knows."""
    here = current_item()
    return {
        "id": here.id,
        "attempt": here.attempt,
        "run_id": here.run_id,
        "credential_id": here.credential_id,
        "credential": credential,
        "pid": os.getpid(),
    }


def name_of(_item: str, _credential: str | None) -> str:
    return current_item().id


def append_mark(item: str, _credential: str | None) -> None:
    with Path(item).open("a") as file:
        file.write("x")


def leave_half_way(item: str, _credential: str | None) -> Any:
    """Saves in its first launch and stops there; continues in the second."""
    here = current_item()
    saved = here.checkpoint.load()
    if saved is None:
        here.checkpoint.save({"step": 1, "of": item})
        here.workflow_db.write_text("half")
        raise ValueError("half-way")
    return [saved, here.workflow_db.read_text(), here.attempt]
