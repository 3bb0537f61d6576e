"""ClientRequest: one request as it is passed on, built from parsed parts only. And what its body says. Pure code."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import msgspec

from ._routes import Route

# Headers that carry a token or key. The client's are never passed on.
KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
# Headers between two neighbours on the way, which must not be passed on in either direction.
HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
# Headers of a request that are not passed on: those that the gateway writes itself, and those that belong to the
# client's machine or to another account than that of the key.
_REPLACED = HOP_BY_HOP | frozenset(KEY_HEADERS) | frozenset({
    "host", "content-length", "expect", "accept-encoding", "cookie", "cookie2", "forwarded", "via", "origin",
    "referer", "x-real-ip", "openai-organization", "openai-project", "anthropic-organization", "x-goog-user-project",
})  # fmt: skip
_REPLACED_PREFIXES = ("x-forwarded-", "sec-fetch-", "cf-", "x-agentos-")
# Parameters of a URL that carry a key.
_KEY_PARAMETERS = frozenset({"key", "api_key", "access_token", "token"})
# Bytes of a compressed body after decompression. A larger one is refused.
MAX_DECODED_BYTES = 64 * 1024 * 1024
# Content encodings that change nothing. Some clients name a character set there, and providers ignore it.
_PLAIN = frozenset({"", "identity", "utf-8", "utf8"})
# Headers that name a session of a client, which shares a prompt cache.
_SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "session_id", "x-session-id")
_DATA = re.compile(rb'"(?:data|image_url|url|file_data)"\s*:\s*"[^"]{1000,}"')
# A field that names an object, one that lists some, and an item of an earlier response. Quotation marks of the data of
# tools, which is text in a text, follow a backslash.
_REFERENCES = re.compile(
    rb'"(?:(?:input_)?file_id|training_file|validation_file|previous_response_id|cachedContent|cached_content'
    rb'|conversation|container|fileUri|file_uri)"\s*:\s*(?:\{\s*"id"\s*:\s*)?"(?P<one>[^"\\]{1,1000})"'
    rb'|"(?:file_ids|vector_store_ids)"\s*:\s*\[(?P<several>[^\]\\]{1,10000})\]'
    rb'|"type"\s*:\s*"item_reference"\s*,\s*"id"\s*:\s*"(?P<item>[^"\\]{1,1000})"'
    rb'|"id"\s*:\s*"(?P<item_before>[^"\\]{1,1000})"\s*,\s*"type"\s*:\s*"item_reference"'
)
_REFERENCE_MARKS = (
    b'file_id', b'_file"', b'previous_response_id"', b'cachedContent"', b'cached_content"', b'"conversation"',
    b'"container"', b'vector_store_ids"', b'"item_reference"', b'fileUri"', b'file_uri"', b'encrypted_content"',
)  # fmt: skip
_ENCRYPTED = re.compile(rb'"encrypted_content"\s*:\s*"([^"]+)"')
_NO_TEXT = re.compile(r"[\ud800-\udfff]")
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
# Characters of a session's name that are kept as they are; of a longer one a digest is kept.
MAX_SESSION = 200


class _Body(msgspec.Struct):
    """The fields of request bodies that are read; all others are skipped without building them."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    generationConfig: Any = None  # noqa: N815 - as Gemini spells it
    prompt_cache_key: Any = None
    metadata: Any = None


_decode = msgspec.json.Decoder(_Body).decode


@dataclass(slots=True)
class BodyFacts:
    """What the body of a request says."""

    model: str | None = None
    max_tokens: int | None = None
    text_bytes: int = 0  # without images and files
    session: str | None = None
    references: tuple[str, ...] = ()  # ids of objects that belong to one organisation
    encrypted: tuple[bytes, ...] = ()  # encrypted content, which only the organisation that made it can read
    is_readable: bool = True  # False: nothing is known of the body, because its content encoding cannot be undone


@dataclass(slots=True)
class ClientRequest:
    """One request of a client."""

    method: str
    route: Route
    query: str  # without a key
    headers: list[tuple[str, str]]  # that are passed on
    body: bytes
    facts: BodyFacts = field(default_factory=BodyFacts)
    retry_count: int | None = None  # as SDKs state it; None: the client does not
    stated_timeout: float | None = None  # seconds that the client waits for an answer
    is_idempotent: bool = False  # the client says that it may be carried out twice
    user_agent: str = ""
    model: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.route.model or self.facts.model


def passed_headers(headers: Iterable[tuple[str, str]], connection: str) -> list[tuple[str, str]]:
    """Return the headers of a request that are passed on; `connection` is its header of that name."""
    named = {name.strip().lower() for name in connection.split(",")} if connection else ()
    return [(name, value) for name, value in headers if is_passed(name) and name.lower() not in named]


@lru_cache(maxsize=1024)  # clients send the same names again and again
def is_passed(name: str) -> bool:
    """Return whether a header of a request is passed on."""
    lower = name.lower().replace("_", "-")  # which servers that pass headers on as variables do not tell apart
    return lower not in _REPLACED and not lower.startswith(_REPLACED_PREFIXES)


def is_text(value: str) -> bool:
    """Return whether the value of a header can be passed on: it is ASCII or UTF-8. aiohttp would leave other bytes out
    and pass on the rest."""
    return value.isascii() or not _NO_TEXT.search(value)


def passed_query(query: str) -> str:
    """Return a query without parameters that carry a key."""
    if not query:
        return ""
    return "&".join(part for part in query.split("&") if unquote(part.partition("=")[0]).lower() not in _KEY_PARAMETERS)


def number_header(headers: Mapping[str, str], *names: str) -> float | None:
    """Return the first of these headers that is a number from 0."""
    for name in names:
        text = headers.get(name, "")
        if text and len(text) < 20 and text.replace(".", "", 1).isdecimal() and text.isascii():
            return float(text)
    return None


def read_facts(route: Route, headers: Mapping[str, str], body: bytes) -> BodyFacts:
    """Return what a body says. Providers read more than valid JSON (lone surrogates, a byte-order mark, NaN): of a body
    that is none, model and references are searched for, so that no rule about them is passed by."""
    facts = BodyFacts(session=_session_in(headers))
    if not body or (route.shape is None and "json" not in headers.get("content-type", "json")):
        return facts
    plain = decoded(body, headers.get("content-encoding", ""))
    if plain is None:
        facts.is_readable = False
        return facts
    try:
        content = _decode(plain)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        named = _MODEL.search(plain)
        content = _Body(model=None if named is None else named[1].decode("utf-8", "replace"))
    facts.model = content.model if isinstance(content.model, str) and len(content.model) <= 200 else None
    settings = content.generationConfig if isinstance(content.generationConfig, dict) else {}
    limits = (
        content.max_tokens, content.max_completion_tokens, content.max_output_tokens, settings.get("maxOutputTokens")
    )  # fmt: skip
    facts.max_tokens = next((n for n in limits if isinstance(n, int) and not isinstance(n, bool) and n >= 0), None)
    metadata = content.metadata if isinstance(content.metadata, dict) else {}
    for key in (content.prompt_cache_key, metadata.get("user_id")):
        if facts.session is None and isinstance(key, str) and key:
            facts.session = _short(key)
    facts.text_bytes = _text_bytes(plain)
    if _has_reference(plain):
        references = (ref.decode("utf-8", "replace") for ref in _references_in(plain))
        facts.references = tuple(dict.fromkeys(references))
        facts.encrypted = tuple(dict.fromkeys(_ENCRYPTED.findall(plain)))
    return facts


def _session_in(headers: Mapping[str, str]) -> str | None:
    for name in _SESSION_HEADERS:
        if name in headers:
            return _short(headers[name])
    return None


def _short(session: str) -> str:
    """Return the name of a session, or a digest of a long one: thousands are remembered."""
    if len(session) <= MAX_SESSION:
        return session
    return hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _has_reference(body: bytes) -> bool:
    for mark in _REFERENCE_MARKS:  # noqa: SIM110 - runs for every request, and a generator takes twice as long
        if mark in body:
            return True
    return False


def _references_in(body: bytes) -> Iterator[bytes]:
    for match in _REFERENCES.finditer(body):
        if match["several"] is not None:
            yield from match["several"].split(b'"')[1::2]
        else:
            yield match["one"] or match["item"] or match["item_before"]


def _text_bytes(body: bytes) -> int:
    """Return the length of a body without the data of images and files, which cost by their size in pixels or pages."""
    if len(body) < 1000 or (b"base64" not in body and b"nline" not in body):
        return len(body)
    return len(body) - sum(match.end() - match.start() for match in _DATA.finditer(body))


def decoded(body: bytes, encoding: str, max_bytes: int | None = None) -> bytes | None:
    """Return a body without its content encoding; None if that is unknown, wrong, or too much. `max_bytes` of the
    result: by default MAX_DECODED_BYTES."""
    max_bytes = MAX_DECODED_BYTES if max_bytes is None else max_bytes
    encoding = encoding.strip().lower()
    if encoding in _PLAIN:
        return body
    try:
        if encoding in ("gzip", "x-gzip", "deflate"):
            inflater = zlib.decompressobj(47 if encoding != "deflate" else 15)
            plain = inflater.decompress(body, max_bytes)
            return plain if inflater.eof and not inflater.unused_data else None
        if encoding == "zstd":
            return _decoded_zstd(body, max_bytes)
    except Exception:  # each library has errors of its own
        return None
    return None


def _decoded_zstd(body: bytes, max_bytes: int) -> bytes | None:
    import zstandard

    # The size in the frame's head is the sender's word: the output is limited instead.
    decompressor = zstandard.ZstdDecompressor(max_window_size=128 * 1024 * 1024)
    with decompressor.stream_reader(body, read_across_frames=True) as reader:
        plain = reader.read(max_bytes)
        return plain if not reader.read(1) else None
