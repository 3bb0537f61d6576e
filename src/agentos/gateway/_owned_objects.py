"""OwnedObjects: which credential made a file, batch, stored response or encrypted content. Later requests go there."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache

from ._request import ClientRequest
from ._routes import Route

# Objects that are remembered; then the one that was used least recently is forgotten.
MAX_OBJECTS = 100_000
# Path segments after which an id of an object follows.
_COLLECTIONS = frozenset({
    "files", "batches", "responses", "conversations", "vector_stores", "uploads", "assistants", "threads", "evals",
    "containers", "cachedContents", "fine_tuning", "jobs", "skills", "videos", "corpora", "tunedModels",
})  # fmt: skip
_ID = re.compile(rb'"(?:id|name)"\s*:\s*"([^"\\]{1,300})"')
# Files that an object has: the outputs of a batch, the file of an upload, those of a fine-tuning.
_FILES = re.compile(
    rb'"(?:output_file_id|error_file_id|responsesFile)"\s*:\s*"(?P<one>[^"\\]{1,300})"'
    rb'|"file"\s*:\s*\{\s*"id"\s*:\s*"(?P<whole>[^"\\]{1,300})"'
    rb'|"result_files"\s*:\s*\[(?P<several>[^\]\\]{1,10000})\]'
)
# A response, one of its items, or the container of its code.
_RESPONSE_ID = re.compile(rb'"(?:id|container_id)"\s*:\s*"([a-z]{2,8}_[^"\\]{1,300})"')
_ENCRYPTED = re.compile(rb'"encrypted_content"\s*:\s*"([^"]+)"')
# Beginnings of ids that stand in the bodies of requests. Other values of such a field are the client's own.
_FILE_PREFIXES = ("file-", "file_", "assistant-")
_PREFIXES = (
    "resp_", "conv_", "cachedContents/", "vs_", "cntr_",
    "rs_", "msg_", "fc_", "ws_", "fs_", "ci_", "ig_", "mcp_", "ctc_", "cu_",  # items of a response
)  # fmt: skip


class OwnedObjects:
    """Remembers the credentials of objects."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, str] = OrderedDict()  # id -> credential id

    def remember(self, object_id: str, credential_id: str) -> None:
        """Note which credential an object belongs to."""
        self._owners[object_id] = credential_id
        self._owners.move_to_end(object_id)
        if len(self._owners) > MAX_OBJECTS:
            self._owners.popitem(last=False)

    def owners(self, request: ClientRequest) -> tuple[set[str], str | None]:
        """Return the credentials of all objects that a request names, and one object of which none is known."""
        owners: set[str] = set()
        unknown = None
        for object_id in named_objects(request):
            owner = self._owners.get(object_id)
            if owner is None:
                unknown = object_id
            else:
                owners.add(owner)
        return owners, unknown

    def read(self, route: Route, answer: bytes, credential_id: str) -> None:
        """Remember the objects that an answer, or a part of it, names as made."""
        if route.shape == "openai-responses":
            for found in _RESPONSE_ID.findall(answer):
                self.remember(found.decode("utf-8", "replace"), credential_id)
            for found in _ENCRYPTED.findall(answer):
                self.remember(encrypted_id(found), credential_id)
        elif (found_id := _ID.search(answer)) is not None:
            for made in (found_id[1], *_files_in(answer)):
                self.remember(_plain(made.decode("utf-8", "replace")), credential_id)


def makes_objects(request: ClientRequest) -> bool:
    """Return whether the answer to a request may name a new object. One that is looked at may have got files since it
    was made; the content of a file is what a client has written."""
    path = request.route.plain_path
    if request.route.shape is not None:
        return request.route.shape == "openai-responses"
    if request.method == "GET":
        return _object_in_path(path) == path.rpartition("/")[2]
    return request.method == "POST" and _collection(path) is not None


def lists_objects(request: ClientRequest) -> bool:
    """Return whether a request asks for all objects of an organisation."""
    return request.method == "GET" and request.route.plain_path.rpartition("/")[2] in _COLLECTIONS


def named_objects(request: ClientRequest) -> list[str]:
    """Return the ids of objects that a request names, in its path or its body."""
    found = []
    in_path = _object_in_path(request.route.plain_path)
    if in_path is not None:
        found.append(in_path)
    for reference in request.facts.references:
        plain = _plain(reference)
        is_file = reference.startswith(_FILE_PREFIXES) or "files/" in reference
        if is_file or reference.startswith(_PREFIXES):
            found.append(plain)
    found.extend(encrypted_id(content) for content in request.facts.encrypted)
    return found


def encrypted_id(content: bytes) -> str:
    """Return the name under which encrypted content is remembered."""
    return "encrypted:" + hashlib.blake2b(content, digest_size=16).hexdigest()


def _files_in(answer: bytes) -> Iterator[bytes]:
    for match in _FILES.finditer(answer):
        if match["several"] is not None:
            yield from match["several"].split(b'"')[1::2]
        else:
            yield match["one"] or match["whole"]


def _collection(path: str) -> int | None:
    """Return the position of the last segment that is a collection of objects."""
    segments = path.split("/")
    return next((i for i in range(len(segments) - 1, -1, -1) if segments[i].partition(":")[0] in _COLLECTIONS), None)


@lru_cache(maxsize=256)
def _object_in_path(path: str) -> str | None:
    segments = path.split("/")
    for index, segment in enumerate(segments[:-1]):
        if segment in _COLLECTIONS and segments[index + 1] not in _COLLECTIONS:
            return segments[index + 1].partition(":")[0] or None
    return None


def _plain(name: str) -> str:
    """Return the last part of a name such as `files/abc`, or of the URI of a file: paths have only that."""
    return name.rsplit("/", 1)[-1]
