"""Settings of credentials as commands, threads, worker processes and executors see them."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentos.workers.engines._remote import run_attempt
from agentos.workflows.parallel import (
    Command,
    Credential,
    CredentialCoordinator,
    CredentialError,
    ParallelCoordinator,
    current_item,
)

SECRET = "sk-settings-0123456789"
HEADER_SECRET = "hdr-settings-9876543210"
ENVIRONMENT = ("printenv",)


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTINGS_KEY", SECRET)
    monkeypatch.setenv("SETTINGS_HEADER", HEADER_SECRET)


def pool_of(**settings: Any) -> CredentialCoordinator:
    return CredentialCoordinator([Credential("env:SETTINGS_KEY", id="team-a", **settings)])


def work(_item: Any, key: Any) -> dict[str, Any]:
    """Return what a worker sees. Headers are returned without their values, which are redacted in records."""
    with current_item().lease() as lease:
        return {
            "base_url": (key.base_url, lease.base_url),
            "headers": {name: len(value) for name, value in key.headers.items()},
            "same": dict(lease.headers) == dict(key.headers),
            "key": len(key),
            "credential_id": key.credential_id,
        }


async def work_async(item: Any, key: Any) -> dict[str, Any]:
    return work(item, key)


def fail_with_header(_item: Any, key: Any) -> None:
    raise RuntimeError(f"refused: {key.headers['X-Token']}")


SETTINGS: dict[str, Any] = {
    "base_url": "https://eu.example/v1",
    "headers": {"X-Token": "env:SETTINGS_HEADER", "OpenAI-Project": "proj_1"},
}
SEEN = {
    "base_url": ("https://eu.example/v1", "https://eu.example/v1"),
    "headers": {"X-Token": len(HEADER_SECRET), "OpenAI-Project": 6},
    "same": True,
    "key": len(SECRET),
    "credential_id": "team-a",
}


def values_of(coordinator: ParallelCoordinator, worker: Any) -> list[Any]:
    stats, results = coordinator.execute_parallel(["a", "b"], worker)
    assert stats.success_count == 2, results
    return [result.value for result in results]


@pytest.mark.parametrize("worker", [work, work_async])
def test_workers_see_settings_of_their_key(worker: Any) -> None:
    assert values_of(ParallelCoordinator(1, pool_of(**SETTINGS), reporter=None), worker) == [SEEN, SEEN]


def test_worker_processes_see_settings_of_their_key() -> None:
    coordinator = ParallelCoordinator(1, pool_of(**SETTINGS), workers="processes", reporter=None)
    assert values_of(coordinator, work) == [SEEN, SEEN]


def test_executor_resolves_settings_and_redacts_them() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        coordinator = ParallelCoordinator(1, pool_of(**SETTINGS), workers=executor, reporter=None, retries=0)
        assert values_of(coordinator, work) == [SEEN, SEEN]
        _, results = coordinator.execute_parallel(["c"], fail_with_header)
    assert "refused: ****" in str(results[0].error)


def test_outcome_leaves_executor_without_values_of_headers() -> None:
    """Engines keep the texts of failed tasks, before the run's process could redact them."""
    message = {
        "id": "a",
        "attempt": 1,
        "run_id": "r",
        "credential_id": "team-a",
        "payload": "a",
        "launch": "1",
        "credential": None,
        "reference": "env:SETTINGS_KEY",
        "base_url": None,
        "headers": {"X-Token": "env:SETTINGS_HEADER"},
        "fingerprint": "key-of-the-run",
        "gateway_url": None,
    }
    outcome = run_attempt(pickle.dumps(fail_with_header), pickle.dumps(message))
    assert b"refused: ****" in outcome
    assert HEADER_SECRET.encode() not in outcome


def test_executor_is_sent_references_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentos.workers.engines import executor as module

    sent: list[bytes] = []

    def encode(message: dict[str, Any], dumps: Any) -> bytes:
        sent.append(dumps(message))
        return sent[-1]

    monkeypatch.setattr(module, "encode", encode)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        values_of(ParallelCoordinator(1, pool_of(**SETTINGS), workers=executor, reporter=None), work)
    assert all(b"env:SETTINGS_HEADER" in message for message in sent)
    assert not any(HEADER_SECRET.encode() in message or SECRET.encode() in message for message in sent)


def test_executor_refuses_secret_in_plain_header() -> None:
    pool = pool_of(headers={"X-Token": f"Bearer {SECRET}"})
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        with pytest.raises(CredentialError, match="plain secrets are not sent"):
            ParallelCoordinator(1, pool, workers=executor, reporter=None).execute_parallel(["a"], work)
        allowed = ParallelCoordinator(1, pool, workers=executor, reporter=None, send_secrets=True)
        (value, _) = values_of(allowed, work)
    assert value["headers"] == {"X-Token": len(f"Bearer {SECRET}")}


def test_executor_accepts_credential_without_secret() -> None:
    pool = CredentialCoordinator([Credential(None, id="team-a", command_env={"FOLDER": "/p"})])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        values = values_of(ParallelCoordinator(1, pool, workers=executor, reporter=None), work)
    assert [(value["key"], value["credential_id"]) for value in values] == [(0, "team-a")] * 2


# --- commands -------------------------------------------------------------------------------------------------------


class Shown:
    def __init__(self) -> None:
        self.output = b""

    def __call__(self, _item_id: str, _stream: str, lines: bytes) -> None:
        self.output += lines

    @property
    def environment(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.output.decode().splitlines() if "=" in line)


def run(pool: CredentialCoordinator, **options: Any) -> dict[str, str]:
    """Return the environment of a command as it prints it, after redaction."""
    shown = Shown()
    command = Command(ENVIRONMENT, show=shown, **options)
    stats, results = ParallelCoordinator(1, pool, reporter=None).execute_parallel(["a"], command)
    assert stats.success_count == 1, results
    return shown.environment


def test_command_gets_variables_beside_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "inherited")
    monkeypatch.setenv("UNCHANGED", "yes")
    environment = run(pool_of(command_env={"AWS_REGION": "eu-west-1", "EMPTY": ""}), credential_env="API_KEY")
    assert environment["AWS_REGION"] == "eu-west-1"
    assert environment["EMPTY"] == ""
    assert environment["UNCHANGED"] == "yes"
    assert environment["API_KEY"] == "****"


def test_referenced_variable_is_redacted_and_not_inherited() -> None:
    environment = run(pool_of(command_env={"TOKEN": "env:SETTINGS_HEADER"}), credential_env="API_KEY")
    assert environment["TOKEN"] == "****"
    assert "SETTINGS_HEADER" not in environment


def test_log_in_hides_inherited_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An agent would prefer a key in its environment to the log-in in its profile folder."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-person")
    pool = CredentialCoordinator([Credential(None, id="team-a", command_env={"CLAUDE_CONFIG_DIR": str(tmp_path)})])
    environment = run(pool, credential_env="ANTHROPIC_API_KEY")
    assert environment["CLAUDE_CONFIG_DIR"] == str(tmp_path)
    assert environment["AGENTOS_CREDENTIAL_ID"] == "team-a"
    assert "ANTHROPIC_API_KEY" not in environment


def test_removed_credential_still_serves_its_command(tmp_path: Path) -> None:
    """T1: the lease of the attempt is granted. T2: the credential leaves the pool. T1: the command starts."""
    pool = pool_of(command_env={"AWS_REGION": "eu-west-1"})
    pool.add(Credential("sk-another-0123456789", id="team-b"))
    key = pool.reserve()
    assert key is not None
    pool.remove(key.credential_id)
    assert dict(key.settings.command_env) == {"AWS_REGION": "eu-west-1"}


def test_secret_setting_in_argument_is_refused() -> None:
    pool = pool_of(command_env={"TOKEN": "env:SETTINGS_HEADER"})
    command = Command(["echo", "{}"], credential_env="API_KEY")
    _, results = ParallelCoordinator(1, pool, reporter=None).execute_parallel([HEADER_SECRET], command)
    assert "would contain a credential's secret" in str(results[0].error)
