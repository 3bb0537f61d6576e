"""The command table, and domain errors as messages and exit statuses."""

from __future__ import annotations

import importlib

import click
import pytest
from click.testing import CliRunner

from agentos.cli import COMMANDS, main
from agentos.cli.console import Command
from agentos.errors import (
    AgentosError,
    EngineUnavailable,
    HomeError,
    KeysFileError,
    LedgerError,
    RunBusy,
    UnknownRun,
)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_table_names_existing_commands(name: str) -> None:
    module = importlib.import_module(f"agentos.cli.{COMMANDS[name][0]}")
    command = getattr(module, name)
    assert isinstance(command, click.Command)
    assert command.name == name


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownRun("no such run"), 2),
        (KeysFileError("line 3"), 2),
        (HomeError("read-only"), 3),
        (LedgerError("damaged"), 3),
        (RunBusy("in use"), 3),
        (EngineUnavailable("no answer"), 3),
    ],
)
def test_domain_error_becomes_message_and_exit_status(error: AgentosError, status: int) -> None:
    @click.command(cls=Command)
    def failing() -> None:
        raise error

    result = CliRunner().invoke(failing, prog_name="agentos failing")
    assert result.exit_code == status
    assert result.stderr == f"Error: {error}\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_machine_without_room_becomes_one_line(error: Exception) -> None:
    """The system may refuse memory or a thread at any point of a run."""

    @click.command(cls=Command)
    def failing() -> None:
        raise error

    result = CliRunner().invoke(failing, prog_name="agentos failing")
    assert result.exit_code == 3
    assert result.stderr.startswith("Error: ")
    assert "raise ulimit" in result.stderr
    assert result.stderr.count("\n") == 1


def test_usage_is_shown_for_wrong_arguments_only() -> None:
    """Not for what a command finds out while it works: `--help` does not help there."""

    @click.command(cls=Command)
    @click.argument("run_id", metavar="RUN")
    def failing(run_id: str) -> None:
        raise click.UsageError(f"no item of run {run_id} failed")

    refused = CliRunner().invoke(failing, ["r"], prog_name="agentos failing")
    assert (refused.exit_code, refused.stderr) == (2, "Error: no item of run r failed\n")
    without_run = CliRunner().invoke(failing, prog_name="agentos failing")
    assert without_run.exit_code == 2
    assert without_run.stderr.startswith("Usage: agentos failing [OPTIONS] RUN\nTry ")
    assert "or last for the newest one" in without_run.stderr


def test_errors_name_the_variable_only_of_its_values() -> None:
    typed = CliRunner().invoke(main, ["run", "--parallel", "x", "--item", "a", "--", "true"])
    assert "Invalid value for '--parallel': " in typed.stderr
    arguments = ["run", "--item", "a", "--", "true"]
    from_variable = CliRunner().invoke(main, arguments, env={"AGENTOS_PARALLEL": "x"})
    assert "Invalid value for '--parallel' (env var: 'AGENTOS_PARALLEL'): " in from_variable.stderr


def test_help_fits_on_a_screen_of_24_rows() -> None:
    """With the row of the prompt, at 80 columns."""
    lines = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout.splitlines()
    assert len(lines) <= 23
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= {*COMMANDS, "--version"}
