"""A pool's whole state as one number, the same for every copy that stands at the same place of the log.

A pickle would not do: it tells equal strings from identical ones, and sets have an order that is each process's own.
Nor do limits look the same after somebody has asked for them: what is past is thrown away when it is met.
"""

from __future__ import annotations

import hashlib
from typing import Any

from agentos.limits._windows import Day, Window
from agentos.limits.declaration import WINDOW_SECONDS

_PLAIN = (int, float, str, bytes, bool, type(None))
# What belongs to one owner of a copy and not to the copy.
_PRIVATE = frozenset({"deliver", "watch", "in_answers", "full_until", "request_classes"})


def digest(thing: Any) -> str:
    parts: list[str] = []
    _describe(thing, {}, parts, getattr(thing, "at", 0.0))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


def _describe(thing: Any, seen: dict[int, int], parts: list[str], now: float) -> None:
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
        elif id(thing) in seen:
            parts.append(f"again {seen[id(thing)]}")
        else:
            seen[id(thing)] = len(seen)
            inside = _inside(thing, now)
            parts.append(f"{_name(type(thing))} {len(inside)}")
            stack.extend(reversed(inside))


def _inside(thing: Any, now: float) -> list[Any]:
    if isinstance(thing, Day):
        return [thing.limit, thing.total if thing.ends_at > now else 0.0]
    if isinstance(thing, Window):
        past = [entry for entry in thing._entries if entry.at + WINDOW_SECONDS <= now]
        left = [entry for entry in thing._entries if entry.at + WINDOW_SECONDS > now]
        return [thing.limit, round(thing.total - sum(e.amount for e in past), 3) if left else 0.0, *left]
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
    """Those who watch a pool have classes of their own for it."""
    return kind.__name__.removeprefix("Watched")
