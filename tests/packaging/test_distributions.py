"""The wheel and the sdist are built and installed, without anything else, on every Python that is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from agentos import __version__

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PROGRAM = """
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator
pool = CredentialCoordinator(["sk-one", "sk-two"])
stats, results = ParallelCoordinator("auto", pool, reporter=None, ledger="ledger.db").execute_parallel(
    ["a", "b", "c"], lambda item, key: item.upper())
assert [result.value for result in results] == ["A", "B", "C"], results
"""


def uv() -> str:
    """Return the path of uv; skip where there is none."""
    path = shutil.which("uv") or str(ROOT / ".tools/uv/bin/uv")
    if not os.access(path, os.X_OK):
        pytest.skip("uv is not installed")
    return path


def interpreter(version: str) -> str:
    """Return the path of a Python that pyenv has installed, whose shims refuse inactive versions; else the version."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    return str(next(iter(sorted(root.glob(f"versions/{version}.*/bin/python{version}"))), version))


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build in a copy: a build writes beside the source."""
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "agentos-parallel"
    ignored = shutil.ignore_patterns(".git", ".venv", "venv", ".tools", ".*_cache", "__pycache__", "dist")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def test_wheel_holds_the_package_and_its_types(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = set(wheel.namelist())
    info = f"agentos_parallel-{__version__}.dist-info"
    assert {"agentos/py.typed", "agentos/cli/__init__.py", f"{info}/entry_points.txt"} <= names
    assert f"{info}/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {"agentos", info}
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert modules <= names


def test_sdist_holds_source_tests_and_licence_only(distributions: dict[str, Path]) -> None:
    with tarfile.open(distributions["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/agentos/__init__.py", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith((".tools", ".venv", "venv", "dist"))]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_distribution_runs_in_an_empty_environment(
    distributions: dict[str, Path], kind: str, version: str, tmp_path: Path
) -> None:
    """Install with the dependencies that it declares, and use the library and the command."""
    if kind == "sdist" and version != VERSIONS[0]:
        pytest.skip("the sdist builds the same wheel on every Python")
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"AGENTOS_HOME": str(tmp_path / "home"), "UV_PYTHON_DOWNLOADS": "never"}

    def call(*command: str, reason: str = "") -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        if done.returncode and reason:
            pytest.skip(f"{reason}: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call(uv(), "venv", "--quiet", "--python", interpreter(version), "empty", reason=f"no Python {version}")
    python = str(tmp_path / "empty/bin/python")
    if kind == "sdist":
        call(uv(), "pip", "install", "--quiet", "--python", python, "hatchling", reason="no package index")
    dependencies = ("click", "msgspec", "wcwidth")
    call(uv(), "pip", "install", "--quiet", "--python", python, *dependencies, reason="no package index")
    isolation = ["--no-build-isolation"] if kind == "sdist" else []
    call(uv(), "pip", "install", "--quiet", "--python", python, *isolation, str(distributions[kind]))
    call(python, "-c", PROGRAM)
    agentos = str(tmp_path / "empty/bin/agentos")
    assert call(agentos, "--version").startswith(f"agentos {__version__} (Python {version}.")
    assert "extras: none)" in call(agentos, "--version")
    assert call(agentos, "run", "--item", "a", "--", "echo", "hello {id}") == "[a] hello a\n"
