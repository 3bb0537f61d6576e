"""Chooses items of a run: `--filter`, `--shuffle`, `--limit`, and the failed items that `retry --only` names.

The choice is made in this order, and `--filter` and `--shuffle` are recorded with the run: every launch sees the same
items in the same order. `--limit` is for one launch; the items after it stay unfinished until a resume.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Iterable, Iterator

import click

from agentos.home.run_folder import RunFolder
from agentos.home.run_status import failure_classes, open_ledger
from agentos.items.fields import field_of
from agentos.ledger.reader import Ledger
from agentos.ledger.recorded import UNFINISHED
from agentos.plurals import plural

from ._item_formats import listed
from .item_input import Item, Items, SizedItems


def filtered(items: Items, conditions: Iterable[str]) -> Items:
    """Return the items whose fields have the values of all conditions, `FIELD=VALUE`. Raise `click.UsageError` for a
    list of items of which none is left."""
    pairs = [condition.partition("=")[::2] for condition in conditions]
    if not pairs:
        return items

    def is_chosen(item: Item) -> bool:
        return all((items.id_of(item) if name == "id" else field_of(item, name)) == value for name, value in pairs)

    selection = filter(is_chosen, items.source)
    if not isinstance(items, SizedItems):
        return items.replaced(selection)
    chosen_items = list(selection)
    if not chosen_items:
        first = items.source[0]
        has = f"its first item has {listed(first)}" if isinstance(first, dict) else "its items are plain texts"
        conditions_text = " and ".join(f"{name}={value}" for name, value in pairs)
        raise click.UsageError(f"no item of the input has {conditions_text}; {has}")
    return items.replaced(chosen_items)


def shuffled(items: Items, seed: int | None) -> Items:
    """Return the items in a random order, which the seed determines. Reads stdin to its end first."""
    if seed is None:
        return items
    order = list(items.source)
    random.Random(seed).shuffle(order)  # noqa: S311 - no secret
    return items.replaced(order)


def limited(items: Items, limit: int | None, folder: RunFolder) -> Items:
    """Return the items that have an outcome on record, and the next `limit` others; `total` stays the number of all
    items."""
    if limit is None:
        return items
    chosen = items.replaced(())
    source = _within_limit(items, limit, folder, chosen)
    if not isinstance(items, SizedItems):
        chosen.source = source
        return chosen
    first = items.replaced(list(source))
    first.total, first.rest_count = chosen.total, chosen.rest_count
    return first


def _within_limit(items: Items, limit: int, folder: RunFolder, chosen: Items) -> Iterator[Item]:
    """Yield the chosen items, and read the others: this keeps those of stdin in the run's folder, for a resume. At the
    end set the numbers of `chosen`."""
    total = started = rest_count = 0
    with contextlib.ExitStack() as resources:
        ledger = resources.enter_context(Ledger.open(folder.ledger)) if folder.ledger.exists() else None
        for item in items.source:
            total += 1
            standing = None if ledger is None else ledger.standing(items.id_of(item))
            if standing is not None and standing[0] != UNFINISHED:
                yield item
            elif started < limit:
                started += 1
                yield item
            else:
                rest_count += 1
    chosen.total, chosen.rest_count = total, rest_count


def only_failed(items: Items, classes: Collection[str], folder: RunFolder) -> Items:
    """Return the items that failed with one of these classes. Raise `click.UsageError` if there is none."""
    if not classes:
        return items
    class_ids = {name.strip().lower().replace("-", "_") for name in classes}
    counts: dict[str, int] = {}
    ids = set()
    with open_ledger(folder) as ledger:
        for item in ledger.items("failed"):
            classes_of_item = failure_classes(item)
            counts[classes_of_item[0]] = counts.get(classes_of_item[0], 0) + 1
            if class_ids & {name.lower() for name in classes_of_item}:
                ids.add(item.id)
    if not ids:
        has = ", ".join(f"{name} ({count})" for name, count in counts.items()) or "no failure at all"
        raise click.UsageError(
            f"no item of run {folder.run_id} failed with {' or '.join(sorted(class_ids))}; it has {has}"
        )
    return items.replaced([item for item in items.source if items.id_of(item) in ids])


def class_names(option: str | None) -> list[str]:
    """Return the classes of `--only timeout,overloaded`. Raise `click.UsageError` if the option names none: without the
    option all failed items are retried."""
    names = [] if option is None else [name for name in option.split(",") if name.strip()]
    if option is not None and not names:
        raise click.UsageError("--only names no class of failures, such as timeout: agentos show lists them")
    return names


def pilot_text(items: Items, run_id: str, *, is_stopped: bool = False) -> str | None:
    """Return how to continue after `--limit`; None if no item is left. `is_stopped`: the summary names the command that
    continues the run."""
    if not items.rest_count:
        return None
    verb, them = ("is", "it") if items.rest_count == 1 else ("are", "them")
    rest = f"{plural(items.rest_count, 'item')} of {items.total} {verb} left after --limit"
    if is_stopped:
        return f"{rest}. The resume runs these, too; with --limit N only N items"
    return f"{rest}. To run {them}: agentos resume {run_id}"
