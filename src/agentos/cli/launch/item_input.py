"""Reads the items of a run from files, arguments and stdin, and the number of tokens that each needs.

Files are read completely before the run starts: their number of items is known, and mistakes in them are reported at
once. Stdin may never end: its items are yielded as they arrive, and each is appended to `items.jsonl` in the run's
folder before it is yielded, so that a resume finds every item that was ever started. Stdin is read by its descriptor
and not through `sys.stdin`: a reader thread that is still blocked at exit would hold the lock of `sys.stdin`, and the
interpreter would not end.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from agentos.home.paths import write_atomically
from agentos.home.run_folder import ItemSource, RunFolder, RunSpec
from agentos.items.fields import field_of, field_text, find
from agentos.redaction.json_text import redact_json

from ..console import Failure
from ._item_formats import BY_EXTENSION, STDIN, BadItems, Item, as_item, items_in, listed, location_of, parse

__all__ = ["BadItems", "Item", "Items", "SizedItems", "changed_files", "is_number", "read_items", "token_counter"]

CHUNK_BYTES = 65536
# The problem of an input without items: a mistake in the command before a pipe is more likely than nothing to do.
EMPTY = "expected items, and found none"
# Mode of the file with the items of stdin: readable by its owner only.
PRIVATE_FILE = 0o600


class Items:
    """Items that can be iterated once. A coordinator gets `source`, and `id_of` as its `item_id_func`."""

    def __init__(self, source: Iterable[Item], id_field: str | None, *, is_whole: bool = True) -> None:
        self.source = source
        self.total: int | None = None
        self.left = 0  # items after `--limit`; of stdin, known when it was read to its end
        # False in a resume if stdin was not read to its end: items that were never read are missing.
        self.is_whole = is_whole
        self._id_field = id_field

    def __iter__(self) -> Iterator[Item]:
        return iter(self.source)

    def id_of(self, item: Item) -> str:
        """Return the id of an item. Raise `ValueError` if it has none."""
        return _id_of(item, self._id_field)

    def replaced(self, source: Iterable[Item]) -> Items:
        """Return items from another source: a choice of these."""
        items = SizedItems(source, self._id_field) if isinstance(source, list) else Items(source, self._id_field)
        items.is_whole = self.is_whole
        return items


class SizedItems(Items):
    """Items whose number is known; `source` is a list."""

    def __init__(self, source: list[Item], id_field: str | None) -> None:
        super().__init__(source, id_field)
        self.source: list[Item] = source
        self.total = len(source)

    def __len__(self) -> int:
        return len(self.source)


def read_items(
    sources: list[ItemSource],
    folder: RunFolder,
    id_field: str | None,
    *,
    keep: bool = True,
    redact: Callable[[str], str] | None = None,
    is_resume: bool = False,
) -> Items:
    """Return the items of all sources, in order; stdin is read later, while the items are iterated.

    Raise `BadItems` for what cannot be read as items, for two items with one id, and for an item that `redact` would
    change: it holds a secret, and must not be written to disk.

    Side effects: the sources of files get the absolute path, the format and the hash, where they lack them; with
    `keep`, items of stdin are appended to the run's folder. Items that an earlier launch kept there come first, then
    those of stdin with other ids; in a resume, stdin is not read. `keep=False` is for a dry run.
    """
    rules = _ItemRules(id_field, redact)
    collected = _CollectedItems(rules)
    names = [source.path or "--item" for source in sources]
    streams = [source for source in sources if source.kind == STDIN]
    if len(streams) > 1:
        raise BadItems(STDIN, "given twice: stdin cannot be read a second time")
    for source in sources:
        if source.kind == "file":
            collected.add(*_read_file(source))
        elif source.kind == "inline":
            collected.add("--item", None, enumerate(map(_parse_argument, source.items, itertools.count(1)), start=1))
    if not streams:
        if not collected.items:
            raise BadItems(", ".join(names), EMPTY)
        return SizedItems(collected.items, id_field)
    kept_ids: set[str] = set()
    _check_kept(folder)
    kept_items = _kept_items(folder, rules, kept_ids) if folder.items.exists() else iter(())
    if is_resume:
        return Items(itertools.chain(collected.items, kept_items), id_field, is_whole=_end_mark(folder).exists())
    if keep:
        _prepare_spool(folder)
    new_items = _stdin_items(streams[0], folder if keep else None, rules, kept_ids, may_be_empty=bool(collected.items))
    return Items(itertools.chain(collected.items, kept_items, new_items), id_field)


def changed_files(spec: RunSpec) -> list[str]:
    """Return a sentence for each file of items that has changed since the run was created."""
    changes = []
    for source in spec.items:
        if source.kind != "file" or source.path is None:
            continue
        path = Path(spec.cwd) / source.path
        try:
            if _sha256(path) != source.sha256:
                changes.append(f"{path} has changed since the run was created")
        except FileNotFoundError:
            changes.append(f"{path} does not exist any more")
        except (OSError, ValueError) as error:
            changes.append(f"{path} cannot be read: {_reason(error)}")
    return changes


def token_counter(option: str | None) -> Callable[[Any], int] | None:
    """Return the `tokens_func` for `--tokens`, a number or a field of the item. It raises `ValueError`."""
    if option is None:
        return None
    if is_number(option):
        number = int(option)
        return lambda _: number

    def count_tokens(item: Any) -> int:
        value = field_of(item, option)
        if value is None or not is_number(value):
            problem = "there is no such field" if value is None else f"found {value[:60]!r}"
            raise ValueError(f"expected its number of tokens in the field {option!r} (--tokens): {problem}")
        return int(value)

    return count_tokens


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


class _ItemRules(NamedTuple):
    """The checks that an item of any source has to pass."""

    id_field: str | None
    redact: Callable[[str], str] | None

    def checked_id(self, item: Item) -> str:
        """Return the id of an item. Raise `ValueError` for an item without an id, or with a secret."""
        if self.redact is not None:
            text = json.dumps(item)
            if redact_json(text, self.redact) != text:
                raise ValueError(
                    "expected an item without secrets, and it contains the secret of a credential: items are recorded, "
                    "and a worker gets its credential in any case"
                )
        return _id_of(item, self.id_field)


class _CollectedItems:
    """Items of files and arguments, with the location of each for messages."""

    def __init__(self, rules: _ItemRules) -> None:
        self.items: list[Item] = []
        self._rules = rules
        self._ids: set[str] = set()
        self._numbers = array("q")
        self._sources: list[tuple[int, str, str | None]] = []  # number of items before it, name, format

    def add(self, name: str, format_: str | None, located: Iterable[tuple[int, Item]]) -> None:
        """Add the items of one source. Raise `BadItems` with the location of the first bad one."""
        self._sources.append((len(self.items), name, format_))
        for number, item in located:
            self._numbers.append(number)
            self.items.append(item)
            try:
                item_id = self._rules.checked_id(item)
                if item_id in self._ids:
                    first_location = self._location(self._index_of(item_id))
                    raise ValueError(f"the id {repr(item_id)[:100]} is also that of {first_location}")
            except ValueError as error:
                raise BadItems(self._location(len(self.items) - 1), str(error)) from None
            self._ids.add(item_id)

    def _location(self, index: int) -> str:
        _, name, format_ = next(source for source in reversed(self._sources) if source[0] <= index)
        number = self._numbers[index]
        return f"--item {number}" if name == "--item" else location_of(name, format_, number)

    def _index_of(self, item_id: str) -> int:
        return next(index for index, item in enumerate(self.items) if _id_of(item, self._rules.id_field) == item_id)


# --- files and arguments -------------------------------------------------------------------------------------------


def _read_file(source: ItemSource) -> tuple[str, str, Iterator[tuple[int, Item]]]:
    name = source.path or ""
    path = Path(name)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadItems(name, "expected a file that resume can read again: for a pipe use --items -")
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadItems(name, "expected a file, and there is none") from None
    except (OSError, ValueError) as error:
        raise BadItems(name, f"expected a file that can be read: {_reason(error)}") from None
    source.format = _format(path, source.format)
    source.path = os.path.abspath(name)  # noqa: PTH100 - a link must stay one: it may lead elsewhere next time
    source.sha256 = source.sha256 or hashlib.sha256(content).hexdigest()
    return name, source.format, items_in(name, source.format, [content], source.delimiter)


def _format(path: Path, option: str | None) -> str:
    """Return the format by the extension, else by the option. `.json` is used for JSON lines, too: there the option
    `jsonl` wins."""
    by_extension = BY_EXTENSION.get(path.suffix.lower())
    if by_extension == "json" and option == "jsonl":
        return option
    return by_extension or option or "txt"


def _parse_argument(text: str, number: int) -> Item:
    if not text.lstrip().startswith("{"):
        return text
    try:
        value = parse(text)
    except (ValueError, RecursionError):
        return text
    return as_item(value, f"--item {number}")


# --- stdin --------------------------------------------------------------------------------------------------------


def _prepare_spool(folder: RunFolder) -> None:
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


def _stdin_items(
    source: ItemSource, folder: RunFolder | None, rules: _ItemRules, kept_ids: set[str], *, may_be_empty: bool
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
            write_atomically(_end_mark(folder), _sha256(folder.items).encode())
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
        raise BadItems(STDIN, f"expected items: {_reason(error)}") from None


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
    return Failure(f"the items from stdin cannot be saved for resume: {folder.items}: {_reason(error)}")


def _kept_items(folder: RunFolder, rules: _ItemRules, kept_ids: set[str]) -> Iterator[Item]:
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


def _check_kept(folder: RunFolder) -> None:
    """Raise `BadItems` if the kept items were damaged after stdin was read to its end."""
    try:
        if (mark := _end_mark(folder)).exists() and mark.read_text() not in ("", _sha256(folder.items)):
            raise BadItems(str(folder.items), "damaged: these are not the items of stdin. Start the run anew")
    except (OSError, ValueError) as error:
        raise BadItems(str(folder.items), f"expected the items of stdin: {_reason(error)}") from None


def _end_mark(folder: RunFolder) -> Path:
    """Return the path of the file that exists once stdin was read to its end. It has the digest of the kept items."""
    return folder.items.with_name("items.end")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# --- ids ----------------------------------------------------------------------------------------------------------


def _id_of(item: Item, id_field: str | None) -> str:
    if isinstance(item, str):
        item_id = item
    else:
        name = id_field or "id"
        try:
            value = find(item, name)
        except KeyError:
            problem = f"expected a field {name!r} as its id, and found {listed(item)}"
            raise ValueError(f"{problem}: name one with --id-field") from None
        if value is None or isinstance(value, dict | list):
            raise ValueError(f"expected a string or a number in {name!r} as its id, and found {field_text(value)[:60]}")
        item_id = field_text(value)
    if not item_id:
        raise ValueError("expected an id, and found an empty one")
    return item_id
