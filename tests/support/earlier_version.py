"""Install an earlier commit of this repository, for tests in which two versions of the program meet."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A landed commit with protocol 4.
PROTOCOL_4 = "f6ded9ce33055018c23faf6bd5ccc46ff911ad46"
# What a build reads.
_SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")


def install(commit: str, folder: Path) -> Path:
    """Build the package of a commit and install it, without its dependencies; return the folder for `PYTHONPATH`. Skip
    the test if this is no clone with its whole history. In such a clone the commit must be there."""
    if Path(_git("rev-parse", "--show-toplevel")) != ROOT:
        pytest.skip("this folder lies in another repository: an earlier version cannot be built")
    if _git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("this clone is shallow: an earlier version cannot be built")
    source, target = folder / "source", folder / "installed"
    with tarfile.open(fileobj=io.BytesIO(_archive(commit))) as archive:
        archive.extractall(source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:  # of Python alone: installing it means unpacking it
        package.extractall(target)
    return target


def _archive(commit: str) -> bytes:
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, *_SOURCES], capture_output=True)
    assert archive.returncode == 0, f"the history of this clone lacks {commit}: {archive.stderr.decode()}"
    return archive.stdout


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except FileNotFoundError:
        pytest.skip("git is not installed: an earlier version cannot be built")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no git history here: an earlier version cannot be built ({error.stderr.strip()})")
