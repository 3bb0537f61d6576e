"""Strategies for texts and bytes that often break programs."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

# Characters that look like others, or are split, joined, reordered or dropped in processing.
ODD = [
    "\0", "\ufeff", "\r", "\r\n", "\u2028", "\x85", "\x0b", "\x1b[31m", "\x7f", "\u202e", "\u200b", "\ud800",
    "\udcff", "é", "e\u0301", "ß", "İ", "\u0131", "Å", "\u212b", "٣", "\U0001d7d9", "🔑", "\U0010ffff", "\\",
    '"', "'", "`", "$", "%", "{", "}", "\t", " ",
]  # fmt: skip
NUMBERS = [
    "0", "-0", "-1", "1e308", "1e309", "-1e309", "1e-400", "nan", "inf", "-inf", "9" * 25, "9" * 400, "9" * 5000,
    "0x10", "1_000", "٣", "1.5e", "+1", " 1", "1e15", "9007199254740993", "9223372036854775808", "NaN", "Infinity",
]  # fmt: skip


def fuzzy(max_size: int = 40) -> st.SearchStrategy[str]:
    """Return a strategy for texts, many of them with odd characters."""
    odd = st.lists(st.sampled_from(ODD) | st.text(max_size=4), max_size=max(1, max_size // 4)).map("".join)
    return (odd | st.text(st.characters(), max_size=max_size)).map(lambda text: text[:max_size])


@st.composite
def mutated(
    draw: st.DrawFn, contents: st.SearchStrategy[bytes], pieces: Sequence[bytes], max_changes: int = 4
) -> bytes:
    """Draw contents with 1 to `max_changes` parts removed, repeated, moved, inserted or cut off."""
    content = draw(contents)
    for _ in range(draw(st.integers(1, max_changes))):
        start, end = sorted(draw(st.tuples(st.integers(0, len(content)), st.integers(0, len(content)))))
        kind = draw(st.sampled_from(["put", "put", "replace", "lose", "repeat", "move", "cut", "flip"]))
        piece = draw(st.sampled_from(list(pieces)) | st.binary(max_size=4))
        if kind == "put":
            content = content[:start] + piece + content[start:]
        elif kind == "replace":
            content = content[:start] + piece + content[min(end, start + len(piece)) :]
        elif kind == "lose":
            content = content[:start] + content[min(end, start + 20) :]
        elif kind == "repeat":
            content = content[:end] + content[start:]
        elif kind == "move":
            content = content[:start] + content[end:] + content[start:end]
        elif kind == "cut":
            content = content[:end]
        elif content:
            index = start % len(content)
            content = content[:index] + bytes([content[index] ^ draw(st.integers(1, 255))]) + content[index + 1 :]
    return content


def json_values(names: st.SearchStrategy[str], scalars: st.SearchStrategy[Any], leaves: int = 12) -> Any:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=leaves,
    )


@functools.cache
def scratch() -> Path:
    """Return a folder for this process: creating one per example would take longer than the example."""
    folder = Path(tempfile.mkdtemp(prefix="agentos-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
