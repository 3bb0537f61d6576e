"""The mask that replaces a secret, and the refusal to copy an object that holds one."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

MASK = "****"
# Characters. A shorter secret cannot be distinguished from text that equals it by chance: it stays in outputs.
MIN_REDACTED = 8


def refuse_to_copy(thing: object) -> NoReturn:
    """Raise `TypeError`. Called by the copy and pickle hooks of objects that hold a secret."""
    raise TypeError(f"a {type(thing).__name__} holds a secret and cannot be copied, pickled or sent: pass its id")


class HoldsSecrets:
    """Base of classes whose objects can be neither copied nor pickled."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)
