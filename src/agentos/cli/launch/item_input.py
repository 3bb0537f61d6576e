"""Reads the items of a run from files, arguments and stdin, and the number of tokens that each needs.

Files are read completely before the run starts: their number of items is known, and mistakes in them are reported at
once. The items of stdin are read while the run goes on (`_stdin_items`).
"""

from __future__ import annotations

import itertools
import os
import shlex
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from agentos.home.run_folder import ItemSource, RunFolder, RunSpec
from agentos.items.fields import field_of

from ._item_files import digest_of, digest_of_file, reason_of
from ._item_formats import BY_EXTENSION, EMPTY, STDIN, BadItems, Item, as_item, items_in, location_of, parse
from ._item_rules import ItemRules, id_of
from ._stdin_items import check_kept, has_ended, kept_items, prepare_spool, stdin_items

__all__ = ["BadItems", "Item", "Items", "SizedItems", "changed_files", "is_number", "read_items", "token_counter"]


class Items:
    """Items that can be iterated once. A coordinator gets `source`, and `id_of` as its `item_id_func`."""

    def __init__(self, source: Iterable[Item], id_field: str | None, *, is_whole: bool = True) -> None:
        self.source = source
        self.total: int | None = None
        self.rest_count = 0  # items after `--limit`; of stdin, known when it was read to its end
        # False in a resume if stdin was not read to its end: items that were never read are missing.
        self.is_whole = is_whole
        self._id_field = id_field

    def __iter__(self) -> Iterator[Item]:
        return iter(self.source)

    def id_of(self, item: Item) -> str:
        """Return the id of an item. Raise `ValueError` if it has none."""
        return id_of(item, self._id_field)

    def read_first(self) -> list[Item]:
        """Return the items that are known before the run starts: the first one, for which this waits, or none at the
        end of the input. Raise `BadItems`."""
        source = iter(self.source)
        first = list(itertools.islice(source, 1))
        self.source = itertools.chain(first, source)
        return first

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

    def read_first(self) -> list[Item]:
        """Return all items."""
        return self.source


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
    rules = ItemRules(id_field, redact)
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
    check_kept(folder)
    saved_items = kept_items(folder, rules, kept_ids) if folder.items.exists() else iter(())
    if is_resume:
        return Items(itertools.chain(collected.items, saved_items), id_field, is_whole=has_ended(folder))
    if keep:
        prepare_spool(folder)
    new_items = stdin_items(streams[0], folder if keep else None, rules, kept_ids, may_be_empty=bool(collected.items))
    return Items(itertools.chain(collected.items, saved_items, new_items), id_field)


def changed_files(spec: RunSpec) -> list[str]:
    """Return a sentence for each file of items that has changed since the run was created."""
    changes = []
    for source in spec.items:
        if source.kind != "file" or source.path is None:
            continue
        path = Path(spec.cwd) / source.path
        try:
            if digest_of_file(path) != source.sha256:
                changes.append(f"{path} has changed since the run was created")
        except FileNotFoundError:
            changes.append(f"{path} does not exist any more")
        except (OSError, ValueError) as error:
            changes.append(f"{path} cannot be read: {reason_of(error)}")
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


class _CollectedItems:
    """Items of files and arguments, with the location of each for messages."""

    def __init__(self, rules: ItemRules) -> None:
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
                    raise ValueError(f"the id {repr(item_id)[:100]} is also that of {first_location}{_advice(item)}")
            except ValueError as error:
                raise BadItems(self._location(len(self.items) - 1), str(error)) from None
            self._ids.add(item_id)

    def _location(self, index: int) -> str:
        _, name, format_ = next(source for source in reversed(self._sources) if source[0] <= index)
        number = self._numbers[index]
        return f"--item {number}" if name == "--item" else location_of(name, format_, number)

    def _index_of(self, item_id: str) -> int:
        return next(index for index, item in enumerate(self.items) if id_of(item, self._rules.id_field) == item_id)


def _advice(item: Item) -> str:
    """Return what to do about an id that two items have."""
    return ": ids must be unique; " + (
        "remove one of them" if isinstance(item, str) else "name another field with --id-field, or remove one of them"
    )


# --- files and arguments -------------------------------------------------------------------------------------------


def _read_file(source: ItemSource) -> tuple[str, str, Iterator[tuple[int, Item]]]:
    name = source.path or ""
    path = Path(name)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadItems(name, "expected a file that resume can read again: for a pipe use --items -")
        if path.is_dir():
            files = f"{shlex.quote(name.rstrip('/') or '/')}/*"
            raise BadItems(
                name, f"expected a file, and found a folder; for its files: ls {files} | agentos run --items -"
            )
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadItems(name, "expected a file, and there is none") from None
    except (OSError, ValueError) as error:
        raise BadItems(name, f"expected a file that can be read: {reason_of(error)}") from None
    source.format = _format(path, source.format)
    source.path = os.path.abspath(name)  # noqa: PTH100 - a link must stay one: it may lead elsewhere next time
    source.sha256 = source.sha256 or digest_of(content)
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
