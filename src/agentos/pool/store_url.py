"""How a pool's store is named, and where a password may stand in that."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

FILE = "sqlite:///"
SERVERS = ("redis://", "rediss://", "unix://")
# What stands in the place of a password where a store's name is kept.
LEFT_OUT = "****"


class StoreAt(NamedTuple):
    """A store, and what is wanted of it."""

    url: str
    run: str | None = None  # what this process does, for those who look
    is_copy: bool = False  # what is there counts, but nothing is added to it: nobody sees what is done here


def check_server(url: str) -> None:
    """Raises `ValueError`, which repeats nothing of it: where a password was not escaped, any part may be its rest."""
    try:
        parts = urlsplit(url)
        is_right = parts.port != 0 and "@" not in parts.path + parts.query + parts.fragment
        if parts.scheme != "unix":  # a database that is no number would be another one than was meant
            is_right = is_right and (parts.path in ("", "/") or parts.path[1:].isdecimal())
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError(
            "the store's address must look like redis://USER:PASSWORD@HOST:PORT/DB, where DB is a number, and in a "
            "password / ? # and @ must be escaped, such as %2F for /"
        )
    if dict(parse_qsl(parts.query, keep_blank_values=True)).get("pool") == "":
        raise ValueError("the store's address names a pool without a name: ?pool=NAME")


def absolute(url: str, folder: Path) -> str:
    """A file counts from a folder, wherever it is opened later."""
    if not url.startswith(FILE) or url == FILE:
        return url
    return f"{FILE}{folder / Path(url.removeprefix(FILE)).expanduser()}"


def passwords(url: str) -> set[str]:
    """As they are written there, and as they are meant. Raises `ValueError` as `check_server` does."""
    if not url.startswith(SERVERS):
        return set()
    check_server(url)
    parts = urlsplit(url)
    written = parts.netloc.rpartition("@")[0].partition(":")[2]
    return {written, unquote(written), *(value for name, value in parse_qsl(parts.query) if "password" in name)} - {""}


def without_password(url: str) -> str:
    """What a store may be called in front of people."""
    if not url.startswith(SERVERS):
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return joined(parts._replace(netloc=host), [pair for pair in parse_qsl(parts.query) if "password" not in pair[0]])


def with_password_left_out(url: str) -> str:
    """What may be kept of it: it can be seen there that a password is missing."""
    if not passwords(url):
        return url
    parts = urlsplit(without_password(url))
    user = urlsplit(url).netloc.rpartition("@")[0].partition(":")[0]
    return joined(parts._replace(netloc=f"{user}:{LEFT_OUT}@{parts.netloc}"), parse_qsl(parts.query))


def joined(parts: SplitResult, options: list[tuple[str, str]]) -> str:
    """`urlunsplit` would make `unix:/PATH` of `unix:///PATH`."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{'?' if options else ''}{urlencode(options)}"
