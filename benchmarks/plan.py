"""`ParallelCoordinator.plan`: its forecast against the run itself, and its cost per item by number of items."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator, Window

from . import legal_speed, planned_runs
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
# A forecast may be off by this share of the run's wall time.
MAX_ERROR = 0.05
# Seconds for a plan of MANY items over KEYS credentials with six windows each.
MAX_SECONDS = 5.0
SIX_WINDOWS = Limits(
    requests_per_minute=600,
    burst=10,
    max_concurrent=4,
    input_tokens_per_minute=1_000_000,
    output_tokens_per_minute=200_000,
    windows=(
        Window("requests", 1_000, "5h", "first-use"),
        Window("tokens", 50_000_000, "7d"),
        Window("cost", 500, "month"),
    ),
)


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


def of_planned_run(planned: planned_runs.Planned) -> Row:
    forecast = planned_runs.planned_seconds(planned)
    seconds, refused = planned_runs.run_seconds(planned)
    print(f"{planned.name}: plan {forecast:.2f} s, run {seconds:.2f} s, {refused} refused", file=sys.stderr, flush=True)
    name = f"plan of {planned.requests:,} requests bound by {planned.name}"
    ratio, is_met = Ratio([forecast / seconds]), abs(forecast / seconds - 1) <= MAX_ERROR
    return Row(name, f"{forecast:.2f} s", "the run itself", f"{seconds:.2f} s", ratio, "0.95-1.05 x", is_met)


def of_six_windows() -> Row:
    """Return the time of a plan in which the five-hour windows bind: the slowest case, simulated item by item."""
    pool = CredentialCoordinator([Credential(f"key-{number}", limits=SIX_WINDOWS) for number in range(KEYS)])
    coordinator = ParallelCoordinator(4 * KEYS, pool, max_parallelism=4 * KEYS, reporter=None)
    values = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        coordinator.plan(MANY, item_seconds=0.5, tokens=1_500, item_cost=0.01)
        values.append(time.perf_counter() - began)
    median, figure = sorted(values)[ROUNDS // 2], f"{min(values):.2f}-{max(values):.2f} s"
    name = f"plan of {MANY:,} items over {KEYS} credentials with six windows each"
    return Row(name, f"{median:.2f} s ({figure})", "", "", None, f"<= {MAX_SECONDS:g} s", median <= MAX_SECONDS)


def rows() -> Iterator[Row]:
    by_name = {situation.name: situation for situation in SITUATIONS}
    yield of_accuracy(by_name["declared"])
    yield of_accuracy(by_name["dead"])
    for planned in planned_runs.PLANNED:
        yield of_planned_run(planned)
    yield of_six_windows()
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
