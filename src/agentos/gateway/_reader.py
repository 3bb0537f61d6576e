"""AnswerReader: reads usage and new objects from an answer on its way, and masks secrets that the provider repeats."""

from __future__ import annotations

from agentos.providers.usage import StreamUsage, TokenUsage, usage_of_body

from ._masking import Masks
from ._owned_objects import OwnedObjects, makes_objects
from ._request import ClientRequest

# Bytes of an answer that is no stream, of which the usage is read. Of a longer one it is estimated.
MAX_BODY = 4 * 1024 * 1024
# Bytes of one event in which new objects are looked for.
MAX_EVENT = 4 * 1024 * 1024
# Bytes in which the id of an answer is looked for, if nothing else can be in it.
MAX_BEGIN = 16 * 1024


class AnswerReader:
    """One answer. `feed` is called with each part before the client gets it."""

    __slots__ = (
        "_body",
        "_credential_id",
        "_masks",
        "_objects",
        "_request",
        "_scan",
        "_scans_all",
        "_stream",
        "_usage",
        "is_over",
        "size",
    )  # fmt: skip

    def __init__(
        self, request: ClientRequest, credential_id: str, masks: Masks, objects: OwnedObjects, is_stream: bool,
        is_readable: bool,
    ) -> None:  # fmt: skip
        """`is_readable`: the body has no content encoding."""
        shape = request.route.shape
        self._request = request
        self._credential_id = credential_id
        self._objects = objects
        self._stream = StreamUsage(shape) if is_stream and is_readable and shape is not None else None
        self._body = bytearray() if not is_stream and is_readable and shape is not None else None
        self._scan = bytearray() if is_readable and makes_objects(request) else None
        self._scans_all = self._scan is not None and b"encrypted_content" in request.body
        self._masks = masks
        self._usage: TokenUsage | None = None  # of a body that has come completely, once it was read
        self.size = 0
        self.is_over = False  # the provider has sent the end of its answer

    def feed(self, chunk: bytes) -> bytes:
        """Read the next part; return the bytes that may be passed on now."""
        self.size += len(chunk)
        if self._stream is not None:
            self._stream.feed(chunk)
        elif self._body is not None:
            self._body += chunk
            if len(self._body) > MAX_BODY:
                self._body = None
        if self._scan is not None:
            self._look_for_objects(chunk)
        return self._masks.feed(chunk)

    def end(self) -> bytes:
        """Note the end of the answer; return the bytes that were kept back."""
        self.is_over = True
        return self._masks.end()

    @property
    def is_complete(self) -> bool:
        """Whether everything that matters has come: a client that leaves now has not cancelled."""
        return self.is_over or (self._stream is not None and self._stream.is_complete)

    def usage(self) -> TokenUsage | None:
        """Return the usage as far as the answer has stated it."""
        if self._stream is not None:
            return self._stream.usage
        shape = self._request.route.shape
        body = self._body
        if self._usage is None and body is not None and shape is not None and self.is_over:
            self._usage = usage_of_body(shape, bytes(body))
        return self._usage

    def _look_for_objects(self, chunk: bytes) -> None:
        assert self._scan is not None
        self._scan += chunk
        self._objects.read(self._request.route, bytes(self._scan), self._credential_id)
        if not self._scans_all:
            if self.size > MAX_BEGIN:
                self._scan = None
            return
        event_end = self._scan.rfind(b"\n\n")
        if event_end >= 0:
            del self._scan[: event_end + 2]
        if len(self._scan) > MAX_EVENT:
            self._scan.clear()
