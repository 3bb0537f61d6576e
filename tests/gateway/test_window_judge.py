"""Windows over HTTP: a provider in a process of its own logs every request, and its log is the judge (invariant 39)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from agentos.costs.prices import Price, Prices
from agentos.gateway._leasing import Wanted, lease
from agentos.limits.amounts import Detail
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, Window

from .support import Call, Upstream, chat_answer, chat_body, credentials, running_gateway

SECONDS = 5.0
WORDS = 20
# Of one request: input is a quarter of the bytes of its text.
TEXT = "word " * 24
WINDOWS = [
    Window("requests", 20, "2s"),
    Window("input_tokens", 420, "3s"),
    Window("output_tokens", 300, "2s", "first-use"),
    Window("tokens", 200, "2s", "rolling", "*opus*"),
    Window("requests", 4, "3s", "first-use", "haiku"),
]


@pytest.fixture
def provider() -> Iterator[dict[str, Any]]:
    command = [
        sys.executable, "-m", "agentos.testing", "--keys", "2", "--rate", "1000", "--burst", "1000", "--headers", "off",
        "--latency", "0.03", "--words", str(WORDS),
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()  # it ends


# Money per million tokens of input and output.
INPUT_PRICE, OUTPUT_PRICE = 10.0, 50.0
PRICES = Prices({model: Price(INPUT_PRICE, OUTPUT_PRICE) for model in ("opus-4", "opus-5", "haiku", "sonnet")})


def ask(url: str, token: str, model: str) -> None:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": TEXT}]}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except urllib.error.HTTPError as error:  # not within its hold
        error.close()


def amount(record: dict[str, Any], window: Window) -> float:
    amounts = {
        "requests": 1,
        "tokens": record["input_tokens"] + record["output_tokens"],
        "input_tokens": record["input_tokens"],
        "output_tokens": record["output_tokens"],
        "cost": (INPUT_PRICE * record["input_tokens"] + OUTPUT_PRICE * record["output_tokens"]) / 1e6,
    }
    return amounts[window.of] if window.scope.strip("*") in record["model"] else 0


def most_used(records: list[dict[str, Any]], window: Window, slack: float) -> float:
    """Return the most that the log shows in any period of a window. `slack`: jitter of arrivals in a rolling one."""
    used = [(record["at"], amount(record, window)) for record in sorted(records, key=lambda each: each["at"])]
    if window.resets == "rolling":
        length = window.seconds - slack
        return max(sum(n for then, n in used if at - length < then <= at) for at, _ in used)
    most, end, total = 0.0, 0.0, 0.0
    for at, n in used:
        if not n:
            continue
        if at >= end:
            end, total = at + window.seconds, 0.0
        total += n
        most = max(most, total)
    return most


def served_requests(provider: dict[str, Any], windows: list[Window]) -> list[dict[str, Any]]:
    """Let five clients ask for SECONDS through a gateway. Return the provider's log of what it has served."""
    limits = Limits(windows=windows, max_concurrent=8, burst=20)
    keys = [
        Credential(key, id=f"k{n}", provider="openai", base_url=provider["base_url"], quota_group="team", limits=limits)
        for n, key in enumerate(provider["keys"])
    ]
    end = time.monotonic() + SECONDS

    def work(url: str, token: str, model: str) -> None:
        while time.monotonic() < end:
            ask(url, token, model)

    with running_gateway(keys, hold=SECONDS, prices=PRICES) as (gateway, token):
        threads = [
            threading.Thread(target=work, args=(gateway.url, token, model))
            for model in ("opus-4", "opus-5", "haiku", "haiku", "sonnet")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with urllib.request.urlopen(f"{provider['base_url']}/_log") as answer:
        return [record for record in json.load(answer) if record["status"] == 200]


def test_provider_log_shows_no_window_exceeded(provider: dict[str, Any]) -> None:
    records = served_requests(provider, WINDOWS)
    # What is taken within 2 s around the start of a first-use window counts twice: windows as short as these stand
    # still for a while, so that how many requests fit depends on the first ones.
    assert len(records) >= 8
    in_flight = 8 * max(record["output_tokens"] for record in records)  # estimates that were too low are debt
    for window in WINDOWS:
        debt = in_flight if window.of in ("output_tokens", "tokens") else 0
        assert most_used(records, window, 0.1) <= window.amount + debt, window


def test_provider_log_shows_no_cost_exceeded(provider: dict[str, Any]) -> None:
    window = Window("cost", 0.01, "2s")
    records = served_requests(provider, [window])
    cost = [amount(record, window) for record in records]
    assert sum(cost) > window.amount  # the window has held requests back
    assert most_used(records, window, 0.1) <= window.amount + 8 * max(cost)  # estimates that were too low are debt


def test_provider_log_shows_no_day_exceeded(provider: dict[str, Any]) -> None:
    """Days begin half a day from now, so that the test is within one."""
    start = datetime.now(UTC) + timedelta(hours=12)
    day = Window("requests", 30, "1d", f"{start:%H:%M} UTC")
    month = Window("requests", 7, "month", "00:00 UTC", "haiku")
    records = served_requests(provider, [day, month])
    haiku = [record for record in records if record["model"] == "haiku"]
    assert (len(records), len(haiku)) == (day.amount, month.amount)


def test_estimate_above_every_limit_refuses_no_request() -> None:
    """The text alone is estimated at 2,000 tokens, and each key may use 100 a minute."""

    async def handler(call: Call) -> None:
        await call.answer(200, chat_answer(prompt_tokens=70, completion_tokens=10))

    with Upstream(handler) as upstream:
        keys = credentials(upstream.url, "a", "b", tokens_per_minute=100)
        with running_gateway(keys, hold=1.0) as (gateway, token):
            headers = {"authorization": f"Bearer {token}"}
            statuses = [
                httpx.post(f"{gateway.url}/v1/chat/completions", headers=headers, content=chat_body("x" * 8_000))
                for _ in range(3)
            ]
            assert [answer.status_code for answer in statuses] == [200, 200, 429]  # the last one by what was used


def test_estimate_above_every_limit_is_lowered_after_the_hold() -> None:
    """On a busy machine the hold may be over before the pool has refused the estimate."""
    key = Credential("sk-one-123456", id="k", provider="openai", limits=Limits(tokens_per_minute=100))
    pool = CredentialCoordinator([key], reporter=lambda _: None)
    wanted = Wanted("r", "openai", "openai", None, Detail(2_000, 0, 0.0), None, None)
    handle = asyncio.run(lease(pool, wanted, pool.clock.now() - 1.0))
    assert handle.credential_id == "k"
    assert 0 < wanted.tokens <= 100
