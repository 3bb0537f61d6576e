"""Settings that make an unmodified client use the gateway: environment variables, and configuration files of agents.

`settings_for` returns what a command needs; `client_named` and `settings_of_client` serve `agentos gateway env`. Base
URL and client token stand in the variables of every provider of the pool. Settings of one agent (telemetry and updater
off, its own retries set to RETRIES) are added for the agent that the command starts, or for all of them if the command
is not known. Configuration files are written only for an agent that the command starts for certain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agentos.providers.presets import preset_of

from ._agent_homes import FIRST_BYTE_SECONDS, RETRIES, write_codex_home, write_gemini_home
from ._command_words import command_words

# Variable -> value; None removes an inherited variable. Templates contain `{url}` and `{token}`.
Settings = Mapping[str, str | None]

# Read by scripts, and by `agentos gateway env` inside a command of a run.
URL_VARIABLE = "AGENTOS_GATEWAY_URL"
TOKEN_VARIABLE = "AGENTOS_CLIENT_TOKEN"  # noqa: S105  # the name of a variable

# What SDKs of a provider read. Removed: variables that would lead an SDK past the gateway, or that it would prefer.
PROVIDERS: Mapping[str, Settings] = {
    "openai": {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{token}"},
    "anthropic": {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{token}", "ANTHROPIC_AUTH_TOKEN": None},
    "gemini": {
        "GOOGLE_GEMINI_BASE_URL": "{url}",
        "GEMINI_API_KEY": "{token}",
        "GOOGLE_API_KEY": None,
        "GOOGLE_GENAI_USE_VERTEXAI": None,
        "GOOGLE_GENAI_USE_GCA": None,
    },
    "azure": {"AZURE_OPENAI_ENDPOINT": "{url}", "AZURE_OPENAI_API_KEY": "{token}"},
}
# Used where the providers of a pool are not known.
_DEFAULT_PROVIDERS = ("openai", "anthropic", "gemini")


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One program that can be pointed at a gateway."""

    name: str  # of its executable, and in `agentos gateway env`
    providers: tuple[str, ...]  # whose requests it makes
    package: str | None = None  # in the npm registry
    variables: Settings = field(default_factory=dict)  # beside those of its providers
    # Writes its configuration files below a folder and returns the variables that name them.
    write_files: Callable[[str, str, Mapping[str, str]], Settings] | None = None


CLIENTS = (
    Client(
        "claude",
        ("anthropic",),
        "@anthropic-ai/claude-code",
        {
            "CLAUDE_CODE_MAX_RETRIES": str(RETRIES),
            "CLAUDE_CODE_RETRY_WATCHDOG": None,  # would wait out limits by itself
            # Of these two, versions up to 2.1.197 know none (300 s), later ones the first or the second.
            "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS": str(FIRST_BYTE_SECONDS * 1000),
            "API_FORCE_IDLE_TIMEOUT": "0",  # then it waits for 600 s (API_TIMEOUT_MS) and not for 360 s
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "true",  # else off behind a base URL that is not Anthropic's
            "CLAUDE_CODE_OAUTH_TOKEN": None,
            "CLAUDE_CODE_USE_BEDROCK": None,
            "CLAUDE_CODE_USE_VERTEX": None,
            "CLAUDE_CODE_USE_FOUNDRY": None,
        },
    ),
    Client("codex", ("openai",), "@openai/codex", {"CODEX_API_KEY": None}, write_codex_home),
    Client("gemini", ("gemini",), "@google/gemini-cli", {}, write_gemini_home),
    Client(
        "copilot",
        ("openai",),
        "@github/copilot",
        {
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_PROVIDER_API_KEY": "{token}",
            "COPILOT_OFFLINE": "true",
        },
    ),
    Client(
        "opencode",
        ("openai", "anthropic"),
        "opencode-ai",
        {
            "OPENCODE_CONFIG_CONTENT": (
                '{{"provider": {{"openai": {{"options": {{"baseURL": "{url}/v1"}}}},'
                ' "anthropic": {{"options": {{"baseURL": "{url}/v1"}}}}}}}}'
            ),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        },
    ),
    Client("qwen", ("openai",), "@qwen-code/qwen-code"),
    Client("aider", ("openai", "anthropic"), None, {"AIDER_ANALYTICS": "false", "AIDER_CHECK_UPDATE": "false"}),
    Client("llm", ("openai",)),
    Client("openai", ("openai",)),
    Client("anthropic", ("anthropic",)),
    Client("google-genai", ("gemini",)),
    Client("azure", ("azure",)),
)
_BY_NAME = {client.name: client for client in CLIENTS}
_BY_PROGRAM = _BY_NAME | {client.package: client for client in CLIENTS if client.package}


def settings_for(
    url: str,
    token: str,
    providers: Iterable[str | None],
    arguments: Sequence[str],
    folder: str | None,
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str | None]:
    """Return the variables that a command needs to use the gateway at `url` (None: remove the variable).

    `providers` are those of the pool's credentials; variables of other providers are not touched. Configuration files
    of an agent are written below `folder`, which exists and belongs to the attempt; without one, none are written.
    `inherited` is the environment of the command as it would be otherwise (default: of this process).
    """
    inherited = os.environ if inherited is None else inherited
    names = _provider_names(providers)
    started = clients_of(arguments)
    templates = _generic_templates(names, inherited, url)
    for client in started or CLIENTS:
        if names.intersection(client.providers):
            templates |= client.variables
            if client in started and client.write_files and folder is not None:
                templates |= client.write_files(url, folder, inherited)
    return _filled(templates, url, token)


def settings_of_client(
    client: Client, url: str, token: str, folder: str | None, inherited: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Return the variables of one client, whatever the pool's providers are. Writes its files below `folder`."""
    return settings_for(url, token, client.providers, [client.name], folder, inherited)


def client_named(name: str) -> Client | None:
    """Return the client with this name; None if it is not known."""
    return _BY_NAME.get(name)


def clients_of(arguments: Sequence[str]) -> list[Client]:
    """Return the clients that a command starts for certain, also through `env`, `npx`, `timeout` or `sh -c`."""
    found = (_BY_PROGRAM.get(_without_version(word)) for word in command_words(arguments))
    return list(dict.fromkeys(client for client in found if client))


def _without_version(name: str) -> str:
    """Return a program's or an npm package's name: `@openai/codex@1.2` is `@openai/codex`."""
    return name.rpartition("@")[0] or name


def _provider_names(providers: Iterable[str | None]) -> set[str]:
    presets = [preset_of(name) for name in providers]
    names = {preset.name for preset in presets if preset}
    return names or set(_DEFAULT_PROVIDERS)


def _generic_templates(names: Collection[str], inherited: Mapping[str, str], url: str) -> dict[str, str | None]:
    templates: dict[str, str | None] = {URL_VARIABLE: "{url}", TOKEN_VARIABLE: "{token}"}
    for name in sorted(names):
        preset = preset_of(name)
        templates |= PROVIDERS.get(name) or ({preset.variable: "{token}"} if preset else {})
    return templates | _without_proxy(inherited, urlsplit(url).hostname or "")


def _without_proxy(inherited: Mapping[str, str], host: str) -> dict[str, str | None]:
    """Return the variables that keep requests to the gateway away from an inherited proxy."""
    if not any(inherited.get(name) for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")):
        return {}
    exceptions = inherited.get("NO_PROXY") or inherited.get("no_proxy") or ""
    value = ",".join([*filter(None, exceptions.split(",")), host])
    return {"NO_PROXY": value, "no_proxy": value}


def _filled(templates: Settings, url: str, token: str) -> dict[str, str | None]:
    return {name: None if text is None else text.format(url=url, token=token) for name, text in templates.items()}
