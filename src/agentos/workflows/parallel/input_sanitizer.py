"""The import path of `sanitize_identifier` that programs use; the code is in `agentos.identifiers`."""

from agentos.identifiers import sanitize_identifier

__all__ = ["sanitize_identifier"]
