"""Masks: replace the secrets of a credential in an answer by asterisks, for any division of it into parts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

# Characters of a secret below which it cannot be told from other text.
MIN_LENGTH = 8


class Masks:
    """The secrets of one credential, as far as they are long enough to be found."""

    __slots__ = ("_kept", "_secrets")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = _encoded(frozenset(secrets))
        self._kept = [b""] * len(self._secrets)  # of each: its beginning at the end of the last part

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes of an answer that may be passed on with its next part."""
        for index in range(len(self._secrets)):
            chunk = self._without(index, chunk)
        return chunk

    def end(self) -> bytes:
        """Return the bytes that were kept back, at the end of an answer."""
        rest = b""
        for index in range(len(self._secrets)):
            rest = self._without(index, rest)
            kept, self._kept[index] = self._kept[index], b""
            rest += kept
        return rest

    def whole(self, body: bytes) -> bytes:
        """Return a body without the secrets."""
        for secret in self._secrets:
            if secret in body:
                body = body.replace(secret, b"*" * len(secret))
        return body

    def text(self, value: str) -> str:
        """Return the value of a header without the secrets."""
        for secret in self._secrets:
            plain = secret.decode("utf-8", "surrogatepass")
            if plain in value:
                value = value.replace(plain, "****")
        return value

    def _without(self, index: int, chunk: bytes) -> bytes:
        """Replace one secret. Keep back the end of a part that may be the beginning of it."""
        secret = self._secrets[index]
        if self._kept[index]:
            chunk, self._kept[index] = self._kept[index] + chunk, b""
        if not chunk:
            return chunk
        if secret in chunk:
            chunk = chunk.replace(secret, b"*" * len(secret))
        if chunk[-1] not in secret:  # nor can the part end with its beginning: the usual event ends a line
            return chunk
        start = chunk.find(secret[:1], max(0, len(chunk) - len(secret) + 1))
        while start >= 0:  # the earliest one: a secret may begin with its own first characters twice
            if secret.startswith(chunk[start:]):
                self._kept[index] = chunk[start:]
                return chunk[:start]
            start = chunk.find(secret[:1], start + 1)
        return chunk


@lru_cache(maxsize=1024)  # the same for all requests with a credential
def _encoded(secrets: frozenset[str]) -> tuple[bytes, ...]:
    """Return the secrets that are long enough, longest first: one may begin with another."""
    encoded = [secret.encode("utf-8", "surrogatepass") for secret in secrets]
    return tuple(sorted((secret for secret in encoded if len(secret) >= MIN_LENGTH), key=len, reverse=True))
