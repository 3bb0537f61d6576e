"""Instructions to a simulated provider in another process: `POST /_control` with an object, or a list of them.

    {"do": "kill", "key": 2}                      also revive, refill
    {"do": "exhaust", "key": 2, "status": 402}    without a status 429
    {"do": "overload", "seconds": 5, "key": 2}    without a key: all keys
    {"do": "script", "answers": [429, "overloaded", {"breaks_with": "limit", "breaks_after": 0}], "key": 2}
    {"do": "reset"}

A key is its number, from 1, or the key itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .scripts import Scripted

if TYPE_CHECKING:
    from .provider import SimulatedProvider


def apply(provider: SimulatedProvider, body: bytes) -> None:
    """Carry out the instructions of a request. Raise `ValueError` for one that is not understood."""
    decoded = json.loads(body)
    for instruction in decoded if isinstance(decoded, list) else [decoded]:
        if not isinstance(instruction, dict):
            raise ValueError("an instruction is an object with a field `do`")  # noqa: TRY004
        try:
            _apply(provider, **instruction)
        except TypeError as error:
            raise ValueError(str(error)) from error


def find_key(keys: Sequence[str], key: int | str) -> str:
    """Return a key by its number, from 1, or by itself. Raise `ValueError`."""
    text = str(key)
    if text in keys:
        return text
    if text.isdecimal() and 1 <= int(text) <= len(keys):
        return keys[int(text) - 1]
    raise ValueError(f"there is no key {text!r}: give its number, from 1 to {len(keys)}, or the key itself")


def scripted(answer: Any) -> int | str | Scripted:
    """Return an answer of a script from JSON: a status, a kind, or the fields of a `Scripted`."""
    return Scripted(**answer) if isinstance(answer, dict) else answer


def _apply(
    provider: SimulatedProvider,
    do: str,
    key: int | str | None = None,
    answers: Any = (),
    seconds: float = 0.0,
    status: int = 429,
    retry_after: float | None = None,
) -> None:
    key_name = None if key is None else find_key(provider.keys, key)
    if do == "script":
        provider.script(map(scripted, answers), key=key_name, retry_after=retry_after)
    elif do == "overload":
        provider.overload_for(seconds, key=key_name)
    elif do == "reset":
        provider.reset()
    elif key_name is None:
        raise ValueError(f"{do} needs a key")
    elif do == "exhaust":
        provider.exhaust(key_name, status=status)
    elif do in ("kill", "revive", "refill"):
        getattr(provider, do)(key_name)
    else:
        raise ValueError(f"there is no instruction {do!r}")
