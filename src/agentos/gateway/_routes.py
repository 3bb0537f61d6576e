"""Routes: which provider a request is for, by its path, and the shape of its answer. Pure code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from agentos.providers.presets import preset_of

from .addresses import ProviderAddress

# Paths below /v1 that only Anthropic has.
_ANTHROPIC = frozenset({"messages", "complete"})
_GEMINI_VERSIONS = frozenset({"v1beta", "v1alpha", "v1beta1", "upload"})
# Without a version: some clients are given a base URL without one.
_OPENAI_ENDPOINTS = frozenset({"chat", "responses", "embeddings", "completions"})
_ENDINGS = (
    ("/chat/completions", "openai-chat"),
    ("/completions", "openai-chat"),
    ("/responses", "openai-responses"),
    ("/embeddings", "openai-embeddings"),
    ("/messages", "anthropic"),
)
# Ends of paths to which a POST costs nothing; the answer to any other one that states no usage has an unknown price.
_FREE = ("/files", "/uploads", "/parts", "/complete", "/cancel", "/count_tokens", "/input_tokens", ":countTokens")
_GENERATE = frozenset({"generatecontent", "streamgeneratecontent"})
_DEPLOYMENT = re.compile(r"/deployments/([^/]+)/")
_MODELS = re.compile(r"(?:/v\d\w*)?/models(?:/[^/]+)?")
_REPEATED = re.compile(r"/{2,}")
_PARAMETERS = re.compile(r";[^/]*")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
# Visible ASCII without characters that no client has to send unescaped.
_TARGET = re.compile(r"/[!$-;=?-\[\]_a-z|~]*")


class Route(NamedTuple):
    """Where a request goes."""

    provider: str  # canonical name
    path: str  # as the provider gets it, before it is joined with a base URL
    family: str  # format of errors: "openai", "anthropic" or "gemini"
    shape: str | None = None  # of `providers.usage`; None: the answer states no usage
    model: str | None = None  # where the path names it
    plain_path: str = ""  # that rules look at: as a provider may understand the path

    def is_open_to_every_key(self, method: str) -> bool:
        """Return whether every valid key may send this request: only then a 401 or 403 is about the key. Others, such
        as those for administrators, are refused with a good key, too; a client must not spoil it with them. Of a
        provider of the keys file no path is known, and every key of it may send everything."""
        if preset_of(self.provider) is None:
            return True
        is_listing = _MODELS.fullmatch(self.plain_path) is not None or self.plain_path.endswith("/count_tokens")
        return (self.shape is not None and method == "POST") or (is_listing and method in ("GET", "HEAD", "POST"))

    @property
    def error_shape(self) -> str:
        """The format of errors that the client of this request understands."""
        return self.shape or self.family


@lru_cache(maxsize=256)
def check_target(target: str) -> str | None:
    """Return why the target of a request is refused; None if it is a path that can be passed on as it is."""
    if not _TARGET.fullmatch(target):
        return "the target must be a path of visible ASCII characters that begins with a slash"
    path = unquote_to_bytes(target.partition("?")[0])
    if _CONTROL.search(unquote_to_bytes(target)):
        return "the target must not have escaped control characters"
    segments = {segment.partition(b";")[0] for segment in re.split(rb"[/\\]", path)}  # some servers read `..;` as `..`
    if b"." in segments or b".." in segments or b"\\" in path or b"%" in path:
        return "the path must not have dot segments, backslashes or text that is escaped twice"
    return None


def find_route(path: str, headers: Mapping[str, str], addresses: Mapping[str, ProviderAddress]) -> Route | None:
    """Return the route of a path; None if it leads to no provider."""
    provider, path = _provider_of(path, "x-goog-api-key" in headers, "anthropic-version" in headers)
    address = addresses.get(provider)
    return None if address is None or not path else _describe(provider, path, address.family)


@lru_cache(maxsize=256)
def _provider_of(path: str, has_gemini_key: bool, has_anthropic_version: bool) -> tuple[str, str]:
    """Return the provider of a path, and the path as the provider gets it; an empty one if it leads nowhere."""
    segments = path.split("/")[1:]
    first, second = segments[0], segments[1] if len(segments) > 1 else ""
    if first == "v1":
        provider = _provider_of_version_1(segments, has_gemini_key, has_anthropic_version)
    elif first in _GEMINI_VERSIONS:
        provider = "gemini"
    elif first in _OPENAI_ENDPOINTS:
        provider = "openai"
    elif first == "openai" and second == "deployments":
        provider = "azure"
    else:
        preset = preset_of(first)
        provider = first if preset is None else preset.name
        path = "/" + "/".join(segments[1:]) if second else ""
    return provider, path


def is_free(method: str, route: Route) -> bool:
    """Return whether a request whose answer states no usage costs nothing."""
    return method != "POST" or route.plain_path.endswith(_FREE)


def _provider_of_version_1(segments: list[str], has_gemini_key: bool, has_anthropic_version: bool) -> str:
    if len(segments) > 1 and segments[1] in _ANTHROPIC:
        return "anthropic"
    if ":" in segments[-1] or has_gemini_key:
        return "gemini"
    return "anthropic" if has_anthropic_version else "openai"


@lru_cache(maxsize=256)
def _describe(provider: str, path: str, family: str) -> Route:
    plain = _plain(path)
    lower = plain.lower()
    name, _, verb = plain.rpartition("/models/")[2].partition(":")
    if family == "gemini" and "/openai/" not in lower:
        model = name if "/models/" in plain and name else None
        shape = "gemini" if verb.lower() in _GENERATE else None
        return Route(provider, path, family, shape, model, plain)
    shape = next((shape for ending, shape in _ENDINGS if lower.endswith(ending)), None)
    if shape is not None:
        family = "anthropic" if shape == "anthropic" else "openai"
    deployment = _DEPLOYMENT.search(plain) if provider == "azure" else None
    return Route(provider, path, family, shape, None if deployment is None else deployment[1], plain)


def _plain(path: str) -> str:
    """Return a path without escapes, repeated slashes, parameters of segments and a slash at its end. Providers that
    do not tell such spellings apart must not be reached past the rules for the path."""
    return _REPEATED.sub("/", _PARAMETERS.sub("", unquote(path))).rstrip("/")
