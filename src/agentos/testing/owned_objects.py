"""Objects of a simulated provider that exist in one organization only: stored responses, reasoning, files, caches.

A request that names an object of another group of keys is refused as the provider would: it must reach the group that
made it.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from .dialects import Style

# Objects in memory; the oldest are forgotten when there are more.
MAX_OBJECTS = 100_000
# Ids that this provider gives out, wherever they stand in a request.
_IDS = re.compile(rb"(?:resp|file|enc)_sim_[0-9]+")


class OwnedObjects:
    """Ids by the group of keys that made each."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def create(self, kind: str, group: str) -> str:
        """Return the id of a new object: of kind "resp", "file" or "enc"."""
        id_ = f"{kind}_sim_{next(self._numbers)}"
        self._owners[id_] = group
        if len(self._owners) > MAX_OBJECTS:
            del self._owners[next(iter(self._owners))]
        return id_

    def foreign(self, text: bytes, group: str) -> str | None:
        """Return an id in a request (its path and body) that this group does not own; None if it owns all of them."""
        ids = [match.decode() for match in _IDS.findall(text)] if b"_sim_" in text else []
        return next((id_ for id_ in ids if self._owners.get(id_) != group), None)


def refusal(style: Style, id_: str) -> tuple[int, dict[str, Any]]:
    """Return status and body for a request that names an object which its organization does not have."""
    kind = id_.partition("_")[0]
    if style == "anthropic":
        error: dict[str, Any] = {"type": "not_found_error", "message": f"File not found: {id_}"}
        return 404, {"type": "error", "error": error, "request_id": "req_sim"}
    status, code, message = {
        "resp": (400, "previous_response_not_found", f"Previous response with id '{id_}' not found."),
        "enc": (400, "invalid_encrypted_content", "The encrypted content could not be verified."),
        "file": (404, None, f"No such File object: {id_}"),
    }[kind]
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def wants_reasoning(body: bytes) -> bool:
    """Return whether a request for a response asks for encrypted reasoning, as Codex does."""
    try:
        request: Any = json.loads(body)
    except ValueError:
        return False
    include = request.get("include") if isinstance(request, dict) else None
    return isinstance(include, list) and "reasoning.encrypted_content" in include
