"""What a shell is offered: by click's protocol, and in a real bash."""

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

from .cli_runs import living, make_run, prepare


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("AGENTOS_KEYS", raising=False)
    return tmp_path / "home"


def offered(*words: str) -> list[tuple[str, str]]:
    """The kind and the value of each, after `agentos`; the last word is the one that is being typed."""
    completion = BashComplete(main, {}, "agentos", "_AGENTOS_COMPLETE")
    return [(item.type, item.value) for item in completion.get_completions(list(words[:-1]), words[-1])]


def plain(*words: str) -> list[str]:
    return [value for kind, value in offered(*words) if kind == "plain"]


def test_commands_are_offered_without_being_imported() -> None:
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
def test_runs_are_offered_the_newest_first(command: str) -> None:
    older, newer = prepare("older", ["a"]), prepare("newer", ["a"])
    os.utime(older.path / "run.json", (1, 1))
    assert plain(command, "") == ["newer", "older"]
    assert plain(command, "ol") == ["older"]
    (newer.path / "run.json").write_text("nonsense")
    assert plain(command, "") == ["newer", "older"]
    assert plain("plan", "--like", "o") == ["older"]


def test_only_runs_that_are_running_can_be_stopped() -> None:
    prepare("idle", ["a"])
    assert plain("stop", "") == []
    with living("busy"):
        assert plain("stop", "") == ["busy"]
        assert plain("stop", "x") == []


@pytest.mark.parametrize("command", ["show", "logs"])
def test_items_are_offered_if_a_shell_takes_them_as_they_are(command: str) -> None:
    make_run("done", ["src/a.py", "src/b.py", "två", "a b", "*", "x:y", "-x", "a,b", "$(id)"], lambda item, _: item)
    assert sorted(plain(command, "done", "")) == ["src/a.py", "src/b.py", "två"]
    assert sorted(plain(command, "done", "src/")) == ["src/a.py", "src/b.py"]
    assert plain(command, "no-such-run", "") == []
    assert plain(command, "../..", "") == []
    prepare("waiting", ["a"])
    assert plain(command, "waiting", "") == []


def test_of_many_items_some_are_offered() -> None:
    make_run("many", [f"item-{number}" for number in range(3 * MAX_COMPLETIONS)], lambda item, _: item)
    assert len(plain("show", "many", "")) == MAX_COMPLETIONS


def test_files_are_left_to_the_shell() -> None:
    for words in (
        ["run", "--keys", "k"],
        ["run", "--items", "k"],
        ["keys", "--keys", "k"],
        ["keys", "check", "--keys", "k"],
        ["export", "r", "--output", "k"],
        ["run", "--item", "a", "--", "k"],
    ):
        assert offered(*words) == [("file", "k")]


def test_keys_offers_its_commands_the_options_of_status_and_credentials(tmp_path: Path) -> None:
    assert plain("keys", "") == ["check", "disable", "enable", "reset", "status"]
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
def test_the_script_is_one_that_the_shell_can_read(shell: str, tmp_path: Path) -> None:
    script = subprocess.run(["agentos", "completion", shell], capture_output=True, text=True, check=True).stdout
    assert f"_AGENTOS_COMPLETE={shell}_complete" in script
    (tmp_path / "script").write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_another_shell_is_refused_with_those_that_are_known() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert all(shell in result.output for shell in ("bash", "zsh", "fish"))


@pytest.mark.parametrize(
    ("shell", "expected"), [("zsh", "plain\nfirst\n./agent --item '{id}'\n"), ("fish", "plain,first")]
)
def test_other_shells_are_told_what_a_run_does(shell: str, expected: str) -> None:
    prepare("first", ["a"])
    words = {"COMP_WORDS": "agentos show ", "COMP_CWORD": "2" if shell == "zsh" else ""}
    environment = {**os.environ, **words, "_AGENTOS_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(["agentos"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(expected)


def test_a_real_bash_completes_a_command_a_run_and_an_item_with_the_tab_key() -> None:
    make_run("first", ["src/main.py"], lambda item, _: item)
    shell = pexpect.spawn("bash", ["--norc", "--noprofile"], encoding="utf-8", timeout=60, dimensions=(24, 160))
    shell.sendline(
        "bind 'set enable-bracketed-paste off'; PS1='ready> '; eval \"$(agentos completion bash)\"; echo le''t"
    )
    shell.expect("let\r\n.*ready> ")
    for typed, seen in (("agentos sh\t", "agentos show "), ("fi\t", "first "), ("sr\t", "src/main.py ")):
        shell.send(typed)
        shell.expect(re.escape(seen))
    shell.send("\r")
    shell.expect("src/main.py.*succeeded")
    shell.close()


def test_whatever_takes_a_run_offers_runs() -> None:
    """So that no command is forgotten."""
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if parameter.name in ("run_id", "item_id") and isinstance(parameter, click.Argument):
                assert parameter._custom_shell_complete is not None, (name, parameter.name)
