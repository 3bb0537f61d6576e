"""The AgentOS home directory: its location, the mode of folders in it, and atomic writes of files in it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Mode of folders below the home directory: items, outputs and ledgers are readable by their owner only.
PRIVATE = 0o700


def home() -> Path:
    """Return `$AGENTOS_HOME`, else `~/.agentos`."""
    variable = os.environ.get("AGENTOS_HOME")
    return Path(variable).expanduser().absolute() if variable else Path.home() / ".agentos"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file: a concurrent reader sees the old content or the new one. Raises `OSError`."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        os.unlink(name)  # noqa: PTH108
        raise
