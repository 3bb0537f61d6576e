"""The stores that the conformance tests run on."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.pool.shared._member import member
from tests.support.valkey import GIVEN_URL, Valkey, running, settle

from .members import Processes

_numbers = itertools.count()


@pytest.fixture(scope="session")
def common_server() -> Iterator[Valkey]:
    """A server for all tests that do not disturb it: each has a pool of its own there."""
    with running() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[Valkey]:
    """A server for one test that stops or flushes it."""
    with running() as server:
        yield server


def in_redis(base: str) -> str:
    """A pool without history: no lost leases delay its first grant."""
    url = f"{base}{'&' if '?' in base else '?'}pool=test-{os.getpid()}-{next(_numbers)}"
    settle(url)
    return url


def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield "memory:"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'pool.db'}"
    elif GIVEN_URL:
        yield in_redis(GIVEN_URL)
    else:
        server: Valkey = request.getfixturevalue("common_server")
        yield in_redis(f"unix://{server.socket}")
    member.close_all()


@pytest.fixture(params=["sqlite", "redis"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a store that processes share."""
    yield from url_of(request, tmp_path)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of any store."""
    yield from url_of(request, tmp_path)


@pytest.fixture(scope="session")
def _processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.stop()


@pytest.fixture
def processes(_processes: Processes) -> Iterator[Processes]:
    yield _processes
    _processes.park()
