"""Digest of a pool's whole state: equal before and after a call that must change nothing.

A pickle would differ between equal states: it distinguishes equal strings from identical ones, and the order of sets
depends on the process. Limits are compared without expired entries, because reading a limit drops them.
"""

from __future__ import annotations

import hashlib
from typing import Any

from agentos.limits._periods import Period
from agentos.limits._windows import Rolling

_PLAIN = (int, float, str, bytes, bool, type(None))
# Attributes that are no state.
_PRIVATE = frozenset(
    {"deliver", "oracle", "in_answers", "request_classes", "version", "_version", "plain_until", "_sets"}
)


def digest(thing: Any) -> str:
    """Return a hash over all objects reachable from `thing`."""
    parts: list[str] = []
    _describe(thing, {}, parts, getattr(thing, "at", 0.0))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


def _describe(thing: Any, numbers: dict[int, int], parts: list[str], now: float) -> None:
    stack = [thing]
    while stack:
        thing = stack.pop()
        if isinstance(thing, _PLAIN):
            parts.append(repr(thing))
        elif isinstance(thing, frozenset | set):
            parts.append("set " + " ".join(sorted(map(repr, thing))))
        elif isinstance(thing, type) or callable(thing):
            parts.append(_name(thing) if isinstance(thing, type) else f"call {getattr(thing, 'day_resets', '')}")
        elif isinstance(thing, tuple):
            parts.append(f"tuple {len(thing)}")
            stack.extend(reversed(thing))
        elif id(thing) in numbers:
            parts.append(f"again {numbers[id(thing)]}")
        else:
            numbers[id(thing)] = len(numbers)
            inside = _inside(thing, now)
            parts.append(f"{_name(type(thing))} {len(inside)}")
            stack.extend(reversed(inside))


def _inside(thing: Any, now: float) -> list[Any]:
    if isinstance(thing, Period):
        return [thing.limit, thing.total if thing.ends_at > now else 0.0]
    if isinstance(thing, Rolling):
        past = [entry for entry in thing._entries if entry.at + thing.seconds <= now]
        current = [entry for entry in thing._entries if entry.at + thing.seconds > now]
        total = round(thing.total - sum(e.amount for e in past), 3) if current else 0.0
        return [thing.limit, total, getattr(thing, "bucket", None), *current]
    if isinstance(thing, dict):
        return [part for pair in thing.items() for part in pair]
    if hasattr(type(thing), "__iter__"):
        return list(thing)
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names += list(getattr(thing, "__dict__", ()))
    return [
        part for name in sorted(names) if name not in _PRIVATE and hasattr(thing, name)
        for part in (name, getattr(thing, name))
    ]  # fmt: skip


def _name(kind: type) -> str:
    """Return the name of a class; a checked subclass counts as its base."""
    return kind.__name__.removeprefix("Checked")
