"""Decompress bodies of requests: gzip, deflate, and zstd where a library for it is installed."""

from __future__ import annotations

import gzip
import importlib
import zlib
from collections.abc import Callable

# Modules with `decompress` for zstd: of Python 3.14, and its copy for older versions.
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")


def decode(body: bytes, encodings: str) -> bytes:
    """Return the body without the encodings of its `content-encoding` header. Raise `ValueError`."""
    for name in reversed([name.strip().lower() for name in encodings.split(",")]):
        if name in ("", "identity"):
            continue
        decompress = _DECODERS.get(name)
        if decompress is None:
            raise ValueError(f"the encoding {name!r} is not known")
        try:
            body = decompress(body)
        except Exception as error:  # each library has exceptions of its own
            raise ValueError(f"the body is not valid {name}: {error}") from error
    return body


def _unzstd(body: bytes) -> bytes:
    for name in _ZSTD_MODULES:
        try:
            decompress: Callable[[bytes], bytes] = importlib.import_module(name).decompress
        except ImportError:
            continue
        return decompress(body)
    raise ValueError("install backports.zstd to read it")


_DECODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress, "zstd": _unzstd}
