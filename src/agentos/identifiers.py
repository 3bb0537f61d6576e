"""Check identifiers that become file names."""

from __future__ import annotations

import re

_ALLOWED = re.compile(r"[A-Za-z0-9_-]+")
_DRIVE = re.compile(r"[A-Za-z]:([\\/]|$)")


def sanitize_identifier(identifier: str) -> str:
    """Return the identifier unchanged; raise ValueError with the reason if it could escape its folder."""
    if not isinstance(identifier, str):
        raise ValueError(f"Invalid identifier: a string is needed, not {type(identifier).__name__}")  # noqa: TRY004
    reason = _objection(identifier)
    if reason is not None:
        raise ValueError(f"Invalid identifier {identifier[:100]!r}: {reason}")
    return identifier


def _objection(identifier: str) -> str | None:
    if ".." in identifier:
        return "path traversal"
    if identifier.startswith(("/", "\\")) or _DRIVE.match(identifier):
        return "absolute path"
    if "/" in identifier or "\\" in identifier:
        return "path separators not allowed"
    if not _ALLOWED.fullmatch(identifier):
        return "invalid characters (letters, digits, '-' and '_' are allowed, and at least one of them is needed)"
    return None
