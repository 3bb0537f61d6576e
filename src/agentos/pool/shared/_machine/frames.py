"""Frames on a stream socket: four bytes with the length, then the frame."""

from __future__ import annotations

import contextlib
import socket
import struct

from ..messages import MAX_FRAME
from ..transport import StoreLost

_HEADER = struct.Struct(">I")
_pack_length = _HEADER.pack
# Bytes that are read at once.
READ_BYTES = 64 * 1024
# Bytes that may wait to be sent to a process that does not read them.
MAX_UNSENT = 64 * 1024 * 1024


class FrameStream:
    """Reads and writes frames on a non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._send_some, self._receive_some = sock.send, sock.recv
        self._read = bytearray()
        self.unsent = bytearray()

    def receive(self) -> list[bytes]:
        """Read what has arrived; return the complete frames. Raises `StoreLost` if the other side closed it."""
        try:
            data = self._receive_some(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise StoreLost(f"the connection broke: {error.strerror or error}") from None
        if not data:
            raise StoreLost("the connection was closed")
        if not self._read and len(data) >= 4 and data[:4] == _pack_length(len(data) - 4):
            return [data[4:]]  # the usual case: one whole frame
        self._read += data
        return self._split()

    def _split(self) -> list[bytes]:
        frames = []
        buffer, start = self._read, 0
        while len(buffer) - start >= 4:
            length = _HEADER.unpack_from(buffer, start)[0]
            if length > MAX_FRAME:
                raise StoreLost("a frame is too large")
            if len(buffer) - start - 4 < length:
                break
            frames.append(bytes(buffer[start + 4 : start + 4 + length]))
            start += 4 + length
        del buffer[:start]
        return frames

    def send(self, frame: bytes) -> None:
        """Send a frame; what the socket does not take is kept for `flush`. Raises `StoreLost`."""
        data = _pack_length(len(frame)) + frame
        if not self.unsent:
            try:
                sent = self._send_some(data)
            except OSError as error:
                sent = self._none_sent(error)
            if sent == len(data):
                return
            data = data[sent:]
        self.unsent += data
        if len(self.unsent) > MAX_UNSENT:
            raise StoreLost("the other side does not read")

    def flush(self) -> None:
        """Send what is kept. Raises `StoreLost`."""
        if self.unsent:
            try:
                sent = self._send_some(self.unsent)
            except OSError as error:
                sent = self._none_sent(error)
            del self.unsent[:sent]

    def _none_sent(self, error: OSError) -> int:
        """Return 0 if the socket takes nothing now. Raises `StoreLost`."""
        if isinstance(error, BlockingIOError):
            return 0
        raise StoreLost(f"the connection broke: {error.strerror or error}") from None

    def break_off(self) -> None:
        """Give the stream up: what is kept is forgotten, and the next `receive` raises `StoreLost`."""
        self.unsent.clear()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()
