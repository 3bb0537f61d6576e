"""The owner of a pool that several machines share: journal, lock and members behind a Redis or Valkey server.

Everything passes through the server. Members publish to one channel, on which the owner listens; the owner publishes to
one channel per member, in the script that commits: an owner that was replaced can neither write nor say anything
(invariant 47). The number of receivers tells each side whether the other one is still there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Hashable

from .._owner.clocks import PoolClock
from ..transport import Deposed, Loaded, StoreLost, StoreRefused
from . import envelopes
from .redis_journal import LOCK_MS, RedisJournal
from .server_client import PoolServer, Subscription

# Messages that are taken in one turn of the owner's loop.
MAX_MESSAGES = 256
# Seconds for which a member without a subscription is waited for: it may be connecting again. Longer than it takes to
# notice a connection that does not answer.
ABSENCE_SECONDS = 5.0
# Seconds without a message that the owner sent to itself, after which it subscribes again.
DEAF_SECONDS = 3.5
# Seconds until the next attempt to subscribe.
RETRY_SECONDS = 0.05
# Seconds after which an owner ends that cannot reach the server: its members may have gone unnoticed. Long enough for
# a restart or a fail-over of the server, after which the owner writes anew what the server has lost. Members need it no
# longer: the next owner reads the journal, or, if that is lost, learns from the members what they hold and have used.
GIVE_UP_SECONDS = 60.0


class _Link:
    """The link of one member."""

    __slots__ = ("absent_since", "key", "received", "sent")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.received = 0  # counter of the last envelope
        self.sent = 0
        self.absent_since: float | None = None  # since when the member has no subscription


class ServerEndpoint:
    """Journal, lock and channels of an owner. The key of a link is the beginning of its envelopes."""

    def __init__(self, server: PoolServer, token: str) -> None:
        self._server = server
        self._token = token
        self._nonce = bytes.fromhex(token.partition(":")[2])
        self._client = server.connect()
        self._journal = RedisJournal(self._client, token)
        self._subscription: Subscription | None = None
        self._heard_at = time.monotonic()  # when the owner's message to itself came last
        self._links: dict[bytes, _Link] = {}  # by id of the member's gate
        self._closed: list[bytes] = []  # links to report
        self._repeated: tuple[object, list[tuple[_Link, bytes]]] = (None, [])  # frames of a commit that failed

    @property
    def clock(self) -> PoolClock:
        return self._journal.clock

    def load(self) -> Loaded:
        if self._subscription is None:
            self._listen()
        return self._journal.load()

    def _listen(self) -> None:
        """Subscribe, then let the members know. Raises `StoreLost` and `Deposed`."""
        self._close_subscription()
        subscription = self._client.subscribe(self._server.ask)
        self._heard_at = time.monotonic()
        if self._client.run("announce", self._token, LOCK_MS, self._server.up, self._nonce) == b"deposed":
            subscription.close()
            raise Deposed
        self._subscription = subscription

    # --- frames of members ----------------------------------------------------------------------------------------

    def receive(self, timeout: float) -> list[tuple[Hashable, bytes | None]]:
        arrived: list[tuple[Hashable, bytes | None]] = []
        broken: list[bytes] = []
        for data in self._messages(0.0 if self._closed else max(0.0, timeout)):
            if data == self._nonce:
                self._heard_at = time.monotonic()
                continue
            ask = envelopes.unpack_ask(data)
            if ask is None:
                continue
            if not self._is_next(ask):
                broken += self._broken_link(ask)
                continue
            arrived += [(ask.link, frame) for frame in ask.frames]
        if broken:
            self._say_broken(broken)
        arrived += [(link, None) for link in self._closed]
        self._closed.clear()
        return arrived

    def _messages(self, timeout: float) -> list[bytes]:
        """Wait for messages. While the server cannot be reached there are none."""
        messages: list[bytes] = []
        try:
            if self._subscription is None:
                self._listen_again()
            assert self._subscription is not None
            message = self._subscription.receive(timeout)
            while message is not None:
                messages.append(message[1])
                message = self._subscription.receive(0.0) if len(messages) < MAX_MESSAGES else None
        except (StoreLost, StoreRefused):
            self._close_subscription()
            if time.monotonic() - self._heard_at > GIVE_UP_SECONDS:
                raise Deposed from None
            time.sleep(min(max(0.0, timeout), RETRY_SECONDS))
        return messages

    def _listen_again(self) -> None:
        """Subscribe after a break. Members whose messages were missed notice it by their counters."""
        self._journal.note_server()
        self._journal.renew(self._server.ask, self._nonce)  # raises Deposed if another owner has the pool
        self._listen()
        for link in self._links.values():
            link.absent_since = None  # they have to connect again, too

    def _close_subscription(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _is_next(self, ask: envelopes.Ask) -> bool:
        """Return whether an envelope is the next one of its link, or the first one of a new link."""
        link = self._links.get(ask.link[: envelopes.ID_BYTES])
        if link is None or link.key != ask.link:
            if ask.counter != 1 or (link is not None and ask.link < link.key):
                return False
            link = self._links[ask.link[: envelopes.ID_BYTES]] = _Link(ask.link)
        if ask.counter != link.received + 1:
            return False
        link.received = ask.counter
        link.absent_since = None
        return True

    def _broken_link(self, ask: envelopes.Ask) -> list[bytes]:
        """Return the link that must be told that an envelope was lost; none for a doubled or old envelope."""
        link = self._links.get(ask.link[: envelopes.ID_BYTES])
        if link is not None and (ask.link < link.key or (ask.link == link.key and ask.counter <= link.received)):
            return []
        return [ask.link]

    def _say_broken(self, links: list[bytes]) -> None:
        with contextlib.suppress(StoreLost, StoreRefused):
            for link in dict.fromkeys(links):
                envelope = envelopes.pack_tell(link, self._nonce, envelopes.BROKEN)
                self._client.publish(self._channel(link), envelope)

    def _channel(self, link: bytes) -> str:
        return self._server.tell(link[: envelopes.ID_BYTES])

    # --- journal and replies --------------------------------------------------------------------------------------

    def commit(self, at: float, entries: bytes | None, frames: list[tuple[Hashable, bytes]]) -> None:
        if self._repeated[0] is not frames:  # else with the same counters: what was delivered already is ignored
            self._repeated = (frames, self._pack(frames))
        packed = self._repeated[1]
        if entries is not None or packed:
            messages = [(self._channel(link.key), envelope) for link, envelope in packed]
            try:
                receivers = self._journal.commit(at, entries, messages)
            except StoreRefused as error:
                raise StoreLost(str(error)) from None
            for (link, _), count in zip(packed, receivers, strict=True):
                if count == 0 and link.absent_since is None:
                    link.absent_since = time.monotonic()
        self._repeated = (None, [])

    def _pack(self, frames: list[tuple[Hashable, bytes]]) -> list[tuple[_Link, bytes]]:
        packed = []
        for key, frame in frames:
            assert isinstance(key, bytes)
            link = self._links.get(key[: envelopes.ID_BYTES])
            if link is not None and link.key == key:
                link.sent += 1
                packed.append((link, envelopes.pack_tell(key, self._nonce, link.sent, frame)))
        return packed

    def send(self, frames: list[tuple[Hashable, bytes]]) -> None:
        """Send frames if the server can be reached. A frame that is lost leaves a gap in the counters."""
        for link, envelope in self._pack(frames):
            with contextlib.suppress(StoreLost, StoreRefused):
                self._client.publish(self._channel(link.key), envelope)

    def save(self, _at: float, snapshot: bytes, position: int) -> None:
        self._journal.save(snapshot, position)

    def rewrite(self, at: float, snapshot: bytes, position: int) -> None:
        try:
            self._journal.rewrite(at, snapshot, position)
        except StoreRefused as error:
            raise StoreLost(str(error)) from None

    def is_current(self) -> bool:
        """Renew the lock, and look for members without a subscription. Returns whether this owner has the lock."""
        try:
            self._journal.renew(self._server.ask, self._nonce)
            self._look_for_absent_members()
        except Deposed:
            return False
        except (StoreLost, StoreRefused):
            return True  # not known: nothing can be committed either
        if time.monotonic() - self._heard_at > DEAF_SECONDS:
            self._close_subscription()
        return True

    def _look_for_absent_members(self) -> None:
        links = list(self._links.values())
        if not links:
            return
        now = time.monotonic()
        counts = self._client.count_listeners([self._channel(link.key) for link in links])
        for link, count in zip(links, counts, strict=True):
            if count:
                link.absent_since = None
            elif link.absent_since is None:
                link.absent_since = now
            elif now - link.absent_since >= ABSENCE_SECONDS:
                del self._links[link.key[: envelopes.ID_BYTES]]
                self._closed.append(link.key)

    def has_ended(self, _session_id: str) -> bool:
        """Return False: a member of another machine is known by its link, or ends by its time to live."""
        return False

    def disconnect_strangers(self, members: Container[Hashable]) -> None:
        """No-op: links take no descriptors, and those without a subscription are forgotten."""

    def disconnect(self, connection: Hashable) -> None:
        assert isinstance(connection, bytes)
        link = self._links.get(connection[: envelopes.ID_BYTES])
        if link is not None and link.key == connection:
            del self._links[connection[: envelopes.ID_BYTES]]
        self._say_broken([connection])

    def close(self) -> None:
        with contextlib.suppress(StoreLost, StoreRefused):
            self._client.run("release", self._token)
        self._close_subscription()
        self._client.close()
