"""RequestAccount: what one request uses and costs; counted once, also if client, gateway or provider disappear.

Before a request is sent, the budget of its run is asked, and the request is recorded as expected: a kill of this
process then forgets no request that a provider has seen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from agentos.items.access import AttemptUsage, RequestMeter
from agentos.limits.amounts import Detail
from agentos.providers.usage import TokenUsage

from ._answers import LocalAnswer, error
from ._routes import is_free

if TYPE_CHECKING:
    from ._reader import AnswerReader
    from ._request import ClientRequest
    from ._state import GatewayState
    from .client_tokens import Client


class RequestAccount:
    """The account of one request. Changed on the gateway's loop; `count` and `add_expected` are called from any
    thread, with the client's lock."""

    __slots__ = (
        "_client", "_credential_id", "_expected", "_is_counted", "_priced", "_request", "_state", "is_open", "reader",
    )  # fmt: skip

    def __init__(self, state: GatewayState, client: Client, request: ClientRequest) -> None:
        self._state = state
        self._client = client
        self._request = request
        self._credential_id = ""  # that the request was sent with last
        self._expected: tuple[TokenUsage, float | None] = TokenUsage(), None  # usage and cost
        self.is_open = False  # it was sent, and its provider has not refused it
        self.reader: AnswerReader | None = None  # of an answer that is a success
        self._is_counted = False
        self._priced: tuple[TokenUsage | None, float | None] = None, None  # the last usage whose cost was asked for

    def expect(self, input_tokens: int, output_tokens: int) -> None:
        """Set what the request is expected to use."""
        usage = TokenUsage(input_tokens, output_tokens)
        self._expected = usage, self.cost(usage)

    @property
    def expected(self) -> Detail:
        """Return the tokens and the money that the request is expected to use; 0 for a model without a price."""
        usage, cost = self._expected
        return Detail(usage.input_tokens, usage.output_tokens, cost or 0.0)

    def check(self) -> None:
        """Raise `LocalAnswer` if the budget of the client's run refuses the request."""
        meter = self._client.meter
        if meter is None:
            return
        refusal = meter.refusal(self._request.model, self._expected[1])
        if refusal is not None:
            raise error(self._request.route.error_shape, "budget_reached", refusal, is_final=True)

    async def open(self, credential_id: str) -> None:
        """Count the request, with this credential, as expected from now on; return when that is on record and the
        budget still admits it. Raises `LocalAnswer`."""
        client = self._client
        with client.lock:
            if not client.is_open:  # what is sent from now on would be in no record of its attempt
                raise error(self._request.route.error_shape, "auth_failed", "the client token has ended", is_final=True)
            self.is_open = True
            self._credential_id = credential_id
            client.unsettled.add(self)
        if client.meter is None:
            return
        await _recorded(client.meter)
        try:
            self.check()
        except LocalAnswer:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Forget the request: it was not sent, or its provider has refused it."""
        with self._client.lock:
            self.is_open = False
            self._client.unsettled.discard(self)

    def count(self) -> None:
        """Add the usage of a request that was sent to that of its client, once: as stated, else as estimated."""
        client = self._client
        with client.lock:
            if self._is_counted or not self.is_open:
                return
            self._is_counted = True
            client.unsettled.discard(self)
            usage = self.stated() or self._expected[0]
            cost = self.cost(usage)
            _add(client.usage, usage, cost)
            _add(client.usage.of(self._credential_id), usage, cost)
        self._state.metrics.used(self._request.route.provider, self._request.model, usage)
        if client.meter is not None:
            client.meter.spent(usage.input_tokens + usage.output_tokens, cost)

    def add_expected(self, total: AttemptUsage) -> None:
        """Add what the request is expected to use."""
        _add(total, *self._expected)
        _add(total.of(self._credential_id), *self._expected)

    def stated(self) -> TokenUsage | None:
        """Return the usage in the answer; None if it states none. Output of one whose end is missing is estimated."""
        reader = self.reader
        stated = None if reader is None else reader.usage()
        if reader is None or stated is None or reader.is_complete:
            return stated
        return stated._replace(output_tokens=max(stated.output_tokens, self._expected[0].output_tokens))

    def cost(self, usage: TokenUsage) -> float | None:
        """Return what the request costs with this usage; None if that is not known."""
        if usage is not self._priced[0]:
            self._priced = usage, self._calculated_cost(usage)
        return self._priced[1]

    def _calculated_cost(self, usage: TokenUsage) -> float | None:
        request = self._request
        if request.route.shape is None:
            return 0.0 if is_free(request.method, request.route) else None
        if request.model is None:
            return None
        return self._state.prices.cost(
            request.model, request.route.provider, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens, cache_write_tokens=usage.cache_write_tokens,
        )  # fmt: skip


def _add(total: AttemptUsage, usage: TokenUsage, cost: float | None) -> None:
    """Add one request. The cost of all is not known if that of one is not."""
    is_known = cost is not None and not (total.cost is None and total.requests)
    total.cost = (total.cost or 0.0) + (cost or 0.0) if is_known else None
    total.requests += 1
    total.input_tokens += usage.input_tokens
    total.output_tokens += usage.output_tokens
    total.cached_tokens += usage.cached_tokens


async def _recorded(meter: RequestMeter) -> None:
    """Wait until the usage of an attempt is on record."""
    loop = asyncio.get_running_loop()
    recorded: asyncio.Future[None] = loop.create_future()

    def set_recorded() -> None:
        if not recorded.done():
            recorded.set_result(None)

    def on_durable() -> None:
        with suppress(RuntimeError):  # the loop has ended, and its requests with it
            loop.call_soon_threadsafe(set_recorded)

    meter.record(on_durable)
    await recorded
