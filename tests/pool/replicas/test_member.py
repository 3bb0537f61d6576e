"""A process as a member of a shared pool, on a log that loses replies and all it had when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from agentos.pool._replicas.handles import NumberedHandle
from agentos.pool._replicas.log import Answer, Entry, Start, StoreLost
from agentos.pool._replicas.shared import SharedStore
from agentos.pool._replicas.shared_pool import CLAIM_SECONDS, SharedPool
from agentos.pool._rules.lease_states import ENDED, LIVE, WAITING
from agentos.testing import FakeClock
from agentos.workflows.parallel import Credential
from tests.conftest import eventually

TTL = 30.0


class Kept:
    """What is in the store."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.epoch = 1
        self.entries: list[Entry] = []
        self.is_away = False  # nothing arrives
        self.lost_replies = 0  # so many answers from now on do not arrive

    def lose(self) -> None:
        with self.lock:
            self.epoch += 1
            self.entries = []


class LogOf:
    """One process's way to it."""

    poll_seconds: float | None = 0.002

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._seen = -1

    def load(self, ttl: float) -> Start:
        kept = self._kept
        with kept.lock:
            return Start(f"{kept.epoch}", kept.clock.epoch(), None, 0, list(kept.entries), is_doubtful=False)

    def exchange(self, epoch: str, position: int, batch: bytes | None, ttl: float) -> Answer:
        kept = self._kept
        with kept.lock:
            if kept.is_away:
                raise StoreLost("it is away")
            if epoch != f"{kept.epoch}":
                return Answer(f"{kept.epoch}", 0.0, None)
            if batch is not None:
                kept.entries.append((kept.clock.epoch(), batch))
            if batch is not None and kept.lost_replies:
                kept.lost_replies -= 1
                raise StoreLost("the reply was lost")
            return Answer(epoch, kept.clock.epoch(), kept.entries[position:])

    def has_news(self) -> bool:
        seen, self._seen = self._seen, len(self._kept.entries)
        return seen != self._seen

    def listen(self, heard: Callable[[int, Entry], None] | None, missed: Callable[[], None]) -> None: ...

    def keep(self, epoch: str, position: int, state: bytes) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def kept() -> Kept:
    return Kept(FakeClock())


@pytest.fixture
def join(kept: Kept) -> Iterator[Callable[[], SharedStore]]:
    """Another process."""
    joined: list[SharedStore] = []

    def another() -> SharedStore:
        store = SharedStore(LogOf(kept), "a test", kept.clock, lambda _event: None, TTL, str)
        store.add(Credential("sk-alpha-000000", id="a"))
        store.open()
        joined.append(store)
        return store

    yield another
    for store in joined:
        store.close()


def ask(store: SharedStore) -> NumberedHandle:
    record = NumberedHandle()
    record.deliver = lambda: None
    store.request(record)
    return record


def copy_of(store: SharedStore) -> SharedPool:
    """As things stand now."""
    store.states()
    assert store._member.copy is not None
    return store._member.copy


def waiters(store: SharedStore) -> int:
    """Of all processes."""
    return len(copy_of(store).pool.queue)


def lease(store: SharedStore) -> NumberedHandle:
    record = ask(store)
    eventually(lambda: record.state == LIVE)
    assert store.confirm(record)
    return record


def test_a_batch_whose_reply_was_lost_is_sent_again_and_counts_once(
    kept: Kept, join: Callable[[], SharedStore]
) -> None:  # invariant 15
    store = join()
    record = lease(store)
    kept.lost_replies = 2
    store.use_more(record, 0, 100)
    eventually(lambda: store.states()[0].tokens > 0)
    assert store.states()[0].tokens == 100


def test_the_leases_of_a_session_that_has_expired_are_not_live_here_either(
    kept: Kept, join: Callable[[], SharedStore]
) -> None:  # invariant 14
    slow, other = join(), join()
    lost = lease(slow)
    kept.clock.advance(TTL + 1.0)
    lease(other)
    slow.states()
    assert lost.state == ENDED
    assert not slow.settle(lost, 1, 500)
    slow.end(lost, None)
    (state,) = other.states()
    assert (state.live_leases, state.tokens) == (1, 0)


def test_what_is_said_of_a_credential_after_a_long_silence_is_heard(
    kept: Kept, join: Callable[[], SharedStore]
) -> None:  # invariant 5
    silent, other = join(), join()
    kept.clock.advance(TTL + 1.0)
    silent.quarantine("a", "refused")
    eventually(lambda: other.states()[0].quarantined == "refused")


def test_what_did_not_arrive_before_its_session_expired_is_said_again(
    kept: Kept, join: Callable[[], SharedStore]
) -> None:  # invariant 5
    one, other = join(), join()
    kept.is_away = True
    one.quarantine("a", "refused")
    eventually(lambda: one._member.lost_since is not None)
    expired = one._member.session_id
    kept.clock.advance(TTL + 1.0)
    kept.is_away = False
    eventually(lambda: one._member.session_id in copy_of(other).sessions.keys() - {expired})
    assert other.states()[0].quarantined == "refused"


def test_a_lease_that_took_long_to_arrive_is_checked_before_it_is_handed_out(
    kept: Kept, join: Callable[[], SharedStore]
) -> None:  # invariant 11
    store = join()
    record = lease(store)
    kept.clock.advance(0.2 * TTL)
    assert not store.confirm(record)
    eventually(lambda: record.state == LIVE)
    assert store.confirm(record)


def test_what_others_leave_is_claimed_before_it_is_used(
    kept: Kept, join: Callable[[], SharedStore]
) -> None:  # invariant 1
    one, two, three = join(), join(), join()
    held = lease(one)
    second = ask(two)
    eventually(lambda: waiters(one) == 1)
    third = ask(three)
    eventually(lambda: waiters(one) == 2)
    one.end(held, None)
    eventually(lambda: second.state == LIVE)
    kept.clock.advance(2.0 * CLAIM_SECONDS)
    eventually(lambda: copy_of(three).at >= kept.clock.epoch())
    assert third.state == WAITING


def test_when_all_is_lost_nothing_is_granted_until_old_leases_have_run_out(
    kept: Kept, join: Callable[[], SharedStore]
) -> None:  # invariants 1, 13
    store = join()
    before = lease(store)
    kept.clock.advance(1.0)
    kept.lose()
    after = ask(store)
    eventually(lambda: kept.entries)
    assert before.state == ENDED
    newcomer = NumberedHandle()
    assert not join().request(newcomer, wait=False)
    assert after.state == WAITING
    kept.clock.advance(TTL)
    eventually(lambda: after.state == LIVE)
    assert after.fence > before.fence
