"""URLs of stores: their syntax, and the passwords in them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

FILE = "sqlite:///"
SERVERS = ("redis://", "rediss://", "unix://")
# Stands in the place of the password in a URL that is stored.
URL_MASK = "****"


class StoreAt(NamedTuple):
    """The URL of a store, and how a process uses it."""

    url: str
    run: str | None = None  # the name of the run in this process, which others see
    is_copy: bool = False  # work on a private copy: the store is read, and never escaped


def check_server(url: str) -> None:
    """Raise `ValueError` for a malformed URL of a server. The message repeats no part of it: if a password is not
    escaped, any part may belong to it."""
    try:
        parts = urlsplit(url)
        is_valid = parts.port != 0 and "@" not in parts.path + parts.query + parts.fragment
        if parts.scheme != "unix":  # a database that is not a number would silently be another one
            is_valid = is_valid and (parts.path in ("", "/") or parts.path[1:].isdecimal())
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            "the store's address must look like redis://USER:PASSWORD@HOST:PORT/DB, where DB is a number, and in a "
            "password / ? # and @ must be escaped, such as %2F for /"
        )
    if dict(parse_qsl(parts.query, keep_blank_values=True)).get("pool") == "":
        raise ValueError("the store's address has an empty pool name: write ?pool=NAME")


def absolute(url: str, folder: Path) -> str:
    """Return the URL with the path of a file made absolute, relative to a folder."""
    if not url.startswith(FILE) or url == FILE:
        return url
    return f"{FILE}{folder / Path(url.removeprefix(FILE)).expanduser()}"


def passwords(url: str) -> set[str]:
    """Return the passwords in a URL, both escaped and unescaped. Raises `ValueError` as `check_server` does."""
    if not url.startswith(SERVERS):
        return set()
    check_server(url)
    parts = urlsplit(url)
    escaped = parts.netloc.rpartition("@")[0].partition(":")[2]
    return {escaped, unquote(escaped), *(value for name, value in parse_qsl(parts.query) if "password" in name)} - {""}


def without_password(url: str) -> str:
    """Return the URL without its password, for display."""
    if not url.startswith(SERVERS):
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return join(parts._replace(netloc=host), [pair for pair in parse_qsl(parts.query) if "password" not in pair[0]])


def with_masked_password(url: str) -> str:
    """Return the URL for storage: a mask shows that a password is missing."""
    if not passwords(url):
        return url
    parts = urlsplit(without_password(url))
    user = urlsplit(url).netloc.rpartition("@")[0].partition(":")[0]
    return join(parts._replace(netloc=f"{user}:{URL_MASK}@{parts.netloc}"), parse_qsl(parts.query))


def join(parts: SplitResult, options: list[tuple[str, str]]) -> str:
    """Return the URL of its parts. Not `urlunsplit`: that makes `unix:/PATH` of `unix:///PATH`."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{'?' if options else ''}{urlencode(options)}"
