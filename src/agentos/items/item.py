"""Item: one unit of work and its history; and how an attempt can end without a verdict of a provider."""

from __future__ import annotations

from typing import Any

WORKER_DIED = "worker_died"  # beside the verdicts: the worker process ended without an answer
INTERRUPTED = "interrupted"  # the attempt gave up because it was told to stop
_NOBODY: frozenset[str] = frozenset()


class Item:
    """One unit of work and its history. The scheduler does not use `payload`, `checkpoint` and the fields of a record."""

    __slots__ = (
        "attempts",
        "checkpoint",
        "deaths",
        "failures",
        "has_record",
        "id",
        "input",
        "input_hash",
        "is_changed",
        "is_sent_back",
        "payload",
        "refused_by",
        "rotations",
        "scope",
        "started_at",
        "tokens",
        "waiting_since",
    )

    def __init__(self, id: str, payload: Any, scope: str | None = None, tokens: int = 0) -> None:  # noqa: A002
        self.id = id
        self.payload = payload
        self.scope = scope
        self.tokens = tokens
        self.attempts = 0
        self.failures = 0  # that spent a retry
        self.rotations = 0
        self.deaths = 0
        self.refused_by = _NOBODY  # credentials that others use successfully
        self.is_sent_back = False  # by a provider, and has not started again since
        self.started_at = 0.0  # of its first attempt
        self.checkpoint: Any = None  # its checkpoint; with a ledger, as JSON

    def prepare_record(self, given: str | None = None, digest: bytes | None = None) -> None:
        """Only a run with a ledger needs the rest, and only there it is paid for."""
        self.waiting_since: float | None = None  # since when it waits for a credential
        self.input = given  # as JSON; and its digest, if it is long
        self.input_hash = digest
        self.has_record = False  # an earlier launch has left something of it on record
        self.is_changed = False  # that belongs to another input, and is to be put aside
