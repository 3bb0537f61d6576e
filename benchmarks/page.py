"""The page with the results: each benchmark's part stands between two marks and is written by a program."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def put(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replaces what stands between the marks of a benchmark. A page without them gets them at its end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = path.read_text() if path.exists() else ""
    part = "\n".join([begin, "", *lines, "", end])
    if begin in text:
        head, _, rest = text.partition(begin)
        text = head + part + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n{part}\n".lstrip()
    path.write_text(text)


def machine(packages: Sequence[str]) -> list[str]:
    """Where and with what it was measured."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return [
        f"{os.cpu_count()} CPUs ({_processor()}), {platform.platform()}, {python}",
        ", ".join(f"{name} {version(name)}" for name in packages),
    ]


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found.group(1).strip() if found else platform.machine()
