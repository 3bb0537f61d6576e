"""The AgentOS home directory: for its owner alone, checked at every use."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli import main
from agentos.errors import HomeError
from agentos.home import paths
from agentos.home.run_folder import RunFolder
from agentos.keys import disabled_keys

EVERY_COMMAND = [
    ("resume", "r"),
    ("retry", "r"),
    ("show", "r"),
    ("logs", "r", "a"),
    ("runs",),
    ("runs", "--prune", "--all", "--yes"),
    ("export", "r"),
    ("stop", "r"),
    ("run", "--run-id", "r", "--item", "a", "--", "echo", "evil"),
    ("run", "--item", "b", "--", "true"),
]


@pytest.fixture
def home() -> Path:
    return paths.home()


@pytest.fixture
def umask() -> Iterator[None]:
    previous = os.umask(0)
    yield
    os.umask(previous)


def agentos(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def make_run(home: Path) -> Path:
    """Make a run and return the file that its command would create."""
    made = home.parent / "made"
    assert agentos("run", "--run-id", "r", "--item", "a", "--", "sh", "-c", f"echo x >> {made}")[0] == 0
    return made


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "runs", *(folder / "runs").iterdir())}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_folders_are_private_with_any_umask(home: Path, mask: int) -> None:
    previous = os.umask(mask)
    try:
        RunFolder("r").make()
        disabled_keys.disable("team-a", "leaked")
    finally:
        os.umask(previous)
    assert modes(home) == {0o700}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("arguments", EVERY_COMMAND, ids=" ".join)
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702])
def test_home_that_others_can_write_is_refused(home: Path, mode: int, arguments: tuple[str, ...]) -> None:
    home.mkdir()
    home.chmod(mode)
    status, output = agentos(*arguments)
    assert status == 3
    assert f"chmod -R go= {home}" in output


@pytest.mark.parametrize("place", ["runs", "runs/r", "runs/r/run.json"])
def test_run_that_others_could_have_written_is_not_executed(home: Path, place: str) -> None:
    made = make_run(home)
    (home / place).chmod(0o777)
    for command in ("resume", "retry", "run"):
        more = ["--run-id", "r", "--item", "b", "--", "true"] if command == "run" else ["r"]
        status, output = agentos(command, *more)
        assert (status, f"other users can write to {home / place}" in output) == (3, True)
    assert made.read_text() == "x\n"


@pytest.mark.parametrize("place", ["runs", "runs/r"])
def test_run_that_others_could_have_written_is_not_shown(home: Path, place: str) -> None:
    make_run(home)
    (home / place).chmod(0o777)
    for command in (["show", "r"], ["logs", "last", "a"], ["export", "r"], ["stop", "r"]):
        status, output = agentos(*command)
        assert (status, f"other users can write to {home / place}" in output) == (3, True)


@pytest.mark.usefixtures("umask")
def test_folders_of_a_run_are_private_without_umask(home: Path) -> None:
    command = ("sh", "-c", "echo a; echo b > $AGENTOS_WORKFLOW_DB; echo c > $AGENTOS_CHECKPOINT_DIR/c; false")
    assert agentos("run", "--run-id", "r", "--item", "a", "--", *command)[0] == 1
    folders = [path for path in home.rglob("*") if path.is_dir()]
    assert {path.name for path in folders} >= {"logs", "checkpoints", "ledger.db-files"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


@pytest.mark.parametrize("place", [".", "runs", "runs/r", "runs/r/run.json"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_run_of_another_user_is_not_executed(home: Path, place: str) -> None:
    made = make_run(home)
    spec = json.loads((home / "runs/r/run.json").read_text())
    spec["command"] = ["sh", "-c", f"echo evil >> {made}"]
    (home / "runs/r/run.json").write_text(json.dumps(spec))
    os.chown(home / place, 12345, -1)
    for command in ("resume", "retry"):
        status, output = agentos(command, "r")
        assert status == 3
        assert f"chown -R {os.geteuid()} {home / place}" in output
    assert made.read_text() == "x\n"


def test_readable_home_becomes_private(home: Path) -> None:
    make_run(home)
    for folder in (home, home / "runs", home / "runs/r"):
        folder.chmod(0o755)
    assert agentos("show", "r")[0] == 0
    assert modes(home) == {0o700}


def test_other_owner_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(0o700)
    monkeypatch.setattr(paths.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(HomeError, match="belongs to user"):
        paths.home()


def test_program_without_a_home_directory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTOS_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory")))
    status, output = agentos("runs")
    assert status == 3
    assert "set $AGENTOS_HOME" in output


@given(st.integers(0, 0o1777))
def test_folder_of_any_mode_is_private_or_refused(mode: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "folder")
        folder.mkdir()
        folder.chmod(mode)
        try:
            paths.make_private(folder)
        except HomeError:
            assert mode & 0o022
        else:
            assert not stat.S_IMODE(folder.stat().st_mode) & 0o077
        folder.chmod(0o700)


@pytest.mark.parametrize("name", ["run.json", "ledger.db"])
@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_circle_of_links_is_reported_in_one_line(home: Path, name: str, command: tuple[str, ...]) -> None:
    make_run(home)
    path = home / "runs" / "r" / name
    path.unlink()
    path.symlink_to(path.name)
    result = CliRunner().invoke(main, command, input="")
    assert not result.exception or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_pipe_in_place_of_a_description_is_refused(home: Path, command: tuple[str, ...]) -> None:
    """Its end would never come."""
    made = make_run(home)
    made.unlink()
    path = home / "runs" / "r" / "run.json"
    path.unlink()
    os.mkfifo(path)
    _, output = agentos(*command)
    if command[0] in ("resume", "retry", "show", "runs"):
        assert "it is not a regular file" in output or "--prune" in command
    assert not made.exists()
