"""A proxy between client and server that can cut, delay or drop the traffic."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from pathlib import Path


class Proxy:
    """Listens on a loopback port; one thread per connection. `server`: the path of a unix socket."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._changed = threading.Condition()  # held while using the attributes below
        self._is_cut = False
        self._reply_delay = 0.0
        self._swallow_after: bytes | None = None
        self._is_swallowing = False
        self._connections: list[socket.socket] = []
        self.swallowed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def url(self, pool: str = "pool") -> str:
        return f"redis://127.0.0.1:{self.port}/0?pool={pool}"

    def cut(self) -> None:
        """Hold all data back in both directions; connections stay open."""
        with self._changed:
            self._is_cut = True

    def heal(self) -> None:
        """End all faults and close the connections, which loses the data that was held back."""
        with self._changed:
            self._is_cut, self._reply_delay, self._swallow_after = False, 0.0, None
            self._changed.notify_all()
        self.drop()

    def delay(self, seconds: float) -> None:
        """Delay every reply."""
        with self._changed:
            self._reply_delay = seconds

    def swallow_reply(self, to: bytes) -> None:
        """Deliver the next request that contains `to`, drop its reply and close the connection."""
        with self._changed:
            self._swallow_after = to

    def drop(self) -> None:
        with self._changed:
            connections, self._connections = self._connections, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.heal()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), name="proxy", daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with self._changed:
            self._connections += [client, server]
        with client, server, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._wait_while_cut()
            server.connect(str(self._server))
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            swallows = False
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    self._wait_while_cut()
                    is_reply = key.fileobj is server
                    with self._changed:
                        delay = self._reply_delay if is_reply else 0.0
                        if not is_reply and self._swallow_after is not None and self._swallow_after in data:
                            self._swallow_after, swallows = None, True
                    if is_reply and swallows:
                        self.swallowed += 1
                        return
                    if delay:
                        time.sleep(delay)
                    key.data.sendall(data)

    def _wait_while_cut(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_cut)
