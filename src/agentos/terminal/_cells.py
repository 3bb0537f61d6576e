"""Measures, cuts and aligns texts in the cells of a terminal, where a character takes none, one or two of them."""

from __future__ import annotations

from wcwidth import wcwidth


def char_width(char: str) -> int:
    """Return the cells of a printable character."""
    if "\U0001f1e6" <= char <= "\U0001f1ff":  # half a flag
        return 1
    if "\U0001f3fb" <= char <= "\U0001f3ff":  # a skin tone is drawn as part of the emoji before it
        return 0
    return wcwidth(char)


def text_width(text: str) -> int:
    """Return the cells of a printable text without variation selectors, the only characters that change others."""
    return len(text) if text.isascii() else sum(map(char_width, text))


def head(text: str, width: int) -> str:
    """Return the longest beginning of a text that fits into `width` cells."""
    if text.isascii():
        return text[: max(0, width)]
    for index, char in enumerate(text):
        width -= char_width(char)
        if width < 0:
            return text[:index]
    return text


def left_aligned(texts: list[str]) -> list[str]:
    """Return texts of equal width, padded on the right."""
    width = max(map(text_width, texts), default=0)
    return [text + " " * (width - text_width(text)) for text in texts]


def right_aligned(texts: list[str]) -> list[str]:
    """Return ASCII texts of equal width, padded on the left."""
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]
