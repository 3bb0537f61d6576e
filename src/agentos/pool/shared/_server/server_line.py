"""Line: the two connections of a member to a server, one for what it sends and one on which it listens."""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from ..transport import StoreLost, StoreRefused
from . import envelopes
from .server_client import PoolServer, Subscription

# Numbers of subscribers that are left unread while the owner answers: several are read at once, which is cheaper.
MAX_UNREAD_COUNTS = 16


class Line:
    """The two connections of a member: one thread receives, another one sends, so that callers never block."""

    def __init__(self, server: PoolServer) -> None:
        self.id = secrets.token_bytes(envelopes.ID_BYTES)
        self.pid = os.getpid()
        self.failure = ""  # why the connections are of no use any more
        self.is_unheard = False  # the last envelope reached no subscriber
        self.unread_counts = 0  # envelopes of which the number of subscribers that they have reached was not read yet
        self.posted = self.sent = 0  # numbers of frames
        self.number = 0  # of the link
        self._counter = 0  # of the link's envelopes
        self._server = server
        self._client = server.connect()
        self._client_lock = threading.Lock()
        self._receiving = threading.Lock()
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._sending = threading.Lock()  # held while frames are taken out of the outbox and sent: their order is kept
        self._orders: SimpleQueue[bool] = SimpleQueue()  # for the sender; False: end
        self._channel = server.tell(self.id)
        try:
            self._subscription: Subscription = self._client.subscribe(self._channel, server.up)
            self._client.publish(self._channel, envelopes.WAKE_UP)  # a missing right is met here, not after a take-over
        except (StoreLost, StoreRefused):
            self._client.close()
            raise
        threading.Thread(target=self._send_all, name="agentos-pool-sender", daemon=True).start()

    def start_link(self) -> int:
        """Return the number of a new link."""
        self.finish_publish()  # else an envelope of the last link may say that the next one has no owner
        with self._client_lock:
            self._counter = 0
            self.is_unheard = False
            self.number += 1
            return self.number

    def post(self, number: int, frame: bytes, is_flushed: bool) -> None:
        """Let the sender send a frame of a link; `is_flushed`: the caller does it next. Frames of an older link are
        dropped."""
        self.posted += 1
        self._outbox.append((number, frame))
        if not is_flushed:
            self._orders.put(True)

    def wake(self) -> None:
        """Make a waiting `receive` return, through the server; without it `receive` returns after POLL_SECONDS."""
        self._outbox.append((0, b""))
        self._orders.put(True)

    def receive(self, timeout: float) -> tuple[str, bytes] | None:
        """Return the channel and content of the next message, if one comes. Raises `StoreLost`."""
        with self._receiving:
            if self.failure:
                raise StoreLost(self.failure)
            try:
                return self._subscription.receive(timeout)
            except (StoreLost, StoreRefused) as error:
                self.failure = self.failure or str(error)
                raise

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script of the gate. Raises `StoreLost` and `StoreRefused`."""
        with self._client_lock:
            self._finish_publish()
            return self._client.run(script, *arguments)

    def server_facts(self) -> dict[str, Any] | None:
        """Return facts about the server; None if it denies them. Raises `StoreLost` and `StoreRefused`."""
        with self._client_lock:
            self._finish_publish()
            return self._client.info("server")

    def _send_all(self) -> None:
        """Send what callers post."""
        while self._orders.get():
            self.flush()
        self.flush()
        with self._receiving:
            self._subscription.close()
        self._client.close()

    def flush(self, receives: bool = False) -> None:
        """Send what was posted: frames that were posted meanwhile travel together. Blocks for a round trip, unless this
        thread `receives` next: the owner's answer usually comes with it, and nothing else has to be waited for."""
        with self._sending:
            items = []
            while self._outbox:
                items.append(self._outbox.popleft())
            if items:
                with self._no_half_command(), self._client_lock:
                    self._send(items, receives)
                self.sent += sum(number != 0 for number, _ in items)

    def _send(self, items: list[tuple[int, bytes]], receives: bool) -> None:
        if self.unread_counts >= MAX_UNREAD_COUNTS:
            self._finish_publish()
        frames = [frame for number, frame in items if number == self.number]
        if frames:
            self._counter += 1
            envelope = envelopes.pack_ask(self.id, self.number, self._counter, frames)
            self._client.start_publish(self._server.ask, envelope)
            self.unread_counts += 1
        if receives and len(frames) == len(items):
            return
        self._finish_publish()
        if self.is_unheard or len(frames) < len(items):
            self._client.publish(self._channel, envelopes.WAKE_UP)

    def finish_publish(self) -> None:
        """Read how many subscribers the last envelope has reached: `is_unheard` says that there was none."""
        with self._no_half_command(), self._client_lock:
            self._finish_publish()

    def _finish_publish(self) -> None:
        while self.unread_counts:
            self.unread_counts -= 1
            self.is_unheard = not self._client.finish_publish()

    @contextmanager
    def _no_half_command(self) -> Iterator[None]:
        """Give the connections up if the block is left in another way than by its end: a Ctrl-C in the caller's thread
        leaves a command without its answer on the connection."""
        is_over = False
        try:
            yield
            is_over = True
        except (StoreLost, StoreRefused) as error:
            self.failure = str(error)
        finally:
            if not is_over:
                self.failure = self.failure or "a caller was interrupted while it sent"

    def close(self) -> None:
        """End the sender, which closes the connections when no thread receives any more."""
        self.failure = self.failure or "it was closed"
        self.wake()
        self._orders.put(False)

    def abandon(self) -> None:
        """Close the copies of descriptors in a forked child. Its parent's threads may have held the locks."""
        self._client.close()
        self._subscription.close()
