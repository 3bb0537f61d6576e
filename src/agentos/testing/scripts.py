"""Scripted answers: what the provider answers next, regardless of its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

# Reasons for not serving a request. Each style of provider has its own status and body for each.
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
    """One scripted answer. Simple ones can be written as a status, or as a kind such as "quota"."""

    # None: served, without a look at the limits.
    kind: Kind | None = None
    # Replaces the style's own status for that kind.
    status: int | None = None
    # Seconds, in the form that the provider uses for waits.
    retry_after: float | None = None
    # A stream starts with status 200 and then breaks with this kind, after `breaks_after` events of its content: with
    # 0 the error is the first event after those that open the stream.
    breaks_with: Kind | None = None
    breaks_after: int = 1
    # A stream is cut after this number of events of its content: its connection is closed without an end.
    cuts_after: int | None = None
    # Seconds of silence after the first event of a stream.
    stalls: float = 0.0
    # The connection is closed without an answer.
    drops: bool = False


def parse_scripted(answer: int | str | Scripted, retry_after: float | None = None) -> Scripted:
    """Return an entry of a script from any of its forms. `retry_after` applies to entries without their own."""
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
