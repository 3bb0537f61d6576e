"""`Item`, one unit of work; and the outcomes of an attempt beside the verdicts on a provider's answer."""

from __future__ import annotations

from typing import Any

WORKER_DIED = "worker_died"  # the worker process ended without a result
FAILED_ATTEMPT = "failed"  # by an exception that no provider caused
INTERRUPTED = "interrupted"  # the attempt stopped because the run is shutting down
_NO_CREDENTIALS: frozenset[str] = frozenset()


class Item:
    """One unit of work and its history. The scheduler does not use `payload`, `checkpoint` and the record's fields."""

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
        "trail",
        "waiting_since",
    )

    def __init__(self, id: str, payload: Any, scope: str | None = None, tokens: int = 0) -> None:  # noqa: A002
        self.id = id
        self.payload = payload
        self.scope = scope
        self.tokens = tokens
        self.attempts = 0
        self.failures = 0  # that used up a retry
        self.rotations = 0  # attempts that were moved to another credential
        self.deaths = 0  # worker processes that died with this item
        self.refused_by = _NO_CREDENTIALS  # credentials that refused this item and serve other items
        self.is_sent_back = False  # a provider refused the last attempt, and no other has started since
        self.trail: Any = None  # its failures that may be a credential's fault (a `runs._rules.circuit_breaker.Trail`)
        self.started_at = 0.0  # of the first attempt
        self.checkpoint: Any = None  # the saved object; with a ledger, its JSON

    def prepare_record(self, encoded_input: str | None = None, input_hash: bytes | None = None) -> None:
        """Set the fields that only a run with a ledger uses; other runs do not pay for them."""
        self.waiting_since: float | None = None  # when the item began to wait for a credential
        self.input = encoded_input  # as JSON
        self.input_hash = input_hash  # of a long input
        self.has_record = False  # an earlier launch recorded this id
        self.is_changed = False  # that record has another input, and will be discarded
