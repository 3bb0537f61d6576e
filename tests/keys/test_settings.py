"""Settings of credentials in the keys file: base URL, headers, variables of commands, log-ins without a secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.errors import KeysFileError
from agentos.keys.keys_file import Keys, load_keys

CANARY = "sk-canary-9f8e7d6c5b4a"
CREDENTIAL = '[[credential]]\nsecret = "env:A"\n'

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, mode: int = 0o600) -> Path:
        path = tmp_path / "keys.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def load(write: Write, text: str) -> Keys:
    return load_keys(write(text))


def test_settings_are_read(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/test")
    keys = load(
        write,
        CREDENTIAL
        + """
        base_url = "https://eu.example/v1/"
        command_env = { AWS_REGION = "eu-west-1", FOLDER = "~/.profile-a", TOKEN = "file:token", EMPTY = "" }
        [credential.headers]
        OpenAI-Project = "proj_1"
        Authorization = "cmd:print-token --now"
        """,
    )
    (credential,) = keys.credentials
    base_url, headers, command_env = credential.sources
    assert base_url == "https://eu.example/v1"
    assert headers == {"OpenAI-Project": "proj_1", "Authorization": "cmd:print-token --now"}
    assert command_env == {
        "AWS_REGION": "eu-west-1",
        "FOLDER": "/home/test/.profile-a",
        "TOKEN": f"file:{tmp_path / 'token'}",  # counts from the keys file
        "EMPTY": "",
    }
    assert keys.warnings == []


def test_base_url_without_tls_warns(write: Write) -> None:
    keys = load(write, CREDENTIAL + 'id = "a"\nbase_url = "http://gateway.example"\n')
    assert keys.warnings == ["base_url of a is not https: keys would be sent unencrypted"]
    assert load(write, CREDENTIAL + 'base_url = "http://127.0.0.1:8080"\n').warnings == []


def test_same_secret_with_other_settings_is_another_credential(write: Write) -> None:
    regions = "".join(f'{CREDENTIAL}command_env = {{ AWS_REGION = "{region}" }}\n' for region in ("eu", "us"))
    keys = load(write, regions)
    assert len({credential.id for credential in keys.credentials}) == 2


def test_profile_folder_is_a_credential_without_secret(write: Write) -> None:
    """It is used by one command at a time: two agents must not write to one profile at once."""
    text = '[[credential]]\nid = "{0}"\nprovider = "claude"\ncommand_env = {{ CLAUDE_CONFIG_DIR = "~/.claude-{0}" }}\n'
    keys = load(write, text.format("a") + text.format("b"))
    assert [(each.id, each.has_secret, each.limits.max_concurrent) for each in keys.credentials] == [
        ("a", False, 1),
        ("b", False, 1),
    ]
    assert keys.references == {}
    assert keys.variables == dict.fromkeys(("a", "b"), "ANTHROPIC_API_KEY")  # removed for its commands
    assert keys.warnings == []


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (CREDENTIAL + f'base_url = "{CANARY}"\n', 3, "base_url must be an address such as https://host/path"),
        (CREDENTIAL + f'base_url = "https://x/?key={CANARY}"\n', 3, "without ? or @"),
        (CREDENTIAL + "base_url = 7\n", 3, "base_url must be a string in quotes, not a number"),
        (CREDENTIAL + 'base_url = "env:"\n', 3, "such as env:OPENAI_API_KEY"),
        (CREDENTIAL + f'headers = "{CANARY}"\n', 3, "headers must be a table, not a string"),
        (CREDENTIAL + "[credential.headers]\n\nX-A = 7\n", 5, "X-A must be a string in quotes, not a number"),
        (CREDENTIAL + f'[credential.headers]\nX-A = "b"\nx-a = "{CANARY}"\n', 5, "the header x-a is given twice"),
        (CREDENTIAL + f'[credential.headers]\nHost = "{CANARY}"\n', 4, "the header Host is set by the program"),
        (CREDENTIAL + f'[credential.headers]\n"a b" = "{CANARY}"\n', 4, "letters, digits and dashes only"),
        (CREDENTIAL + f'[credential.headers]\nX-A = "{CANARY}\\n"\n', 4, "the value of the header X-A must be text"),
        (CREDENTIAL + f'[credential.headers]\n{CANARY} = "a\\n"\n', 4, "the value of the header here must be text"),
        (CREDENTIAL + f'[credential.headers]\nCookie = "{CANARY}"\n', 4, "Cookie is a key: write it as a reference"),
        (CREDENTIAL + f'headers = {{ x-api-key = "{CANARY}" }}\n', 3, "write it as a reference (env:NAME"),
        (CREDENTIAL + '[credential.headers]\nX-A = "$TOKEN"\n', 4, "without a dollar sign"),
        (CREDENTIAL + '[credential.headers]\nX-A = "env:A-B"\n', 4, "env: must be followed by the name"),
        (CREDENTIAL + f'command_env = ["{CANARY}"]\n', 3, "command_env must be a table, not a list"),
        (CREDENTIAL + f'[credential.command_env]\nA = 1\nB = "{CANARY}"\n', 4, "A must be a string in quotes"),
        (CREDENTIAL + f'[credential.command_env]\nA-B = "{CANARY}"\n', 4, "letters, digits and underscores only"),
        (CREDENTIAL + f'command_env = {{ AGENTOS_ITEM = "{CANARY}" }}\n', 3, "that begin with AGENTOS_ are set by"),
        (CREDENTIAL + f'command_env = {{ A = "{CANARY}\\u0000" }}\n', 3, "text without a NUL character"),
        (
            CREDENTIAL + f'credential_env = "KEY"\ncommand_env = {{ KEY = "{CANARY}" }}\n',
            4,
            "command_env and credential_env both name KEY",
        ),
        ('[[credential]]\nid = "a"\ncommand_env = {}\n', 1, 'secret is missing: write secret = "env:NAME"'),
        ('[[credential]]\ncommand_env = { A = "b" }\n', 1, 'id is missing: write id = "team-a"'),
        (
            "".join(f'[[credential]]\nid = "{id_}"\ncommand_env = {{ A = "b" }}\n' for id_ in "ab"),
            4,
            "the credential in line 1 already has the same command_env",
        ),
        (
            (CREDENTIAL + 'base_url = "https://x"\n') * 2,
            4,
            "the credential in line 1 already has the same secret",
        ),
        (CREDENTIAL + '[provider.openai]\nbase_url = "env:URL"\n', 4, "base_url of a provider is an address"),
    ],
)
def test_error_has_line_and_no_value(write: Write, text: str, line: int, expected: str) -> None:
    path = write(text)
    with pytest.raises(KeysFileError) as caught:
        load_keys(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: ")
    assert expected in message
    assert CANARY not in message
