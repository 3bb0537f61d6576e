"""JoinableRequests: requests whose client has gone and may come back with the same request.

SDKs that give up on a connection close it and send the same request again, after about half a second, with a header
that counts the retries. Such a retry joins the request that is under way upstream instead of paying twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._exchange import Exchange

# Seconds that a request goes on upstream after its client has gone. SDKs wait 0.4 to 0.5 s before their first retry.
LINGER_SECONDS = 0.9


class JoinableRequests:
    """The requests without a client, by client token and content."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[Exchange]] = {}

    def leave(self, exchange: Exchange) -> None:
        """Keep a request whose client has gone for LINGER_SECONDS; then end it, unless a retry has joined it."""
        mark = _mark(exchange)
        self._waiting.setdefault(mark, []).append(exchange)
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._give_up, mark, exchange)

    def join(self, retry: Exchange) -> Exchange | None:
        """Return the request that is the same as a retry, and forget it here; None if there is none."""
        if not self._waiting:
            return None
        mark = _mark(retry)
        same = self._waiting.get(mark)
        if not same:
            return None
        exchange = same.pop(0)
        if not same:
            del self._waiting[mark]
        return exchange

    def end_all(self) -> None:
        """End all requests without a client."""
        for mark, exchanges in list(self._waiting.items()):
            for exchange in list(exchanges):
                self._give_up(mark, exchange)

    def _give_up(self, mark: bytes, exchange: Exchange) -> None:
        same = self._waiting.get(mark, [])
        if exchange in same:
            same.remove(exchange)
            if not same:
                del self._waiting[mark]
            exchange.abandon()


def _mark(exchange: Exchange) -> bytes:
    """Return a digest of a request and its client. Calculated only for requests that are left or retried."""
    request = exchange.request
    content = hashlib.blake2b(digest_size=16)
    for part in (str(id(exchange.client)), request.method, request.route.provider, request.route.path, request.query):
        content.update(part.encode() + b"\0")
    content.update(request.body)
    return content.digest()
