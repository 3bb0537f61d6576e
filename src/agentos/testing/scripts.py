"""Answers that are prescribed: what the provider says next, whatever its limits are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

# Why a request is not served. Each style of provider has its own status and body for each.
Kind = Literal["limit", "quota", "payment", "dead", "overloaded", "forbidden", "bad_request", "server_error"]

_KIND_OF_STATUS: dict[int, Kind] = {
    400: "bad_request",
    401: "dead",
    402: "payment",
    403: "forbidden",
    429: "limit",
    503: "overloaded",
    529: "overloaded",
}


@dataclass(frozen=True, slots=True)
class Scripted:
    """One prescribed answer. Plain ones can be written shorter: a status, or a kind such as "quota"."""

    # None: served, in the order of the limits and without them.
    kind: Kind | None = None
    # Where the style's own status for that kind is not meant.
    status: int | None = None
    # Seconds, told in whatever way the provider tells waits.
    retry_after: float | None = None
    # A stream that begins well and then breaks with this kind, inside its 200.
    breaks_with: Kind | None = None
    # The connection is closed without an answer.
    drops: bool = False


def scripted(answer: int | str | Scripted, retry_after: float | None = None) -> Scripted:
    """An entry of a script, written in any of its ways. `retry_after` is for those that say nothing themselves."""
    if isinstance(answer, Scripted):
        return answer
    if isinstance(answer, str):
        if answer not in get_args(Kind):
            raise ValueError(f"{answer!r} is none of {', '.join(get_args(Kind))}")
        kind, status = cast(Kind, answer), None
    elif answer < 400:
        return Scripted()
    else:
        kind = _KIND_OF_STATUS.get(answer, "server_error" if answer >= 500 else "bad_request")
        status = answer
    return Scripted(kind, status=status, retry_after=retry_after if kind in ("limit", "overloaded") else None)
