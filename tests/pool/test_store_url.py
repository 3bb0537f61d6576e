"""URLs of stores: a password is found wherever it is, and is neither shown nor stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentos.pool.store_url import absolute, passwords, with_masked_password, without_password
from agentos.workflows.parallel import CredentialCoordinator

# URL, its passwords, the URL for display, the URL for storage
ADDRESSES = [
    ("memory:", set(), "memory:", "memory:"),
    ("sqlite:////a/b:c@d.db", set(), "sqlite:////a/b:c@d.db", "sqlite:////a/b:c@d.db"),
    ("redis://host:1/0", set(), "redis://host:1/0", "redis://host:1/0"),
    ("redis://:s3cret@host:1/0", {"s3cret"}, "redis://host:1/0", "redis://:****@host:1/0"),
    ("rediss://ann:s%2F3@host/0", {"s%2F3", "s/3"}, "rediss://host/0", "rediss://ann:****@host/0"),
    ("redis://host?pool=x&password=s3cret", {"s3cret"}, "redis://host?pool=x", "redis://:****@host?pool=x"),
    ("unix://:s3cret@/run/redis.sock?db=1", {"s3cret"}, "unix:///run/redis.sock?db=1", "unix://:****@/run/redis.sock?db=1"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "secrets", "shown", "masked"), ADDRESSES, ids=[row[2] for row in ADDRESSES])
def test_password_is_found_and_masked(url: str, secrets: set[str], shown: str, masked: str) -> None:
    assert passwords(url) == secrets
    assert without_password(url) == shown
    assert with_masked_password(url) == masked
    assert passwords(masked) == ({"****"} if secrets else set())


@pytest.mark.parametrize(
    "url", ["redis://host:s3cret", "redis://:s3/cret@host", "redis://:s3#cret@host", "redis://[s3cret"]
)
def test_malformed_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="must be escaped") as caught:
        CredentialCoordinator(["sk-a-key"], store=url)
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("store", ["s3cret", "s3cret@host:6379", "", "mysql://s3cret@host", 7])
def test_url_of_no_store_is_refused_without_repeating_it(store: object) -> None:
    with pytest.raises(ValueError, match="memory:") as caught:
        CredentialCoordinator(["sk-a-key"], store=store)  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)


def test_relative_file_counts_from_its_folder() -> None:
    here = Path("/here")
    assert absolute("sqlite:///pool.db", here) == "sqlite:////here/pool.db"
    assert absolute("sqlite:////there/pool.db", here) == "sqlite:////there/pool.db"
    assert absolute("sqlite:///~/pool.db", here) == f"sqlite:///{Path.home()}/pool.db"
    assert absolute("redis://host", here) == "redis://host"


MEMORY_PROGRAM = """
import os, sys
from agentos.workflows.parallel import CredentialCoordinator
with CredentialCoordinator(["sk-memory-secret"]) as pool, pool.lease():
    assert not [name for name in sys.modules if name.startswith("agentos.pool.shared.")]
    assert not os.path.exists(f"/proc/self/task/{os.getpid()}/children") or not open(
        f"/proc/self/task/{os.getpid()}/children").read()
"""


def test_pool_in_memory_starts_no_process() -> None:
    """It does not even import what starts one."""
    subprocess.run([sys.executable, "-c", MEMORY_PROGRAM], check=True, timeout=60)
