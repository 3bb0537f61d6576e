"""ProviderAddress: where a provider is, and in which header it reads the key. Used to set up a gateway."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from agentos.providers.presets import PRESETS, CheckCall, base_url_of, preset_of

# How requests and errors of a provider look. All others are compatible with OpenAI.
_FAMILIES = {"anthropic": "anthropic", "gemini": "gemini"}
_BEARER = CheckCall("")


@dataclass(frozen=True, slots=True)
class ProviderAddress:
    """One provider, for credentials that have no address of their own."""

    name: str
    base_url: str | None = None  # as its SDK spells it, with or without a version; None: only credentials know
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    family: str = "openai"  # "openai", "anthropic" or "gemini"


def known_addresses(
    base_urls: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, ProviderAddress]:
    """Return the addresses of all providers, by name: of `base_urls` (a keys file), else of the variables that their
    SDKs read, else their own."""
    base_urls = base_urls or {}
    environ = os.environ if environ is None else environ
    addresses = {
        preset.name: address_of(preset.name, base_urls.get(preset.name) or base_url_of(preset, environ))
        for preset in PRESETS
    }
    return addresses | {name: address_of(name, url) for name, url in base_urls.items() if name not in addresses}


def address_of(name: str, base_url: str | None = None) -> ProviderAddress:
    """Return the address of a provider: a preset, or one that is compatible with OpenAI."""
    preset = preset_of(name)
    call = _BEARER if preset is None or preset.check is None else preset.check
    return ProviderAddress(
        name, None if base_url is None else base_url.rstrip("/"), call.key_header, call.key_prefix,
        _FAMILIES.get(name, "openai"),
    )  # fmt: skip


@lru_cache(maxsize=256)
def join_url(base_url: str, path: str) -> str:
    """Return the URL of a path. A part that the end of the base and the begin of the path have in common, such as
    `/v1`, stands in it once: clients and providers differ in whether a base URL has the version. A deployment of Azure
    in the base takes the place of the one in the path."""
    scheme, separator, rest = base_url.partition("://")
    host, _, base_path = rest.partition("/")
    base, segments = base_path.split("/") if base_path else [], path.removeprefix("/").split("/")
    if base[-3:-1] == segments[:2] == ["openai", "deployments"]:
        segments = segments[3:]
    for shared in range(min(len(base), len(segments)), 0, -1):
        if base[-shared:] == segments[:shared]:
            segments = segments[shared:]
            break
    return f"{scheme}{separator}{'/'.join([host, *base, *segments])}"
