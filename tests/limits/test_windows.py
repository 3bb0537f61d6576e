"""Windows of every kind, length, reset and scope, judged by the provider's own count under a virtual clock."""

from __future__ import annotations

import math
import random
import sys
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.limits._limiter import RateLimiter
from agentos.limits._periods import ARRIVAL_SECONDS, FirstUsePeriod
from agentos.limits._windows import ARRIVAL_JITTER_SECONDS, SLOTS, SlottedRolling
from agentos.limits.amounts import Detail, detail_of
from agentos.limits.declaration import COST, INPUT_TOKENS, KINDS, OUTPUT_TOKENS, REQUESTS, TOKENS, strictest
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE
from agentos.pool._rules.records import LeaseRecord
from agentos.workflows.parallel import Limits, Window

NOW = 1_000_000.0
MODELS = ("opus-4", "haiku-4", None)
HOUR = 3600.0


def calendar(resets: str, now: float) -> float:
    """Return the end of a short day, week or month: what counts is that periods follow each other."""
    length = {"m": 900.0, "t": 400.0}.get(resets[0], 200.0)
    return (now // length + 1) * length


def exact(amount: float) -> Decimal:
    """Return an amount as people write it: 0.01 is a hundredth, and not the float next to it."""
    return Decimal(repr(amount))


class Use(NamedTuple):
    """A request as the provider sees it: when it arrives, and what it uses in the end."""

    at: float
    model: str | None
    requests: int
    tokens: int
    detail: Detail

    def amount(self, kind: str) -> Decimal:
        """Return what it uses of a kind, exactly as written."""
        input_tokens, output_tokens, cost = self.detail
        amounts = (self.requests, self.tokens, input_tokens, output_tokens, cost)
        return exact(amounts[(REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, COST).index(kind)])


class Judge:
    """The provider: counts what arrives, by rules of its own, and knows nothing of the pool."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.uses: list[Use] = []

    def counts(self, use: Use) -> bool:
        pattern = self.window.scope.strip("*")
        return use.model is None or pattern in use.model

    def check(self) -> None:
        amounts = [
            (use.at, use.amount(self.window.of))
            for use in sorted(self.uses, key=lambda use: use.at)
            if self.counts(use)
        ]
        window = self.window
        if window.calendar is not None:
            periods: dict[float, Decimal] = {}
            for at, amount in amounts:
                end = calendar(window.calendar, at)
                periods[end] = periods.get(end, Decimal(0)) + amount
            most = max(periods.values(), default=Decimal(0))
        elif window.resets == "first-use":
            most, end, total = Decimal(0), 0.0, Decimal(0)
            for at, amount in amounts:
                if at >= end:
                    end, total = at + window.seconds, Decimal(0)
                total += amount
                most = max(most, total)
        else:
            most = max(
                (sum(n for then, n in amounts if at - window.seconds < then <= at) for at, _ in amounts), default=0
            )
        assert most <= exact(window.amount), f"{window.name} {window.resets}: {most} of {window.amount}"


WINDOWS = st.builds(
    lambda of, amount, timing, scope: Window(of, amount / 100 if of == COST else amount, *timing, scope),
    of=st.sampled_from(KINDS),
    amount=st.sampled_from([20, 45, 200]),
    timing=st.sampled_from(
        [("60s", "rolling"), ("10s", "rolling"), ("300s", "rolling"), ("120s", "first-use"), ("6s", "first-use"),
         ("2s", "first-use"), ("1d", "00:00 UTC"), ("7d", "tue 00:00 UTC"), ("month", "00:00 UTC")]
    ),
    scope=st.sampled_from(["*", "*", "*opus*", "haiku-4"]),
)  # fmt: skip


class Pool:
    """An allocator whose requests reach the judges late, by up to ARRIVAL_SECONDS where a window allows for it."""

    def __init__(self, limits: Limits, members: int, seed: int) -> None:
        self.dice = random.Random(seed)
        self.pool = Allocator()
        self.now = NOW
        for number in range(members):
            self.pool.add(f"key-{number}", "group", None, frozenset(), limits, NOW, calendar)
        self.judges = [Judge(window) for window in limits.all_windows()]
        self.is_exact = all(judge.window.resets == "rolling" and judge.window.every != "month" for judge in self.judges)
        self.live: list[LeaseRecord] = []
        self.unsent: set[int] = set()  # ids of records
        self.arrivals: dict[int, float] = {}
        self.records: list[LeaseRecord] = []  # all, so that no id is used twice
        self.waiting: list[LeaseRecord] = []

    def request(self) -> None:
        input_, output = self.dice.choice([0, 1, 3, 12]), self.dice.choice([0, 1, 6])
        detail = Detail(input_, output, self.dice.choice([0.0, 0.01, 0.07]))
        model = self.dice.choice(MODELS)
        record = LeaseRecord(None, 1, input_ + output, model, None, None, None, detail)
        if self.pool.request(record, self.now):
            self.grant(record)
        elif record.sequence:
            self.waiting.append(record)

    def grant(self, record: LeaseRecord) -> None:
        delay = 0.0 if self.is_exact else self.dice.choice([0.0, 0.1, ARRIVAL_SECONDS * 0.9])
        if any(judge.window.resets == "rolling" and not judge.window.calendar for judge in self.judges):
            delay = 0.0  # a rolling window counts from the grant
        self.live.append(record)
        self.records.append(record)
        assert record.detail is not None
        if self.dice.random() < 0.15:  # its process dies before it sends the request
            self.unsent.add(id(record))
            return
        self.arrivals[id(record)] = self.now + delay
        use = Use(self.now + delay, record.scope, record.requests, record.tokens, record.detail)
        for judge in self.judges:
            judge.uses.append(use)

    def end(self) -> None:
        record = self.live.pop(self.dice.randrange(len(self.live)))
        while self.now < self.arrivals.get(id(record), 0.0):  # no lease ends before its request has arrived
            self.pass_time(ARRIVAL_SECONDS)
        if id(record) in self.unsent or self.dice.random() < 0.2:
            self.pool.lease_end.lose(record, self.now)
        else:
            self.pool.lease_end.end(record, self.now)
        self.collect()

    def pass_time(self, seconds: float) -> None:
        wake_at = self.pool.next_wake_at()
        self.now = min(self.now + seconds, wake_at) if wake_at is not None else self.now + seconds
        self.pool.advance(self.now)
        self.collect()

    def collect(self) -> None:
        served, self.pool.served = self.pool.served, []
        for record in served:
            self.waiting.remove(record)
            if record.state == LIVE:
                self.grant(record)


@given(windows=st.lists(WINDOWS, min_size=1, max_size=6), members=st.integers(1, 2), seed=st.integers(0, 10_000))
def test_no_window_is_exceeded_by_the_judge(windows: list[Window], members: int, seed: int) -> None:
    """Invariants 2, 3 and 39, and every waiter is served in the end (8)."""
    pool = Pool(Limits(windows=windows, max_concurrent=4), members, seed)
    for _ in range(120):
        action = pool.dice.random()
        if action < 0.5:
            pool.request()
        elif action < 0.75 and pool.live:
            pool.end()
        else:
            pool.pass_time(pool.dice.choice([0.05, 1.0, 20.0, 119.0, 301.0]))
    for _ in range(3_000):
        if not pool.waiting:
            break
        while pool.live:
            pool.end()
        if pool.waiting:
            assert pool.pool.next_wake_at() is not None
            pool.pass_time(1e9)
    assert not pool.waiting
    for judge in pool.judges:
        judge.check()


def make_limiter(*windows: Window, **limits: Any) -> RateLimiter:
    return RateLimiter(Limits(windows=windows, **limits), calendar, NOW)


def test_each_field_is_a_window_like_any_other() -> None:
    limits = Limits(
        requests_per_minute=5, tokens_per_minute=6, input_tokens_per_minute=7, output_tokens_per_minute=8,
        requests_per_day=9, tokens_per_day=10, day_resets="03:00 UTC",
    )  # fmt: skip
    assert limits.all_windows() == (
        Window(REQUESTS, 5, "minute"),
        Window(TOKENS, 6, "minute"),
        Window(INPUT_TOKENS, 7, "minute"),
        Window(OUTPUT_TOKENS, 8, "minute"),
        Window(REQUESTS, 9, "day", "03:00 UTC"),
        Window(TOKENS, 10, "day", "03:00 UTC"),
    )
    assert [window.name for window in limits.all_windows()] == [
        "requests per minute", "tokens per minute", "input tokens per minute", "output tokens per minute",
        "requests per day", "tokens per day",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("window", "name"),
    [
        (Window(REQUESTS, 5, "5h"), "requests per 5 hours"),
        (Window(COST, 5, "month"), "cost per month"),
        (Window(TOKENS, 5, "7d", "mon 08:00 UTC"), "tokens per week"),
        (Window(TOKENS, 5, "7d", "first-use", "*opus*"), "tokens per 7 days for *opus*"),
        (Window(TOKENS, 5, 24 * HOUR), "tokens per 24 hours"),
        (Window(TOKENS, 5, "90s"), "tokens per 90 s"),
    ],
)
def test_windows_have_names_for_people(window: Window, name: str) -> None:
    assert window.name == name


@pytest.mark.parametrize(
    "arguments",
    [
        ("pages", 1, "1h"), (TOKENS, 0, "1h"), (TOKENS, True, "1h"), (REQUESTS, 0.5, "1h"), (TOKENS, 1, "soon"),
        (TOKENS, 1, 0), (TOKENS, 1, "500d"), (TOKENS, 1, "5h", "00:00 UTC"), (TOKENS, 1, "7d", "00:00 UTC"),
        (TOKENS, 1, "1d", "mon 00:00 UTC"), (TOKENS, 1, "1h", "sometimes"), (TOKENS, 1, "month", "first-use"),
        (TOKENS, 1, "1h", "rolling", ""),
    ],
)  # fmt: skip
def test_impossible_windows_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"must|month"):
        Window(*arguments)


def test_reserve_leaves_a_share_of_every_window() -> None:
    limiter = make_limiter(Window(TOKENS, 200, "1h"), requests_per_minute=60, reserve=0.25)
    assert limiter.usage(NOW) == {"requests per minute": (0, 45), "tokens per hour": (0, 150)}
    assert limiter.too_large(1, 151) is not None


def test_strictest_keeps_days_that_begin_at_other_times() -> None:
    first = Limits(requests_per_day=10, day_resets="08:00 UTC", reserve=0.1)
    combined = strictest(first, Limits(tokens_per_day=5, windows=[Window(COST, 1, "1h")], reserve=0.2))
    assert set(combined.all_windows()) == {
        Window(REQUESTS, 10, "day", "08:00 UTC"), Window(TOKENS, 5, "day", "00:00 UTC"), Window(COST, 1, "1h"),
    }  # fmt: skip
    assert combined.reserve == 0.2


def test_requests_of_other_models_do_not_count() -> None:
    limiter = make_limiter(Window(REQUESTS, 2, "1h", "rolling", "*opus*"))
    for _ in range(2):
        limiter.take(1, 0, NOW, "opus-4")
    assert limiter.ready_at(1, 0, NOW, "opus-4") > NOW
    assert limiter.ready_at(1, 0, NOW, None) > NOW  # its model may be opus
    assert limiter.ready_at(1, 0, NOW, "haiku-4") == 0.0
    assert limiter.full_until(NOW) == 0.0


def test_tokens_of_unknown_direction_count_as_either() -> None:
    limiter = make_limiter(input_tokens_per_minute=100, output_tokens_per_minute=50)
    limiter.take(1, 40, NOW)
    assert {name: used for name, (used, _) in limiter.usage(NOW).items()} == {
        "input tokens per minute": 40, "output tokens per minute": 40,
    }  # fmt: skip
    assert detail_of(40, None, 10, None) == Detail(30, 10)
    assert detail_of(40, None, None, 0.5) == Detail(40, 40, 0.5)


def test_million_requests_in_a_week_need_bounded_memory() -> None:
    """Figures of docs/design.md: at most SLOTS + 1 slots, each at most 1/SLOTS of the length late, never early."""
    window = SlottedRolling(1e9, 7 * 24 * HOUR)
    step = window.seconds / 1_000_000
    for number in range(1_000_000):
        window.take(1, NOW + number * step)
    assert len(window._entries) <= SLOTS + 1
    size = sum(map(sys.getsizeof, window._entries)) + sys.getsizeof(window._entries)
    assert size < 64 * SLOTS * 2
    for end in (NOW + window.seconds, NOW + window.seconds + 0.5 * window.seconds / SLOTS):
        window.ready_at(0, end)
        exact = sum(1 for number in range(1_000_000) if NOW + number * step > end - window.seconds)
        assert exact <= window.total <= exact + 1_000_000 / SLOTS + 1


def test_sparse_usage_of_a_long_window_is_exact() -> None:
    window = SlottedRolling(2, 5 * HOUR)
    window.take(1, NOW)
    window.take(1, NOW + 100)
    assert window.ready_at(1, NOW + 200) == NOW + 5 * HOUR + ARRIVAL_JITTER_SECONDS
    assert window.ready_at(2, NOW + 200) == NOW + 100 + 5 * HOUR + ARRIVAL_JITTER_SECONDS


def test_first_use_window_counts_from_its_first_success() -> None:
    window = FirstUsePeriod(2, 5 * HOUR)
    window.take(1, NOW)  # lost: maybe it was never sent
    later = window.take(1, NOW + HOUR)
    assert window.ready_at(1, NOW + HOUR) == NOW + 6 * HOUR + ARRIVAL_SECONDS
    window.confirm(later, NOW + HOUR + 1)
    assert window.ready_at(1, NOW + 5 * HOUR + 10) == NOW + 6 * HOUR + 1
    assert window.ready_at(1, NOW + 6 * HOUR + 1) == 0.0


def test_request_that_arrived_in_time_counts_once() -> None:
    """A window of two seconds: every request is taken less than ARRIVAL_SECONDS before its end."""
    window = FirstUsePeriod(3, 2.0)
    for n in range(3):
        window.confirm(window.take(1, NOW + n * 0.1), NOW + n * 0.1 + 0.05)
    assert window.ready_at(1, NOW + 1.0) == NOW + 2.05
    assert window.ready_at(3, NOW + 2.05) == 0.0
    entries = [window.take(1, NOW + 3.0 + n) for n in range(3)]
    window.confirm(entries[0], NOW + 3.1)  # the period ends between 5.0 and 5.1
    window.confirm(entries[1], NOW + 5.05)
    assert window.ready_at(1, NOW + 5.1) == 0.0
    assert window.ready_at(2, NOW + 5.1) > NOW + 5.1  # the second and the third may have arrived after the end


def test_late_use_of_a_period_counts_in_the_next() -> None:
    limiter = make_limiter(Window(REQUESTS, 3, "1d", "00:00 UTC"))
    end = calendar("00:00 UTC", NOW)
    limiter.take(1, 0, end - 60)
    limiter.take(2, 0, end - 0.1)  # may arrive after midnight
    assert limiter.ready_at(1, 0, end) == 0.0
    assert limiter.ready_at(2, 0, end) > end


def test_settled_detail_frees_each_direction() -> None:
    pool = Allocator()
    limits = Limits(input_tokens_per_minute=100, output_tokens_per_minute=100, max_concurrent=9)
    pool.add("key", "key", None, frozenset(), limits, NOW)
    first = LeaseRecord(None, 1, 100, None, None, None, None, Detail(20, 80))
    second = LeaseRecord(None, 1, 90, None, None, None, None, Detail(10, 80))
    assert pool.request(first, NOW)
    assert not pool.request(second, NOW)
    assert pool.settle(first, None, 25, NOW + 1, Detail(20, 5))
    assert pool.served == [second]


COST_TIMINGS = [("60s", "rolling"), ("5h", "rolling"), ("5h", "first-use"), ("1d", "00:00 UTC")]


@pytest.mark.parametrize("timing", COST_TIMINGS, ids=lambda timing: " ".join(timing))
@given(cents=st.integers(1, 50), limit=st.integers(1, 300))
def test_as_much_money_fits_as_the_limit_says(timing: tuple[str, str], cents: int, limit: int) -> None:
    """Sums of floats do not: 0.01 fitted 99 times into 1.00."""
    limiter = RateLimiter(Limits(windows=[Window(COST, limit / 100, *timing)]), calendar, NOW)
    detail, count = Detail(cost=cents / 100), 0
    while count <= limit and not limiter.ready_at(1, 0, NOW, detail=detail):
        limiter.take(1, 0, NOW, detail=detail)
        count += 1
        if count % 7 == 0:  # its pool is stored and restored
            state, limiter = limiter.state((), NOW), RateLimiter(limiter.limits, calendar, NOW)
            limiter.restore(state, NOW)
    assert count == limit // cents
    ((used, amount),) = limiter.usage(NOW).values()
    assert (exact(used), exact(amount)) == (count * exact(cents / 100), exact(limit / 100))


def test_corrected_money_leaves_no_rest() -> None:
    limiter = RateLimiter(Limits(windows=[Window(COST, 0.3, "60s")]), calendar, NOW)
    for _ in range(1_000):
        taken = limiter.take(1, 0, NOW, detail=Detail(cost=0.1))
        limiter.correct(taken, (1, 0, Detail(cost=0.1)), (1, 0, Detail(cost=0.0)), NOW)
    for _ in range(3):
        assert not limiter.ready_at(1, 0, NOW, detail=Detail(cost=0.1))
        limiter.take(1, 0, NOW, detail=Detail(cost=0.1))
    assert limiter.ready_at(1, 0, NOW, detail=Detail(cost=1e-9))
    assert limiter.too_large(1, 0, detail=Detail(cost=0.31)) == "0.31 cost at once, more than 0.3 per minute"
    assert math.isclose(limiter.binding(1, 0, NOW, detail=Detail(cost=0.1)).amount or 0.0, 0.3)
