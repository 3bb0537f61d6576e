"""Finds all forms of all secrets in an output, at a cost that does not grow with the number of secrets.

Most outputs hold no secret, so the search is fast for these: the output is read as blocks of 8 bytes, and every second
block is looked up in the set of blocks that a form can have at that position. Bytes are compared only around a block
that is in the set.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import accumulate, compress, count
from typing import Literal, NamedTuple

from .mask import HoldsSecrets

# Bytes of a terminal code, or of adjacent codes. Real codes are far shorter. A longer sequence is searched as text: an
# unterminated code would otherwise hold back the whole rest of the output.
MAX_CODE_BYTES = 4096

Span = tuple[int, int]  # start and end, as in a slice

# Returns the spans of all forms, and the start of the first form that the end of the text cuts off (or the text's end).
_Find = Callable[[bytes], tuple[list[Span], int]]

_ESC = b"\x1b"


class _Sampling(NamedTuple):
    """Which blocks of a text are looked up: of all blocks of `width` bytes, the first of every `step`."""

    code: Literal["Q", "I"]  # format of a block for `memoryview.cast`
    width: int  # bytes of a block
    step: int
    stride: int  # bytes from one block that is looked up to the next
    min_form: int  # a form of at least this many bytes contains a whole looked-up block, wherever it stands


# Ordered by speed: fewer blocks are faster, but the shortest form must contain a block.
_SAMPLINGS = (_Sampling("Q", 8, 2, 16, 23), _Sampling("Q", 8, 1, 8, 15), _Sampling("I", 4, 1, 4, 7))


class Finder(HoldsSecrets):
    """Searches outputs for a fixed set of forms, each of at least 8 bytes."""

    __slots__ = ("_blocks", "_by_head", "_early_bytes", "_first_bytes", "_forms", "_sampling")

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = sorted(forms)
        shortest = min(map(len, self._forms), default=sys.maxsize)
        self._sampling = next(sampling for sampling in _SAMPLINGS if shortest >= sampling.min_form)
        _, width, _, stride, min_form = self._sampling
        self._blocks: set[int] = set()  # blocks that can be the first looked-up block of a form
        self._by_head: dict[bytes, list[bytes]] = {}  # forms by their first `width` bytes
        self._first_bytes = frozenset(form[0] for form in self._forms)
        self._early_bytes = frozenset(b"".join(form[:min_form] for form in self._forms))
        for form in self._forms:
            self._blocks.update(
                int.from_bytes(form[offset : offset + width], sys.byteorder) for offset in range(stride)
            )
            self._by_head.setdefault(form[:width], []).append(form)

    def spans(self, text: bytes) -> list[Span]:
        """Return the spans of all forms in a whole text."""
        return self._search(text, self._find)[0] if self._forms else []

    def settle(self, text: bytes) -> tuple[list[Span], int]:
        """Return the spans in a text that will continue, and the position before which no later byte changes them."""
        if not self._forms:
            return [], len(text)
        return self._search(text[: _end_of_complete_codes(text)], self._find_so_far)

    def _search(self, text: bytes, find: _Find) -> tuple[list[Span], int]:
        """Search the text as it is, because a code may contain a secret, and the text without its codes."""
        spans, open_at = find(text)
        if _ESC not in text:
            return spans, open_at
        plain = _PlainText(text)
        plain_spans, plain_open_at = plain.search(find)
        if max([len(text) - plain_open_at, *(end - start for start, end in plain_spans)]) > MAX_CODE_BYTES:
            plain.split_at_long_codes()
            plain_spans, plain_open_at = plain.search(find)
        return spans + plain_spans, min(_start_of_code_at(text, open_at), plain_open_at)

    def _find_so_far(self, text: bytes) -> tuple[list[Span], int]:
        spans, open_at = self._find(text)
        if not text or text[-1] not in self._early_bytes:  # the common case: most chunks end with a newline
            return spans, open_at
        for start in range(max(0, len(text) - self._sampling.min_form + 1), open_at):
            if text[start] in self._first_bytes and self._is_beginning(text[start:]):
                return spans, start
        return spans, open_at

    def _is_beginning(self, text: bytes) -> bool:
        """Return whether a form begins with this text and is longer."""
        after = bisect_right(self._forms, text)
        return after < len(self._forms) and self._forms[after].startswith(text)

    def _find(self, text: bytes) -> tuple[list[Span], int]:
        """Find all forms, and the first one that the end of the text cuts off after at least `min_form` bytes."""
        code, width, step, stride, min_form = self._sampling
        spans: list[Span] = []
        open_at = len(text)
        if open_at < min_form:
            return spans, open_at
        blocks = memoryview(text)[: open_at // width * width].cast(code)[::step]
        if self._blocks.isdisjoint(blocks):
            return spans, open_at
        for number in compress(count(), map(self._blocks.__contains__, blocks)):
            block_start = number * stride
            for start in range(max(0, block_start - stride + 1), block_start + 1):
                for form in self._by_head.get(text[start : start + width], ()):
                    end = start + len(form)
                    if text.startswith(form, start):
                        spans.append((start, end))
                    elif end > len(text) and start < open_at and form.startswith(text[start:]):
                        open_at = start
        return spans, open_at


class FinderPair(HoldsSecrets):
    """Searches outputs for the forms of two finders: of secrets that stay, and of one that changes often."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Finder | FinderPair, second: Finder | FinderPair) -> None:
        self._first = first
        self._second = second

    def spans(self, text: bytes) -> list[Span]:
        """Return the spans of all forms in a whole text."""
        return self._first.spans(text) + self._second.spans(text)

    def settle(self, text: bytes) -> tuple[list[Span], int]:
        """Return the spans in a text that will continue, and the position before which no later byte changes them."""
        (first, first_end), (second, second_end) = self._first.settle(text), self._second.settle(text)
        return first + second, min(first_end, second_end)


# --- terminal codes -----------------------------------------------------------------------------------------------

# After ESC: `[`, parameters and a final byte; or a string (begun by `]` or its like) up to BEL or ESC \; or one byte,
# perhaps after intermediate bytes. Possessive quantifiers (`}+`) prevent backtracking, which would take quadratic time
# for a text full of unterminated codes.
_PARAMETERS = rb"\[[0-?]{0,256}+[ -/]{0,16}+"
_STRING = rb"[\]PX^_][^\x00-\x1f]{0,%d}+" % (MAX_CODE_BYTES - 8)
_PREFIX = rb"[ -/]{1,8}+"
_CODE = re.compile(rb"(\x1b(?:%s[@-~]|%s(?:\x07|\x1b\\)|%s[0-~]|[0-OQ-WYZ\\`-~]))" % (_PARAMETERS, _STRING, _PREFIX))
_UNFINISHED_CODE = re.compile(rb"\x1b(?:%s|%s\x1b?|%s)?\Z" % (_PARAMETERS, _STRING, _PREFIX))


def _end_of_complete_codes(text: bytes) -> int:
    """Return the start of a code that the end of the text cuts off; without one, the length of the text."""
    if text.rfind(_ESC, -MAX_CODE_BYTES) < 0:
        return len(text)
    unfinished = _UNFINISHED_CODE.search(text, max(0, len(text) - MAX_CODE_BYTES))
    return len(text) if unfinished is None else unfinished.start()


def _start_of_code_at(text: bytes, position: int) -> int:
    """Return the start of the code that contains the position, or else the position. The rest of a code that is cut
    in the middle would be parsed differently."""
    escape = text.rfind(_ESC, 0, position + 1)
    code = _CODE.match(text, escape) if escape >= 0 else None
    return escape if code is not None and position < code.end() else position


class _PlainText(HoldsSecrets):
    """A text without its terminal codes, with the original position of each byte."""

    def __init__(self, text: bytes) -> None:
        self._original = text
        self._text = _CODE.sub(b"", text)

    def search(self, find: _Find) -> tuple[list[Span], int]:
        """Search the plain text; return positions in the original."""
        spans, open_at = find(self._text)
        is_open = open_at < len(self._text)
        return (
            [(self._original_position(start), self._original_position(end - 1) + 1) for start, end in spans],
            self._original_position(open_at) if is_open else len(self._original),
        )

    def split_at_long_codes(self) -> None:
        """Keep one ESC of adjacent codes longer than MAX_CODE_BYTES in the plain text, so that no form spans them.
        Otherwise a stream would hold back endless codes."""
        pieces, length = self._pieces, 0
        for number in range(1, len(pieces), 2):
            length = len(pieces[number]) + (0 if pieces[number - 1] else length)
            if length > MAX_CODE_BYTES:
                pieces[number - 1] += _ESC
                pieces[number] = pieces[number][1:]
        self._text = b"".join(pieces[::2])
        self.__dict__.pop("_ends", None)

    @cached_property
    def _pieces(self) -> list[bytes]:
        """Return the original as text, code, text, code, … and text."""
        return _CODE.split(self._original)

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """Return the ends of the pieces of text: in the original, and in the plain text."""
        return list(accumulate(map(len, self._pieces)))[::2], list(accumulate(map(len, self._pieces[::2])))

    def _original_position(self, position: int) -> int:
        ends, text_ends = self._ends
        piece = bisect_right(text_ends, position)
        return ends[piece] - (text_ends[piece] - position)
