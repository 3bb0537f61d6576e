"""Redacts JSON string by string, so that a number that equals a secret stays a number."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_ESCAPED_ESC = "\\u001b"


def redact_json(text: str, redact: Callable[[str], str]) -> str:
    """Return the JSON text with `redact` applied to each string and key; the same object if nothing changes."""
    if not _may_hold_secrets(text, redact):
        return text
    value = json.loads(text)
    clean = _redact_value(value, redact)
    return text if clean == value else json.dumps(clean, separators=(",", ":"))


def redact_json_texts(texts: list[str | None], redact: Callable[[str], str]) -> list[str | None]:
    """Return the JSON texts redacted; the same list if nothing changes.

    Texts with secrets are rare, so all texts are first searched together, in one call of `redact`.
    """
    together = "\n".join([text for text in texts if text is not None])
    if not _may_hold_secrets(together, redact):
        return texts
    return [text if text is None else redact_json(text, redact) for text in texts]


def _may_hold_secrets(text: str, redact: Callable[[str], str]) -> bool:
    # A secret interrupted by terminal codes is found only after decoding: JSON escapes the ESC that begins a code.
    return _ESCAPED_ESC in text or redact(text) != text


def _redact_value(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redact_value(element, redact) for element in value]
    if isinstance(value, dict):
        return {redact(key): _redact_value(element, redact) for key, element in value.items()}
    return value
