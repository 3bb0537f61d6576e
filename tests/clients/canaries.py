"""Searches for secrets where a client could read them: environments and arguments of all processes, and files."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# A client token of an attempt. Longer than its prefix, which names of folders and packages have, too.
TOKEN = re.compile(rb"agentos-[A-Za-z0-9]{32}")
# Seconds between two searches through all processes.
PERIOD_SECONDS = 0.05


class ProcessWatch:
    """What was found while processes were watched."""

    def __init__(self, canaries: Sequence[str]) -> None:
        self._canaries = [canary.encode() for canary in canaries]
        self.leaks: set[str] = set()  # processes that show a canary
        self.token_holders: set[str] = set()  # processes that show a client token

    def look(self) -> None:
        """Search through the environment and the arguments of every process that can be read."""
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            for name in ("environ", "cmdline"):
                with suppress(OSError):
                    content = (process / name).read_bytes()
                    if any(canary in content for canary in self._canaries):
                        self.leaks.add(f"{name} of {_command(process)}")
                    if TOKEN.search(content):
                        self.token_holders.add(f"{name} of {_command(process)}")


def _command(process: Path) -> str:
    with suppress(OSError):
        return (process / "comm").read_text().strip()
    return process.name


@contextmanager
def watched_processes(canaries: Sequence[str]) -> Iterator[ProcessWatch]:
    """Search through all processes of the machine again and again, on a thread of its own."""
    watch, stop = ProcessWatch(canaries), threading.Event()

    def run() -> None:
        while not stop.wait(PERIOD_SECONDS):
            watch.look()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()


def files_with(canaries: Sequence[str], folder: Path, *, besides: Path) -> list[Path]:
    """Return the files below a folder that contain a canary, plain or in base64."""
    forms = [form for canary in canaries for form in (canary.encode(), base64.b64encode(canary.encode()).rstrip(b"="))]
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path != besides)
    return [path for path in files if any(form in path.read_bytes() for form in forms)]
