"""`agentos keys`: the credentials, their state, and who holds them."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from agentos.errors import StoreError
from agentos.keys import disabled_keys as _disabled
from agentos.keys.keys_file import Keys, keys_from_environment, load_keys
from agentos.pool._replicas import visits
from agentos.pool.states import CredentialSnapshot
from agentos.reporters.format import shorten, table
from agentos.workflows.parallel import Credential, CredentialError, Limits

from ..completion import credential_ids
from ..console import Command, Failure
from ..launch.pool_setup import StoreChoice, choose_store, store_failure
from . import _key_tables as _shared_state
from ._key_tables import MOST_OF_CELL, MOST_OF_LAST, NONE, figure

DEFAULT_REASON = "by hand"
_UNITS = {"requests_per_minute": "requests/min", "tokens_per_minute": "tokens/min", "requests_per_day": "requests/day"}

_WITH_VALUE = ("--keys", "--key-env", "--store", "--reason")

F = TypeVar("F", bound=Callable[..., Any])


class _StatusUnlessNamed(click.Group):
    """`agentos keys`, also with options, is `agentos keys status`; and options may stand before the command."""

    command_class = Command

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


def _store_option(command: F) -> F:
    return click.option(
        "--store",
        metavar="URL",
        envvar="AGENTOS_STORE",
        show_envvar=True,
        help="Where runs share the state of the keys. [default: as the keys file says, else that of this machine]",
    )(command)


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
@_store_option
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def status(keys_file: Path | None, key_env: str | None, store: str | None, is_json: bool) -> None:
    """What is declared, and what the store says that runs share: what is used of each limit, what cools down and until
    when, and who holds what. Without keys: of all credentials that the store knows.

    \b
    Examples:
      agentos keys status --keys keys.toml
      agentos keys status --key-env 'OPENAI_API_KEY*' --json
    """
    found = _find_keys(keys_file, key_env)
    disabled = _disabled.disabled()
    place = choose_store(store, found)
    known = _look(place)
    if found is None and not disabled and not known:
        raise _no_keys()
    if is_json:
        click.echo(_json(_status_record(found, disabled, place, known)))
        return
    if found is not None:
        _warn(found)
        click.echo("\n".join(table([("ID", "PROVIDER", "GROUP", "LIMITS", "STATE"), *_rows(found, disabled)])))
    others = {id_: why for id_, why in disabled.items() if found is None or id_ not in _ids(found)}
    if others:
        rows = [(shorten(id_, MOST_OF_CELL), shorten(why, MOST_OF_LAST)) for id_, why in others.items()]
        click.echo("\nDisabled, and not in these keys:" if found is not None else "Disabled:")
        click.echo("\n".join(table([("ID", "REASON"), *rows])))
    if known:
        click.echo(f"{chr(10) if found is not None or others else ''}In {place.name}:")
        click.echo("\n".join(_shared_state.lines(known)))


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
    from agentos.keys.check import check_all

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
@_store_option
def disable(id_: str, reason: str, keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Take a credential out of use: runs leave it alone until it is enabled, also those that are executing.

    \b
    Example:
      agentos keys disable team-a --reason "the budget is used up" --keys keys.toml
    """
    found = _needed_keys(keys_file, key_env)
    _must_have(found, id_)
    place = choose_store(store, found)
    _disabled.disable(id_, reason)
    _tell(place, {id_: _disabled.DISABLED + reason})
    click.echo(f"{id_} is disabled, in executing runs too, until agentos keys enable {shlex.quote(id_)}.")


@keys.command(short_help="Put a credential back into use.")
@click.argument("id_", metavar="ID", shell_complete=credential_ids)
@_keys_options
@_store_option
def enable(id_: str, keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Put a credential back into use: one that was disabled, or one that was quarantined because its provider refused
    it.

    \b
    Example:
      agentos keys enable team-a
    """
    found = _find_keys(keys_file, key_env)
    place = choose_store(store, found)
    was_out = [*_disabled.enable([id_]), *_tell(place, {id_: None})]
    if not was_out and found is not None:
        _must_have(found, id_)
    click.echo(f"{id_} is enabled." if was_out else "No credential with this id was disabled or quarantined.")


@keys.command(short_help="Enable all credentials.")
@_keys_options
@_store_option
def reset(keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Enable all credentials: those of the keys that are named, or all that are disabled or quarantined.

    \b
    Example:
      agentos keys reset
    """
    found = _find_keys(keys_file, key_env)
    place = choose_store(store, found)
    ids = _disabled.enable(None if found is None else _ids(found))
    known = _ids(found) if found is not None else [one.id for one in _look(place)]
    ids += [id_ for id_ in _tell(place, dict.fromkeys(known)) if id_ not in ids]
    click.echo(f"Enabled: {', '.join(ids)}." if ids else "No credential was disabled or quarantined.")


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


# --- the store that runs share ----------------------------------------------------------------------------------------


def _look(place: StoreChoice) -> list[CredentialSnapshot]:
    try:
        return visits.look(place.url)
    except StoreError as error:
        raise store_failure(error) from None


def _tell(place: StoreChoice, reasons: Mapping[str, str | None]) -> list[str]:
    """Those whose state has changed there by that."""
    try:
        return visits.set_quarantine(place.url, reasons)
    except StoreError as error:
        told = "runs of this machine know of it, but those that share the store with others could not be told"
        raise Failure(f"{told}: {error}") from None


# --- how they are shown -----------------------------------------------------------------------------------------------


def _rows(found: Keys, disabled: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [
        (
            credential.id,
            credential.provider or NONE,
            _group(credential) or NONE,
            _declared(credential.limits),
            shorten(_state(credential, found, disabled), MOST_OF_LAST),
        )
        for credential in found.credentials
    ]


def _group(credential: Credential) -> str | None:
    """The group that it shares, or may share; one of its own has no name that says anything."""
    return None if credential.quota_group == f"credential {credential.id}" else credential.quota_group


def _declared(limits: Limits) -> str:
    parts = [f"{figure(value)} {unit}" for name, unit in _UNITS.items() if (value := getattr(limits, name)) is not None]
    if limits.requests_per_day is not None:
        parts[-1] += f" from {limits.day_resets}"
    if limits.burst is not None:
        parts.append(f"burst {figure(limits.burst)}")
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


def _status_record(
    found: Keys | None, disabled: Mapping[str, str], place: StoreChoice, known: Sequence[CredentialSnapshot]
) -> dict[str, Any]:
    return {
        "credentials": [] if found is None else [_record(one, found, disabled) for one in found.credentials],
        "warnings": [] if found is None else found.warnings,
        "disabled": disabled,
        "store": place.name,
        "pool": [_shared_state.record(one) for one in known],
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
