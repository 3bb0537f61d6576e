"""Folder for the files of benchmarks: on disk, because many systems keep their temporary folder in memory."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "AGENTOS_BENCH_FOLDER"
PREFIX = "agentos-bench-"  # ignored by git


def parent() -> Path:
    """Return the folder of the running benchmark, which `isolated` removes, or the folder of the benchmarks."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).parent)
