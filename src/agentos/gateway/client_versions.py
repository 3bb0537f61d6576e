"""Finds the installed version of an agent without starting it, and warns of versions that fail behind a gateway."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ._command_words import command_words
from .client_settings import Client, clients_of

Version = tuple[int, ...]

# Client -> first and last version of each range that fails behind a base URL of its own.
FAILING_VERSIONS: dict[str, tuple[tuple[Version, Version], ...]] = {
    "claude": (((2, 1, 265), (2, 1, 267)), ((2, 1, 275), (2, 1, 275))),
}
# Folders above an executable in which its package.json is searched.
_MAX_PARENTS = 4
_VERSION = re.compile(r"\d+(?:\.\d+){1,3}")


def version_warnings(arguments: Sequence[str], path: str | None = None) -> list[str]:
    """Return a sentence for each client of a command whose installed version is known to fail behind a gateway. `path`
    is the PATH in which programs are searched (default: of this process)."""
    warnings = []
    for client in clients_of(arguments):
        version = _version_in(arguments, client) or installed_version(client, path)
        if version and is_failing(client, version):
            warnings.append(
                f"{client.name} {version} fails behind a gateway (HTTP 400 on every request): install another version"
                + (f" of {client.package}." if client.package else ".")
            )
    return warnings


def is_failing(client: Client, version: str) -> bool:
    """Return whether this version is in one of the ranges of FAILING_VERSIONS."""
    match = _VERSION.match(version)
    number = tuple(map(int, match[0].split("."))) if match else ()
    return any(first <= number <= last for first, last in FAILING_VERSIONS.get(client.name, ()))


def installed_version(client: Client, path: str | None = None) -> str | None:
    """Return the version of the executable that a shell would start; None if there is none or its files do not say."""
    program = shutil.which(client.name, path=path)
    if program is None:
        return None
    try:
        executable = Path(program).resolve(strict=True)
    except OSError:
        return None
    for folder in list(executable.parents)[:_MAX_PARENTS]:
        version = _version_of_package(folder / "package.json", client)
        if version:
            return version
    return executable.name if _VERSION.fullmatch(executable.name) else None  # …/claude/versions/2.1.300


def _version_of_package(file: Path, client: Client) -> str | None:
    try:
        package = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    is_client = isinstance(package, dict) and package.get("name") == client.package
    return str(package.get("version")) if is_client else None


def _version_in(arguments: Sequence[str], client: Client) -> str | None:
    """Return the version that the command itself names, as in `npx @openai/codex@1.2.3`."""
    for word in command_words(arguments):
        package, _, version = word.rpartition("@")
        if package and package in (client.package, client.name):
            return version
    return None
