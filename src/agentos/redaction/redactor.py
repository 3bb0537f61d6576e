"""Redaction: the one place where secrets are taken out of bytes and texts.

A secret is written in many ways: as it is, in base64 or hex, escaped for a URL, JSON, HTML, a shell or Python, with
terminal codes between its characters. Each way of writing is one more *form* to look for; all of them are known before
any output is seen. What is replaced is the union of all places where any form stands, found in the text as it is and
in the text without its terminal codes. That depends on the whole output alone, so it cannot matter how the output was
cut into chunks: a stream shows what no form can reach any more, and holds back the rest.

Hardly any output holds a secret, so what counts is how fast that is seen. The text is cut into blocks of 8 bytes, read
as numbers, and every second one is looked up in the set of all blocks that a form can have there. That takes the same
time for one secret as for a hundred. Only around a block that is in the set are bytes compared.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import accumulate, compress, count
from typing import Literal, NamedTuple, NoReturn, SupportsIndex

from ._encodings import encoded, forms_of, json_escaped
from .mask import LEAST_REDACTED, MASK, refuse_to_copy

# Real terminal codes are far shorter. What is longer is text, or a code without end could hold back all that follows.
MOST_CODE_BYTES = 4096

Span = tuple[int, int]  # from the first to the last and one

_MASK = MASK.encode()
_ESC = b"\x1b"


class _HoldsSecrets:
    """Neither copied nor pickled."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)


class Redactor(_HoldsSecrets):
    """Replaces every form of some secrets by a mask. Safe to use from any thread.

    Secrets under 8 characters stay, unless it is said otherwise: they may stand in an output by chance.
    """

    __slots__ = ("_count", "_finder", "_short_forms")

    def __init__(self, secrets: Iterable[str]) -> None:
        unique = {str(secret) for secret in secrets if secret}
        short = {secret for secret in unique if len(secret) < LEAST_REDACTED}
        self._count = len(unique)
        self._short_forms = {encoded(form) for secret in short for form in (secret, *json_escaped(secret))}
        self._finder = _Finder({form for secret in unique - short for form in forms_of(secret)})

    @property
    def too_short(self) -> bool:
        """Whether there is a secret that `data` and `stream` leave where it is."""
        return bool(self._short_forms)

    def text(self, text: str, *, short_too: bool = False) -> str:
        """A whole text; with `short_too`, short secrets are also replaced, raw and as they look in JSON."""
        data = encoded(text)
        spans = self._finder.spans(data)
        if short_too and self._short_forms:
            spans += [span for form in self._short_forms for span in _places_of(form, data)]
        return _mask(data, spans, len(data))[0].decode("utf-8", "surrogatepass") if spans else text

    def data(self, data: bytes) -> bytes:
        """A whole output."""
        return _mask(data, self._finder.spans(data), len(data))[0]

    def stream(self) -> RedactionStream:
        """For an output that comes in chunks. Every output needs its own."""
        return RedactionStream(self._finder)

    def __repr__(self) -> str:
        return f"<Redactor of {self._count} secrets>"


class RedactionStream(_HoldsSecrets):
    """One output, chunk by chunk. All that `feed` and `flush` return together is what `Redactor.data` would return for
    all chunks together. For one thread at a time."""

    __slots__ = ("_covered", "_finder", "_held")

    def __init__(self, finder: _Finder) -> None:
        self._finder = finder
        self._held = b""
        self._covered = 0  # so many of the held bytes belong to a secret whose mask was shown already

    def feed(self, data: bytes) -> bytes:
        """What may be shown by now. Held back is what may yet become a secret or a terminal code."""
        text = self._held + data if self._held else data
        spans, settled = self._finder.settle(text)
        return self._show(text, spans, settled)

    def flush(self) -> bytes:
        """The rest, as nothing will follow it."""
        return self._show(self._held, self._finder.spans(self._held), len(self._held))

    def _show(self, text: bytes, spans: list[Span], settled: int) -> bytes:
        """Everything before `settled`; the bytes from there on will be looked at again."""
        shown, covered = _mask(text, spans, settled, self._covered)
        self._held = text[settled:]
        self._covered = max(0, covered - settled)
        return shown

    def __repr__(self) -> str:
        return f"<RedactionStream: {len(self._held)} bytes held back>"


def _mask(text: bytes, spans: list[Span], settled: int, covered: int = 0) -> tuple[bytes, int]:
    """The text before `settled`, without its first `covered` bytes, with one mask for all spans that overlap: of two
    secrets with a part in common neither leaves a rest. Also, up to where masks cover the text: perhaps beyond it."""
    if not spans and not covered:
        return text[:settled], 0
    shown = []
    for start, end in sorted(spans):
        if start >= settled:
            break
        if start >= covered:
            shown += [text[covered:start], _MASK]
        covered = max(covered, end)
    shown.append(text[covered:settled])
    return b"".join(shown), covered


def _places_of(form: bytes, text: bytes) -> Iterator[Span]:
    at = text.find(form)
    while at >= 0:
        yield at, at + len(form)
        at = text.find(form, at + 1)


# --- finding ------------------------------------------------------------------------------------------------------


# Where forms stand, and where one begins that the end cuts off; the end, if none does.
_Find = Callable[[bytes], tuple[list[Span], int]]


class _Sampling(NamedTuple):
    """How a text is sampled: of all blocks of `width` bytes, the first of every `step`."""

    code: Literal["Q", "I"]  # as `memoryview.cast` names it
    width: int
    step: int
    stride: int  # bytes from one block that is looked at to the next
    sure: int  # so many bytes, wherever they stand, hold a whole block that is looked at


# The fewer blocks the faster, but the shortest form must not slip through.
_SAMPLINGS = (_Sampling("Q", 8, 2, 16, 23), _Sampling("Q", 8, 1, 8, 15), _Sampling("I", 4, 1, 4, 7))


class _Finder(_HoldsSecrets):
    """Finds forms. Each of them has at least 8 bytes."""

    __slots__ = ("_blocks", "_by_head", "_early_bytes", "_first_bytes", "_forms", "_sampling")

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = sorted(forms)
        shortest = min(map(len, self._forms), default=sys.maxsize)
        self._sampling = next(sampling for sampling in _SAMPLINGS if shortest >= sampling.sure)
        _, width, _, stride, sure = self._sampling
        self._blocks: set[int] = set()  # that a form can have where the text is sampled first
        self._by_head: dict[bytes, list[bytes]] = {}  # forms by their first block
        self._first_bytes = frozenset(form[0] for form in self._forms)
        self._early_bytes = frozenset(b"".join(form[:sure] for form in self._forms))
        for form in self._forms:
            self._blocks.update(
                int.from_bytes(form[offset : offset + width], sys.byteorder) for offset in range(stride)
            )
            self._by_head.setdefault(form[:width], []).append(form)

    def spans(self, text: bytes) -> list[Span]:
        """Where forms stand in a whole text."""
        return self._search(text, self._find)[0] if self._forms else []

    def settle(self, text: bytes) -> tuple[list[Span], int]:
        """The same for a text that goes on; and up to where nothing that follows can change what is found."""
        if not self._forms:
            return [], len(text)
        return self._search(text[: _end_of_complete_codes(text)], self._find_so_far)

    def _search(self, text: bytes, find: _Find) -> tuple[list[Span], int]:
        """In the text as it is, as a code may hold a secret; and in the text without its codes."""
        spans, open_at = find(text)
        if _ESC not in text:
            return spans, open_at
        plain = _WithoutCodes(text)
        more, plain_open_at = plain.search(find)
        if max([len(text) - plain_open_at, *(end - start for start, end in more)]) > MOST_CODE_BYTES:
            plain.keep_long_codes_apart()
            more, plain_open_at = plain.search(find)
        return spans + more, min(_not_inside_code(text, open_at), plain_open_at)

    def _find_so_far(self, text: bytes) -> tuple[list[Span], int]:
        spans, open_at = self._find(text)
        if not text or text[-1] not in self._early_bytes:  # such as the end of a line, where most chunks end
            return spans, open_at
        for at in range(max(0, len(text) - self._sampling.sure + 1), open_at):
            if text[at] in self._first_bytes and self._is_beginning(text[at:]):
                return spans, at
        return spans, open_at

    def _is_beginning(self, text: bytes) -> bool:
        """Of a form, and not all of it."""
        after = bisect_right(self._forms, text)
        return after < len(self._forms) and self._forms[after].startswith(text)

    def _find(self, text: bytes) -> tuple[list[Span], int]:
        """Every place of every form; and where the first one begins that the end of the text cuts off, if so much of
        it is there that it holds a block for sure."""
        code, width, step, stride, sure = self._sampling
        spans: list[Span] = []
        open_at = len(text)
        if open_at < sure:
            return spans, open_at
        blocks = memoryview(text)[: open_at // width * width].cast(code)[::step]
        if self._blocks.isdisjoint(blocks):
            return spans, open_at
        for number in compress(count(), map(self._blocks.__contains__, blocks)):
            at = number * stride
            for start in range(max(0, at - stride + 1), at + 1):
                for form in self._by_head.get(text[start : start + width], ()):
                    end = start + len(form)
                    if text.startswith(form, start):
                        spans.append((start, end))
                    elif end > len(text) and start < open_at and form.startswith(text[start:]):
                        open_at = start
        return spans, open_at


# --- terminal codes -----------------------------------------------------------------------------------------------

# After ESC: `[`, parameters and a final byte; or a string (`]` and its like) up to BEL or ESC \; or one byte, after a
# few others perhaps. Nothing is ever tried twice (`}+`): a text full of beginnings must not take long.
_PARAMETERS = rb"\[[0-?]{0,256}+[ -/]{0,16}+"
_STRING = rb"[\]PX^_][^\x00-\x1f]{0,%d}+" % (MOST_CODE_BYTES - 8)
_PREFIX = rb"[ -/]{1,8}+"
_CODE = re.compile(rb"(\x1b(?:%s[@-~]|%s(?:\x07|\x1b\\)|%s[0-~]|[0-OQ-WYZ\\`-~]))" % (_PARAMETERS, _STRING, _PREFIX))
_UNFINISHED_CODE = re.compile(rb"\x1b(?:%s|%s\x1b?|%s)?\Z" % (_PARAMETERS, _STRING, _PREFIX))


def _end_of_complete_codes(text: bytes) -> int:
    if text.rfind(_ESC, -MOST_CODE_BYTES) < 0:
        return len(text)
    unfinished = _UNFINISHED_CODE.search(text, max(0, len(text) - MOST_CODE_BYTES))
    return len(text) if unfinished is None else unfinished.start()


def _not_inside_code(text: bytes, place: int) -> int:
    """The place, or the ESC before it if it is inside a code: a text cut there would be read in another way."""
    escape = text.rfind(_ESC, 0, place + 1)
    code = _CODE.match(text, escape) if escape >= 0 else None
    return escape if code is not None and place < code.end() else place


class _WithoutCodes(_HoldsSecrets):
    """A text without its terminal codes, which knows where each byte stood."""

    def __init__(self, text: bytes) -> None:
        self._original = text
        self._text = _CODE.sub(b"", text)

    def search(self, find: _Find) -> tuple[list[Span], int]:
        """What is found, in terms of the original."""
        spans, open_at = find(self._text)
        is_open = open_at < len(self._text)
        return (
            [(self._place(start), self._place(end - 1) + 1) for start, end in spans],
            self._place(open_at) if is_open else len(self._original),
        )

    def keep_long_codes_apart(self) -> None:
        """From now on nothing is found across too many codes, or they could be held back without end: one ESC of them
        stays in the text."""
        pieces, length = self._pieces, 0
        for number in range(1, len(pieces), 2):
            length = len(pieces[number]) + (0 if pieces[number - 1] else length)
            if length > MOST_CODE_BYTES:
                pieces[number - 1] += _ESC
                pieces[number] = pieces[number][1:]
        self._text = b"".join(pieces[::2])
        self.__dict__.pop("_ends", None)

    @cached_property
    def _pieces(self) -> list[bytes]:
        """Text, code, text, code, … and text."""
        return _CODE.split(self._original)

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """Of the pieces of text: where they end in the original, and without the codes."""
        return list(accumulate(map(len, self._pieces)))[::2], list(accumulate(map(len, self._pieces[::2])))

    def _place(self, index: int) -> int:
        """Where a byte of the text stands in the original."""
        ends, text_ends = self._ends
        piece = bisect_right(text_ends, index)
        return ends[piece] - (text_ends[piece] - index)
