"""Output that the reader of a stream has not taken yet: in memory, then in a file without a name, then left out."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import IO

# Bytes that wait in memory, and in the file. Beyond both, output is left out: its item's log has it.
MAX_MEMORY_BYTES = 4 << 20
MAX_FILE_BYTES = 256 << 20
# Bytes that are taken out at a time.
CHUNK_BYTES = 64 * 1024


class Backlog:
    """A queue of bytes with bounded memory. For one thread at a time."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._memory_bytes = 0
        self._file: IO[bytes] | None = None  # while it holds something: everything newer goes there, too
        self._read_bytes = 0  # offsets in the file
        self._written_bytes = 0
        self.left_out_lines = 0
        self.left_out_bytes = 0

    def __len__(self) -> int:
        """Return the number of bytes that wait."""
        return self._memory_bytes + self._written_bytes - self._read_bytes

    def put(self, data: bytes, *, is_kept: bool = False) -> None:
        """Append data, or leave it out if there is no room. `is_kept`: take it in any case."""
        if self._file is None and (is_kept or self._memory_bytes + len(data) <= MAX_MEMORY_BYTES):
            self._pieces.append(data)
            self._memory_bytes += len(data)
        elif (not is_kept and self._written_bytes + len(data) > MAX_FILE_BYTES) or not self._put_into_file(data):
            self.left_out_lines += data.count(b"\n")
            self.left_out_bytes += len(data)

    def take(self) -> bytes:
        """Remove and return the oldest bytes, about CHUNK_BYTES; empty if nothing waits."""
        chunks: list[bytes] = []
        size = 0
        while self._pieces and size < CHUNK_BYTES:
            chunks.append(self._pieces.popleft())
            size += len(chunks[-1])
        self._memory_bytes -= size
        return b"".join(chunks) if chunks else self._take_from_file()

    def clear(self) -> None:
        self._pieces.clear()
        self._memory_bytes = 0
        self._close_file()

    def _put_into_file(self, data: bytes) -> bool:
        """Append to the file; return False if it cannot be written."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed when it is empty
            rest = memoryview(data)
            offset = self._written_bytes
            while rest:
                count = os.pwrite(self._file.fileno(), rest, offset)
                offset, rest = offset + count, rest[count:]
        except OSError:  # what was written of it is not counted
            if self._written_bytes == self._read_bytes:
                self._close_file()
            return False
        self._written_bytes = offset
        return True

    def _take_from_file(self) -> bytes:
        if self._file is None:
            return b""
        size = min(CHUNK_BYTES, self._written_bytes - self._read_bytes)
        try:
            data = os.pread(self._file.fileno(), size, self._read_bytes)
        except OSError:
            data = b""
        self._read_bytes += len(data)
        if not data or self._read_bytes == self._written_bytes:
            self._close_file()
        return data

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._read_bytes, self._written_bytes = None, 0, 0
