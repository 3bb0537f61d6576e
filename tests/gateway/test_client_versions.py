"""Versions of clients: how an installed one is found, and which give a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentos.gateway.client_settings import client_named
from agentos.gateway.client_versions import installed_version, is_failing, version_warnings

CLAUDE = client_named("claude")
assert CLAUDE is not None


def install(folder: Path, version: str, name: str = "@anthropic-ai/claude-code") -> str:
    """Install a package as npm does: an executable below the package, and a link to it. Return a PATH."""
    package = folder / "node_modules" / "package"
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text(json.dumps({"name": name, "version": version}))
    return link(folder, package / "bin" / "claude.exe")


def link(folder: Path, executable: Path) -> str:
    executable.parent.mkdir(parents=True, exist_ok=True)
    executable.touch(0o755)
    (folder / "bin").mkdir()
    (folder / "bin" / "claude").symlink_to(executable)
    return str(folder / "bin")


def test_version_is_read_from_the_npm_package(tmp_path: Path) -> None:
    assert installed_version(CLAUDE, install(tmp_path, "2.1.326")) == "2.1.326"


def test_version_is_the_name_of_a_native_executable(tmp_path: Path) -> None:
    assert installed_version(CLAUDE, link(tmp_path, tmp_path / "versions" / "2.1.300")) == "2.1.300"


def test_version_of_another_package_is_not_used(tmp_path: Path) -> None:
    assert installed_version(CLAUDE, install(tmp_path, "2.1.266", name="other")) is None


def test_version_is_unknown_without_an_installation(tmp_path: Path) -> None:
    assert installed_version(CLAUDE, str(tmp_path)) is None
    assert version_warnings(["claude", "-p", "x"], str(tmp_path)) == []


@pytest.mark.parametrize(
    ("version", "fails"),
    [
        ("2.1.264", False),
        ("2.1.265", True),
        ("2.1.267", True),
        ("2.1.268", False),
        ("2.1.275", True),
        ("2.1.276", False),
        ("2.1.275-beta.1", True),
        ("2.10.0", False),
        ("latest", False),
    ],
)
def test_failing_versions_are_ranges(version: str, fails: bool) -> None:
    assert is_failing(CLAUDE, version) is fails


def test_failing_version_gives_a_warning(tmp_path: Path) -> None:
    path = install(tmp_path, "2.1.266")
    (warning,) = version_warnings(["env", "A=1", "claude", "-p", "x"], path)
    assert "claude 2.1.266" in warning
    assert version_warnings(["codex", "exec"], path) == []


def test_version_in_the_command_wins(tmp_path: Path) -> None:
    path = install(tmp_path, "2.1.326")
    assert version_warnings(["npx", "@anthropic-ai/claude-code@2.1.275", "-p", "x"], path)
    assert not version_warnings(["npx", "@anthropic-ai/claude-code@2.1.276", "-p", "x"], path)


def test_locked_agents_are_exact_and_name_no_registry() -> None:
    """`make clients` installs from the registry that npm is set up for, and the same bytes everywhere."""
    folder = Path(__file__).parents[1] / "clients"
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    lock = (folder / "package-lock.json").read_text()
    packages = json.loads(lock)["packages"]
    assert set(wanted) == {client.package for client in map(client_named, ("claude", "codex", "gemini")) if client}
    assert {name: packages[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert all("integrity" in package for path, package in packages.items() if path)
    assert "://" not in lock
    assert not is_failing(CLAUDE, wanted["@anthropic-ai/claude-code"])
