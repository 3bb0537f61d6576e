"""A pool on a server that is reached through TLS (`rediss://`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.errors import StoreError
from agentos.pool.shared._member import member
from tests.conftest import eventually
from tests.support.tls import TlsProxy, write_certificate
from tests.support.valkey import Valkey, settle

from .observed_pool import ObservedPool

POOL = "tls"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def port(common_server: Valkey, certificate: tuple[Path, Path]) -> Iterator[int]:
    settle(common_server.url(POOL))
    proxy = TlsProxy(common_server.socket, *certificate)
    yield proxy.port
    member.close_all()
    proxy.close()


def test_pool_is_shared_through_tls(port: int, certificate: tuple[Path, Path]) -> None:
    url = f"rediss://127.0.0.1:{port}/0?pool={POOL}&ssl_ca_certs={certificate[0]}"
    first, second = ObservedPool(url), ObservedPool(url)
    with first.pool.lease() as lease:
        assert second.is_refused()
        owner = second.owner_pid
        os.kill(owner, signal.SIGKILL)  # its successor connects through TLS, too
        eventually(lambda: second.owner_pid != owner)
        assert second.is_refused()
    assert second.fence() > lease.fence


def test_unknown_certificate_is_refused(port: int) -> None:
    with pytest.raises(StoreError, match="certificate verify failed") as raised:
        ObservedPool(f"rediss://127.0.0.1:{port}/0?pool={POOL}")
    assert "ssl_ca_certs" in str(raised.value)
