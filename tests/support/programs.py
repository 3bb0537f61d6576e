"""Run a program to its end for a test."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Seconds after which a program counts as stuck.
PATIENCE = 120.0


def run_program(
    command: Sequence[str], folder: Path, environ: Mapping[str, str], timeout: float = PATIENCE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and an environment, without input; return its exit status and what it printed.

    `options` are those of `subprocess.run`, and replace the input and the captured outputs. Bytes that are no UTF-8 are
    escaped. Raise `subprocess.TimeoutExpired` after `timeout` seconds.
    """
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    streams = {name: options.pop(name, subprocess.PIPE) for name in ("stdout", "stderr")}
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        timeout=timeout,
        encoding="utf-8",
        errors="backslashreplace",
        **streams,
        **{"check": False, **options},
    )
