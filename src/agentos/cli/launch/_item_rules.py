"""Checks that an item of any source has to pass: it has an id, and no secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from agentos.items.fields import field_text, find
from agentos.redaction.json_text import redact_json

from ._item_formats import Item, listed


class ItemRules(NamedTuple):
    """How a run checks each of its items."""

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
        return id_of(item, self.id_field)


def id_of(item: Item, id_field: str | None) -> str:
    """Return the id of an item: a line itself, or a field of an object. Raise `ValueError` if it has none."""
    if isinstance(item, str):
        item_id = item
    else:
        name = id_field or "id"
        try:
            value = find(item, name)
        except KeyError:
            problem = f"expected a field {name!r} as its id, and found {listed(item)}"
            names = list(item)
            delimiter = next((char for char in ";\t|" if len(names) == 1 and char in names[0]), None)
            if delimiter is not None:
                raise ValueError(f"{problem}: perhaps its fields are separated: --delimiter {delimiter!r}") from None
            raise ValueError(f"{problem}: name one with --id-field") from None
        if value is None or isinstance(value, dict | list):
            raise ValueError(f"expected a string or a number in {name!r} as its id, and found {field_text(value)[:60]}")
        item_id = field_text(value)
    if not item_id:
        raise ValueError("expected an id, and found an empty one")
    return item_id
