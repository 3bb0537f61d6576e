"""MemberHandle: a lease as its caller holds it, in a process whose pool another process owns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from msgspec import Struct

from agentos.limits.amounts import Detail

from ..._rules.lease_states import ENDED, REFUSED, WAITING
from ..message_values import detail_fields
from ..messages import DetailFields, HeldLease, Request, Usage

# Seconds of usage that share one entry, and the number of entries that are kept per credential. Beyond it the oldest
# are merged.
SLOT_SECONDS = 1.0
MAX_SLOTS = 512
# Seconds after which usage is in no window any more.
MAX_AGE = 400 * 86_400.0


def _no_deliver() -> None:
    """No-op: nothing waits for the lease yet."""


class MemberHandle(Struct, eq=False):
    """A `LeaseHandle` that the replies of the owner change. The record of the lease is in the owner."""

    requester: str | None = None
    requests: int = 1
    tokens: int = 0
    scope: str | None = None
    prefer: str | None = None
    for_provider: str | None = None
    only: str | None = None
    detail: Detail | None = None
    id: int = 0  # its number; 0: never requested
    deliver: Callable[[], None] = _no_deliver
    waits_for_probe: bool = False
    waits: bool = True  # False: granted at once, or not at all
    state: str = WAITING
    fence: int = 0
    granted_at: float = 0.0  # the owner's clock
    credential_id: str | None = None
    provider: str | None = None
    too_large: str | None = None
    settled: bool = False
    is_delivered: bool = False  # its caller has it
    is_doubtful: bool = False  # its credential was cooled since the grant: ask before it is delivered
    was_queued: bool = False  # the lease had to be waited for
    excluded: list[str] = []  # credentials that it must not be granted
    later: list[str] = []  # ... not now
    is_lost: bool = False  # ended by the owner, while the caller had it

    @property
    def is_refused(self) -> bool:
        return self.state == REFUSED

    def request(self, front: bool = False) -> Request:
        """Return the message that requests this lease."""
        return Request(
            self.id, self.requester, self.requests, self.tokens, self.scope, self.prefer, self.waits_for_probe,
            self.waits, front, self.excluded, self.later, self.for_provider, self.only,
            None if self.detail is None else detail_fields(self.detail),
        )  # fmt: skip

    def held(self) -> HeldLease:
        """Return this live lease for a greeting."""
        return HeldLease(
            self.id, self.credential_id or "", self.fence, self.requests, self.tokens, self.scope, self.requester,
            self.for_provider, self.only, detail_fields(self.detail),
        )  # fmt: skip


# Answers a query whose link broke.
NO_ANSWER = object()


class Question:
    """A query that waits for its answer. Like a handle it has a state."""

    def __init__(self) -> None:
        self.state = WAITING
        self._answers: SimpleQueue[Any] = SimpleQueue()

    def answer(self, value: Any) -> None:
        self.state = ENDED
        self._answers.put(value)

    def wait(self, seconds: float) -> Any:
        """Return the answer, or NO_ANSWER if none comes in time."""
        try:
            return self._answers.get(timeout=max(0.0, seconds))
        except Empty:
            return NO_ANSWER


class UsageMemory:
    """What this member has used, for the case that the journal is lost: the provider does not forget it."""

    def __init__(self) -> None:
        # credential -> [first instant, last instant, position of the journal that holds all of it, requests, tokens,
        # input tokens, output tokens, cost]
        self._slots: dict[str, deque[list[float]]] = {}

    def add(self, credential_id: str, requests: int, tokens: int, detail: Detail | None, now: float,
            position: float = inf) -> None:  # fmt: skip
        """Remember usage. `position`: of the journal that holds it, if that is known."""
        slots = self._slots.get(credential_id)
        if slots is None:
            slots = self._slots[credential_id] = deque()
        if slots and now - slots[-1][0] < SLOT_SECONDS:
            slot = slots[-1]
            slot[1] = now
            if position > slot[2]:
                slot[2] = position
            slot[3] += requests
            if tokens or detail is not None:
                for number, amount in enumerate((tokens, *_amounts(tokens, detail)), 4):
                    slot[number] += amount
            return
        input_tokens, output_tokens, cost = _amounts(tokens, detail)
        slots.append([now, now, position, requests, tokens, input_tokens, output_tokens, cost])
        if len(slots) > MAX_SLOTS:
            first, second = slots.popleft(), slots.popleft()
            amounts = [old + new for old, new in zip(first[3:], second[3:], strict=True)]
            slots.appendleft([first[0], second[1], max(first[2], second[2]), *amounts])

    def report(self, now: float, kept: int) -> list[Usage]:
        """Return the usage of the longest window that is not in the journal up to position `kept`."""
        return [
            Usage(
                credential_id, max(0.0, now - last), int(requests), int(tokens), _detail(tokens, input_, output, cost)
            )
            for credential_id, slots in self._slots.items()
            for _, last, position, requests, tokens, input_, output, cost in slots
            if now - last < MAX_AGE and position > kept
        ]


def _amounts(tokens: int, detail: Detail | None) -> tuple[float, float, float]:
    """Return input tokens, output tokens and cost. Tokens of unknown direction count as both."""
    return (tokens, tokens, 0.0) if detail is None else detail


def _detail(tokens: float, input_tokens: float, output_tokens: float, cost: float) -> DetailFields | None:
    """Return a detail for a report; None if it says no more than `tokens`."""
    if input_tokens == output_tokens == tokens and not cost:
        return None
    return int(input_tokens), int(output_tokens), cost
