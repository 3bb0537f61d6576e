"""`agentos gateway env`: lines that a shell evaluates, and the files of a client."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentos.cli import main
from agentos.cli.commands.gateway_env import env, shell_lines

URL = "http://127.0.0.1:4711"


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(
        env, arguments, env={"AGENTOS_GATEWAY_URL": None, "AGENTOS_CLIENT_TOKEN": None, **variables}
    )


def evaluated(lines: str, *names: str) -> list[str]:
    """Return the values of variables after a shell has evaluated the lines."""
    script = lines + "\n" + "\n".join(f'printf "%s\\n" "${{{name}-(unset)}}"' for name in names)
    ended = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def test_lines_set_and_remove_variables_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("agentos-it's a token\n")
    ended = run("claude", "--url", URL + "/", "--token-file", str(tmp_path / "token"))
    assert ended.exit_code == 0, ended.output
    lines = "export ANTHROPIC_AUTH_TOKEN=inherited\n" + ended.stdout
    values = evaluated(lines, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
    assert values == [URL, "agentos-it's a token", "(unset)"]


def test_address_and_token_of_a_run_are_used(tmp_path: Path) -> None:
    ended = run(
        "codex", "--folder", str(tmp_path / "new"), AGENTOS_GATEWAY_URL=URL, AGENTOS_CLIENT_TOKEN="agentos-token"
    )
    assert ended.exit_code == 0, ended.output
    home, token = evaluated(ended.stdout, "CODEX_HOME", "OPENAI_API_KEY")
    assert f"{URL}/v1" in Path(home, "config.toml").read_text()
    assert token == "agentos-token"


def test_files_are_in_the_home_directory_by_default(tmp_path: Path) -> None:
    ended = run("gemini", AGENTOS_GATEWAY_URL=URL, AGENTOS_CLIENT_TOKEN="agentos-token", AGENTOS_HOME=str(tmp_path))
    assert ended.exit_code == 0, ended.output
    assert (tmp_path / "clients" / "gemini" / ".gemini" / "settings.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["claude", "--url", URL], "Missing: the client token: --token-file FILE"),
        (["claude"], "--url"),
        (["unknown"], "'unknown' is not one of"),
    ],
)
def test_missing_or_wrong_argument_is_refused(arguments: list[str], message: str) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert message in ended.output


def test_failing_version_gives_a_warning(tmp_path: Path) -> None:
    executable = tmp_path / "versions" / "2.1.266"
    executable.parent.mkdir()
    executable.touch(0o755)
    (tmp_path / "claude").symlink_to(executable)
    ended = run("claude", "--url", URL, AGENTOS_CLIENT_TOKEN="agentos-token", PATH=str(tmp_path))
    assert "Warning: claude 2.1.266 fails behind a gateway" in ended.stderr
    assert "Warning" not in ended.stdout


def test_values_are_quoted_for_a_shell() -> None:
    assert list(shell_lines({"A": "$(x) 'y'", "B": None})) == ["export A='$(x) '\"'\"'y'\"'\"''", "unset B"]


def test_all_that_is_missing_is_named_at_once() -> None:
    ended = run("claude")
    assert ended.exit_code == 2
    assert "--url URL, or AGENTOS_GATEWAY_URL; and the client token: --token-file FILE" in ended.stderr


def test_gateway_help_has_the_options_of_serve() -> None:
    shown = CliRunner().invoke(main, ["gateway", "--help"]).stdout
    assert "Options without a command (serve):" in shown
    assert "--listen HOST:PORT" in shown


def test_port_leads_to_listen() -> None:
    refused = CliRunner().invoke(main, ["gateway", "--port", "8790"])
    assert refused.exit_code == 2
    assert "No such option: --port. To choose the address: --listen HOST:PORT" in refused.stderr
