"""Files of items: the digest by which a resume detects a change, and why a file cannot be read."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the digest of a file. Raises `OSError`."""
    return digest_of(path.read_bytes())


def reason_of(error: Exception) -> str:
    """Return why a file could not be read, in the words of the system where it has some."""
    return getattr(error, "strerror", None) or str(error)
