"""Where runs are kept: `$AGENTOS_HOME/runs/RUN_ID/`, a folder per run.

`run.json` says what the run is (see `RunSpec`), so that `agentos resume RUN` needs nothing else. `ledger.db` is its
record, `items.jsonl` what came by stdin, `logs/` the output of its items, `checkpoints/` a folder for each item that
has not succeeded yet, and `ended.json` how its last launch ended.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from agentos.errors import HomeError, UnknownRun
from agentos.identifiers import sanitize_identifier
from agentos.pool.store_url import with_password_left_out

from .paths import PRIVATE, home, write_atomically

SPEC_VERSION = 1


class ItemsFrom(msgspec.Struct, omit_defaults=True):
    """Where items come from: a file (with its hash, to see whether it has changed), `--item`, or stdin (kept)."""

    kind: str  # "file", "inline" or "stdin"
    format: str | None = None  # "jsonl", "json", "csv" or "txt"
    path: str | None = None
    sha256: str | None = None
    items: list[str] = []


class RunSpec(msgspec.Struct, omit_defaults=True):
    """What a run is. Never holds a secret: keys are named by their file or variables."""

    version: int
    run_id: str
    created_at: float  # epoch
    cwd: str
    items: list[ItemsFrom]
    command: list[str] | None = None
    function: str | None = None  # "module:function"
    options: dict[str, Any] = {}  # of `agentos run`, by their names
    total: int | None = None  # of items, where that was known when the run was created


class Ended(msgspec.Struct, omit_defaults=True):
    """How the last launch ended, as far as the ledger does not tell."""

    launch: int
    exit_status: int
    bound_by: str
    seconds: float
    stopped: str | None = None


class RunFolder:
    """The folder of one run, whether it is there or not."""

    def __init__(self, run_id: str) -> None:
        self.run_id = sanitize_identifier(run_id)
        self.path = home() / "runs" / run_id
        self.ledger = self.path / "ledger.db"
        self.items = self.path / "items.jsonl"
        self.logs = self.path / "logs"
        self.checkpoints = self.path / "checkpoints"
        self._spec = self.path / "run.json"
        self._ended = self.path / "ended.json"

    def exists(self) -> bool:
        return self._spec.exists()

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        except OSError as error:
            raise HomeError(
                f"{self.path} cannot be made: {error.strerror}; $AGENTOS_HOME names another place"
            ) from None

    def read_spec(self) -> RunSpec:
        try:
            return msgspec.convert(json.loads(self._spec.read_bytes()), RunSpec)
        except FileNotFoundError:
            raise UnknownRun(f"there is no run {self.run_id!r} in {home() / 'runs'}: see agentos runs") from None
        except (OSError, ValueError, RecursionError) as error:
            raise HomeError(f"{self._spec} cannot be read: {error}") from None

    def write_spec(self, spec: RunSpec) -> None:
        if "store" in spec.options:
            options = {**spec.options, "store": with_password_left_out(spec.options["store"])}
            spec = msgspec.structs.replace(spec, options=options)
        # Arguments and names of files may be bytes that are no text. Those are surrogates, which only `json` writes.
        try:
            write_atomically(self._spec, json.dumps(msgspec.to_builtins(spec), indent=2).encode())
        except OSError as error:
            raise HomeError(f"{self._spec} cannot be written: {error.strerror}") from None

    def read_ended(self) -> Ended | None:
        try:
            return msgspec.json.decode(self._ended.read_bytes(), type=Ended)
        except (OSError, msgspec.DecodeError):
            return None

    def write_ended(self, ended: Ended) -> None:
        """Where that fails, what the ledger says is known."""
        with contextlib.suppress(OSError):
            write_atomically(self._ended, msgspec.json.encode(ended))


def run_folders() -> Iterator[RunFolder]:
    """Of all runs, the newest first."""
    folder = home() / "runs"
    if not folder.is_dir():
        return
    made: list[tuple[float, str]] = []
    for path in folder.iterdir():
        # What is no run, or is removed just now, is passed over.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            made.append(((path / "run.json").stat().st_mtime, sanitize_identifier(path.name)))
    for _, run_id in sorted(made, reverse=True):
        yield RunFolder(run_id)
