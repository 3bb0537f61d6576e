"""The mask that replaces a secret, and the refusal to copy an object that holds one."""

from __future__ import annotations

from typing import NoReturn

MASK = "****"


def refuse_to_copy(thing: object) -> NoReturn:
    raise TypeError(f"a {type(thing).__name__} holds a secret and is not copied, pickled or sent: pass its id instead")


# A shorter secret cannot be told from what happens to look like it.
LEAST_REDACTED = 8
