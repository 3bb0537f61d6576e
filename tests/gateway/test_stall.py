"""For how long requests of running items have waited without a credential."""

from __future__ import annotations

import threading

from agentos.gateway._stall import Stall
from tests.conftest import eventually

from .support import Upstream, chat_answer, credentials, running_gateway
from .test_refusals import LIMIT, answering, post


def test_held_request_counts_until_it_is_answered() -> None:
    stall = Stall()
    assert stall.seconds(5.0) == 0.0
    stall.begin(10.0)
    stall.begin(11.0)
    assert stall.seconds(13.0) == 3.0
    stall.leased = 1
    assert stall.seconds(14.0) == 0.0
    stall.leased = 0  # refused by the provider
    assert stall.seconds(16.0) == 6.0
    stall.leased = 1
    stall.end(0.0)
    stall.answered(17.0)
    assert stall.seconds(18.0) == 1.0  # of the other request
    stall.end(0.0)
    assert stall.seconds(18.0) == 0.0


def test_refused_request_counts_until_the_instant_it_names() -> None:
    stall = Stall()
    stall.begin(10.0)
    stall.end(100.0)
    assert stall.seconds(99.0) == 89.0
    assert stall.seconds(101.0) == 0.0
    stall.begin(200.0)
    assert stall.seconds(201.0) == 1.0


def test_gateway_counts_held_request() -> None:
    with (
        Upstream(answering((429, LIMIT), lines=("retry-after: 1",))) as upstream,
        running_gateway(credentials(upstream.url, "a")) as (gateway, token),
    ):
        assert gateway.stalled_seconds() == 0.0
        request = threading.Thread(target=post, args=(gateway, token))
        request.start()
        eventually(lambda: gateway.stalled_seconds() > 0.2)
        request.join()
        assert gateway.stalled_seconds() == 0.0


def test_gateway_counts_refused_request_until_its_hint() -> None:
    with (
        Upstream(answering((429, LIMIT), lines=("retry-after: 600",))) as upstream,
        running_gateway(credentials(upstream.url, "a"), hold=1.0) as (gateway, token),
    ):
        assert post(gateway, token).status_code == 429
        assert gateway.stalled_seconds() > 0.0


def test_every_lease_is_counted_once() -> None:
    async def handler(call: object) -> None:
        await call.answer(200, chat_answer())  # type: ignore[attr-defined]

    with (
        Upstream(handler) as upstream,
        running_gateway(credentials(upstream.url, "a", "b")) as (gateway, token),
    ):
        for _ in range(3):
            assert post(gateway, token).status_code == 200
        stall = gateway._state.stall
        eventually(lambda: stall.leased == 0)
        assert gateway.stalled_seconds() == 0.0
