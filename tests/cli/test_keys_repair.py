"""`agentos keys repair`: moves a damaged pool aside, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.cli import main
from agentos.errors import StoreError
from agentos.pool.shared._machine import owner_lock
from agentos.pool.shared_state import look
from agentos.workflows.parallel import CredentialCoordinator
from tests.conftest import eventually


def repair(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["keys", "repair", "--store", f"sqlite:///{path}"])
    return result.exit_code, result.output


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a pool that no process uses."""
    path = tmp_path / "pool.db"
    with CredentialCoordinator(["sk-repair-000000"], store=f"sqlite:///{path}") as pool:
        pool.release(pool.reserve(timeout=20))
    eventually(lambda: not owner_lock.lock_path(path).exists())
    return path


def test_damaged_pool_is_moved_aside_and_named(path: Path) -> None:
    for number in (1, 2):
        path.write_bytes(b"garbage" * 1000)
        with pytest.raises(StoreError, match="agentos keys repair"):
            look(f"sqlite:///{path}")
        status, output = repair(path)
        assert status == 0
        assert f"now {path}.damaged-{number}." in output
        assert Path(f"{path}.damaged-{number}").read_bytes() == b"garbage" * 1000
        assert not path.exists()
    with CredentialCoordinator(["sk-repair-000000"], store=f"sqlite:///{path}") as pool:
        assert pool.reserve(timeout=20)


def test_whole_pool_is_left_alone(path: Path) -> None:
    data = path.read_bytes()
    status, output = repair(path)
    assert status == 3
    assert "not damaged: nothing has to be repaired" in output
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


def test_pool_in_use_is_left_alone(path: Path) -> None:
    with CredentialCoordinator(["sk-repair-000000"], store=f"sqlite:///{path}"):
        note = owner_lock.read_note(path)
        assert note is not None
        status, output = repair(path)
        assert status == 3
        assert "in use" in output
        assert "wait until the runs that use it have ended" in output
    assert path.exists()


def test_missing_pool_is_not_created(tmp_path: Path) -> None:
    status, output = repair(tmp_path / "none.db")
    assert status == 3
    assert "there is no pool" in output
    assert list(tmp_path.iterdir()) == []


def test_only_file_can_be_repaired() -> None:
    result = CliRunner().invoke(main, ["keys", "repair", "--store", "memory:"])
    assert result.exit_code == 2
    assert "only a pool in a file" in result.output
