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

import agentos
from agentos.limits.reset_times import DayEnds, day_ends

from . import shared_pool as shared

_PURE = Path(agentos.__file__).parent
# The modules whose classes a snapshot may name.
_MODULES = [
    *(f"agentos.limits.{path.stem}" for path in (_PURE / "limits").glob("*.py")),
    *(f"agentos.pool._rules.{path.stem}" for path in (_PURE / "pool/_rules").glob("*.py")),
    "agentos.pool._replicas.shared_pool",
]
_KNOWN: dict[tuple[str, str], Any] = {
    (module.__name__, name): thing
    for module in (import_module(name) for name in _MODULES if "__init__" not in name)
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
    for pattern in ("limits/*.py", "pool/_rules/*.py", "pool/_replicas/shared_pool.py"):
        for path in sorted(_PURE.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
