"""Values as they are recorded: JSON, by msgspec, which knows dataclasses, structs, attrs, datetimes, enums, UUIDs and
decimals by itself; pydantic models and paths are converted here."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from agentos.errors import UnrecordableValue
from agentos.redaction.json_text import redact_json

# Characters. To compare so much costs less than a digest.
SHORT_INPUT = 500
ADVICE = "use plain data: None, bool, int, float, str, list, dict, a dataclass, a msgspec struct, a pydantic model"


def _converted(value: Any) -> Any:
    """Of what msgspec does not know."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for plain in (str, int, float):
        if isinstance(value, plain):  # of a class of its own, such as a leased key
            return plain(value)
    if hasattr(value, "tolist"):  # an array, or a number out of one
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Collection):
        return list(value)
    raise TypeError(f"{type(value).__qualname__} has no form in JSON")


# Deterministic: the same value gives the same text in every process, also a set or a dict in another order.
_encoder = msgspec.json.Encoder(enc_hook=_converted, order="deterministic")
_decoder = msgspec.json.Decoder()


def encode(value: Any, what: str) -> str:
    """As JSON. `what` (a result, an input, a checkpoint) is named in the error if it cannot be."""
    try:
        return _encoder.encode(value).decode()
    except Exception:  # a value may define how it is converted, and that may raise anything
        encoded, problem = _encode_slowly(value)
    if encoded is None:
        kind = type(value).__qualname__
        raise UnrecordableValue(f"the {what}, of type {kind}, cannot be recorded as JSON ({problem}): {ADVICE}")
    return encoded


def _encode_slowly(value: Any) -> tuple[str | None, str]:
    """Keys that are no strings become strings. File names that are no valid text hold lone surrogates, which cannot be
    UTF-8 but can be escaped."""
    try:
        if _has_twin_keys(msgspec.to_builtins(value, enc_hook=_converted)):
            return None, "two keys of a dict are the same text"
        plain = msgspec.to_builtins(value, enc_hook=_converted, str_keys=True, order="deterministic")
        try:
            return _encoder.encode(plain).decode(), ""
        except UnicodeEncodeError:
            return json.dumps(plain, separators=(",", ":")), ""
    except Exception as error:
        return None, str(error) or type(error).__name__


def _has_twin_keys(plain: Any) -> bool:
    if isinstance(plain, dict):
        return len({str(key) for key in plain}) < len(plain) or any(map(_has_twin_keys, plain.values()))
    return isinstance(plain, list | tuple) and any(map(_has_twin_keys, plain))


def encode_input(value: Any, redact: Callable[[str], str]) -> tuple[str, bytes | None]:
    """And a digest of what will be on record, if that is long: short inputs are compared as they are."""
    try:
        encoded = _encoder.encode(value).decode()
    except Exception:  # as in `encode`; a call less, for every single item
        encoded = encode(value, "input")
    if len(encoded) <= SHORT_INPUT:
        return encoded, None
    recorded = redact_json(encoded, redact)
    if len(recorded) <= SHORT_INPUT:
        return encoded, None
    return encoded, hashlib.blake2b(recorded.encode(), digest_size=16).digest()


def encode_result(value: Any) -> str:
    return encode(value, "result")


def decode(text: str | bytes) -> Any:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # lone surrogates
