"""A proxy that refuses every request and remembers which hosts were asked for."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.server.targets.append(self.rfile.readline().decode("latin-1").strip())  # type: ignore[attr-defined]
        self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


class RefusingProxy(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.targets: list[str] = []  # first lines of requests, such as `CONNECT host:443 HTTP/1.1`

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment that makes a program use this proxy."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return {"HTTPS_PROXY": url, "HTTP_PROXY": url}


@contextmanager
def refusing_proxy() -> Iterator[RefusingProxy]:
    with RefusingProxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
