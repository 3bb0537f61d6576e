"""The folder of a run, `$AGENTOS_HOME/runs/RUN_ID/`, and the files in it.

`run.json` describes the run (`RunSpec`), so that `agentos resume RUN` needs nothing else. `ledger.db` is its record,
`items.jsonl` the items that came by stdin, `logs/` the output of items, `checkpoints/` a folder for each item that has
not succeeded yet, and `ended.json` how the last launch ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from agentos.errors import HomeError, UnknownRun
from agentos.identifiers import sanitize_identifier
from agentos.pool.store_url import with_masked_password

from .paths import check_private, home, make_private, read_regular, write_atomically

SPEC_VERSION = 1
# The field of `run.json` that has the checksum of all others. A file without it is not verified.
CHECKSUM = "checksum"


# The beginning of the ids of demos, and the name of a demo's keys file in its folder.
DEMO = "demo-"
DEMO_KEYS_FILE = "keys.toml"


class ItemSource(msgspec.Struct, omit_defaults=True):
    """A source of items: a file (with its hash, to detect changes), `--item`, or stdin (kept in the folder)."""

    kind: str  # "file", "inline" or "stdin"
    format: str | None = None  # "jsonl", "json", "csv", "tsv" or "txt"
    path: str | None = None
    sha256: str | None = None
    items: list[str] = []
    delimiter: str | None = None  # between the fields of CSV; None: a comma


class RunSpec(msgspec.Struct, omit_defaults=True):
    """The description of a run. Holds no secret: keys are named by their file or variables."""

    version: int
    run_id: str
    created_at: float  # epoch
    cwd: str
    items: list[ItemSource]
    command: list[str] | None = None
    function: str | None = None  # "module:function"
    options: dict[str, Any] = {}  # of `agentos run`, by their names
    total: int | None = None  # number of items, if it was known when the run was created


def is_demo(spec: RunSpec) -> bool:
    """Return whether the run is one of `agentos demo`: its provider and its keys existed only while it ran."""
    keys_file = RunFolder(spec.run_id).path / DEMO_KEYS_FILE
    return spec.run_id.startswith(DEMO) and spec.options.get("keys") == str(keys_file)


class LaunchEnd(msgspec.Struct, omit_defaults=True):
    """How the last launch ended, where the ledger does not record it; and what bound the one that was bound longest."""

    launch: int
    exit_status: int
    bound_by: str | None  # None: nothing, there was little to do
    seconds: float  # of the launch that was bound by it
    stopped: str | None = None


class RunFolder:
    """The paths of one run, whether its folder exists or not."""

    def __init__(self, run_id: str) -> None:
        """Raise `ValueError` for an id that cannot be the name of a folder."""
        self.run_id = sanitize_identifier(run_id)
        self.path = home() / "runs" / run_id
        self.ledger = self.path / "ledger.db"
        self.items = self.path / "items.jsonl"
        self.logs = self.path / "logs"
        self.checkpoints = self.path / "checkpoints"
        self._spec = self.path / "run.json"
        self._end = self.path / "ended.json"

    def exists(self) -> bool:
        return self._spec.exists()

    def make(self) -> None:
        """Make the folder, if it does not exist. Raise `HomeError`."""
        try:
            make_private(self.path.parent)
            make_private(self.path)
        except OSError as error:
            raise HomeError(
                f"{self.path} cannot be created: {error.strerror}; set $AGENTOS_HOME to use another folder"
            ) from None

    def check(self) -> None:
        """Raise `HomeError` if another user may have written what is in the folder. No-op if there is none."""
        for path in (self.path.parent, self.path, self._spec):
            check_private(path)

    def discard_unused(self) -> None:
        """Remove the folder if no run was ever started in it: the first items of stdin may have been refused."""
        if not self.exists():
            with contextlib.suppress(OSError):
                self.items.unlink(missing_ok=True)
                self.path.rmdir()

    def read_spec(self) -> RunSpec:
        """Raise `UnknownRun` if there is no such run, `HomeError` if its description cannot be read or is damaged, or
        another user may have written it."""
        self.check()
        try:
            fields = json.loads(read_regular(self._spec))
            checksum = fields.pop(CHECKSUM, None) if isinstance(fields, dict) else None
            spec = msgspec.convert(fields, RunSpec)
            _check_values(spec)
        except FileNotFoundError:
            raise UnknownRun(f"there is no run {self.run_id!r} in {home() / 'runs'}: see agentos runs") from None
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            raise HomeError(f"{self._spec} cannot be read: {error}") from None
        if checksum not in (None, _checksum(fields)):
            raise HomeError(
                f"{self._spec} was changed after the run was created, by damage or by hand: its command is not "
                f"executed. If you changed it, remove its line {CHECKSUM!r}; else start the run anew"
            )
        return spec

    def write_spec(self, spec: RunSpec) -> None:
        """Write the description, without the password of a store. Raise `HomeError`."""
        if "store" in spec.options:
            options = {**spec.options, "store": with_masked_password(spec.options["store"])}
            spec = msgspec.structs.replace(spec, options=options)
        # Arguments and file names that are not UTF-8 hold surrogates, which `json` can write and msgspec cannot.
        try:
            fields = msgspec.to_builtins(spec)
            write_atomically(self._spec, json.dumps({CHECKSUM: _checksum(fields), **fields}, indent=2).encode())
        except OSError as error:
            raise HomeError(f"{self._spec} cannot be written: {error.strerror}") from None

    def read_end(self) -> LaunchEnd | None:
        """Return how the last launch ended; None if that was not written or cannot be read."""
        try:
            return msgspec.json.decode(read_regular(self._end), type=LaunchEnd)
        except (OSError, msgspec.DecodeError):
            return None

    def write_end(self, end: LaunchEnd) -> None:
        """Write how the launch ended. A failure is ignored: the ledger has the outcomes."""
        before = self.read_end()
        if before is not None and before.bound_by is not None and not _binds_more(end, before):
            end.bound_by, end.seconds = before.bound_by, before.seconds
        with contextlib.suppress(OSError):
            write_atomically(self._end, msgspec.json.encode(end))


def _binds_more(end: LaunchEnd, before: LaunchEnd) -> bool:
    """Return whether what bound a launch says more about its run than what bound an earlier one."""
    return end.bound_by is not None and (end.stopped is not None or end.seconds >= before.seconds)


def _check_values(spec: RunSpec) -> None:
    """Raise `ValueError`, `OSError` or `OverflowError` for what this program never writes: by hand, or by a newer
    version. One such file must not end a list of all runs."""
    if spec.version > SPEC_VERSION:
        raise ValueError(f"it was written by a newer version of agentos (format {spec.version}): use that version")
    sanitize_identifier(spec.run_id)
    time.localtime(spec.created_at)


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def run_folders() -> Iterator[RunFolder]:
    """Yield the folders of all runs, the newest first."""
    folder = home() / "runs"
    if not folder.is_dir():
        return
    created: list[tuple[float, str]] = []
    for path in folder.iterdir():
        # Skip what is no run, and a run that another process removes meanwhile.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            created.append(((path / "run.json").stat().st_mtime, sanitize_identifier(path.name)))
    for _, run_id in sorted(created, reverse=True):
        yield RunFolder(run_id)
