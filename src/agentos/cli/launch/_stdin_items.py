"""Reads the items of stdin, and keeps them in the run's folder.

Stdin may never end: its items are yielded as they arrive, and each is appended to `items.jsonl` in the run's folder
before it is yielded, so that a resume finds every item that was ever started. Stdin is read by its descriptor and not
through `sys.stdin`: a reader thread that is still blocked at exit would hold the lock of `sys.stdin`, and the
interpreter would not end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentos.home.paths import write_atomically
from agentos.home.run_folder import ItemSource, RunFolder

from ..console import Failure
from ._item_files import digest_of_file, reason_of
from ._item_formats import EMPTY, STDIN, BadItems, Item, as_item, items_in, location_of, parse
from ._item_rules import ItemRules

CHUNK_BYTES = 65536
# Mode of the file with the items of stdin: readable by its owner only.
PRIVATE_FILE = 0o600


def prepare_spool(folder: RunFolder) -> None:
    """Create the file of items from stdin, or continue it. An incomplete last line is cut off: that item was never
    yielded."""
    try:
        folder.make()
        folder.items.touch(PRIVATE_FILE)
        _end_mark(folder).unlink(missing_ok=True)
        with folder.items.open("rb+") as file:
            file.truncate(_complete_size(file))
    except OSError as error:
        raise _spool_failure(folder, error) from None


def _complete_size(file: BinaryIO) -> int:
    """Return the size up to the end of the last complete line."""
    start = file.seek(0, os.SEEK_END)
    while start:
        size, start = start, max(0, start - CHUNK_BYTES)
        file.seek(start)
        if (end := file.read(size - start).rfind(b"\n")) >= 0:
            return start + end + 1
    return 0


def stdin_items(
    source: ItemSource, folder: RunFolder | None, rules: ItemRules, kept_ids: set[str], *, may_be_empty: bool
) -> Iterator[Item]:
    """Yield the items of stdin whose ids were not kept before. With a folder, each is written before it is yielded, so
    that a resume has it however this process ends."""
    # A descriptor and no file object: a generator that is abandoned must not cause a ResourceWarning at exit.
    spool = None if folder is None else os.open(folder.items, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        for number, item in items_in(STDIN, source.format, _stdin_chunks(), source.delimiter):
            try:
                item_id = rules.checked_id(item)
            except ValueError as error:
                raise BadItems(location_of(STDIN, source.format, number), str(error)) from None
            if item_id in kept_ids:
                continue
            if spool is not None and folder is not None:
                _append(spool, item, folder)
            may_be_empty = True
            yield item
        if not may_be_empty and not kept_ids:
            raise BadItems(STDIN, EMPTY)
        if folder is not None:
            write_atomically(_end_mark(folder), digest_of_file(folder.items).encode())
    finally:
        if spool is not None:
            os.close(spool)


def _stdin_chunks() -> Iterator[bytes]:
    if sys.stdin is None:
        raise BadItems(STDIN, "expected items, and it is closed")
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # an object in memory replaces stdin
        yield sys.stdin.buffer.read()
        return
    try:
        descriptor = _take_over(descriptor)
        while chunk := os.read(descriptor, CHUNK_BYTES):
            yield chunk
    except OSError as error:
        raise BadItems(STDIN, f"expected items: {reason_of(error)}") from None


def _take_over(descriptor: int) -> int:
    """Return a copy of stdin that programs do not inherit, and connect stdin to the null device: a program that a
    worker starts would read, and lose, items. No-op for another descriptor, which no program inherits."""
    if descriptor != 0:
        return descriptor
    copy = os.dup(descriptor)
    null_device = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null_device, descriptor)
    os.close(null_device)
    return copy


def _append(spool: int, item: Item, folder: RunFolder) -> None:
    line = memoryview(json.dumps(item, separators=(",", ":")).encode() + b"\n")
    try:
        while line:
            line = line[os.write(spool, line) :]
    except OSError as error:
        raise _spool_failure(folder, error) from None


def _spool_failure(folder: RunFolder, error: OSError) -> Failure:
    return Failure(f"the items from stdin cannot be saved for resume: {folder.items}: {reason_of(error)}")


def kept_items(folder: RunFolder, rules: ItemRules, kept_ids: set[str]) -> Iterator[Item]:
    """Yield the items of stdin that an earlier launch kept, and add their ids. An incomplete last line was never
    yielded: that launch was killed while writing it."""
    with folder.items.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            location = f"{folder.items}, line {number}"
            try:
                value = parse(line.decode())
            except (ValueError, RecursionError) as error:
                raise BadItems(location, f"expected an item that was saved from stdin: {error}") from None
            item = as_item(value, location)
            try:
                kept_ids.add(rules.checked_id(item))
            except ValueError as error:
                raise BadItems(location, str(error)) from None
            yield item


def check_kept(folder: RunFolder) -> None:
    """Raise `BadItems` if the kept items were damaged after stdin was read to its end."""
    try:
        if (mark := _end_mark(folder)).exists() and mark.read_text() not in ("", digest_of_file(folder.items)):
            raise BadItems(str(folder.items), "damaged: these are not the items of stdin. Start the run anew")
    except (OSError, ValueError) as error:
        raise BadItems(str(folder.items), f"expected the items of stdin: {reason_of(error)}") from None


def has_ended(folder: RunFolder) -> bool:
    """Return whether an earlier launch read stdin to its end."""
    return _end_mark(folder).exists()


def _end_mark(folder: RunFolder) -> Path:
    """Return the path of the file that exists once stdin was read to its end. It has the digest of the kept items."""
    return folder.items.with_name("items.end")
