"""Encodes inputs, results and checkpoints as JSON for the ledger, and decodes them.

msgspec encodes dataclasses, structs, attrs, datetimes, enums, UUIDs and decimals; this module converts pydantic models,
paths, arrays and other collections to plain data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from agentos import foreign_exceptions
from agentos.errors import UnrecordableValue
from agentos.redaction.json_text import redact_json

# Characters of JSON. Comparing inputs up to this length costs less than comparing digests.
SHORT_INPUT = 500
ADVICE = "use plain data: None, bool, int, float, str, list, dict, a dataclass, a msgspec struct, a pydantic model"


def _to_plain(value: Any) -> Any:
    """Return plain data for a type that msgspec does not support; raise `TypeError` if there is none."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for base in (str, int, float):
        if isinstance(value, base):  # an object of a subclass, such as a leased key
            return base(value)
    if hasattr(value, "tolist"):  # an array of numpy, or one of its numbers
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Collection):
        return list(value)
    raise TypeError(f"{type(value).__qualname__} cannot be encoded as JSON")


# Deterministic: equal values give equal texts in every process, also sets and dicts of another order.
_encoder = msgspec.json.Encoder(enc_hook=_to_plain, order="deterministic")
_decoder = msgspec.json.Decoder()


def encode(value: Any, purpose: str) -> str:
    """Return the value as JSON. Raise `UnrecordableValue` that names its purpose (a result, an input, a checkpoint)."""
    try:
        return _encoder.encode(value).decode()
    except Exception:  # a value may define its own conversion, which may raise any exception
        encoded, problem = _encode_slowly(value)
    if encoded is None:
        kind = type(value).__qualname__
        raise UnrecordableValue(f"the {purpose}, of type {kind}, cannot be recorded as JSON ({problem}): {ADVICE}")
    return encoded


def _encode_slowly(value: Any) -> tuple[str | None, str]:
    """Return the JSON, with keys converted to strings and lone surrogates (of file names that are not valid UTF-8)
    escaped; or None and the problem."""
    try:
        if _has_colliding_keys(msgspec.to_builtins(value, enc_hook=_to_plain)):
            return None, "two keys of a dict have the same text"
        plain = msgspec.to_builtins(value, enc_hook=_to_plain, str_keys=True, order="deterministic")
        try:
            return _encoder.encode(plain).decode(), ""
        except UnicodeEncodeError:
            return json.dumps(plain, separators=(",", ":")), ""
    except Exception as error:
        return None, foreign_exceptions.text(error) or foreign_exceptions.type_name(error)


def _has_colliding_keys(plain: Any) -> bool:
    if isinstance(plain, dict):
        return len({str(key) for key in plain}) < len(plain) or any(map(_has_colliding_keys, plain.values()))
    return isinstance(plain, list | tuple) and any(map(_has_colliding_keys, plain))


def encode_input(value: Any, redact: Callable[[str], str]) -> tuple[str, bytes | None]:
    """Return the input as JSON, and a digest of its redacted form if that is longer than SHORT_INPUT."""
    try:
        encoded = _encoder.encode(value).decode()
    except Exception:  # as in `encode`, whose call per item is saved
        encoded = encode(value, "input")
    if len(encoded) <= SHORT_INPUT:
        return encoded, None
    recorded = redact_json(encoded, redact)
    if len(recorded) <= SHORT_INPUT:
        return encoded, None
    return encoded, hashlib.blake2b(recorded.encode(), digest_size=16).digest()


def encode_result(value: Any) -> str:
    """Return the result of a worker as JSON; raise `UnrecordableValue` if that is not possible."""
    return encode(value, "result")


def decode(text: str | bytes) -> Any:
    """Return the value of a recorded JSON text."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # msgspec refuses lone surrogates
