"""Text in the cells of a terminal, where a character may take two of them."""

from __future__ import annotations

from rich.cells import cell_len, get_character_cell_size


def escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def head(text: str, width: int) -> str:
    """As many characters as fit into so many cells."""
    if text.isascii():
        return text[: max(0, width)]
    for index, char in enumerate(text):
        width -= get_character_cell_size(char)
        if width < 0:
            return text[:index]
    return text


def left_aligned(texts: list[str]) -> list[str]:
    """As a column."""
    cells = max(map(cell_len, texts), default=0)
    return [text + " " * (cells - cell_len(text)) for text in texts]


def right_aligned(texts: list[str]) -> list[str]:
    cells = max(map(len, texts), default=0)
    return [text.rjust(cells) for text in texts]
