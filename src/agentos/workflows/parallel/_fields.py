"""The fields of an item, as texts: what stands for `{name}` in a command."""

from __future__ import annotations

import json
from typing import Any

WHOLE = ""  # the name of the item itself


def field_of(item: Any, name: str) -> str | None:
    """A field by its name, or by several with dots between them for one inside another; None if there is none. Texts
    are taken as they are, anything else as JSON."""
    if name == WHOLE:
        return text_of(item)
    if isinstance(item, dict):
        if name in item:
            return text_of(item[name])
        outer, dot, inner = name.partition(".")
        if dot and isinstance(item.get(outer), dict):
            return field_of(item[outer], inner)
    return None


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
