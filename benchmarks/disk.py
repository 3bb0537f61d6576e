"""Where benchmarks keep their files. On the disk: many systems keep their temporary folder in memory."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "AGENTOS_BENCH_FOLDER"
PREFIX = "agentos-bench-"  # which git ignores


def parent() -> Path:
    """The folder that is removed with the benchmark, however it ends; else that of the benchmarks."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).parent)
