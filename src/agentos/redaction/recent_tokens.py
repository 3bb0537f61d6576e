"""`RecentTokens`: masks client tokens, of which a run has a new one for every attempt.

A `Redactor` computes all forms of its secrets before it searches, which takes too long for a secret that changes with
every item. A token is masked here as it is; what a command prints is searched for all forms of its own token.
"""

from __future__ import annotations

from collections import OrderedDict

from .mask import MASK, HoldsSecrets

# Tokens that are remembered. A token ends with its attempt, and its result is recorded within seconds.
MAX_TOKENS = 10_000
# Characters at the beginning of a token by which texts are searched: the part that all tokens of a gateway have.
PREFIX_LENGTH = 8


class RecentTokens(HoldsSecrets):
    """The last MAX_TOKENS tokens. Safe to use from any thread."""

    __slots__ = ("_lengths", "_tokens")

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, None] = OrderedDict()
        self._lengths: dict[str, int] = {}  # by prefix: tokens of one gateway have one length

    def add(self, token: str) -> None:
        """Mask a token from now on."""
        self._tokens[token] = None
        self._lengths[token[:PREFIX_LENGTH]] = len(token)
        if len(self._tokens) > MAX_TOKENS:
            self._tokens.popitem(last=False)

    def mask(self, text: str) -> str:
        """Return the text with a mask in place of each token."""
        for prefix, length in tuple(self._lengths.items()):
            start = text.find(prefix)
            while start >= 0:
                if text[start : start + length] in self._tokens:
                    text = text[:start] + MASK + text[start + length :]
                start = text.find(prefix, start + 1)
        return text

    def __repr__(self) -> str:
        return f"<RecentTokens: {len(self._tokens)}>"
