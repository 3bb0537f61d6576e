"""Windows in every store: across processes, restarts of all of them, and changes to daylight-saving time."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agentos.pool.shared import message_values as values
from agentos.testing import FakeClock
from agentos.workflows.parallel import Credential, CredentialCoordinator, LeaseTimeout, Limits, Window
from tests.conftest import eventually

from .members import Processes, keys

HOUR = 3600.0
# Of each kind, length and reset; the third part is the amount that one lease takes.
KINDS = [
    (["requests", 6, "2h"], {}),
    (["tokens", 60, "2h"], {"tokens": 10}),
    (["input_tokens", 60, "2h", "first-use"], {"input_tokens": 10, "output_tokens": 90}),
    (["output_tokens", 60, "1d", "00:00 UTC"], {"input_tokens": 90, "output_tokens": 10}),
    (["cost", 0.6, "month"], {"cost": 0.1}),
    (["requests", 6, "7d", "mon 00:00 UTC", "*opus*"], {"scope": "opus-4"}),
]


def grants(pool: CredentialCoordinator, **amounts: Any) -> int:
    """Return how many leases are granted at once, up to 20."""
    for count in range(20):
        try:
            with pool.lease(timeout=0, **amounts):
                pass
        except LeaseTimeout:
            return count
    return 20


@pytest.mark.parametrize(
    ("window", "amounts"), KINDS, ids=lambda value: str(value[0]) if isinstance(value, list) else ""
)
def test_every_kind_counts_over_processes_and_restarts(
    shared_store: str, processes: Processes, window: list[Any], amounts: dict[str, Any]
) -> None:  # invariants 2, 3, 39
    shared = [{**key, "group": "team"} for key in keys(2, windows=[window], max_concurrent=9)]
    first, second = processes.open(shared_store, shared), processes.open(shared_store, shared)
    for n in range(2):
        for member in (first, second):
            member.lease(f"lease {n}", **amounts)
            member.granted(f"lease {n}")
            member.end(f"lease {n}")
            member.wait_for_end(f"lease {n}")
    owner = first.do("owner_pid")
    os.kill(owner, signal.SIGKILL)
    eventually(lambda: first.do("owner_pid") != owner)
    first.kill()
    second.kill()
    limits = Limits(windows=[Window(*window)], max_concurrent=9)
    credentials = [Credential(key["secret"], id=key["id"], quota_group="team", limits=limits) for key in shared]
    with CredentialCoordinator(credentials, store=shared_store, reporter=lambda _: None) as pool:
        name, (used, limit) = next(iter(pool.states()[0].used.items()))
        assert (name, limit) == (Window(*window).name, window[1])
        assert used == pytest.approx(limit * 4 / 6)
        assert grants(pool, **amounts) == 2
    with CredentialCoordinator(credentials, store=shared_store, reporter=lambda _: None) as pool:  # from a snapshot
        assert grants(pool, **amounts) == 0


def test_requests_of_other_scopes_pass_a_full_window(store: str) -> None:
    limits = Limits(windows=[Window("requests", 2, "2h", scope="*opus*")], max_concurrent=9)
    with CredentialCoordinator(
        [Credential("sk-one-123456", id="k", limits=limits)], store=store, reporter=lambda _: None
    ) as pool:
        assert grants(pool, scope="opus-4") == 2
        assert grants(pool, scope="haiku-4") == 20


def test_settled_amounts_replace_estimates_in_every_store(store: str) -> None:
    limits = Limits(input_tokens_per_minute=1000, windows=[Window("cost", 1, "2h")], max_concurrent=9)
    with CredentialCoordinator(
        [Credential("sk-one-123456", id="k", limits=limits)], store=store, reporter=lambda _: None
    ) as pool:
        with pool.lease(input_tokens=900, output_tokens=50, cost=0.5) as lease:
            lease.settle(input_tokens=100, output_tokens=70)
        with pool.lease(input_tokens=10, cost=0.1) as lease:
            lease.settle(cost=0.75)  # more than was reserved is debt
        used = pool.states()[0].used
        assert used["input tokens per minute"] == (110, 1000)
        assert used["cost per 2 hours"] == (pytest.approx(1.25), 1)
        assert grants(pool) == 0


def test_month_and_week_reset_by_the_calendar() -> None:
    zone = ZoneInfo("America/Los_Angeles")
    start = datetime(2026, 10, 31, 12, tzinfo=zone).timestamp()  # a Saturday, the day before clocks go back
    clock = FakeClock(epoch=start)
    windows = [
        Window("requests", 3, "month", "00:00 America/Los_Angeles"),
        Window("requests", 2, "7d", "mon 00:00 America/Los_Angeles", "opus"),
    ]
    pool = CredentialCoordinator(
        [Credential("sk-one-123456", id="k", limits=Limits(windows=windows, max_concurrent=9))], clock=clock
    )
    assert grants(pool, scope="opus") == 2
    assert grants(pool, scope="haiku") == 1
    clock.advance(12 * HOUR - 1)
    assert grants(pool, scope="haiku") == 0
    clock.advance(1)  # November begins
    assert grants(pool, scope="opus") == 0
    clock.advance(25 * HOUR - 1)  # Sunday has 25 hours
    assert grants(pool, scope="opus") == 0
    clock.advance(1)
    assert grants(pool, scope="opus") == 2
    assert grants(pool, scope="haiku") == 1


@pytest.mark.parametrize("date", [(2026, 3, 7), (2026, 10, 31)], ids=["forward", "back"])
@pytest.mark.parametrize("resets", ["00:00", "01:30", "02:30"])
def test_one_reset_a_day_while_clocks_change(date: tuple[int, int, int], resets: str) -> None:
    """A pool that is opened every half hour, as after restarts, counts as many days as the calendar has."""
    zone = ZoneInfo("America/Los_Angeles")
    start = datetime(*date, 12, tzinfo=zone).timestamp()
    end = datetime(date[0], date[1] + (date[2] == 31), 2 if date[2] == 31 else 9, 12, tzinfo=zone).timestamp()
    limits = Limits(requests_per_day=5, day_resets=f"{resets} America/Los_Angeles", max_concurrent=9)
    clock = FakeClock(epoch=start)
    ends = set()
    while clock.epoch() < end:
        pool = CredentialCoordinator([Credential("sk-one-123456", id="k", limits=limits)], clock=clock)
        assert grants(pool) == 5
        ends.add(round(pool.states()[0].limited_until or 0))
        clock.advance(HOUR / 2)
    assert len(ends) == 3  # the resets of two days, and the next one


def test_reserve_leaves_room_for_people_in_every_store(store: str) -> None:
    limits = Limits(requests_per_minute=10, burst=10, reserve=0.3, max_concurrent=20)
    with CredentialCoordinator(
        [Credential("sk-one-123456", id="k", limits=limits)], store=store, reporter=lambda _: None
    ) as pool:
        assert grants(pool) == 7
        assert pool.states()[0].used == {"requests per minute": (7, 7)}


def test_listed_order_fills_the_first_credential(store: str) -> None:
    limits = Limits(max_concurrent=2)
    credentials = [Credential(f"sk-{name}-123456", id=name, limits=limits) for name in ("b", "a", "c")]
    with CredentialCoordinator(credentials, store=store, reporter=lambda _: None, order="listed") as pool:
        for credential in credentials:  # else each is tried with one request first
            with pool.lease(prefer=credential.id):
                pass
        used = []
        for _ in range(5):
            key = pool.reserve(timeout=5)
            assert key is not None
            used.append(key.credential_id)
        assert used == ["b", "b", "a", "a", "c"]
        pool.release(key)
        with pool.lease() as lease:
            assert lease.credential_id == "c"


def test_soonest_reset_uses_a_quota_before_it_expires() -> None:
    clock = FakeClock(epoch=datetime(2026, 11, 18, 12, tzinfo=ZoneInfo("UTC")).timestamp())
    weekly = {"late": "wed 11:00 UTC", "soon": "thu 00:00 UTC"}
    credentials = [
        Credential(
            f"sk-{name}-123456", id=name, limits=Limits(windows=[Window("requests", 3, "7d", day)], max_concurrent=9)
        )
        for name, day in weekly.items()
    ]
    credentials.append(Credential("sk-free-123456", id="free", limits=Limits(max_concurrent=9)))
    pool = CredentialCoordinator(credentials, clock=clock, order="soonest-reset")
    used = []
    for _ in range(8):
        with pool.lease() as lease:
            used.append(lease.credential_id)
    assert used == ["soon"] * 3 + ["late"] * 3 + ["free"] * 2
    clock.advance(12 * HOUR)  # Thursday: the soon one has a new week, which ends after that of the late one
    with pool.lease() as lease:
        assert lease.credential_id == "soon"


def test_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="least-loaded, soonest-reset, listed"):
        CredentialCoordinator(["sk-one-123456"], order="fastest")


def test_window_that_an_owner_does_not_know_is_refused() -> None:
    fields = values.limits_fields(Limits(windows=[Window("tokens", 5, "1h")]))
    assert values.limits_of(fields) == Limits(windows=[Window("tokens", 5, "1h")])
    with pytest.raises(ValueError, match="does not know the limit"):
        values.limits_of({**fields, "images_per_minute": 5})
    with pytest.raises(ValueError, match="does not know a window"):
        values.limits_of({"windows": [["tokens", 5, "1h", "rolling", "*", "newer"]]})
    with pytest.raises(ValueError, match="of must be one of"):
        values.limits_of({"windows": [["images", 5, "1h"]]})
