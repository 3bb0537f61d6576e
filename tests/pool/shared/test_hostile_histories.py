"""Members that send valid messages in any order, with values that no program sends: the owner raises nothing, because
an exception disconnects all members, and its journal can be read at any time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from agentos.pool.shared import messages as wire
from agentos.pool.shared._owner.queries import ANSWERS
from agentos.verdict import RETRY_ON_OTHER_KEY

from .owned_pool import START, Client, OwnedPool

IDS = ["a", "b", "", "é" * 20]
COUNTS = [0, 1, 1, 2, 5, 2**31, wire.MAX_COUNT]
LEASES = [0, 1, 2, 3, 4, 5, 2**62]
SECONDS = [0.0, 0.5, -1.0, 60.0, 1e-9, 1e9, wire.MAX_SECONDS, -wire.MAX_SECONDS]
ANYTHING = [None, True, -1, 2**63 - 1, math.nan, math.inf, 1e300, "", "x", [1], {"a": 1}, b"x"]
ZONES = ["00:00 UTC", "12:30 Europe/Berlin", "00:00 No/Where", "00:00 ../../etc/passwd", "00:00 \0"]
LIMITS: dict[str, list[Any]] = {
    "requests_per_minute": [1, 60, 1e14, 0.001],
    "tokens_per_minute": [1, 600, 1e14],
    "requests_per_day": [1, 10, 10**14],
    "max_concurrent": [1, 3, 10**15],
    "burst": [1, 5.5],
    "day_resets": ZONES,
}


class Hostile:
    """Random messages."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.one_of = self.chance.choice

    def some(self, make: Callable[[], Any], most: int = 2) -> list[Any]:
        return [make() for _ in range(self.chance.randint(0, most))]

    def id(self) -> str:
        return self.one_of(IDS)

    def count(self) -> int:
        return self.one_of(COUNTS)

    def limits(self) -> dict[str, Any]:
        names = self.chance.sample(list(LIMITS), self.chance.randint(0, 4))
        return {name: self.one_of(LIMITS[name] if self.chance.random() < 0.95 else ANYTHING) for name in names}

    def declaration(self) -> wire.Declaration:
        scopes = self.chance.sample(["s", ""], self.chance.randint(0, 2))
        group, provider = self.one_of(["g", "h"]), self.one_of([None, "p"])
        return wire.Declaration(self.id(), group, provider, scopes, self.limits(), self.one_of("ef"))

    def request(self) -> wire.Request:
        scope, prefer = self.one_of([None, "s", "u"]), self.one_of([None, "a"])
        flags = (self.chance.random() < 0.2, self.chance.random() < 0.8, self.chance.random() < 0.2)
        restriction = (self.one_of([None, None, "p"]), self.one_of([None, None, "a", "z"]))
        avoided = (self.some(self.id, 1), self.some(self.id, 1))
        what = (self.one_of(LEASES), None, self.count(), self.count(), scope, prefer)
        return wire.Request(*what, *flags, *avoided, *restriction)

    def verdict(self) -> list[Any]:
        figures = [self.one_of([None, *SECONDS]) for _ in range(6)]
        kind = self.one_of([None, "transient", "no kind", *RETRY_ON_OTHER_KEY])
        fields = [kind, *figures, None, self.one_of("su"), ""]
        return [value if self.chance.random() < 0.98 else self.one_of(ANYTHING) for value in fields]

    def message(self) -> wire.Message:
        lease = self.one_of(LEASES)
        end = wire.End(lease, self.one_of([None, self.verdict()]), True, self.one_of([None, None, *SECONDS]))
        usage = (self.one_of([None, *IDS]), self.count(), self.count())
        messages = [
            self.request(), self.request(), self.request(), end, end, self.declaration(), wire.Drop(self.id()),
            wire.Confirm(lease), wire.Withdraw(lease), wire.Observed(lease, self.verdict()),
            wire.Settle(lease, self.one_of([None, *COUNTS]), self.count(), *usage),
            wire.UseMore(lease, self.count(), self.count(), usage[0]),
            wire.SetQuarantine(self.id(), self.one_of([None, "bad"])), wire.Cool(self.id(), self.one_of(SECONDS)),
            wire.Clear(self.id()), wire.Heartbeat(self.some(lambda: self.one_of(LEASES))), wire.Leave(),
            wire.Query(1, self.one_of(["x", *ANSWERS]), self.some(lambda: self.one_of(ANYTHING))),
        ]  # fmt: skip
        return self.one_of(messages)

    def held(self) -> wire.HeldLease:
        fence = self.one_of([0, 2**60, int(START * 1e6) + 5])
        return wire.HeldLease(self.one_of(LEASES), self.id(), fence, self.count(), self.count(), None, None)

    def greet(self, client: Client) -> None:
        client.declared = self.some(self.declaration, 3)
        used = self.some(lambda: wire.Usage(self.id(), self.one_of(SECONDS), self.count(), self.count()))
        seen = self.one_of([None, ("journal", self.count()), ("other", 3)])
        client.greet(held=self.some(self.held), waiting=self.some(self.request), seen=seen, used=used)

    def act(self, pool: OwnedPool, client: Client) -> None:
        """Do one thing: mostly send messages."""
        actions: list[tuple[int, Callable[[], object]]] = [
            (4, lambda: self.greet(client)),
            (10, lambda: pool.advance(self.one_of([0.1, 2.0, 40.0, 90_000.0]))),
            (14, lambda: check_journal(pool)),
            (17, pool.save),
            (19, lambda: pool.owner.disconnected(client.connection, pool.now)),
            (21, lambda: pool.owner.recalculate_days(pool.now)),
            (100, lambda: client.send(*self.some(self.message, 3))),
        ]
        percent = self.chance.uniform(0, 100)
        next(action for limit, action in actions if percent <= limit)()
        pool.commit()


def check_journal(pool: OwnedPool) -> None:
    pool.commit(everything=True)
    pool.restored()  # fails if it cannot be read


@pytest.mark.parametrize("seed", range(0, 500, 50))
def test_hostile_histories_raise_nothing_and_can_be_restored(seed: int) -> None:  # invariants 46, 47
    for number in range(seed, seed + 50):
        pool, hostile = OwnedPool(), Hostile(number)
        clients = [pool.client(f"m{n}", ttl=hostile.one_of([0.01, 1.0, 864_000.0])) for n in range(3)]
        for client in clients:
            hostile.greet(client)
        for _ in range(60):
            hostile.act(pool, hostile.one_of(clients))
        check_journal(pool)
