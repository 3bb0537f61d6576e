"""Reads fields of an item as text: the values of `{name}` in a command, and the id of an item."""

from __future__ import annotations

import json
from typing import Any

WHOLE = ""  # name of the whole item


def find(item: Any, name: str) -> Any:
    """Return the field of that name; dots in the name lead to nested fields. Raise `KeyError` if there is none."""
    if name == WHOLE:
        return item
    if not isinstance(item, dict):
        raise KeyError(name)
    if name in item:
        return item[name]
    outer, dot, inner = name.partition(".")
    if not dot:
        raise KeyError(name)
    return find(item[outer], inner)


def field_of(item: Any, name: str) -> str | None:
    """Return the field as text; None if there is none."""
    try:
        return field_text(find(item, name))
    except KeyError:
        return None


def field_text(value: Any) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def default_id(item: Any) -> str:
    """Return the id of an item that was given none: the field `id` of a dict, if it is a text or a number, else the
    item as text."""
    if isinstance(item, dict):
        value = item.get("id")
        if isinstance(value, str | int | float) and value != "" and not isinstance(value, bool):
            return field_text(value)
    return str(item)
