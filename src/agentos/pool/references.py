"""References to secrets: env:NAME, file:PATH and cmd:COMMAND, and how each is read."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path

from agentos.errors import CredentialError

# Seconds until a command that should print a key is killed: it must not block a run.
COMMAND_TIMEOUT_SECONDS = 30.0


def is_reference(source: str) -> bool:
    """Return whether a text names a secret instead of being one."""
    kind, _, rest = source.partition(":")
    return kind in ("env", "file", "cmd") and rest != ""


def resolve(source: str, credential_id: str) -> str:
    """Return the secret that a source names, or is. Raises `CredentialError`, which never shows it."""
    if not is_reference(source):
        return source
    kind, _, rest = source.partition(":")
    if kind == "env":
        secret = _environment_variable(rest)
        origin = f"the environment variable {rest}"
    elif kind == "file":
        origin = f"the file {rest}"
        secret = _read_private_file(rest)
    else:
        origin = "the output of its command"
        secret = _run_command(rest, credential_id)
    secret = secret.strip()
    if not secret:
        raise CredentialError(f"credential {credential_id}: {origin} is not set or empty")
    if len(secret.splitlines()) > 1:
        raise CredentialError(f"credential {credential_id}: {origin} has several lines; a key has one")
    return secret


def _environment_variable(name: str) -> str:
    try:
        return os.environ.get(name, "")
    except ValueError:  # no system can have a variable of this name
        return ""


def _read_private_file(path: str) -> str:
    file = Path(path)
    try:
        file = file.expanduser()
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise CredentialError(f"other users can read {file}, so its key is not used: run chmod 600 {file}")
        return file.read_text(encoding="utf-8")
    except CredentialError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise CredentialError(f"cannot read the key file {file}: {error}") from None


def _run_command(command: str, credential_id: str) -> str:
    # Neither the command's output nor its error text is shown: either may hold the key.
    try:
        words = shlex.split(command)
        if not words:
            raise ValueError("no command")
        result = subprocess.run(  # noqa: S603 - running the user's own command is the job
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise CredentialError(f"credential {credential_id}: its command failed: {type(error).__name__}") from None
    if result.returncode != 0:
        raise CredentialError(f"credential {credential_id}: its command ended with status {result.returncode}")
    return result.stdout.partition("\n")[0]
