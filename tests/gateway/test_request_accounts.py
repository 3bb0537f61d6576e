"""What requests use and cost: asked before they are sent, on record before they are sent, counted once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentos.costs.prices import Price, Prices
from agentos.pool.lease_pool import LeasePool
from tests.conftest import eventually

from .support import Call, RawClient, Upstream, at_rest, chat_body, credentials, quiet, running_gateway
from .test_refusals import LIMIT, answering, post

# Money per million tokens. The answers of the upstream have 7 input and 3 output tokens.
PRICES = Prices({"m": Price(input=1e6, output=1e7)})
COST = 7 + 30


class Meter:
    """Keeps what the gateway asks and tells."""

    def __init__(self, refuses: str | None = None, *, is_durable: bool = True) -> None:
        self.refuses = refuses
        self.asked: list[tuple[str | None, float | None]] = []
        self.spendings: list[tuple[int, float | None]] = []
        self.waiting: list[Callable[[], None]] = []  # until the record is durable
        self._is_durable = is_durable

    def refusal(self, model: str | None, cost: float | None, /) -> str | None:
        self.asked.append((model, cost))
        return self.refuses

    def record(self, on_durable: Callable[[], None], /) -> None:
        if self._is_durable:
            on_durable()
        else:
            self.waiting.append(on_durable)

    def spent(self, tokens: int, cost: float | None, /) -> None:
        self.spendings.append((tokens, cost))


def test_request_is_on_record_before_it_is_sent() -> None:
    meter = Meter(is_durable=False)
    with (
        Upstream(answering()) as upstream,
        running_gateway(credentials(upstream.url, "a"), prices=PRICES) as (gateway, other_token),
    ):
        token = gateway.open("run", "item", 1, meter)
        sender = threading.Thread(target=post, args=(gateway, token))
        sender.start()
        eventually(lambda: meter.waiting)
        expected = gateway.usage(token)
        post(gateway, other_token)  # which the first request would have overtaken
        assert (expected.requests, len(upstream.calls)) == (1, 1)
        assert (expected.cost or 0) > COST  # an answer of 500 tokens is expected of a new model
        meter.waiting[0]()
        sender.join(30)
        used = gateway.usage(token)
        assert (used.requests, used.input_tokens, used.output_tokens, used.cost) == (1, 7, 3, COST)
        assert meter.spendings == [(10, COST)]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", chat_body(), "insufficient_quota"),
        ("/v1/messages", b'{"model": "m", "max_tokens": 5, "messages": []}', "billing_error"),
        ("/v1beta/models/m:generateContent", b'{"contents": []}', "RESOURCE_EXHAUSTED"),
    ],
)
def test_refused_request_is_not_sent(path: str, body: bytes, kind: str) -> None:
    meter = Meter("the budget is used up")
    with Upstream(answering()) as upstream:
        pool = LeasePool(
            [c for name in ("openai", "anthropic", "gemini") for c in credentials(upstream.url, name, provider=name)],
            reporter=quiet,
        )
        with running_gateway(pool, prices=PRICES) as (gateway, _):
            token = gateway.open("run", "item", 1, meter)
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            answer = httpx.post(f"{gateway.url}{path}", headers=headers, content=body)
            assert (answer.status_code, upstream.calls, meter.spendings) == (402, [], [])
            assert kind in answer.text
            assert "the budget is used up" in answer.text
            assert answer.headers.get("x-should-retry") == (None if "v1beta" in path else "false")
            assert at_rest(pool)
            assert not any(state.requests for state in pool.states())


def test_budget_reached_while_recording_refuses_the_request() -> None:
    meter = Meter(is_durable=False)
    answers: list[httpx.Response] = []
    with (
        Upstream(answering()) as upstream,
        running_gateway(credentials(upstream.url, "a"), prices=PRICES) as (gateway, _),
    ):
        token = gateway.open("run", "item", 1, meter)
        sender = threading.Thread(target=lambda: answers.append(post(gateway, token)))
        sender.start()
        eventually(lambda: meter.waiting)
        meter.refuses = "the budget is used up"
        meter.waiting[0]()
        sender.join(30)
        assert (answers[0].status_code, upstream.calls, meter.spendings) == (402, [], [])
        assert gateway.close(token).usage.requests == 0


def test_request_of_an_ended_attempt_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt ends after its request was read and before it has a credential."""

    class Ending(Meter):
        def refusal(self, model: str | None, cost: float | None, /) -> str | None:
            gateway.close(token)
            return super().refusal(model, cost)

    with (
        Upstream(answering()) as upstream,
        running_gateway(credentials(upstream.url, "a"), prices=PRICES) as (gateway, _),
    ):
        token = gateway.open("run", "item", 1, Ending())
        with monkeypatch.context() as patch:
            patch.setattr(gateway, "_call", lambda *_: None)  # the cancellation comes later
            assert post(gateway, token).status_code == 401
        assert upstream.calls == []


def test_refused_request_does_not_wait_for_a_credential() -> None:
    with Upstream(answering((429, LIMIT), lines=("retry-after: 3600",))) as upstream:
        pool = LeasePool(credentials(upstream.url, "a"), reporter=quiet)
        with running_gateway(pool, prices=PRICES, hold=1) as (gateway, other_token):
            assert post(gateway, other_token).status_code == 429
            token = gateway.open("run", "item", 1, Meter("the budget is used up"))
            assert post(gateway, token).status_code == 402


def test_refusal_of_a_provider_costs_nothing() -> None:
    meter = Meter()
    with (
        Upstream(answering((429, LIMIT))) as upstream,
        running_gateway(credentials(upstream.url, "a", "b"), prices=PRICES) as (gateway, _),
    ):
        token = gateway.open("run", "item", 1, meter)
        assert post(gateway, token).status_code == 200
        assert meter.spendings == [(10, COST)]
        assert len(meter.asked) == 4  # twice for each sending: before and after it waited for a credential


def test_request_without_an_answer_counts_as_estimated() -> None:
    async def silent(call: Call) -> None:
        await call.wait_for_disconnect()

    meter = Meter()
    with (
        Upstream(silent) as upstream,
        running_gateway(credentials(upstream.url, "a"), prices=PRICES) as (gateway, _),
    ):
        token = gateway.open("run", "item", 1, meter)
        with RawClient(gateway) as client:
            client.post(token, chat_body())
            eventually(lambda: upstream.calls)
            end = gateway.close(token)
        assert (end.usage.requests, end.usage.output_tokens) == (1, 500)
        assert meter.spendings == [(end.usage.input_tokens + 500, end.usage.cost)]
        eventually(lambda: upstream.calls[0].is_cancelled.is_set())
        eventually(lambda: at_rest(gateway.pool))
        assert len(meter.spendings) == 1  # once


@pytest.mark.parametrize(
    ("path", "cost"), [("/v1/images/generations", None), ("/v1/files", 0.0), ("/v1/chat/completions", None)]
)
def test_cost_is_unknown_unless_a_request_is_free(path: str, cost: float | None) -> None:
    meter = Meter()
    with (
        Upstream(answering()) as upstream,
        running_gateway(credentials(upstream.url, "a"), prices=PRICES) as (gateway, _),
    ):
        token = gateway.open("run", "item", 1, meter)
        headers: dict[str, Any] = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        httpx.post(f"{gateway.url}{path}", headers=headers, content=chat_body(model="unknown"))
        assert {asked[1] for asked in meter.asked} == {cost}
        assert gateway.usage(token).cost == cost
