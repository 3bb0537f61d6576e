"""What requests through a gateway have used, as the ledger records it for attempts, items and runs."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentos.ledger.recorded import CredentialTotals, RequestUsage
from agentos.limits import backoff
from agentos.testing import FakeClock
from agentos.verdict import QUOTA_EXHAUSTED, Verdict
from agentos.workflows.parallel import CredentialCoordinator, Ledger, current_item
from tests.conftest import eventually
from tests.support.fake_access import FakeAccess

from .runs import KEYS, Doubling, by_id, coordinator_of, is_recorded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture
def access() -> FakeAccess:
    return FakeAccess()


def coordinator(path: Path, access: FakeAccess, **options: Any) -> Any:
    pool = CredentialCoordinator(KEYS, reporter=lambda _: None)
    return coordinator_of(path, pool, gateway=access, **options)


def use(access: FakeAccess, credential_id: str | None = None, **used: float) -> None:
    access.use(current_item().client_token or "", credential_id, **used)


def test_usage_is_recorded_per_attempt_and_summed(
    path: Path, access: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)

    def worker(item: str, _: Any) -> str:
        number = current_item().attempt
        use(access, requests=number, input_tokens=10 * number, output_tokens=2, cached_tokens=5, cost=0.5,
            held_seconds=1.5, refusals=1)  # fmt: skip
        if item == "twice" and number == 1:
            raise ConnectionError("reset")
        return item

    coordinator(path, access).execute_parallel(["once", "twice"], worker)
    with Ledger.open(path) as ledger:
        once, twice = ledger.item("once"), ledger.item("twice")
        assert once is not None
        assert twice is not None
        assert once.usage == RequestUsage(1, 10, 2, 5, 0.5, 1.5, 1)
        assert twice.usage == RequestUsage(3, 30, 4, 10, 1.0, 3.0, 2)
        assert (twice.tokens, twice.cost) == (34, 1.0)
        assert [attempt.usage and attempt.usage.requests for attempt in ledger.attempts("twice")] == [1, 2]
        assert ledger.usage() == RequestUsage(4, 40, 6, 15, 1.5, 4.5, 3)
        assert {item.id: item.usage for item in ledger.items()} == {"once": once.usage, "twice": twice.usage}


def test_ledger_of_version_three_is_read_and_continued(path: Path, access: FakeAccess) -> None:
    coordinator(path, access).execute_parallel(["old"], lambda *_: use(access, "good", requests=1))
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE credential_usage")
    connection.execute("PRAGMA user_version = 3")
    connection.commit()
    connection.close()
    with Ledger.open(path) as ledger:
        assert ledger.credentials() == []
        assert [(item.credential_ids, item.usage and item.usage.requests) for item in ledger.items()] == [((), 1)]
    coordinator(path, access).execute_parallel(["old", "new"], lambda *_: use(access, "good", requests=1))
    with Ledger.open(path) as ledger:
        assert [total.requests for total in ledger.credentials()] == [1]


def test_usage_is_recorded_per_credential(path: Path, access: FakeAccess) -> None:
    def worker(item: str, _: Any) -> None:
        use(access, "good", requests=2, input_tokens=10, output_tokens=1, cost=0.5)
        use(access, "dead", refusals=3)
        if item == "a":
            use(access, "other", requests=1, input_tokens=5)

    coordinator(path, access).execute_parallel(["a", "b"], worker)
    with Ledger.open(path) as ledger:
        assert ledger.credentials() == [
            CredentialTotals("good", 2, 2, 4, 22, 1.0, 0, 0),
            CredentialTotals("dead", 2, 2, 0, 0, 0.0, 0, 6),
            CredentialTotals("other", 1, 1, 1, 5, None, 0, 0),
        ]
        assert {item.id: item.credential_ids for item in ledger.items()} == {
            "a": ("good", "other", "dead"),
            "b": ("good", "dead"),
        }
        assert [attempt.credential_ids for attempt in ledger.attempts("b")] == [("good", "dead")]


def test_cost_is_unknown_if_that_of_some_requests_is(path: Path, access: FakeAccess) -> None:
    def worker(item: str, _: Any) -> None:
        if item != "none":
            use(access, requests=1, **({"cost": 0.5} if item == "known" else {}))

    coordinator(path, access).execute_parallel(["known", "unknown", "none"], worker)
    with Ledger.open(path) as ledger:
        costs = {item.id: item.usage and item.usage.cost for item in ledger.items()}
        assert costs == {"known": 0.5, "unknown": None, "none": 0.0}
        assert (ledger.usage() or pytest.fail("no usage")).cost is None


def test_run_without_gateway_has_no_usage(path: Path) -> None:
    coordinator_of(path).execute_parallel(["a"], Doubling())
    with Ledger.open(path) as ledger:
        assert ledger.usage() is None
        assert [item.usage for item in ledger.items()] == [None]
        assert [attempt.usage for attempt in ledger.attempts()] == [None]


def test_usage_of_returned_attempt_stays(path: Path, access: FakeAccess) -> None:
    def worker(*_: Any) -> None:
        use(access, requests=2)
        if current_item().attempt == 1:
            access.refuse(current_item().client_token or "", Verdict(QUOTA_EXHAUSTED, 0.001))
            raise RuntimeError("the client gave up")

    coordinator(path, access, retries=0).execute_parallel(["a"], worker)
    with Ledger.open(path) as ledger:
        assert [(a.verdict, a.usage and a.usage.requests) for a in ledger.attempts()] == [
            (QUOTA_EXHAUSTED, 2),
            ("succeeded", 2),
        ]


def test_usage_of_killed_attempt_is_recorded(path: Path, access: FakeAccess) -> None:
    gate = threading.Event()

    def worker(*_: Any) -> None:
        use(access, requests=7)
        gate.wait(60)

    run = coordinator(path, access, grace_seconds=0.01)
    with run.stream(["a"], worker) as results:
        eventually(lambda: access.tokens and access.usage(access.token_of("a")).requests)
        run.request_shutdown()
        assert list(results) == []
    gate.set()
    with Ledger.open(path) as ledger:
        assert [(a.verdict, a.requests, a.usage and a.usage.requests) for a in ledger.attempts()] == [
            ("interrupted", 7, 7)
        ]


def test_usage_of_ended_items_is_told_apart(path: Path, access: FakeAccess) -> None:
    """What an item takes is known of those that have ended: a plan of a killed run counted the others, too."""
    gate = threading.Event()

    def worker(item: str, _: Any) -> None:
        use(access, requests=3 if item == "ended" else 7)
        if item == "killed":
            gate.wait(60)

    run = coordinator(path, access, grace_seconds=0.01)
    with run.stream(["ended", "killed"], worker) as results:
        assert next(results).success
        eventually(lambda: len(access.tokens) == 2 and access.usage(access.token_of("killed")).requests)
        run.request_shutdown()
        assert list(results) == []
    gate.set()
    with Ledger.open(path) as ledger:
        usage, of_ended = ledger.usage(), ledger.usage(of_ended=True)
    assert (usage and usage.requests, of_ended and of_ended.requests) == (10, 3)


def test_usage_of_running_attempt_is_recorded(path: Path, access: FakeAccess) -> None:
    """A launch that is killed leaves what it had recorded, a few seconds old at most."""
    gate, clock = threading.Event(), FakeClock()

    def requests() -> list[int | None]:
        with Ledger.open(path) as ledger:
            return [attempt.usage and attempt.usage.requests for attempt in ledger.attempts()]

    with coordinator(path, access, clock=clock).stream(["a"], lambda *_: gate.wait(60)) as results:
        eventually(lambda: access.tokens)
        clock.advance(0.3)
        eventually(lambda: requests() == [0])
        for count in (1, 2):
            access.use(access.token_of("a"), requests=1)
            clock.advance(2.0)
            eventually(lambda count=count: requests() == [count])
        gate.set()
        assert [result.success for result in results] == [True]
    assert requests() == [2]


def test_resumed_run_keeps_usage_of_earlier_launches(path: Path, access: FakeAccess) -> None:
    def worker(item: str, _: Any) -> None:
        use(access, requests=1)
        if item == "bad" and access.opened[-1][2] and len(access.opened) <= 2:
            raise ValueError("bad")

    coordinator(path, access, retries=0).execute_parallel(["good", "bad"], worker)
    _, results = coordinator(path, access, retries=0).execute_parallel(["good", "bad"], worker, retry_failed=True)
    assert is_recorded(by_id(results)["good"])
    assert by_id(results)["good"].metadata["usage"]["requests"] == 1
    with Ledger.open(path) as ledger:
        assert (ledger.usage() or pytest.fail("no usage")).requests == 3


def test_ledger_of_version_two_is_read_and_continued(path: Path, access: FakeAccess) -> None:
    coordinator_of(path).execute_parallel(["old"], Doubling())
    connection = sqlite3.connect(path)
    schema = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'request_usage'").fetchone()
    connection.execute("DROP TABLE request_usage")
    connection.execute("DROP TABLE credential_usage")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()
    with Ledger.open(path) as ledger:
        assert ledger.usage() is None
        assert [item.usage for item in ledger.items()] == [None]

    coordinator(path, access).execute_parallel(["old", "new"], lambda *_: use(access, requests=1))
    with Ledger.open(path) as ledger:
        assert asdict(ledger.usage() or pytest.fail("no usage"))["requests"] == 1
        assert {item.id: item.usage is not None for item in ledger.items()} == {"old": False, "new": True}
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'request_usage'").fetchone() == schema
    assert connection.execute("PRAGMA user_version").fetchone() == (4,)
    connection.close()
