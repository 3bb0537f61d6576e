"""`Redactor` and `RedactionStream`: the only code that masks secrets in bytes and texts.

A program may write a secret as it is, in base64 or hex, escaped for a URL, JSON, HTML, a shell or Python, or with
terminal codes between its characters. Each of these is a *form*; all forms are computed before any output is read. The
masked part of an output is the union of the spans of all forms, searched in the output as it is and in the output
without its terminal codes. These spans depend on the whole output only, so the result is the same for every division
into chunks: a stream returns the part that no later byte can make part of a form, and holds back the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ._encodings import forms_of, json_forms, to_bytes
from ._finder import Finder, FinderPair, Span
from .mask import MASK, MIN_REDACTED, HoldsSecrets

# Characters of the shortest secret that is looked for inside other values: a shorter one stands anywhere by chance.
MIN_CONTAINED = 4

_MASK = MASK.encode()


class Redactor(HoldsSecrets):
    """Replaces every form of some secrets by a mask. Safe to use from any thread.

    Secrets under 8 characters stay, unless `short_too` is given: text may equal them by chance.
    """

    __slots__ = ("_count", "_finder", "_short_forms", "_short_secrets")

    _finder: Finder | FinderPair

    def __init__(self, secrets: Iterable[str]) -> None:
        unique = {str(secret) for secret in secrets if secret}
        short = {secret for secret in unique if len(secret) < MIN_REDACTED}
        self._count = len(unique)
        self._short_secrets = frozenset(short)
        self._short_forms = {to_bytes(form) for secret in short for form in (secret, *json_forms(secret))}
        self._finder = Finder({form for secret in unique - short for form in forms_of(secret)})

    def with_secret(self, secret: str) -> Redactor:
        """Return a redactor of the same secrets and one more. Its cost does not depend on the number of secrets."""
        redactor = Redactor((secret,))
        redactor._count += self._count
        redactor._short_forms |= self._short_forms
        redactor._finder = FinderPair(self._finder, redactor._finder)
        return redactor

    @property
    def too_short(self) -> bool:
        """Whether some secret is too short for `data` and `stream` to mask it."""
        return bool(self._short_forms)

    def text(self, text: str, *, short_too: bool = False) -> str:
        """Return a whole text redacted; with `short_too`, short secrets are masked too, raw and in their JSON form."""
        data = to_bytes(text)
        spans = self._finder.spans(data)
        if short_too and self._short_forms:
            spans += [span for form in self._short_forms for span in _spans_of(form, data)]
        return _mask(data, spans, len(data))[0].decode("utf-8", "surrogatepass") if spans else text

    def is_secret(self, value: str) -> bool:
        """Return whether a value is a secret, also a short one, or contains a form of one that is long enough."""
        return value.strip() in self._short_secrets or bool(self._finder.spans(to_bytes(value)))

    def has_short_secret(self, value: str) -> bool:
        """Return whether a secret of MIN_CONTAINED characters and more, too short to be masked, stands in a value as a
        word of its own."""
        return any(
            re.search(rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])", value)
            for secret in self._short_secrets
            if len(secret) >= MIN_CONTAINED
        )

    def data(self, data: bytes) -> bytes:
        """Return a whole output redacted."""
        return _mask(data, self._finder.spans(data), len(data))[0]

    def stream(self) -> RedactionStream:
        """Return a new stream, for one output that arrives in chunks."""
        return RedactionStream(self._finder)

    def __repr__(self) -> str:
        return f"<Redactor of {self._count} secrets>"


class RedactionStream(HoldsSecrets):
    """Redacts one output chunk by chunk. For one thread at a time.

    The concatenated results of `feed` and `flush` equal `Redactor.data` of the concatenated chunks.
    """

    __slots__ = ("_covered_bytes", "_finder", "_tail")

    def __init__(self, finder: Finder | FinderPair) -> None:
        self._finder = finder
        self._tail = b""
        self._covered_bytes = 0  # leading bytes of `_tail` that belong to a secret whose mask was returned already

    def feed(self, data: bytes) -> bytes:
        """Return what is redacted so far; hold back a tail that may become a secret or a terminal code."""
        text = self._tail + data if self._tail else data
        spans, settled_end = self._finder.settle(text)
        return self._release(text, spans, settled_end)

    def use(self, redactor: Redactor) -> None:
        """Search for the secrets of another redactor from now on, also in what is held back."""
        self._finder = redactor._finder

    def flush(self) -> bytes:
        """Return the rest, as if the output ended here."""
        return self._release(self._tail, self._finder.spans(self._tail), len(self._tail))

    def _release(self, text: bytes, spans: list[Span], settled_end: int) -> bytes:
        """Return the redacted bytes before `settled_end`; hold back the others for the next search."""
        clean, covered_end = _mask(text, spans, settled_end, self._covered_bytes)
        self._tail = text[settled_end:]
        self._covered_bytes = max(0, covered_end - settled_end)
        return clean

    def __repr__(self) -> str:
        return f"<RedactionStream: {len(self._tail)} bytes held back>"


def _mask(text: bytes, spans: list[Span], settled_end: int, covered_end: int = 0) -> tuple[bytes, int]:
    """Return the bytes from `covered_end` to `settled_end` with one mask per group of overlapping spans, and the end of
    the last masked span, which may be after `settled_end`. Overlapping secrets share a mask, which leaves no rest."""
    if not spans and not covered_end:
        return text[:settled_end], 0
    pieces = []
    for start, end in sorted(spans):
        if start >= settled_end:
            break
        if start >= covered_end:
            pieces += [text[covered_end:start], _MASK]
        covered_end = max(covered_end, end)
    pieces.append(text[covered_end:settled_end])
    return b"".join(pieces), covered_end


def _spans_of(form: bytes, text: bytes) -> Iterator[Span]:
    start = text.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = text.find(form, start + 1)
