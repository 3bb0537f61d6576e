"""The state of a shared pool as bytes, so that whoever joins need not read the log from its beginning.

It is a pickle that may name nothing but the pool's own classes: who can write to the store can falsify the pool, but
cannot make us run anything.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import OrderedDict, deque
from importlib import import_module
from pathlib import Path
from typing import Any

from .. import _core
from .._core import shared
from .._days import DayEnds, day_ends

_MODULES = [
    "allowance",
    "answers",
    "backoff",
    "cooling",
    "declined",
    "learning",
    "limiters",
    "limits",
    "pacing",
    "pool",
    "records",
    "shared",
    "sharing",
]
_KNOWN: dict[tuple[str, str], Any] = {
    (module.__name__, name): thing
    for module in (import_module(f"{_core.__name__}.{name}") for name in _MODULES)
    for name, thing in vars(module).items()
    if isinstance(thing, type) and thing.__module__ == module.__name__
}
for _known in (OrderedDict, deque, frozenset, set, DayEnds, day_ends):
    _KNOWN[_known.__module__, _known.__qualname__] = _known


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return _KNOWN[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in a pool") from None


def freeze(state: shared.SharedPool) -> bytes:
    return pickle.dumps(state, protocol=4)


def thaw(data: bytes) -> shared.SharedPool:
    """Raises whatever a damaged pickle does."""
    state = _Reader(io.BytesIO(data)).load()
    if not isinstance(state, shared.SharedPool):
        raise pickle.UnpicklingError("it is not a pool")
    return state


def rules_version() -> str:
    """Tells our rules from others: processes that share a pool must come to the same conclusions."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(_core.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
