"""Checks the settings of a credential: its base URL, its headers, and the variables of its commands.

The keys file uses it, too, and adds the line to the messages. No message contains a value: it may be a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .references import is_reference

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Characters that a header's value may have: no line end, which would begin another header.
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Headers that belong to a connection or describe a body: the sender of a request sets them.
_RESERVED_HEADERS = frozenset(
    {
        "connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "proxy-authenticate",
        "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# A name that is printed; any other may be a key in the wrong place.
_PRINTED_NAME = re.compile(r"[A-Za-z_-]{1,32}")
# Hosts to which keys may be sent without TLS.
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def checked_base_url(url: Any) -> str:
    """Return a base URL without slashes at its end; a reference unchanged. Raise `ValueError`."""
    problem = "base_url must be an address such as https://host/path, without ? or @"
    if not isinstance(url, str):
        raise ValueError(problem)  # noqa: TRY004 - as for any other wrong value
    if is_reference(url):
        return url
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(problem) from None
    is_plain = url.isprintable() and " " not in url
    if not is_plain or not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise ValueError(problem)
    if "@" in parts.netloc:
        raise ValueError(problem)
    return url.rstrip("/")


def check_headers(headers: Any) -> None:
    """Raise `ValueError` unless all headers can be sent."""
    if not isinstance(headers, Mapping):
        raise ValueError('headers must be a table of names and values, such as {"OpenAI-Project": "proj_1"}')  # noqa: TRY004
    names = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError("the name of a header has letters, digits and dashes only")
        if name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the header {_printed(name)} is set by the program that sends the request")
        if name.lower() in names:
            raise ValueError(f"the header {_printed(name)} is given twice")
        names.add(name.lower())
        if not isinstance(value, str) or (not is_reference(value) and not _HEADER_VALUE.fullmatch(value)):
            raise ValueError(f"the value of the header {_printed(name)} must be text of one line")


def check_command_env(variables: Any) -> None:
    """Raise `ValueError` unless all variables can be set."""
    if not isinstance(variables, Mapping):
        raise ValueError('command_env must be a table of names and values, such as {"AWS_REGION": "eu-west-1"}')  # noqa: TRY004
    for name, value in variables.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ValueError(
                "the name of a variable has letters, digits and underscores only, and begins with no digit"
            )
        if name.startswith("AGENTOS_"):
            raise ValueError("variables that begin with AGENTOS_ are set by the run")
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"the value of the variable {_printed(name)} must be text without a NUL character")


def expanded(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with `~` at the beginning of a value expanded."""
    return {
        name: os.path.expanduser(value) if value.startswith("~") else value  # noqa: PTH111 - a value is any text
        for name, value in variables.items()
    }


def _printed(name: str) -> str:
    return name if _PRINTED_NAME.fullmatch(name) else "here"
