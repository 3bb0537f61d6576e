"""Writes configuration folders for agents that read their provider from a file.

A folder replaces the user's own (`~/.codex`, `~/.gemini`) for one attempt. It keeps the user's configuration, with the
provider changed, and links to the user's instructions, commands and extensions; it has none of the user's log-ins.
"""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Repeated requests of a client itself. Not 0: a client with two survives a restart of the gateway.
RETRIES = 2
# Seconds without an answer after which a client gives up a request, where that can be set. Longer than a gateway holds.
FIRST_BYTE_SECONDS = 590
# Name of the provider in the configuration of Codex.
PROVIDER = "agentos"
# Variable for a file with switches of Gemini CLI. Where it is set, the program waits for FIRST_BYTE_SECONDS.
PATIENCE_VARIABLE = "GEMINI_EXP"
# Number of the switch that sets the time-out of a request; versions that do not know it ignore it.
_GEMINI_TIMEOUT_FLAG = 45773134
# Entries of the user's folder that an attempt's folder links to.
_CODEX_LINKS = ("AGENTS.md", "AGENTS.override.md", "prompts", "rules", "skills")
_GEMINI_LINKS = ("GEMINI.md", "agents", "commands", "extensions", "policies", "skills", "trustedFolders.json")


def write_codex_home(url: str, folder: str, inherited: Mapping[str, str]) -> Mapping[str, str | None]:
    """Write `config.toml` with a provider table for the gateway. Return the variable that names its folder."""
    source = Path(inherited.get("CODEX_HOME") or _home(inherited) / ".codex")
    home = _linked_folder(Path(folder, "codex"), source, _CODEX_LINKS)
    config = _read_toml(source / "config.toml")
    for profile in [config, *_tables(config.get("profiles"))]:
        if profile is config or "model_provider" in profile:
            profile["model_provider"] = PROVIDER
    config.pop("forced_login_method", None)
    config["check_for_update_on_startup"] = False
    config["analytics"] = {"enabled": False}
    if "plugins" not in config:  # its list of plugins is fetched from three hosts at every start
        config["features"] = {"plugins": False, **(config.get("features") or {})}
    config["model_providers"] = {
        **(config.get("model_providers") or {}),
        PROVIDER: {
            "name": "AgentOS gateway",
            "base_url": f"{url}/v1",
            "env_key": "OPENAI_API_KEY",
            "wire_api": "responses",
            "request_max_retries": RETRIES,
            "stream_max_retries": RETRIES,
            "supports_websockets": False,
        },
    }
    _write(home / "config.toml", "".join(f"{_key(name)} = {toml_value(value)}\n" for name, value in config.items()))
    return {"CODEX_HOME": str(home)}


def write_gemini_home(_url: str, folder: str, inherited: Mapping[str, str]) -> Mapping[str, str | None]:
    """Write `settings.json` that selects a key from the environment: behind a base URL, Gemini CLI has no default. A
    second file raises the time that it waits for the first byte of an answer from 60 s."""
    source = Path(inherited.get("GEMINI_CLI_HOME") or _home(inherited)) / ".gemini"
    home = Path(folder, "gemini")
    target = _linked_folder(home / ".gemini", source, _GEMINI_LINKS)
    settings = _read_json(source / "settings.json")
    changes = {
        "general": {"maxAttempts": RETRIES + 1, "enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
    }
    _write(target / "settings.json", json.dumps(_merged(settings, changes), indent=2) + "\n")
    experiments = home / "experiments.json"
    flag = {"flagId": _GEMINI_TIMEOUT_FLAG, "intValue": str(FIRST_BYTE_SECONDS)}
    _write(experiments, json.dumps({"flags": [flag]}) + "\n")
    return {"GEMINI_CLI_HOME": str(home), PATIENCE_VARIABLE: str(experiments)}


def toml_value(value: Any) -> str:
    """Return a value of a parsed TOML document as TOML, in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value) if isinstance(value, int | float) else value.isoformat()


def _key(name: str) -> str:
    return toml_value(name)


def _tables(value: Any) -> list[dict[str, Any]]:
    return [table for table in value.values() if isinstance(table, dict)] if isinstance(value, dict) else []


def _merged(settings: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with changes applied: the change wins."""
    result = dict(settings)
    for name, value in changes.items():
        old = result.get(name)
        result[name] = _merged(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
    return result


def _home(inherited: Mapping[str, str]) -> Path:
    return Path(inherited.get("HOME") or Path.home())


def _linked_folder(folder: Path, source: Path, names: tuple[str, ...]) -> Path:
    """Create a folder with links to those entries of another one that exist. Entries that stand there already stay."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        if (source / name).exists():
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to((source / name).absolute())
    return folder


def _read_toml(path: Path) -> dict[str, Any]:
    """Return a parsed file; empty if there is none, or if the agent itself could not read it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, text: str) -> None:
    """Replace a file. Only its owner may read it: the user's configuration may hold keys of other services."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
