"""Credentials of a pool that is in use are declared anew: added, changed or retired."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.errors import KeysFileError
from agentos.events import KeysReloaded
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    CredentialError,
    Limits,
    NoUsableCredential,
)
from tests.conftest import eventually

MakePool = Callable[..., CredentialCoordinator]


def key(id_: str, secret: str | None = None, **limits: float) -> Credential:
    return Credential(secret or f"secret-of-{id_}", id=id_, limits=Limits(**limits))  # type: ignore[arg-type]


@pytest.fixture
def pool(store: str) -> CredentialCoordinator:
    return CredentialCoordinator([key("a", requests_per_minute=6, burst=6), key("b")], store=store)


def used(pool: CredentialCoordinator, id_: str) -> float:
    state = next(state for state in pool.states() if state.key_id == id_)
    return sum(amount for amount, _ in state.used.values())


def test_reload_of_the_same_credentials_changes_nothing(pool: CredentialCoordinator) -> None:
    same = [key("a", requests_per_minute=6, burst=6), key("b")]
    assert pool.reload(same) == KeysReloaded([], [], [])


def test_added_credential_serves_a_waiting_request(pool: CredentialCoordinator) -> None:
    leased = [pool.reserve(0), pool.reserve(0)]
    assert None not in leased
    secrets: list[str] = []
    waiter = threading.Thread(target=lambda: secrets.append(str(pool.reserve(30))))
    waiter.start()
    eventually(lambda: pool.get_stats()["waiting"] == 1)
    change = pool.reload([key("a", requests_per_minute=6, burst=6), key("b"), key("c")])
    assert change == KeysReloaded(["c"], [], [])
    waiter.join(30)
    assert secrets == ["secret-of-c"]


def test_retired_credential_finishes_and_is_granted_no_more(pool: CredentialCoordinator) -> None:
    with pool.lease() as first, pool.lease() as second:
        by_id = {lease.credential_id: lease for lease in (first, second)}
        assert pool.reload([key("b")]) == KeysReloaded([], [], ["a"])
        assert by_id["a"].secret == "secret-of-a"  # what is in use finishes
        by_id["a"].settle(tokens=5)
    assert pool.ids == ("b",)
    for _ in range(3):
        with pool.lease(timeout=5) as lease:
            assert lease.credential_id == "b"
    assert "secret-of-a" not in pool.redact("the key was secret-of-a")


def test_new_secret_is_used_and_the_old_one_stays_redacted(pool: CredentialCoordinator) -> None:
    pool.reload([key("a", "another-secret", requests_per_minute=6, burst=6)])
    key_ = pool.reserve(5)
    assert key_ == "another-secret"
    assert pool.redact("secret-of-a another-secret") == "**** ****"


def test_new_secret_ends_the_quarantine_of_the_old_one(pool: CredentialCoordinator) -> None:
    pool.quarantine("b", "refused")
    pool.reload([key("a", requests_per_minute=6, burst=6), key("b", max_concurrent=2)])
    assert {state.key_id: state.quarantined for state in pool.states()}["b"] == "refused"
    pool.reload([key("a", requests_per_minute=6, burst=6), key("b", "another-secret")])
    eventually(lambda: all(state.quarantined is None for state in pool.states()))


def test_usage_so_far_counts_against_new_limits(pool: CredentialCoordinator) -> None:
    for _ in range(4):
        with pool.lease(prefer="a") as lease:
            assert lease.credential_id == "a"
    assert used(pool, "a") == 4
    pool.reload([key("a", requests_per_minute=5, burst=5)])
    eventually(lambda: used(pool, "a") == 4)
    assert pool.reserve(0) is not None
    assert pool.reserve_credential() is None  # five in a minute


def test_usage_of_a_retired_credential_counts_when_it_returns(pool: CredentialCoordinator) -> None:
    for _ in range(4):
        with pool.lease(prefer="a"):
            pass
    pool.reload([key("b")])
    pool.reload([key("a", requests_per_minute=6, burst=6), key("b")])
    eventually(lambda: used(pool, "a") == 4)


def test_more_requests_at_once_serve_waiting_requests(pool: CredentialCoordinator) -> None:
    pool.reload([key("b")])
    assert pool.reserve(5) is not None
    assert pool.reserve_credential() is None
    pool.reload([key("b", max_concurrent=2)])
    assert pool.reserve(5) == "secret-of-b"


def test_key_under_another_id_is_added_and_retired(pool: CredentialCoordinator) -> None:
    change = pool.reload([key("a", requests_per_minute=6, burst=6), key("renamed", "secret-of-b")])
    assert change == KeysReloaded(["renamed"], [], ["b"])
    assert sorted(pool.ids) == ["a", "renamed"]


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [key("a"), key("a", "other")],
        [key("a"), key("x", "secret-of-a")],
        [key("c"), Credential("env:AGENTOS_TEST_IS_NOT_SET", id="d")],
    ],
    ids=["none", "same id", "same key", "unreadable"],
)
def test_bad_credentials_change_nothing(pool: CredentialCoordinator, bad: list[Credential]) -> None:
    with pytest.raises((ValueError, CredentialError)):
        pool.reload(bad)
    assert pool.ids == ("a", "b")
    assert {str(pool.reserve(5)), str(pool.reserve(5))} == {"secret-of-a", "secret-of-b"}


def test_credential_that_the_store_refuses_changes_nothing(pool: CredentialCoordinator) -> None:
    add = pool._store.add

    def refuse(credential: Credential) -> None:
        if credential.id == "d":
            raise ValueError("too long")
        add(credential)

    pool._store.add = refuse  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="too long"):
        pool.reload([key("a", "changed"), key("c"), key("d")])
    assert pool.ids == ("a", "b")
    assert {str(pool.reserve(5)), str(pool.reserve(5))} == {"secret-of-a", "secret-of-b"}
    assert pool.reserve_credential() is None


def test_waiters_are_refused_only_if_no_credential_is_left(store: str) -> None:
    scoped = Credential("secret-of-a", id="a", scopes=["model-1"])
    pool = CredentialCoordinator([scoped, key("b")], store=store)
    pool.quarantine("b", "refused")
    pool.reload([key("c", max_concurrent=1), key("b")])
    with pool.lease(scope="model-1", timeout=5) as lease:
        assert lease.credential_id == "c"
    pool.quarantine("c", "refused")
    with pytest.raises(NoUsableCredential), pool.lease(timeout=5):
        pass


def test_file_is_read_again_and_a_bad_file_changes_nothing(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_A", "secret-of-a")
    file = tmp_path / "keys.toml"
    file.write_text('[[credential]]\nid = "a"\nsecret = "env:TEST_A"\n')
    pool = CredentialCoordinator.from_file(file, store=store)
    (tmp_path / "b.key").touch(0o600)
    (tmp_path / "b.key").write_text("secret-of-b\n")
    file.write_text(
        '[[credential]]\nid = "a"\nsecret = "env:TEST_A"\n[[credential]]\nid = "b"\nsecret = "file:b.key"\n'
    )
    assert pool.reload_file(file) == KeysReloaded(["b"], [], [])
    (tmp_path / "b.key").write_text("rotated-secret\n")
    assert pool.reload_file(file) == KeysReloaded([], ["b"], [])
    file.write_text("[[credential]\n")
    with pytest.raises(KeysFileError, match="line 1"):
        pool.reload_file(file)
    assert pool.ids == ("a", "b")


def test_other_members_keep_what_one_member_retires(shared_store: str) -> None:
    """Each process declares its own keys; of several declarations the strictest limits hold."""
    with (
        CredentialCoordinator([key("a", max_concurrent=4)], store=shared_store) as first,
        CredentialCoordinator([key("a", max_concurrent=4)], store=shared_store) as second,
    ):
        first.reload([key("a", max_concurrent=2), key("b")])
        eventually(lambda: [state.max_concurrent for state in second.states()] == [2])
        first.reload([key("b")])
        eventually(lambda: [state.max_concurrent for state in second.states()] == [4])
        assert second.reserve(5) == "secret-of-a"
        assert first.reserve(5) == "secret-of-b"
