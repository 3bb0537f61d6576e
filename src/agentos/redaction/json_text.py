"""Redact a JSON text string by string: a number that looks like a secret stays a number."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_ESCAPED_ESC = "\\u001b"


def without_secrets(text: str, redact: Callable[[str], str]) -> str:
    """Redacts a JSON text string by string: a number that looks like a secret must stay a number."""
    if not _may_hold_secrets(text, redact):
        return text
    value = json.loads(text)
    clean = _redacted(value, redact)
    return text if clean == value else json.dumps(clean, separators=(",", ":"))


def all_without_secrets(texts: list[str | None], redact: Callable[[str], str]) -> list[str | None]:
    """Hardly any has something to hide, so they are looked at all together first; then the list itself is returned."""
    together = "\n".join([text for text in texts if text is not None])
    if not _may_hold_secrets(together, redact):
        return texts
    return [text if text is None else without_secrets(text, redact) for text in texts]


def _may_hold_secrets(text: str, redact: Callable[[str], str]) -> bool:
    # A secret with terminal codes in between is seen only once the JSON is read: here their ESC is escaped.
    return _ESCAPED_ESC in text or redact(text) != text


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(element, redact) for element in value]
    if isinstance(value, dict):
        return {redact(key): _redacted(element, redact) for key, element in value.items()}
    return value
