"""`agentos keys`: the credentials, their state, and who holds them."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from agentos.workflows.parallel import Credential, CredentialError, Limits

from . import _disabled
from ._home import RunFolder
from ._keysfile import Keys, keys_from_environment, load_keys
from ._poolnote import CredentialNote, PoolNote, read_notes
from ._texts import duration, shortened, table
from .completion import credential_ids

DEFAULT_REASON = "by hand"
# Of a text in a table, so much, and more in the last column; of the items that hold a credential, so many.
MOST_OF_CELL = 60
MOST_OF_LAST = 200
MOST_HOLDERS = 3
NONE = "-"
_UNITS = {"requests_per_minute": "requests/min", "tokens_per_minute": "tokens/min", "requests_per_day": "requests/day"}

_WITH_VALUE = ("--keys", "--key-env", "--reason")

F = TypeVar("F", bound=Callable[..., Any])


class _StatusUnlessNamed(click.Group):
    """`agentos keys`, also with options, is `agentos keys status`; and options may stand before the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place, is_value = 0, False
        while place < len(args) and (is_value or args[place].startswith("-")):
            is_value = not is_value and args[place] in _WITH_VALUE
            place += 1
        if place < len(args):
            args = [args[place], *args[:place], *args[place + 1 :]]
        elif is_value or not (ctx.resilient_parsing or (args and args[0] in ctx.help_option_names)):
            args = ["status", *args]  # unless a shell is completing: a command may follow yet
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        return super().shell_complete(ctx, incomplete) + (
            status.shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        )


def _keys_options(command: F) -> F:
    key_env = click.option(
        "--key-env",
        metavar="PATTERN",
        envvar="AGENTOS_KEY_ENV",
        show_envvar=True,
        help="The variables that hold keys instead, such as 'OPENAI_API_KEY*'.",
    )
    file = click.option(
        "--keys",
        "keys_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        envvar="AGENTOS_KEYS",
        show_envvar=True,
        help="The keys file (TOML).",
    )
    return file(key_env(command))


@click.group(cls=_StatusUnlessNamed)
def keys() -> None:
    """The credentials: state, head-room, who holds them. Without a command: status.

    Options may stand before the command.

    \b
    Examples:
      agentos keys --keys keys.toml
      agentos keys --keys keys.toml check
    """


@keys.command(short_help="What is declared, what can be used, who uses it.")
@_keys_options
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def status(keys_file: Path | None, key_env: str | None, is_json: bool) -> None:
    """What is declared, what can be used, and what the runs on this machine are doing with it.

    \b
    Examples:
      agentos keys status --keys keys.toml
      agentos keys status --key-env 'OPENAI_API_KEY*' --json
    """
    found = _find_keys(keys_file, key_env)
    disabled = _disabled.disabled()
    notes = read_notes()
    if found is None and not disabled and not notes:
        raise _no_keys()
    if is_json:
        click.echo(_json(_status_record(found, disabled, notes)))
        return
    if found is not None:
        _warn(found)
        click.echo("\n".join(table([("ID", "PROVIDER", "GROUP", "LIMITS", "STATE"), *_rows(found, disabled)])))
    others = {id_: why for id_, why in disabled.items() if found is None or id_ not in _ids(found)}
    if others:
        rows = [(shortened(id_, MOST_OF_CELL), shortened(why, MOST_OF_LAST)) for id_, why in others.items()]
        click.echo("\nDisabled, and not in these keys:" if found is not None else "Disabled:")
        click.echo("\n".join(table([("ID", "REASON"), *rows])))
    for folder, note in notes:
        _show_run(folder, note)


@keys.command(short_help="Ask the providers whether they accept the keys.")
@_keys_options
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(context: click.Context, keys_file: Path | None, key_env: str | None, is_json: bool) -> None:
    """Ask each provider whether it accepts the key, with one call that costs nothing. Exit status 1 if one does not.

    \b
    Example:
      agentos keys check --keys keys.toml
    """
    from ._check import check_all

    found = _needed_keys(keys_file, key_env)
    results = list(check_all(found))
    if is_json:
        click.echo(_json(results))
    else:
        disabled = _disabled.disabled()
        rows = [
            (result.id, result.provider or NONE, result.told + (" (disabled)" if result.id in disabled else ""))
            for result in results
        ]
        click.echo("\n".join(table([("ID", "PROVIDER", "ANSWER"), *rows])))
    context.exit(1 if any(result.is_ok is False for result in results) else 0)


@keys.command(short_help="Take a credential out of use.")
@click.argument("id_", metavar="ID", shell_complete=credential_ids)
@click.option("--reason", default=DEFAULT_REASON, show_default=True, help="Shown wherever the credential is.")
@_keys_options
def disable(id_: str, reason: str, keys_file: Path | None, key_env: str | None) -> None:
    """Take a credential out of use: runs leave it alone until it is enabled, those that are executing within a second.

    \b
    Example:
      agentos keys disable team-a --reason "the budget is used up" --keys keys.toml
    """
    _must_have(_needed_keys(keys_file, key_env), id_)
    _disabled.disable(id_, reason)
    click.echo(f"{id_} is disabled, in executing runs too, until agentos keys enable {shlex.quote(id_)}.")


@keys.command(short_help="Put a credential back into use.")
@click.argument("id_", metavar="ID", shell_complete=credential_ids)
@_keys_options
def enable(id_: str, keys_file: Path | None, key_env: str | None) -> None:
    """Put a credential that was disabled back into use.

    \b
    Example:
      agentos keys enable team-a
    """
    found = _find_keys(keys_file, key_env)
    was_disabled = _disabled.enable([id_])
    if not was_disabled and found is not None:
        _must_have(found, id_)
    click.echo(f"{id_} is enabled." if was_disabled else "No credential with this id was disabled.")


@keys.command(short_help="Enable all credentials.")
@_keys_options
def reset(keys_file: Path | None, key_env: str | None) -> None:
    """Enable all credentials: those of the keys that are named, or all that are disabled.

    \b
    Example:
      agentos keys reset
    """
    found = _find_keys(keys_file, key_env)
    ids = _disabled.enable(None if found is None else _ids(found))
    click.echo(f"Enabled: {', '.join(ids)}." if ids else "No credential was disabled.")


# --- which keys -------------------------------------------------------------------------------------------------------


def _find_keys(file: Path | None, pattern: str | None) -> Keys | None:
    """What was typed counts before the environment; two that are equally near are too many."""
    if file is not None and pattern is not None:
        context = click.get_current_context()
        typed = [
            name
            for name in ("keys_file", "key_env")
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        ]
        if len(typed) != 1:
            raise click.UsageError("--keys and --key-env are two ways to say the same: give one of them")
        file, pattern = (file, None) if typed == ["keys_file"] else (None, pattern)
    if file is not None:
        return load_keys(file)
    return None if pattern is None else keys_from_environment(pattern, os.environ)


def _needed_keys(file: Path | None, pattern: str | None) -> Keys:
    found = _find_keys(file, pattern)
    if found is None:
        raise _no_keys()
    _warn(found)
    return found


def _no_keys() -> click.UsageError:
    return click.UsageError("which keys? Give --keys FILE or --key-env PATTERN, or set AGENTOS_KEYS")


def _warn(found: Keys) -> None:
    for warning in found.warnings:
        click.echo(f"Warning: {warning}", err=True)


def _ids(found: Keys) -> list[str]:
    return [credential.id for credential in found.credentials]


def _must_have(found: Keys, id_: str) -> None:
    """What was typed is not repeated: it may be the key itself."""
    if id_ not in _ids(found):
        raise click.UsageError(f"no credential has this id; there are {', '.join(_ids(found))}")


# --- how they are shown -----------------------------------------------------------------------------------------------


def _rows(found: Keys, disabled: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [
        (
            credential.id,
            credential.provider or NONE,
            _group(credential) or NONE,
            _declared(credential.limits),
            shortened(_state(credential, found, disabled), MOST_OF_LAST),
        )
        for credential in found.credentials
    ]


def _group(credential: Credential) -> str | None:
    """The group that it shares, or may share; one of its own has no name that says anything."""
    return None if credential.quota_group == f"credential {credential.id}" else credential.quota_group


def _declared(limits: Limits) -> str:
    parts = [
        f"{_figure(value)} {unit}" for name, unit in _UNITS.items() if (value := getattr(limits, name)) is not None
    ]
    if limits.requests_per_day is not None:
        parts[-1] += f" from {limits.day_resets}"
    if limits.burst is not None:
        parts.append(f"burst {_figure(limits.burst)}")
    return ", ".join([*parts, f"{limits.max_concurrent} at once"])


def _state(credential: Credential, found: Keys, disabled: Mapping[str, str]) -> str:
    """Without running a command: that may ask a person for a password."""
    if credential.id in disabled:
        return f"disabled: {disabled[credential.id]}"
    kind, _, rest = found.references.get(credential.id, "").partition(":")
    if kind == "env" and not os.environ.get(rest, "").strip():
        return f"variable {rest} not set"
    if kind != "cmd":
        try:
            _ = credential.secret
        except CredentialError as error:
            return str(error)
    return "ready"


def _show_run(folder: RunFolder, note: PoolNote) -> None:
    now = time.time()
    age = duration(max(0.0, now - note.written_at))
    click.echo(f"\nRun {folder.run_id} (pid {note.pid}), {age} ago:")
    rows = [
        (
            shortened(entry.id, MOST_OF_CELL),
            f"{entry.live_leases} of {entry.max_concurrent}",
            _holders(entry.holders),
            _used(entry),
            shortened(_pool_state(entry, now), MOST_OF_LAST),
        )
        for entry in note.credentials
    ]
    click.echo("\n".join(table([("ID", "IN USE", "HELD BY", "USED", "STATE"), *rows])))


def _holders(holders: list[str]) -> str:
    shown = ", ".join(shortened(holder, MOST_OF_CELL // MOST_HOLDERS) for holder in holders[:MOST_HOLDERS])
    more = len(holders) - MOST_HOLDERS
    return f"{shown} and {more} more" if more > 0 else shown or NONE


def _pool_state(entry: CredentialNote, now: float) -> str:
    if entry.quarantine is not None:
        return f"quarantined: {entry.quarantine}"
    if entry.cooling_until is not None and entry.cooling_until > now:
        return f"usable in {duration(entry.cooling_until - now)}: {entry.reason or 'cooling down'}"
    scopes = [f"{scope} in {duration(until - now)}" for scope, until in entry.cooling_scopes.items() if until > now]
    return f"usable for {', '.join(scopes)}" if scopes else "usable"


def _used(entry: CredentialNote) -> str:
    parts = [
        f"{_figure(used)} of {_figure(limit)} {name.replace(' per minute', '/min').replace(' per day', '/day')}"
        for name, (used, limit) in entry.used.items()
    ]
    for scope, rate in entry.learned.items():
        parts.append(
            f"learned {_figure(math.floor(rate))} requests/min" + (f" for {shortened(scope, 20)}" if scope else "")
        )
    return ", ".join(parts) or NONE


def _figure(value: float) -> str:
    return f"{value:,.10g}"


def _status_record(
    found: Keys | None, disabled: Mapping[str, str], notes: Iterable[tuple[RunFolder, PoolNote]]
) -> dict[str, Any]:
    return {
        "credentials": [] if found is None else [_record(one, found, disabled) for one in found.credentials],
        "warnings": [] if found is None else found.warnings,
        "disabled": disabled,
        "runs": [{"run_id": folder.run_id, **msgspec.to_builtins(note)} for folder, note in notes],
    }


def _record(credential: Credential, found: Keys, disabled: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": credential.id,
        "provider": credential.provider,
        "quota_group": _group(credential),
        "scopes": sorted(credential.scopes),
        "limits": dataclasses.asdict(credential.limits),
        "credential_env": found.variables.get(credential.id),
        "state": _state(credential, found, disabled),
    }


def _json(record: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
