"""The fields of an item, as texts: what stands for `{name}` in a command."""

from __future__ import annotations

import json
from typing import Any

WHOLE = ""  # the name of the item itself


def find(item: Any, name: str) -> Any:
    """A field by its name, or by several with dots between them for one inside another. Raises `KeyError`."""
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
    """As a text; None if there is none."""
    try:
        return text_of(find(item, name))
    except KeyError:
        return None


def text_of(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
