"""Settings of clients: which command starts which client, which variables it gets, which files are written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.gateway._agent_homes import toml_value
from agentos.gateway.client_settings import CLIENTS, client_named, clients_of, settings_for, settings_of_client

URL = "http://127.0.0.1:4711"
TOKEN = "agentos-client-token"


def started(*arguments: str) -> list[str]:
    return [client.name for client in clients_of(arguments)]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["claude", "-p", "hello"], ["claude"]),
        (["/opt/tools/bin/claude", "-p", "hello"], ["claude"]),
        (["./node_modules/.bin/codex", "exec", "hello"], ["codex"]),
        (["env", "A=1", "gemini", "-p", "hello"], ["gemini"]),
        (["timeout", "60", "codex", "exec", "hello"], ["codex"]),
        (["npx", "-y", "@anthropic-ai/claude-code@2.1.326", "-p", "hello"], ["claude"]),
        (["npx", "@openai/codex", "exec"], ["codex"]),
        (["sh", "-c", 'cd work && claude -p "$AGENTOS_ITEM"'], ["claude"]),
        (["bash", "-c", "A=1 claude -p x | codex exec -; exit 0"], ["claude", "codex"]),
        (["sh", "-c", "if true\nthen gemini -p x\nfi"], ["gemini"]),
        (["sh", "-c", "exec codex exec x"], ["codex"]),
        (["python", "worker.py", "claude"], []),
        (["sh", "-c", "echo claude"], []),
        (["sh", "-c", "echo 'not closed; claude"], []),
        (["sh", "claude"], []),
        (["timeout", "-k", "5", "60", "claude"], []),
        (["env", "-i", "claude"], []),
        (["claude-wrapper"], []),
        (["env"], []),
        ([], []),
    ],
)
def test_client_is_recognised_where_certain(arguments: list[str], names: list[str]) -> None:
    assert started(*arguments) == names


@given(st.lists(st.one_of(st.text(), st.sampled_from(["sh", "-c", "env", "npx", "timeout", "claude"]))))
def test_any_command_is_searched_without_error(arguments: list[str]) -> None:
    clients_of(arguments)


def test_variables_of_the_pools_providers_are_set() -> None:
    settings = settings_for(URL, TOKEN, ["anthropic"], ["python", "worker.py"], None, {})
    assert settings["ANTHROPIC_BASE_URL"] == URL
    assert settings["ANTHROPIC_API_KEY"] == TOKEN
    assert not [name for name in settings if name.startswith(("OPENAI", "GEMINI", "GOOGLE"))]


def test_unknown_providers_set_variables_of_three_providers() -> None:
    settings = settings_for(URL, TOKEN, [None], ["curl"], None, {})
    assert settings["OPENAI_BASE_URL"] == f"{URL}/v1"
    assert settings["ANTHROPIC_BASE_URL"] == settings["GOOGLE_GEMINI_BASE_URL"] == URL
    assert settings["OPENAI_API_KEY"] == settings["ANTHROPIC_API_KEY"] == settings["GEMINI_API_KEY"] == TOKEN


def test_provider_without_base_url_variable_gets_its_token() -> None:
    settings = settings_for(URL, TOKEN, ["groq"], ["curl"], None, {})
    assert settings["GROQ_API_KEY"] == TOKEN


def test_inherited_credentials_that_bypass_the_gateway_are_removed() -> None:
    settings = settings_for(URL, TOKEN, ["anthropic", "google"], ["claude"], None, {})
    removed = {name for name, value in settings.items() if value is None}
    assert {
        "ANTHROPIC_AUTH_TOKEN",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "GOOGLE_API_KEY",
        "CLAUDE_CODE_RETRY_WATCHDOG",
    } <= removed


def test_known_command_gets_no_settings_of_other_clients() -> None:
    settings = settings_for(URL, TOKEN, ["openai"], ["llm", "hello"], None, {})
    assert "COPILOT_OFFLINE" not in settings
    assert "COPILOT_OFFLINE" in settings_for(URL, TOKEN, ["openai"], ["./script"], None, {})


def test_unknown_command_gets_no_files(tmp_path: Path) -> None:
    settings = settings_for(URL, TOKEN, ["openai"], ["./script"], str(tmp_path), {})
    assert "CODEX_HOME" not in settings
    assert not list(tmp_path.iterdir())


def test_token_is_in_no_file(tmp_path: Path) -> None:
    for client in CLIENTS:
        settings_of_client(client, URL, TOKEN, str(tmp_path), {"HOME": str(tmp_path / "home")})
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert not [path for path in files if TOKEN in path.read_text()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
def test_inherited_proxy_is_not_used_for_the_gateway(name: str) -> None:
    inherited = {name: "http://proxy:3128", "NO_PROXY": "internal"}
    settings = settings_for(URL, TOKEN, ["openai"], ["curl"], None, inherited)
    assert settings["NO_PROXY"] == settings["no_proxy"] == "internal,127.0.0.1"
    assert "NO_PROXY" not in settings_for(URL, TOKEN, ["openai"], ["curl"], None, {"NO_PROXY": "internal"})


def test_codex_config_keeps_the_users_and_changes_the_provider(tmp_path: Path) -> None:
    user = tmp_path / "user"
    (user / "prompts").mkdir(parents=True)
    (user / "auth.json").write_text("{}")
    (user / "config.toml").write_text(
        'model = "gpt-x"\nmodel_provider = "other"\nforced_login_method = "chatgpt"\n'
        '[profiles.fast]\nmodel = "small"\n[profiles.slow]\nmodel_provider = "other"\n'
        '[model_providers.other]\nname = "Other"\n[mcp_servers."a b"]\ncommand = "x\\ty"\nargs = [1, 2.5, true]\n'
    )
    settings = settings_for(URL, TOKEN, ["openai"], ["codex"], str(tmp_path), {"CODEX_HOME": str(user)})
    home = Path(settings["CODEX_HOME"] or "")
    config = tomllib.loads((home / "config.toml").read_text())
    assert config["model_provider"] == config["profiles"]["slow"]["model_provider"] == "agentos"
    assert config["profiles"]["fast"] == {"model": "small"}
    assert config["model"] == "gpt-x"
    assert config["mcp_servers"] == {"a b": {"command": "x\ty", "args": [1, 2.5, True]}}
    assert config["model_providers"]["other"] == {"name": "Other"}
    assert config["model_providers"]["agentos"]["base_url"] == f"{URL}/v1"
    assert config["model_providers"]["agentos"]["request_max_retries"] == 2
    assert config["features"] == {"plugins": False}
    assert "forced_login_method" not in config
    assert (home / "prompts").readlink() == user / "prompts"
    assert not (home / "auth.json").exists()


def test_codex_plugins_of_the_user_stay_on(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[features]\nx = true\n[plugins."a@b"]\nenabled = true\n')
    settings = settings_for(URL, TOKEN, ["openai"], ["codex"], str(tmp_path), {"CODEX_HOME": str(tmp_path)})
    config = tomllib.loads(Path(settings["CODEX_HOME"] or "", "config.toml").read_text())
    assert config["features"] == {"x": True}
    assert config["plugins"] == {"a@b": {"enabled": True}}


def test_broken_user_configuration_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text("model = ")
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "settings.json").write_text("[]")
    inherited = {"HOME": str(tmp_path)}
    arguments = ["sh", "-c", "codex exec x; gemini -p x"]
    settings = settings_for(URL, TOKEN, [], arguments, str(tmp_path / "attempt"), inherited)
    assert tomllib.loads(Path(settings["CODEX_HOME"] or "", "config.toml").read_text())["model_provider"] == "agentos"
    assert Path(settings["GEMINI_CLI_HOME"] or "", ".gemini/settings.json").exists()


def test_gemini_settings_keep_the_users_and_select_the_key(tmp_path: Path) -> None:
    (tmp_path / ".gemini").mkdir()
    user = {"general": {"vimMode": True, "maxAttempts": 10}, "model": {"name": "m"}, "security": None}
    (tmp_path / ".gemini" / "settings.json").write_text(json.dumps(user))
    settings = settings_for(URL, TOKEN, ["gemini"], ["gemini"], str(tmp_path / "a"), {"HOME": str(tmp_path)})
    written = json.loads(Path(settings["GEMINI_CLI_HOME"] or "", ".gemini/settings.json").read_text())
    assert written["general"]["vimMode"] is True
    assert written["general"]["maxAttempts"] == 3
    assert written["model"] == {"name": "m"}
    assert written["security"] == {"auth": {"selectedType": "gemini-api-key"}}
    assert json.loads(Path(settings["GEMINI_EXP"] or "").read_text())["flags"][0]["intValue"] == "590"


def test_files_can_be_written_twice(tmp_path: Path) -> None:
    (tmp_path / ".codex" / "rules").mkdir(parents=True)
    for _ in range(2):
        settings_for(URL, TOKEN, ["openai"], ["codex"], str(tmp_path / "a"), {"HOME": str(tmp_path)})
    assert sorted(path.name for path in (tmp_path / "a" / "codex").iterdir()) == ["config.toml", "rules"]


def test_settings_of_a_named_client_ignore_the_pool() -> None:
    client = client_named("claude")
    assert client is not None
    settings = settings_of_client(client, URL, TOKEN, None, {})
    assert settings["CLAUDE_CODE_MAX_RETRIES"] == "2"
    assert settings["ENABLE_TOOL_SEARCH"] == "true"
    assert client_named("unknown") is None


def test_opencode_configuration_is_json() -> None:
    content = settings_for(URL, TOKEN, ["openai"], ["opencode"], None, {})["OPENCODE_CONFIG_CONTENT"]
    assert json.loads(content or "")["provider"]["openai"]["options"]["baseURL"] == f"{URL}/v1"


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.datetimes(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


@given(VALUES)
def test_toml_value_is_read_back_unchanged(value: object) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}
