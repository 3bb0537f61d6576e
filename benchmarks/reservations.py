"""Reserve and release, uncontended, 8 keys: against a queue, a connection pool, an LLM router, and itself with fewer
windows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, Window

from .measuring import Row, at_most, measure, per_operation

PACKAGES = ("psycopg-pool", "litellm")
KEYS = 8
# Many short rounds: the sides are so close that one noisy second could decide.
ROUNDS = 25
OPERATIONS = 5_000
WINDOW_OPERATIONS = 1_000
# None of them is ever full.
ONE_WINDOW = Limits(max_concurrent=4, requests_per_minute=6e8, burst=6e8)
SIX_WINDOWS = Limits(
    max_concurrent=4,
    requests_per_minute=6e8,
    burst=6e8,
    input_tokens_per_minute=1e12,
    output_tokens_per_minute=1e12,
    windows=(
        Window("requests", 1e10, "5h", "first-use"),
        Window("tokens", 1e13, "7d"),
        Window("cost", 5e6, "month"),
    ),
)
ROUTER_OPERATIONS = 200  # fewer: one takes about 20 times as long


class IdlePgConn:
    """The only state that the pool reads: a connection comes back without an open transaction."""

    transaction_status = int(TransactionStatus.IDLE)  # psycopg's C code returns an int


class FakeConnection:
    """Replaces a database connection; the pool is psycopg's own."""

    def __init__(self) -> None:
        self.pgconn = IdlePgConn()
        self.closed = False

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> FakeConnection:
        return cls()

    def close(self) -> None:
        self.closed = True


def use_ours(pool: CredentialCoordinator) -> None:
    for _ in range(OPERATIONS):
        pool.release(pool.reserve())


def use_queue(queue: Queue[str]) -> None:
    for _ in range(OPERATIONS):
        queue.put(queue.get())


def use_connection_pool(pool: ConnectionPool[Any]) -> None:
    for _ in range(OPERATIONS):
        pool.putconn(pool.getconn())


def router_choice(keys: list[str]) -> Callable[[], None]:
    # Otherwise the import downloads a price list.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    litellm.telemetry = False
    deployments = [
        {"model_name": "model", "litellm_params": {"model": "openai/gpt-4o-mini", "api_key": key}} for key in keys
    ]
    router = litellm.Router(model_list=deployments)
    messages = [{"role": "user", "content": "hello"}]

    def use_router() -> None:
        for _ in range(ROUTER_OPERATIONS):
            router.get_available_deployment(model="model", messages=messages)

    return use_router


def use_windows(pool: CredentialCoordinator) -> None:
    for _ in range(WINDOW_OPERATIONS):
        with pool.lease(tokens=1_500, input_tokens=1_000, output_tokens=500, cost=0.01):
            pass


def of_windows() -> Row:
    pools = [
        CredentialCoordinator([Credential(f"key-{number}", limits=limits) for number in range(KEYS)])
        for limits in (SIX_WINDOWS, ONE_WINDOW)
    ]
    six, one = measure(
        {
            "ours": per_operation(lambda: use_windows(pools[0]), WINDOW_OPERATIONS),
            "itself with one window": per_operation(lambda: use_windows(pools[1]), WINDOW_OPERATIONS),
        },
        ROUNDS,
    )
    return at_most(2.0, "reserve + release with six windows on the group, with tokens and a cost", six, one)


def rows() -> Iterator[Row]:
    yield of_windows()
    keys = [f"key-{number}" for number in range(KEYS)]
    ours = CredentialCoordinator(keys)
    queue: Queue[str] = Queue()
    for key in keys:
        queue.put(key)
    with ConnectionPool(connection_class=FakeConnection, min_size=KEYS, open=True) as connections:
        connections.wait()
        mine, of_queue, of_connections, of_router = measure(
            {
                "ours": per_operation(lambda: use_ours(ours), OPERATIONS),
                "queue.Queue get + put": per_operation(lambda: use_queue(queue), OPERATIONS),
                "psycopg_pool getconn + putconn": per_operation(lambda: use_connection_pool(connections), OPERATIONS),
                "litellm.Router choosing a deployment": per_operation(router_choice(keys), ROUTER_OPERATIONS),
            },
            ROUNDS,
        )
    name = "reserve + release, uncontended, 8 keys"
    yield at_most(2.0, name, mine, of_queue)
    yield at_most(1.0, name, mine, of_connections)
    yield at_most(0.05, name, mine, of_router)
