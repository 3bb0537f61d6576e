"""Affinity: the credential that a conversation used last, while the provider's prompt cache for it lives."""

from __future__ import annotations

from collections import OrderedDict

# Seconds that a prompt cache lives after its last use, as providers promise at least.
CACHE_SECONDS = 300.0
# Bytes of a request below which providers cache nothing (1,024 tokens).
MIN_BYTES = 4096
# Conversations that are remembered; then the one that was used least recently is forgotten.
MAX_CONVERSATIONS = 20_000


class Affinity:
    """Remembers credentials of conversations. A prompt cache belongs to one model in one organisation."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str | None, ...], tuple[str, float]] = OrderedDict()

    def credential(self, conversation: tuple[str | None, ...], now: float) -> str | None:
        """Return the credential whose cache has this conversation; None if none does any more."""
        known = self._last.get(conversation)
        return known[0] if known is not None and now < known[1] else None

    def remember(self, conversation: tuple[str | None, ...], credential_id: str, now: float) -> None:
        """Note that a request of a conversation was answered."""
        self._last[conversation] = credential_id, now + CACHE_SECONDS
        self._last.move_to_end(conversation)
        if len(self._last) > MAX_CONVERSATIONS:
            self._last.popitem(last=False)
