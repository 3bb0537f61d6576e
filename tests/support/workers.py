"""Worker functions for tests with processes, which must import them."""

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
    """Return what a worker process can read of its attempt."""
    return {**answer_for(item, credential), "db": str(current_item().workflow_db)}


async def async_double(item: int, _credential: str | None) -> int:
    return 2 * item


def die_of(item: str, _credential: str | None) -> str:
    """Die as the item says."""
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
    """Hang and ignore all signals that can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def hang_first(item: str, _credential: str | None) -> int:
    if item == "slow" and current_item().attempt == 1:
        hang(item, None)
    return current_item().attempt


def hang_with_a_child(item: str, _credential: str | None) -> None:
    """Start a child, write its id, and hang. The item is a folder."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    (Path(item) / "pids").write_text(f"{os.getpid()} {child.pid}")
    hang(item, None)


def until_told(item: str, _credential: str | None) -> None:
    """Write a file at the start, and stop on `should_stop`. The item is the path of the file."""
    Path(item).touch()
    while not current_item().should_stop:
        time.sleep(0.005)
    raise Interrupted


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.handle = open(os.devnull)  # noqa: SIM115, PTH123


class LosesItsArguments(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


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
    """Save a checkpoint and fail in the first attempt; load it in the second."""
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
    current = current_item()
    await asyncio.gather(*(current.checkpoint.asave({"x": "y" * 200_000}) for _ in range(6)))
    return bool(current.checkpoint.load() == {"x": "y" * 200_000})


def touch_and_wait(item: dict[str, str], _credential: str | None) -> int:
    """Write attempt and process id to a file, and wait for another file."""
    number = current_item().attempt
    with Path(f"{item['begun']}-{number}").open("a") as file:
        file.write(f"{os.getpid()} ")
    while not Path(item["go"]).exists() and not Path(f"{item['go']}-{number}").exists():
        time.sleep(0.005)
    Path(f"{item['begun']}-{number}-ended").touch()
    return number


def report_and_observe(_item: str, _credential: str | None) -> list[str]:
    current = current_item()
    current.report_usage(requests=2, tokens=30)
    with current.lease() as lease:
        lease.settle(tokens=5)
    current.observe(types.SimpleNamespace(status_code=200, headers={"x-ratelimit-limit-requests": "120"}))
    refused = []
    for ask in (current.checkpoint.load, lambda: current.checkpoint.save(1), lambda: current.workflow_db):
        try:
            ask()
        except RuntimeError as error:
            refused.append(str(error))
    return refused


def blurt(item: str, credential: str | None) -> Any:
    """Leak the key, as the item says."""
    if item == "value":
        return {"key": credential}
    raise OSError(f"401 for {credential}")


def short(item: dict[str, str], _credential: str | None) -> int:
    """Sleep a moment; the first attempt of an item with `tell` writes its process id and hangs."""
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
    """Return what a worker on an executor can read of its attempt."""
    current = current_item()
    return {
        "id": current.id,
        "attempt": current.attempt,
        "run_id": current.run_id,
        "credential_id": current.credential_id,
        "credential": credential,
        "pid": os.getpid(),
    }


def name_of(_item: str, _credential: str | None) -> str:
    return current_item().id


def append_mark(item: str, _credential: str | None) -> None:
    with Path(item).open("a") as file:
        file.write("x")


def leave_half_way(item: str, _credential: str | None) -> Any:
    """Save a checkpoint and stop in the first launch; continue in the second."""
    current = current_item()
    saved = current.checkpoint.load()
    if saved is None:
        current.checkpoint.save({"step": 1, "of": item})
        current.workflow_db.write_text("half")
        raise ValueError("half-way")
    return [saved, current.workflow_db.read_text(), current.attempt]


def tell_access(_item: Any, credential: Any) -> dict[str, Any]:
    """Return what a worker in another process knows of the gateway of its run."""
    item = current_item()
    lease = ""
    try:
        item.lease()
    except RuntimeError as error:
        lease = type(error).__name__
    assert credential.base_url == item.gateway_url
    return {"credential": str(credential), "client_token": item.client_token, "url": item.gateway_url, "lease": lease}
