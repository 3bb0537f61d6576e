"""The settings of a credential: base URL, headers, variables of commands, and credentials without a secret."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import AmbiguousRelease, CredentialError, UnknownCredential
from agentos.pool.credential import Credential
from agentos.pool.lease_pool import LeasePool
from agentos.workflows.parallel import CredentialCoordinator

SECRET = "sk-canary-0123456789"
HEADER_SECRET = "hdr-canary-9876543210"
PROFILE = {"CLAUDE_CONFIG_DIR": "~/.claude-team-a"}


def test_settings_are_read_only_and_empty_by_default() -> None:
    credential = Credential(SECRET)
    assert (credential.base_url, dict(credential.headers), dict(credential.command_env)) == (None, {}, {})
    assert credential.has_secret
    with pytest.raises(TypeError):
        credential.headers["a"] = "b"  # type: ignore[index]
    with pytest.raises(AttributeError):
        credential.base_url = "https://other"  # type: ignore[misc]


def test_settings_are_copies_of_the_arguments() -> None:
    headers = {"OpenAI-Project": "proj_1"}
    credential = Credential(SECRET, headers=headers, base_url="https://eu.example/v1/")
    headers["OpenAI-Project"] = "proj_2"
    assert credential.headers == {"OpenAI-Project": "proj_1"}
    assert credential.base_url == "https://eu.example/v1"


def test_references_of_settings_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("SETTING", HEADER_SECRET)
    command = f"cmd:sh -c 'echo call >> {calls}; echo region-1'"
    credential = Credential(
        SECRET,
        base_url="env:SETTING_URL",
        headers={"X-Token": "env:SETTING", "X-Region": command},
        command_env={"REGION": command, "PLAIN": "value"},
    )
    monkeypatch.setenv("SETTING_URL", "https://eu.example/")
    assert not calls.exists()  # nothing is read before the credential is used
    assert credential.base_url == "https://eu.example"
    assert credential.headers == {"X-Token": HEADER_SECRET, "X-Region": "region-1"}
    assert credential.command_env == {"REGION": "region-1", "PLAIN": "value"}
    assert calls.read_text() == "call\n"
    assert credential.secrets == {SECRET, HEADER_SECRET, "region-1", "https://eu.example/"}


def test_tilde_is_expanded_in_plain_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/test")
    monkeypatch.setenv("SETTING", "~/secret")
    environment = {"FOLDER": "~/.claude-a", "KEPT": "a/~/b", "SECRET": "env:SETTING"}
    credential = Credential(None, id="a", command_env=environment)
    assert credential.command_env == {"FOLDER": "/home/test/.claude-a", "KEPT": "a/~/b", "SECRET": "~/secret"}


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "ftp://host"},
        {"base_url": "eu.example"},
        {"base_url": "https://user:hidden-value@host"},
        {"base_url": "https://host/?hidden-value"},
        {"base_url": "https://host/#hidden-value"},
        {"base_url": "https://host/hidden value"},
        {"base_url": "https://host:hidden-value/"},
        {"base_url": 7},
        {"headers": {"Bad Name": "hidden-value"}},
        {"headers": {"X-A": "hidden-value\r\nX-B: c"}},
        {"headers": {"X-A": "hidden-value\n"}},
        {"headers": {"X-A": "hidden-value\N{EURO SIGN}"}},
        {"headers": {"X-A": 7}},
        {"headers": {"X-A": "hidden-value", "x-a": "c"}},
        {"headers": {"Host": "hidden-value"}},
        {"headers": {"Transfer-Encoding": "hidden-value"}},
        {"headers": ["hidden-value"]},
        {"command_env": {"BAD-NAME": "hidden-value"}},
        {"command_env": {"A=B": "hidden-value"}},
        {"command_env": {"AGENTOS_RUN_ID": "hidden-value"}},
        {"command_env": {"A": "hidden-value\0"}},
        {"command_env": {"A": 7}},
        {"command_env": "A=hidden-value"},
    ],
)
def test_wrong_setting_is_refused_without_its_value(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        Credential(SECRET, **settings)
    assert "hidden-value" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [{"headers": {"X-A": "env:SETTING"}}, {"base_url": "env:SETTING"}, {"command_env": {"A": "env:MISSING"}}],
)
def test_wrong_referenced_value_is_refused_without_it(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETTING", "hidden-value\N{EURO SIGN}")
    with pytest.raises(CredentialError) as caught:
        LeasePool([Credential(SECRET, id="team-a", **settings)])
    assert "team-a" in str(caught.value)
    assert "hidden-value" not in str(caught.value)


def test_referenced_settings_are_redacted_like_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTING", HEADER_SECRET)
    plain = {"X-Region": "region-plain"}
    pool = LeasePool([Credential(SECRET, headers={"X-Token": "env:SETTING", **plain})])
    assert pool.redact(f"{HEADER_SECRET} {SECRET} region-plain") == "**** **** region-plain"


def test_unused_credentials_settings_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTING", HEADER_SECRET)
    monkeypatch.setenv("AGENTOS_CREDENTIAL_LIMIT", "1")
    unused = Credential(SECRET, command_env={"TOKEN": "env:SETTING"})
    pool = CredentialCoordinator(["sk-another-0123456789", unused])
    assert pool.redact(f"{HEADER_SECRET} {SECRET}") == "**** ****"


def test_nothing_shows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTING", HEADER_SECRET)
    credential = Credential(SECRET, id="a", headers={"X-Token": "env:SETTING"})
    pool = CredentialCoordinator([credential])
    key = pool.reserve()
    assert key is not None
    for shown in (credential, pool, key, key.settings):
        assert HEADER_SECRET not in repr(shown)
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copier(credential)
    assert type(pickle.loads(pickle.dumps(key))) is str


def test_lease_and_key_have_the_settings_of_their_credential() -> None:
    pool = CredentialCoordinator(
        [Credential(SECRET, base_url="https://eu.example/v1", headers={"OpenAI-Project": "proj_1"})]
    )
    with pool.lease() as lease:
        assert (lease.base_url, dict(lease.headers)) == ("https://eu.example/v1", {"OpenAI-Project": "proj_1"})
    key = pool.reserve()
    assert key is not None
    assert (key, key.base_url, dict(key.headers)) == (SECRET, "https://eu.example/v1", {"OpenAI-Project": "proj_1"})


def test_credential_of_returns_the_credential() -> None:
    credential = Credential(SECRET, id="team-a", base_url="https://eu.example/v1")
    pool = LeasePool([credential])
    assert pool.credential_of("team-a") is credential
    with pytest.raises(UnknownCredential):
        pool.credential_of("team-b")
    pool.add(Credential("sk-another-0123456789", id="team-b"))
    pool.remove("team-a")
    assert pool.credential_of("team-a") is credential  # a request with it may be under way


# --- the same key in several places -----------------------------------------------------------------------------------


def test_same_key_in_two_regions_is_two_credentials() -> None:
    regions = [Credential(SECRET, base_url=f"https://{region}.example") for region in ("eu", "us")]
    pool = CredentialCoordinator(regions)
    assert pool.size == 2
    assert regions[0].id != regions[1].id
    keys = [pool.reserve(timeout=0), pool.reserve(timeout=0)]
    assert {key.base_url for key in keys if key is not None} == {"https://eu.example", "https://us.example"}
    with pytest.raises(AmbiguousRelease, match="live leases"):
        pool.release(SECRET)
    for key in keys:
        assert key is not None
        pool.release(key)
    assert pool.get_available_count() == 2


def test_plain_key_cools_all_its_regions() -> None:
    pool = CredentialCoordinator([Credential(SECRET, base_url=f"https://{region}.example") for region in ("eu", "us")])
    pool.mark_rate_limited(SECRET, 30)
    assert pool.get_available_count() == 0


def test_same_key_with_the_same_settings_is_refused() -> None:
    settings: dict[str, Any] = {"base_url": "https://eu.example", "headers": {"A": "b"}, "command_env": {"C": "d"}}
    pool = LeasePool([Credential(SECRET, id="a", **settings)])
    with pytest.raises(ValueError, match="already in the pool, as a"):
        pool.add(Credential(SECRET, id="b", **settings))


# --- without a secret -------------------------------------------------------------------------------------------------


def test_profile_credential_is_leased_one_at_a_time() -> None:
    pool = CredentialCoordinator(
        [
            Credential(None, id="team-a", command_env=PROFILE),
            Credential(None, id="team-b", command_env={"CLAUDE_CONFIG_DIR": "~/.claude-team-b"}),
        ]
    )
    keys = [pool.reserve(timeout=0), pool.reserve(timeout=0)]
    assert [None if key is None else (str(key), key.credential_id) for key in keys] == [("", "team-a"), ("", "team-b")]
    assert pool.reserve(timeout=0) is None
    for key in keys:
        assert key is not None
        pool.release(key)
    assert pool.get_available_count() == 2
    assert not pool.credential_of("team-a").has_secret
    assert pool.redact(str(Path("~/.claude-team-a").expanduser())) == str(Path("~/.claude-team-a").expanduser())


@pytest.mark.parametrize("settings", [{}, {"id": "team-a"}, {"command_env": PROFILE}])
def test_credential_without_secret_needs_id_and_variables(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs an id"):
        Credential(None, **settings)


def test_same_profile_folder_twice_is_refused() -> None:
    pool = LeasePool([Credential(None, id="a", command_env=PROFILE)])
    with pytest.raises(ValueError, match="already in the pool, as a"):
        pool.add(
            Credential(None, id="b", command_env={"CLAUDE_CONFIG_DIR": str(Path("~/.claude-team-a").expanduser())})
        )


def test_profiles_share_a_store(tmp_path: Path) -> None:
    """Each process declares its credentials to the owner of the pool, which knows digests and no secrets."""
    credentials = [Credential(None, id=name, command_env={"FOLDER": f"/p/{name}"}) for name in ("a", "b")]
    with (
        LeasePool(credentials, store=f"sqlite:///{tmp_path / 'pool.db'}") as first,
        LeasePool(credentials, store=f"sqlite:///{tmp_path / 'pool.db'}") as second,
        first.lease(timeout=5) as one,
        second.lease(timeout=5) as other,
    ):
        assert {one.credential_id, other.credential_id} == {"a", "b"}
