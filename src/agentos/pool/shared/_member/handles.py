"""MemberHandle: a lease as its caller holds it, in a process whose pool another process owns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

from agentos.limits.amounts import Detail

from ..._rules.lease_states import REFUSED, WAITING
from ..message_values import detail_fields
from ..messages import DetailFields, HeldLease, Request, Usage

# Seconds of usage that share one entry, and the number of entries that are kept per credential. Beyond it the oldest
# are merged.
SLOT_SECONDS = 1.0
MAX_SLOTS = 512
# Seconds after which usage is in no window any more.
MAX_AGE = 400 * 86_400.0


class MemberHandle:
    """A `LeaseHandle` that the replies of the owner change. The record of the lease is in the owner."""

    __slots__ = (
        "credential_id",
        "deliver",
        "detail",
        "excluded",
        "fence",
        "for_provider",
        "granted_at",
        "id",
        "is_delivered",
        "is_doubtful",
        "is_lost",
        "later",
        "only",
        "prefer",
        "provider",
        "requester",
        "requests",
        "scope",
        "settled",
        "state",
        "tokens",
        "too_large",
        "waits",
        "waits_for_probe",
        "was_queued",
    )  # fmt: skip

    deliver: Callable[[], None]

    def __init__(
        self,
        requester: str | None = None,
        requests: int = 1,
        tokens: int = 0,
        scope: str | None = None,
        prefer: str | None = None,
        for_provider: str | None = None,
        only: str | None = None,
        detail: Detail | None = None,
    ) -> None:
        self.id = 0  # its number; 0: never requested
        self.requester = requester
        self.requests = requests
        self.tokens = tokens
        self.detail = detail
        self.scope = scope
        self.prefer = prefer
        self.for_provider = for_provider
        self.only = only
        self.waits_for_probe = False
        self.waits = True  # False: granted at once, or not at all
        self.state = WAITING
        self.fence = 0
        self.granted_at = 0.0  # the owner's clock
        self.credential_id: str | None = None
        self.provider: str | None = None
        self.too_large: str | None = None
        self.settled = False
        self.is_delivered = False  # its caller has it
        self.is_doubtful = False  # its credential was cooled since the grant: ask before it is delivered
        self.was_queued = False  # the lease had to be waited for
        self.excluded: list[str] = []  # credentials that it must not be granted
        self.later: list[str] = []  # ... not now
        self.is_lost = False  # ended by the owner, while the caller had it

    @property
    def is_refused(self) -> bool:
        return self.state == REFUSED

    def request(self, front: bool = False) -> Request:
        """Return the message that requests this lease."""
        return Request(
            self.id, self.requester, self.requests, self.tokens, self.scope, self.prefer, self.waits_for_probe,
            self.waits, front, self.excluded, self.later, self.for_provider, self.only, detail_fields(self.detail),
        )  # fmt: skip

    def held(self) -> HeldLease:
        """Return this live lease for a greeting."""
        return HeldLease(
            self.id, self.credential_id or "", self.fence, self.requests, self.tokens, self.scope, self.requester,
            self.for_provider, self.only, detail_fields(self.detail),
        )  # fmt: skip


class UsageMemory:
    """What this member has used, for the case that the journal is lost: the provider does not forget it."""

    def __init__(self) -> None:
        # credential -> [first instant, last instant, position of the journal that holds all of it, requests, tokens,
        # input tokens, output tokens, cost]
        self._slots: dict[str, deque[list[float]]] = {}

    def add(self, credential_id: str, requests: int, tokens: int, detail: Detail | None, now: float,
            position: float = inf) -> None:  # fmt: skip
        """Remember usage. `position`: of the journal that holds it, if that is known."""
        input_tokens, output_tokens, cost = (tokens, tokens, 0.0) if detail is None else detail
        slots = self._slots.get(credential_id)
        if slots is None:
            slots = self._slots[credential_id] = deque()
        if slots and now - slots[-1][0] < SLOT_SECONDS:
            slot = slots[-1]
            slot[1] = now
            slot[2] = max(slot[2], position)
            slot[3] += requests
            slot[4] += tokens
            slot[5] += input_tokens
            slot[6] += output_tokens
            slot[7] += cost
            return
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


def _detail(tokens: float, input_tokens: float, output_tokens: float, cost: float) -> DetailFields | None:
    """Return a detail for a report; None if it says no more than `tokens`."""
    if input_tokens == output_tokens == tokens and not cost:
        return None
    return int(input_tokens), int(output_tokens), cost
