"""References to secrets: env:NAME, file:PATH and cmd:COMMAND, and how each is read."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import subprocess
import threading
from pathlib import Path
from typing import IO

from agentos.child_status import UNKNOWN_STATUS, wait_for_status
from agentos.errors import CredentialError
from agentos.reporters.format import shorten

# Seconds until a command that should print a key is killed: it must not block a run.
COMMAND_TIMEOUT_SECONDS = 30.0
# Seconds to wait, after the end of the command, for the end of its output.
END_SECONDS = 1.0
# Characters of the name of a command in a message.
MAX_PROGRAM = 60
# Bytes kept of the output of a command: a key is much shorter.
MAX_OUTPUT_BYTES = 64 * 1024


def is_reference(source: str) -> bool:
    """Return whether a text names a secret instead of being one."""
    kind, _, rest = source.partition(":")
    return kind in ("env", "file", "cmd") and rest != ""


def resolve(source: str, credential_id: str) -> str:
    """Return the secret that a source names, or is. Raises `CredentialError`, which has the id and never the secret."""
    try:
        return _resolve(source, credential_id)
    except CredentialError as error:
        error.credential_id = credential_id
        raise


def _resolve(source: str, credential_id: str) -> str:
    if not is_reference(source):
        return _without_controls(source, credential_id, "its key")
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
    return _without_controls(secret, credential_id, origin)


def _without_controls(secret: str, credential_id: str, origin: str) -> str:
    """Return the secret. Raise `CredentialError` if it has a character that can be in no variable of a command (NUL) or
    in no header: every item that got the key would fail."""
    if any(character < " " or character == "\x7f" for character in secret):
        raise CredentialError(f"credential {credential_id}: {origin} has a control character; a key has none")
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
        return file.read_text(encoding="utf-8-sig")  # without the mark that some editors put before the text
    except CredentialError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not text in UTF-8"
        raise CredentialError(f"cannot read the key file {file}: {reason or error}") from None


def _run_command(command: str, credential_id: str) -> str:
    # Only the name of the program is shown: arguments, output and error text may hold the key.
    words: list[str] = []
    reason: str | None = None
    try:
        words = shlex.split(command)
        if not words:
            raise ValueError("no command")
        status, output = _output_of(words)
        first_line = output.decode().partition("\n")[0]
        if status != 0:
            reason = UNKNOWN_STATUS if status is None else f"it ended with status {status}"
    except subprocess.TimeoutExpired:
        reason = f"it did not end within {COMMAND_TIMEOUT_SECONDS:g} s"
    except UnicodeDecodeError:
        reason = "it printed no text in UTF-8"
    except (OSError, ValueError) as error:  # the name is not shown: a key may stand in its place
        words, reason = [], "it is not written as in a shell: check the quotes"
        if isinstance(error, OSError):
            missing = isinstance(error, FileNotFoundError)
            reason = "there is no such program" if missing else error.strerror or type(error).__name__
    if reason is not None:
        program = f" {shorten(words[0], MAX_PROGRAM)}" if words else ""
        raise CredentialError(f"credential {credential_id}: its command{program} failed: {reason}")
    return first_line


def _output_of(words: list[str]) -> tuple[int | None, bytes]:
    """Run a command; return its exit status and the first MAX_OUTPUT_BYTES that it has printed. Raise `OSError` if it
    cannot be started, `TimeoutExpired` after its time.

    Its stdin is empty: that of this program may hold the items of a run. It leads a session of its own, which is killed
    as a whole if the command does not end in time."""
    process = subprocess.Popen(  # noqa: S603 - running the user's own command is the job
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    output = bytearray()
    reader = threading.Thread(target=_read_start, args=(process.stdout, output), name="agentos-secret", daemon=True)
    ended: list[int | None] = []
    waiter = threading.Thread(target=lambda: ended.append(wait_for_status(process)), name="agentos-secret", daemon=True)
    try:
        reader.start()
        waiter.start()
        waiter.join(COMMAND_TIMEOUT_SECONDS)
    finally:
        if not ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if not ended:
        waiter.join(END_SECONDS)
        raise subprocess.TimeoutExpired(words[0], COMMAND_TIMEOUT_SECONDS)
    reader.join(END_SECONDS)  # a process that the command has left behind may hold the pipe open
    return ended[0], bytes(output)


def _read_start(pipe: IO[bytes], output: bytearray) -> None:
    """Read a pipe to its end, and keep its first MAX_OUTPUT_BYTES: a command in a loop must not fill the memory."""
    with pipe, contextlib.suppress(OSError):
        while data := os.read(pipe.fileno(), MAX_OUTPUT_BYTES):
            output += data[: MAX_OUTPUT_BYTES - len(output)]
