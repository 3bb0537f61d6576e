"""`--tokens`: how many an item needs, as a number or in a field of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentos.items.fields import field_of


def tokens_func(told: str | None) -> Callable[[Any], int] | None:
    if told is None:
        return None
    if is_number(told):
        number = int(told)
        return lambda _: number

    def tokens(item: Any) -> int:
        value = field_of(item, told)
        if value is None or not is_number(value):
            found = "there is no such field" if value is None else f"found {value[:60]!r}"
            raise ValueError(f"expected its number of tokens in the field {told!r} (--tokens): {found}")
        return int(value)

    return tokens


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
