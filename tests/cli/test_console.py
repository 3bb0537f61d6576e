"""The command table, and domain errors as messages and exit statuses."""

from __future__ import annotations

import importlib

import click
import pytest
from click.testing import CliRunner

from agentos.cli import COMMANDS
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
    assert result.stderr.endswith(f"Error: {error}\n")
    assert result.stderr.startswith("Usage: agentos failing") == (status == 2)
