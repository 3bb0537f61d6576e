"""Items for the command line: from files, from arguments, from stdin.

Files are read whole before anything starts, so that their number is known and every mistake in them is told at once.
Stdin may never end: its items are handed out as they come, and each is kept in the run's folder before that, so that a
resume finds all that was ever started. It is read through its descriptor and not through `sys.stdin`, whose lock would
be held by a reader that was left behind, and would keep the program from ending.
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

from agentos.home.run_folder import ItemSource, RunFolder, RunSpec
from agentos.items.fields import field_of, field_text, find
from agentos.redaction.json_text import redact_json

from ..console import Failure
from ._item_formats import BY_EXTENSION, STDIN, BadItems, Item, as_item, items_in, listed, parse, place_of

__all__ = ["BadItems", "Item", "Items", "SizedItems", "changed_files", "is_number", "read_items", "token_counter"]

CHUNK_BYTES = 65536
# Only their owner may read what came by stdin.
PRIVATE_FILE = 0o600


class Items:
    """What was given, to be read once. A coordinator gets `source`, and `id_of` as its `item_id_func`."""

    def __init__(self, source: Iterable[Item], id_field: str | None, *, is_whole: bool = True) -> None:
        self.source = source
        self.total: int | None = None
        # False: a resume has all that was read from stdin before, but that was not all there was.
        self.is_whole = is_whole
        self._id_field = id_field

    def __iter__(self) -> Iterator[Item]:
        return iter(self.source)

    def id_of(self, item: Item) -> str:
        """Raises `ValueError` for what is none of these items."""
        return _id_of(item, self._id_field)


class SizedItems(Items):
    """Of a known number; `source` is a list."""

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
    """Reads all but stdin; raises `BadItems` if something is wrong with it, or two items have one id. An item that
    `redact` would change holds a secret, and is refused before it is written down anywhere.

    Of a file, `sources` is told the whole path, the format and the hash, as far as they are not there. If the folder
    has items that came by stdin, those come first; then what comes now and was not among them, unless `is_resume`.
    `keep=False` is for a dry run.
    """
    rules = _Rules(id_field, redact)
    read = _Read(rules)
    streams = [source for source in sources if source.kind == STDIN]
    if len(streams) > 1:
        raise BadItems(STDIN, "expected once: it cannot be read a second time")
    for source in sources:
        if source.kind == "file":
            read.add(*_of_file(source))
        elif source.kind == "inline":
            read.add("--item", None, enumerate(map(_of_argument, source.items, itertools.count(1)), start=1))
    if not streams:
        return SizedItems(read.items, id_field)
    known: set[str] = set()
    kept = _kept(folder, rules, known) if folder.items.exists() else iter(())
    if is_resume:
        return Items(itertools.chain(read.items, kept), id_field, is_whole=_end_mark(folder).exists())
    if keep:
        _begin(folder)
    come = _from_stdin(streams[0].format, folder if keep else None, rules, known)
    return Items(itertools.chain(read.items, kept, come), id_field)


def changed_files(spec: RunSpec) -> list[str]:
    """What became of the files that the items came from, a sentence for each that is not as it was."""
    told = []
    for source in spec.items:
        if source.kind != "file" or source.path is None:
            continue
        path = Path(spec.cwd) / source.path
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
                told.append(f"{path} has changed since the run was created")
        except FileNotFoundError:
            told.append(f"{path} is gone")
        except (OSError, ValueError) as error:
            told.append(f"{path} cannot be read: {_reason(error)}")
    return told


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
            found = "there is no such field" if value is None else f"found {value[:60]!r}"
            raise ValueError(f"expected its number of tokens in the field {option!r} (--tokens): {found}")
        return int(value)

    return count_tokens


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


class _Rules(NamedTuple):
    """What every item has to keep, wherever it comes from."""

    id_field: str | None
    redact: Callable[[str], str] | None

    def checked_id(self, item: Item) -> str:
        """Raises `ValueError`."""
        if self.redact is not None:
            text = json.dumps(item)
            if redact_json(text, self.redact) != text:
                raise ValueError(
                    "expected an item without secrets, and it holds that of a credential: items are written down, and "
                    "a worker is given its credential in any case"
                )
        return _id_of(item, self.id_field)


class _Read:
    """Items that were read, and where each stands."""

    def __init__(self, rules: _Rules) -> None:
        self.items: list[Item] = []
        self._rules = rules
        self._ids: set[str] = set()
        self._numbers = array("q")
        self._sources: list[tuple[int, str, str | None]] = []  # the number of items before each, its name and format

    def add(self, name: str, told: str | None, located: Iterable[tuple[int, Item]]) -> None:
        self._sources.append((len(self.items), name, told))
        for number, item in located:
            self._numbers.append(number)
            self.items.append(item)
            try:
                item_id = self._rules.checked_id(item)
                if item_id in self._ids:
                    other = self._place(self._first(item_id))
                    raise ValueError(f"the id {repr(item_id)[:100]} is that of {other}, too")
            except ValueError as error:
                raise BadItems(self._place(len(self.items) - 1), str(error)) from None
            self._ids.add(item_id)

    def _place(self, index: int) -> str:
        _, name, told = next(source for source in reversed(self._sources) if source[0] <= index)
        number = self._numbers[index]
        return f"--item {number}" if name == "--item" else place_of(name, told, number)

    def _first(self, item_id: str) -> int:
        return next(index for index, item in enumerate(self.items) if _id_of(item, self._rules.id_field) == item_id)


# --- where they come from -----------------------------------------------------------------------------------------


def _of_file(source: ItemSource) -> tuple[str, str, Iterator[tuple[int, Item]]]:
    name = source.path or ""
    path = Path(name)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadItems(name, "expected a file, which a resume can read again: for a pipe say --items -")
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadItems(name, "expected a file, and there is none") from None
    except (OSError, ValueError) as error:
        raise BadItems(name, f"expected a file that can be read: {_reason(error)}") from None
    source.format = _format(path, source.format)
    source.path = os.path.abspath(name)  # noqa: PTH100 - a link must stay one: it may lead elsewhere next time
    source.sha256 = source.sha256 or hashlib.sha256(content).hexdigest()
    return name, source.format, items_in(name, source.format, [content])


def _format(path: Path, told: str | None) -> str:
    """By the extension, else as told. That of JSON says nothing about lines, so what is told is believed there."""
    by_extension = BY_EXTENSION.get(path.suffix.lower())
    if by_extension == "json" and told == "jsonl":
        return told
    return by_extension or told or "txt"


def _of_argument(text: str, number: int) -> Item:
    if not text.lstrip().startswith("{"):
        return text
    try:
        value = parse(text)
    except (ValueError, RecursionError):
        return text
    return as_item(value, f"--item {number}")


def _begin(folder: RunFolder) -> None:
    """The file of what comes by stdin. A last line without an end goes: it was never handed out."""
    try:
        folder.make()
        folder.items.touch(PRIVATE_FILE)
        _end_mark(folder).unlink(missing_ok=True)
        with folder.items.open("rb+") as file:
            file.truncate(_whole_size(file))
    except OSError as error:
        raise _unkept(folder, error) from None


def _whole_size(file: BinaryIO) -> int:
    """Up to the end of the last whole line."""
    size = file.seek(0, os.SEEK_END)
    while size:
        start = max(0, size - CHUNK_BYTES)
        file.seek(start)
        end = file.read(size - start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        size = start
    return 0


def _from_stdin(told: str | None, folder: RunFolder | None, rules: _Rules, known: set[str]) -> Iterator[Item]:
    """Each is written down, if there is a folder, before it is handed out: it survives the end of this program. Those
    that are `known` came before."""
    # A descriptor and no file object: who is left in the middle must not be told of by a warning at the end.
    spool = None if folder is None else os.open(folder.items, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        for number, item in items_in(STDIN, told, _chunks()):
            try:
                item_id = rules.checked_id(item)
            except ValueError as error:
                raise BadItems(place_of(STDIN, told, number), str(error)) from None
            if item_id in known:
                continue
            if spool is not None and folder is not None:
                _keep(spool, item, folder)
            yield item
        if folder is not None:
            _end_mark(folder).touch(PRIVATE_FILE)
    finally:
        if spool is not None:
            os.close(spool)


def _chunks() -> Iterator[bytes]:
    if sys.stdin is None:
        raise BadItems(STDIN, "expected items, and it is closed")
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # something in memory takes its place
        yield sys.stdin.buffer.read()
        return
    try:
        while chunk := os.read(descriptor, CHUNK_BYTES):
            yield chunk
    except OSError as error:
        raise BadItems(STDIN, f"expected items: {_reason(error)}") from None


def _keep(spool: int, item: Item, folder: RunFolder) -> None:
    line = memoryview(json.dumps(item, separators=(",", ":")).encode() + b"\n")
    try:
        while line:
            line = line[os.write(spool, line) :]
    except OSError as error:
        raise _unkept(folder, error) from None


def _unkept(folder: RunFolder, error: OSError) -> Failure:
    return Failure(f"what comes by stdin cannot be kept for a resume: {folder.items}: {_reason(error)}")


def _kept(folder: RunFolder, rules: _Rules, known: set[str]) -> Iterator[Item]:
    """A last line without an end was never handed out: the launch was killed while it wrote it."""
    with folder.items.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            place = f"{folder.items}, line {number}"
            try:
                value = parse(line.decode())
            except (ValueError, RecursionError) as error:
                raise BadItems(place, f"expected an item that was kept: {error}") from None
            item = as_item(value, place)
            try:
                known.add(rules.checked_id(item))
            except ValueError as error:
                raise BadItems(place, str(error)) from None
            yield item


def _end_mark(folder: RunFolder) -> Path:
    """There when stdin was read to its end."""
    return folder.items.with_name("items.end")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# --- what is in them ----------------------------------------------------------------------------------------------


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
            raise ValueError(f"expected a text or a number in {name!r} as its id, and found {field_text(value)[:60]}")
        item_id = field_text(value)
    if not item_id:
        raise ValueError("expected an id, and found an empty one")
    return item_id
