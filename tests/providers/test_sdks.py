"""Real SDKs against the simulated provider: their exceptions are read, and the item succeeds in the end.

Each SDK with each answer. Time is virtual for the pool and real for the requests; `pumped` advances the virtual clock
while a request waits for a cool-down, so no test waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from agentos.events import CoolDownStarted
from agentos.providers import verdicts
from agentos.testing import FakeClock, Scripted, SimulatedProvider, TokenBucket
from agentos.workflows.parallel import Credential, CredentialCoordinator, ParallelCoordinator

from .sdk_clients import CHAT, MESSAGES, SDKS, Sdk

pytestmark = [
    # litellm's types, at its first request
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class .* is using the `ReadOnly` qualifier:UserWarning"),
    # google-genai's own session
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

FIRST, SECOND = "sk-first-of-two-keys", "sk-second-of-two-keys"
HINT = 0.3


class Fate(NamedTuple):
    """The expected effect of an answer."""

    kind: str
    # What cools down: the key's "group", its "provider" or the "credential" alone.
    cools: str
    # Bounds of the cool-down in seconds.
    min_seconds: float
    max_seconds: float


FATES = {
    "limit": Fate("rate_limited", "group", HINT, 2.0),
    # The provider named no time: the group is probed after a minute.
    "quota": Fate("quota_exhausted", "group", 60.0, 60.0),
    "payment": Fate("quota_exhausted", "group", 60.0, 60.0),
    "dead": Fate("auth_failed", "credential", 5.0, 5.0),
    "overloaded": Fate("overloaded", "provider", 0.5, 2.0),
}
# Without the body, a used-up quota looks like a rate limit without a hint.
FATE_WITHOUT_BODY = {"quota": Fate("rate_limited", "group", 0.05, 60.0)}


def fate_of(sdk: Sdk, answer: str) -> Fate:
    return FATES[answer] if sdk.keeps_body else FATE_WITHOUT_BODY.get(answer, FATES[answer])


def bring_about(sim: SimulatedProvider, answer: str) -> None:
    """Make the provider give this answer to the first key."""
    match answer:
        case "quota":
            sim.exhaust(FIRST)
        case "payment":
            sim.exhaust(FIRST, status=402)
        case "dead":
            sim.kill(FIRST)
        case _:
            sim.script([answer], key=FIRST, retry_after=HINT if answer == "limit" else None)


@pytest.fixture(scope="module")
def provider() -> Iterator[SimulatedProvider]:
    with SimulatedProvider([FIRST, SECOND], limits=[TokenBucket(10, 1000)], latency=0.0) as provider:
        yield provider


@pytest.fixture
def sim(provider: SimulatedProvider) -> SimulatedProvider:
    provider.reset()
    return provider


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all async clients, which are bound to it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sdks(provider: SimulatedProvider, runner: asyncio.Runner) -> Iterator[Callable[[str], Sdk]]:
    clients: dict[str, Sdk] = {}

    def sdk(name: str) -> Sdk:
        if name not in clients:
            clients[name] = SDKS[name](provider.base_url)
        return clients[name]

    yield sdk
    for client in clients.values():
        runner.run(client.close())


class Scene:
    """A pool with two keys of one provider, and its events. The first key is used first."""

    def __init__(self) -> None:
        self.clock = FakeClock(epoch=1_794_772_800.0)  # 15 November 2026, noon in California
        credentials = [Credential(FIRST, id="first", provider="sim"), Credential(SECOND, id="second", provider="sim")]
        self.pool = CredentialCoordinator(credentials, clock=self.clock)
        self.events: list[Any] = []
        self.pool.listen(self.events.append)

    @property
    def cool_downs(self) -> list[CoolDownStarted]:
        return [event for event in self.events if isinstance(event, CoolDownStarted)]

    @property
    def quarantined(self) -> list[str]:
        return [state.key_id for state in self.pool.states() if state.quarantined]

    def assert_cooled(self, fate: Fate) -> None:
        """Check that all cool-downs are of this kind and length."""
        assert {(event.kind, event.verdict) for event in self.cool_downs} == {(fate.cools, fate.kind)}
        for event in self.cool_downs:
            assert event.name == {"group": "credential first", "credential": "first", "provider": "sim"}[fate.cools]
            assert fate.min_seconds <= event.seconds <= fate.max_seconds

    @contextmanager
    def pumped(self) -> Iterator[None]:
        """Advance the clock while a request waits for a credential."""
        is_over = threading.Event()

        def pump() -> None:
            while not is_over.wait(0.001):
                if self.pool.get_stats()["waiting"]:
                    self.clock.advance(0.25)

        thread = threading.Thread(target=pump, name="pump", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@pytest.fixture
def scene() -> Scene:
    return Scene()


every_sdk = pytest.mark.parametrize("name", SDKS)
every_answer = pytest.mark.parametrize("answer", FATES)


@every_sdk
@every_answer
def test_exception_in_lease_cools_its_scope(
    name: str,
    answer: str,
    sim: SimulatedProvider,
    sdks: Callable[[str], Sdk],
    runner: asyncio.Runner,
    scene: Scene,
) -> None:
    sdk = sdks(name)
    bring_about(sim, answer)

    async def ask_async() -> None:
        async with scene.pool.lease("one", prefer="first") as lease:
            await sdk.ask(lease.secret)

    with pytest.raises(Exception) as raised:
        if sdk.is_async:
            runner.run(ask_async())
        else:
            with scene.pool.lease("one", prefer="first") as lease:
                sdk.ask(lease.secret)
    fate = fate_of(sdk, answer)
    assert verdicts.from_exception(raised.value, now=scene.clock.epoch()).kind == fate.kind
    scene.assert_cooled(fate)
    first, second = scene.pool.states()
    assert not first.is_available
    assert second.is_available == (fate.cools != "provider")
    assert len(sim.log) == 1  # no retries by the SDK


@every_sdk
@every_answer
def test_call_continues_with_other_key_or_after_wait(
    name: str,
    answer: str,
    sim: SimulatedProvider,
    sdks: Callable[[str], Sdk],
    runner: asyncio.Runner,
    scene: Scene,
) -> None:
    sdk = sdks(name)
    bring_about(sim, answer)
    with scene.pumped():
        if sdk.is_async:
            assert runner.run(scene.pool.acall(sdk.ask)) is not None
        else:
            assert scene.pool.call(sdk.ask) is not None
    assert [(entry.key, entry.status == 200) for entry in sim.log][:1] == [(FIRST, False)]
    assert [entry.status for entry in sim.log][1:] == [200]
    scene.assert_cooled(fate_of(sdk, answer))


@every_sdk
@every_answer
def test_run_succeeds_and_first_key_gets_expected_state(
    name: str,
    answer: str,
    sim: SimulatedProvider,
    sdks: Callable[[str], Sdk],
    runner: asyncio.Runner,
    scene: Scene,
) -> None:
    sdk = sdks(name)
    bring_about(sim, answer)
    coordinator = ParallelCoordinator(1, scene.pool, clock=scene.clock, reporter=scene.events.append)

    def work(_item: int, key: str) -> str:
        sdk.ask(key)
        scene.clock.advance(6)  # beyond a cool-down of 5 s, before the next item begins
        return "done"

    async def work_async(_item: int, key: str) -> str:
        await sdk.ask(key)
        scene.clock.advance(6)
        return "done"

    with scene.pumped():
        if sdk.is_async:
            stats, results = runner.run(coordinator.execute_parallel_async(range(4), work_async))
        else:
            stats, results = coordinator.execute_parallel(range(4), work)
    assert [result.error for result in results] == [None] * 4
    assert stats.success_count == 4
    assert sim.answered == 4
    fate = fate_of(sdk, answer)
    scene.assert_cooled(fate)
    refusals = sum(count for status, count in sim.counts[FIRST].items() if status != 200)
    if fate.min_seconds >= 0.1:  # a shorter wait may be too short, and is refused again
        # A dead key is tried once more with another item; a third time if both refusals were of one item.
        assert refusals in ((2, 3) if answer == "dead" else (1,))
    assert scene.quarantined == (["first"] if answer == "dead" else [])
    if answer in ("limit", "overloaded"):
        assert sim.counts[FIRST][200] > 0  # used again after the cool-down


# --- errors inside a 200 ---------------------------------------------------------------------------------------------


def chat_stream(sdk: Sdk, key: str) -> None:
    for _ in sdk.client(key).chat.completions.create(**CHAT, stream=True):
        pass


async def async_chat_stream(sdk: Sdk, key: str) -> None:
    async for _ in await sdk.client(key).chat.completions.create(**CHAT, stream=True):
        pass


def message_stream(sdk: Sdk, key: str) -> None:
    with sdk.client(key).messages.stream(model="sim-1", messages=MESSAGES, max_tokens=10) as stream:
        stream.get_final_message()


async def async_message_stream(sdk: Sdk, key: str) -> None:
    async with sdk.client(key).messages.stream(model="sim-1", messages=MESSAGES, max_tokens=10) as stream:
        await stream.get_final_message()


def content_stream(sdk: Sdk, key: str) -> None:
    for _ in sdk.client(key).models.generate_content_stream(model="sim-1", contents="hello"):
        pass


STREAMS: dict[str, Callable[[Any, str], Any]] = {
    "openai": chat_stream,
    "openai async": async_chat_stream,
    "anthropic": message_stream,
    "anthropic async": async_message_stream,
    "google-genai": content_stream,
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("answer", ["limit", "quota", "overloaded"])
def test_error_inside_stream_with_status_200_is_read(
    name: str,
    answer: str,
    sim: SimulatedProvider,
    sdks: Callable[[str], Sdk],
    runner: asyncio.Runner,
    scene: Scene,
) -> None:
    sdk, stream = sdks(name), STREAMS[name]
    sim.script([Scripted(breaks_with=answer, retry_after=HINT)], key=FIRST)  # type: ignore[arg-type]
    with scene.pumped():
        if sdk.is_async:
            runner.run(scene.pool.acall(lambda key: stream(sdk, key)))
        else:
            scene.pool.call(lambda key: stream(sdk, key))
    assert [entry.status for entry in sim.log] == [200, 200]
    assert sim.log[0].key == FIRST
    fate = FATES[answer]
    if name.startswith("anthropic") and answer == "limit":
        # Its wait is in a header, which an error inside a stream does not have.
        fate = fate._replace(min_seconds=0.05, max_seconds=60.0)
    scene.assert_cooled(fate)


# --- headers of successful answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_remaining_requests_are_read_from_raw_response(
    name: str, sim: SimulatedProvider, sdks: Callable[[str], Sdk], scene: Scene
) -> None:
    sdk = sdks(name)
    with scene.pool.lease(prefer="first") as lease:
        client = sdk.client(lease.secret)
        endpoint = client.chat.completions if name == "openai" else client.messages
        raw = endpoint.with_raw_response.create(**CHAT)
        lease.observe(raw)
        usage = raw.parse().usage
        lease.settle(tokens=sum((usage.prompt_tokens, usage.completion_tokens) if name == "openai" else
                                (usage.input_tokens, usage.output_tokens)))  # fmt: skip
    verdict = verdicts.from_observed(raw, now=scene.clock.epoch())
    assert verdict.kind is None
    assert verdict.remaining_requests == 999
    assert scene.pool.states()[0].tokens == 12
    assert scene.cool_downs == []


@pytest.mark.parametrize("name", ["httpx", "requests"])
def test_lease_observes_response_without_exception(
    name: str, sim: SimulatedProvider, sdks: Callable[[str], Sdk], scene: Scene
) -> None:
    sim.script([429], key=FIRST, retry_after=HINT)
    with scene.pool.lease(prefer="first") as lease:
        response = sdks(name).client(lease.secret).post(sim.url)
        lease.observe(response)
    assert response.status_code == 429
    scene.assert_cooled(FATES["limit"])
