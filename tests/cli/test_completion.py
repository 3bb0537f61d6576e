"""Completion, by the protocol of click and in a real bash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pexpect
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from agentos.cli import COMMANDS, main
from agentos.cli.completion import MAX_COMPLETIONS

from .cli_runs import live_run, make_run, prepare


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("AGENTOS_KEYS", raising=False)
    return tmp_path / "home"


def offered(*words: str) -> list[tuple[str, str]]:
    """Return kind and value of each completion after `agentos`; the last word is incomplete."""
    completion = BashComplete(main, {}, "agentos", "_AGENTOS_COMPLETE")
    return [(item.type, item.value) for item in completion.get_completions(list(words[:-1]), words[-1])]


def plain(*words: str) -> list[str]:
    return [value for kind, value in offered(*words) if kind == "plain"]


def test_commands_complete_without_imports() -> None:
    assert plain("") == list(COMMANDS)
    assert plain("ru") == ["run", "runs"]
    assert plain("--v") == ["--version"]
    code = (
        "import sys; from agentos.cli import main; from click.shell_completion import BashComplete\n"
        "BashComplete(main, {}, 'agentos', '_AGENTOS_COMPLETE').get_completions([], '')\n"
        "print(sorted(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "agentos.workflows" not in out


@pytest.mark.parametrize("command", ["resume", "retry", "show", "logs", "export"])
def test_runs_complete_newest_first(command: str) -> None:
    older, newer = prepare("older", ["a"]), prepare("newer", ["a"])
    os.utime(older.path / "run.json", (1, 1))
    assert plain(command, "") == ["newer", "older"]
    assert plain(command, "ol") == ["older"]
    (newer.path / "run.json").write_text("nonsense")
    assert plain(command, "") == ["newer", "older"]
    assert plain("plan", "--like", "o") == ["older"]


def test_stop_completes_running_runs_only() -> None:
    prepare("idle", ["a"])
    assert plain("stop", "") == []
    with live_run("busy"):
        assert plain("stop", "") == ["busy"]
        assert plain("stop", "x") == []


@pytest.mark.parametrize("command", ["show", "logs"])
def test_items_complete_unless_they_need_quotes(command: str) -> None:
    make_run("done", ["src/a.py", "src/b.py", "två", "a b", "*", "x:y", "-x", "a,b", "$(id)"], lambda item, _: item)
    assert sorted(plain(command, "done", "")) == ["src/a.py", "src/b.py", "två"]
    assert sorted(plain(command, "done", "src/")) == ["src/a.py", "src/b.py"]
    assert plain(command, "no-such-run", "") == []
    assert plain(command, "../..", "") == []
    prepare("waiting", ["a"])
    assert plain(command, "waiting", "") == []


def test_completions_of_many_items_are_bounded() -> None:
    make_run("many", [f"item-{number}" for number in range(3 * MAX_COMPLETIONS)], lambda item, _: item)
    assert len(plain("show", "many", "")) == MAX_COMPLETIONS


def test_files_are_completed_by_the_shell() -> None:
    for words in (
        ["run", "--keys", "k"],
        ["run", "--items", "k"],
        ["keys", "--keys", "k"],
        ["keys", "check", "--keys", "k"],
        ["export", "r", "--output", "k"],
        ["run", "--item", "a", "--", "k"],
    ):
        assert offered(*words) == [("file", "k")]


def test_keys_completes_commands_options_and_credentials(tmp_path: Path) -> None:
    assert plain("keys", "") == ["check", "clear", "disable", "enable", "reload", "repair", "reset", "status"]
    assert plain("keys", "--ke") == ["--keys", "--key-env"]
    assert plain("keys", "--keys", "keys.toml", "ch") == ["check"]
    file = tmp_path / "keys.toml"
    file.write_text(
        '[[credential]]\nid = "team-a"\nsecret = "env:A"\n[[credential]]\nid = "team-b"\nsecret = "env:B"\n'
    )
    assert plain("keys", "disable", "--keys", str(file), "") == ["team-a", "team-b"]
    assert plain("keys", "enable", "--keys", str(file), "team-b") == ["team-b"]
    assert plain("keys", "disable", "") == []
    file.write_text("nonsense")
    assert plain("keys", "disable", "--keys", str(file), "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_for_its_shell(shell: str, tmp_path: Path) -> None:
    script = subprocess.run(["agentos", "completion", shell], capture_output=True, text=True, check=True).stdout
    assert f"_AGENTOS_COMPLETE={shell}_complete" in script
    (tmp_path / "script").write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_unknown_shell_is_refused_with_choices() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert all(shell in result.output for shell in ("bash", "zsh", "fish"))


@pytest.mark.parametrize(
    ("shell", "expected"), [("zsh", "plain\nfirst\n./agent --item '{id}'\n"), ("fish", "plain,first")]
)
def test_zsh_and_fish_show_the_command_of_a_run(shell: str, expected: str) -> None:
    prepare("first", ["a"])
    words = {"COMP_WORDS": "agentos show ", "COMP_CWORD": "2" if shell == "zsh" else ""}
    environment = {**os.environ, **words, "_AGENTOS_COMPLETE": f"{shell}_complete"}
    process = subprocess.run(["agentos"], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.startswith(expected)


def test_bash_completes_command_run_and_item() -> None:
    make_run("first", ["src/main.py"], lambda item, _: item)
    shell = pexpect.spawn("bash", ["--norc", "--noprofile"], encoding="utf-8", timeout=60, dimensions=(24, 160))
    shell.sendline(
        "bind 'set enable-bracketed-paste off'; PS1='ready> '; eval \"$(agentos completion bash)\"; echo le''t"
    )
    shell.expect("let\r\n.*ready> ")
    for keys, completed_line in (("agentos sh\t", "agentos show "), ("fi\t", "first "), ("sr\t", "src/main.py ")):
        shell.send(keys)
        shell.expect(re.escape(completed_line))
    shell.send("\r")
    shell.expect("src/main.py.*succeeded")
    shell.close()


def test_every_run_argument_completes_runs() -> None:
    """Every command with a parameter RUN is covered, so that a new one cannot be forgotten."""
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if parameter.name in ("run_id", "item_id") and isinstance(parameter, click.Argument):
                assert parameter._custom_shell_complete is not None, (name, parameter.name)
