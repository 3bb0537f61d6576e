"""`ParallelCoordinator.plan`: its forecast against the run itself, and its cost per item by number of items."""

from __future__ import annotations

from collections.abc import Iterator

from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator

from . import legal_speed
from .measuring import Ratio, Row, at_most, measure, per_operation
from .peers.job import WORKERS
from .peers.ours import limits_of
from .situations import LATENCY, SITUATIONS, Situation

PACKAGES = ("httpx",)
FEW, MANY = 10_000, 100_000
KEYS = 50
ROUNDS = 5
ITEM_SECONDS = LATENCY + 0.002  # latency of the provider, and the round trip
MAX_GROWTH = 1.5


def planned_seconds(situation: Situation) -> float:
    """Return the forecast for the usable keys."""
    useless = {*situation.settings.dead, *situation.settings.out_of_quota}
    limits = limits_of(situation.job(""))
    credentials = [Credential(key, limits=limits) for key in situation.settings.keys if key not in useless]
    coordinator = ParallelCoordinator(
        WORKERS, CredentialCoordinator(credentials), max_parallelism=WORKERS, reporter=None
    )
    return coordinator.plan(situation.requests, item_seconds=ITEM_SECONDS).seconds


def of_accuracy(situation: Situation) -> Row:
    forecast, seconds = planned_seconds(situation), legal_speed.measure(situation).seconds
    name = f"plan of {situation.requests:,} requests, {situation.description}"
    return Row(name, f"{forecast:.2f} s", "the run itself", f"{seconds:.2f} s", Ratio([forecast / seconds]), "", None)


def rows() -> Iterator[Row]:
    by_name = {situation.name: situation for situation in SITUATIONS}
    yield of_accuracy(by_name["declared"])
    yield of_accuracy(by_name["dead"])
    limits = Limits(requests_per_minute=600, burst=10, max_concurrent=4)
    pool = CredentialCoordinator([Credential(f"key-{number}", limits=limits) for number in range(KEYS)])
    coordinator = ParallelCoordinator(WORKERS, pool, max_parallelism=WORKERS, reporter=None)
    many, few = measure(
        {
            "many": per_operation(lambda: coordinator.plan(MANY, item_seconds=ITEM_SECONDS), MANY),
            f"itself with {FEW:,} items": per_operation(lambda: coordinator.plan(FEW, item_seconds=ITEM_SECONDS), FEW),
        },
        ROUNDS,
    )
    yield at_most(MAX_GROWTH, f"plan of {MANY:,} items over {KEYS} credentials, per item", many, few)
