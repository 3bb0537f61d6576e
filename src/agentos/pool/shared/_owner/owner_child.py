"""Start the owner of a pool as a small process of its own, which outlives the member that starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ..transport import StoreLost

# The command that runs an owner, without its arguments.
OWNER_COMMAND = [sys.executable, "-m", "agentos.pool.shared._owner.owner_process"]
# Variables that an owner inherits. Not the whole environment: it holds secrets.
OWNER_VARIABLES = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT", "PYTHONHOME", "PYTHONTZPATH", "TZDIR")
# Seconds to wait until the owner is a process of its own.
START_SECONDS = 10.0


def run_owner(arguments: Sequence[str], *, pass_fds: tuple[int, ...] = (), secret: bytes = b"") -> None:
    """Start an owner and return when it is a process of its own: no child of this one, for which a program that waits
    for its children would wait, too. `secret` is written to its standard input, because other users see arguments and
    variables. Raises `StoreLost`."""
    try:
        subprocess.run(  # noqa: S603 - this Python
            [*OWNER_COMMAND, *arguments],
            pass_fds=pass_fds,
            input=secret,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=_environment(),
            check=False,  # its members notice that nothing answers
            timeout=START_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreLost(f"the pool's owner cannot be started: {error}") from None


def _environment() -> dict[str, str]:
    environment = {name: os.environ[name] for name in OWNER_VARIABLES if name in os.environ}
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
