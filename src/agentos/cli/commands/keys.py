"""`agentos keys`: shows credentials and the runs that hold them, checks them, and takes them out of use."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from agentos.errors import HomeError, KeysFileError, StoreError
from agentos.events import DISABLED
from agentos.home.run_folder import DEMO, RunSpec, run_folders
from agentos.keys import disabled_keys
from agentos.keys.keys_file import Keys, keys_from_environment, load_keys
from agentos.plurals import plural
from agentos.pool import shared_state
from agentos.pool.shared_state import PoolView
from agentos.reporters.format import table

from ..completion import credential_ids
from ..console import Command, Failure, write_default_options
from ..launch.pool_setup import StoreChoice, choose_store, read_keys, store_failure
from ..options import option, several
from ._key_tables import EMPTY, declared_record, key_lines, lease_lines, member_lines, pool_record
from .keys_reload import reload

DEFAULT_REASON = "by hand"
# Options that are followed by a value.
_WITH_VALUE = ("--keys", "--key-env", "--store", "--reason")


class _StatusByDefault(click.Group):
    """A group whose default command is `status`, and that accepts options before the command."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        index, is_value = 0, False  # of the command's name
        while index < len(args) and (is_value or args[index].startswith("-")):
            is_value = not is_value and args[index] in _WITH_VALUE
            index += 1
        if index < len(args):
            args = [args[index], *args[:index], *args[index + 1 :]]
        elif is_value or not (ctx.resilient_parsing or (args and args[0] in ctx.help_option_names)):
            args = ["status", *args]  # not while a shell completes: the name of a command may still be typed
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of the default command, too."""
        super().format_options(ctx, formatter)
        write_default_options(status, ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        return super().shell_complete(ctx, incomplete) + (
            status.shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        )


_KEYS = several(
    option("--keys", "keys_file", metavar="FILE", type=click.Path(path_type=Path), help="The keys file (TOML)."),
    option("--key-env", metavar="PATTERN", help="Environment variables that hold keys, such as 'OPENAI_API_KEY*'."),
)
_STORE = option(
    "--store",
    metavar="URL",
    help="Where runs share the state of the keys. [default: that of the keys file, else of this machine]",
)


@click.group(cls=_StatusByDefault)
def keys() -> None:
    """Show, check, disable, enable and reload credentials. Without a command: status.

    Options may precede the command. Without --keys and --key-env: the keys of the newest run that has some.

    \b
    Examples:
      agentos keys
      agentos keys --keys keys.toml check
    """


keys.add_command(reload)


@keys.command(short_help="Show limits, usage, cool-downs and leases.")
@_KEYS
@_STORE
@click.option("--all", "shows_all", is_flag=True, help="Show also the other credentials of the store.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON, of all credentials.")
def status(keys_file: Path | None, key_env: str | None, store: str | None, shows_all: bool, is_json: bool) -> None:
    """Show each credential in one row: leases of it that are in use, its limits with what is used of them, and why it
    is not used now; then which item of which run holds a lease. Without keys: those of the newest run that has some.

    \b
    Examples:
      agentos keys
      agentos keys status --keys keys.toml
      agentos keys status --key-env 'OPENAI_API_KEY*' --json
    """
    declared, store = _keys_or_newest(keys_file, key_env, store)
    disabled = disabled_keys.disabled()
    store_choice = choose_store(store, declared)
    pool = _read_store(store_choice)
    if declared is None and not disabled and not pool.states:
        raise _no_keys()
    if is_json:
        click.echo(_json(_status_record(declared, disabled, store_choice, pool)))
        return
    states, other_count = pool.states, 0
    if declared is not None:
        _warn(declared)
        if not shows_all:
            ids = set(_ids(declared))
            other_count = len({state.key_id for state in states}.union(disabled) - ids)
            states = [state for state in states if state.key_id in ids]
            disabled = {id_: reason for id_, reason in disabled.items() if id_ in ids}
    click.echo("\n".join([*key_lines(declared, disabled, states), *lease_lines(states), *member_lines(pool)]))
    if pool.states:
        click.echo(f"\nUsage and leases: {store_choice.name}")
    if other_count:
        are = "is" if other_count == 1 else "are"
        click.echo(f"{plural(other_count, 'other credential')} {are} not shown: add --all")


def _status_record(
    declared: Keys | None,
    disabled: Mapping[str, str],
    store_choice: StoreChoice,
    pool: PoolView,
) -> dict[str, Any]:
    return {
        "credentials": []
        if declared is None
        else [declared_record(credential, declared, disabled) for credential in declared.credentials],
        "warnings": [] if declared is None else declared.warnings,
        "disabled": disabled,
        "store": store_choice.name,
        "pool": [pool_record(state) for state in pool.states],
        "owner": None if pool.owner is None else pool.owner._asdict(),
        "members": [member._asdict() for member in pool.members],
    }


@keys.command(short_help="Ask the providers whether they accept the keys.")
@_KEYS
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(context: click.Context, keys_file: Path | None, key_env: str | None, is_json: bool) -> None:
    """Ask each provider whether it accepts the key, with one call that costs nothing. Exit status 1 if one does not.

    \b
    Example:
      agentos keys check --keys keys.toml
    """
    from agentos.keys.check import check_all

    results = list(check_all(_require_keys(keys_file, key_env, None)[0]))
    if is_json:
        click.echo(_json(results))
    else:
        disabled = disabled_keys.disabled()
        rows = [
            (result.id, result.provider or EMPTY, result.text + (" (disabled)" if result.id in disabled else ""))
            for result in results
        ]
        click.echo("\n".join(table([("ID", "PROVIDER", "ANSWER"), *rows])))
    context.exit(1 if any(result.is_ok is False for result in results) else 0)


@keys.command(short_help="Take a credential out of use.")
@click.argument("id_", metavar="ID", shell_complete=credential_ids)
@click.option("--reason", default=DEFAULT_REASON, show_default=True, help="Shown with the credential.")
@_KEYS
@_STORE
def disable(id_: str, reason: str, keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Take a credential out of use, also in executing runs, until it is enabled again.

    \b
    Example:
      agentos keys disable team-a --reason "the budget is used up" --keys keys.toml
    """
    declared, store = _keys_or_newest(keys_file, key_env, store)
    store_choice = choose_store(store, declared)
    known = _known_ids(declared, store_choice)
    if not known:
        raise _no_keys()
    _check_ids(known, [id_])
    disabled_keys.disable(id_, reason)
    _set_quarantine(store_choice, {id_: DISABLED + reason})
    click.echo(f"{id_} is disabled, also in executing runs. To undo: agentos keys enable {shlex.quote(id_)}")


@keys.command(short_help="Put a credential back into use.")
@click.argument("id_", metavar="ID", shell_complete=credential_ids)
@_KEYS
@_STORE
def enable(id_: str, keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Put back into use a credential that was disabled, or quarantined after its provider refused it.

    \b
    Example:
      agentos keys enable team-a
    """
    declared = _read_keys(keys_file, key_env)
    store_choice = choose_store(store, declared)
    changed_ids = [*disabled_keys.enable([id_]), *_set_quarantine(store_choice, {id_: None})]
    if not changed_ids:
        _check_ids(_known_ids(declared, store_choice), [id_])
    click.echo(f"{id_} is enabled." if changed_ids else "No credential with this id was disabled or quarantined.")


@keys.command(short_help="End a cool-down or a quarantine.")
@click.argument("id_", metavar="ID", shell_complete=credential_ids)
@_KEYS
@_STORE
def clear(id_: str, keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Use a credential again at once, also in executing runs: end its quarantine, and the cool-downs of itself, its
    group and its provider, also those that the provider asked for. A credential that was disabled by hand stays so.

    \b
    Example:
      agentos keys clear team-a
    """
    declared = _read_keys(keys_file, key_env)
    store_choice = choose_store(store, declared)
    quarantines = {state.key_id: state.quarantined or "" for state in _read_store(store_choice).states}
    if id_ in disabled_keys.disabled() or quarantines.get(id_, "").startswith(DISABLED):
        raise Failure(f"{id_} is disabled by hand. To use it again: agentos keys enable {shlex.quote(id_)}")
    try:
        is_cleared = shared_state.clear(store_choice.url, id_)
    except StoreError as error:
        raise store_failure(error) from None
    if not is_cleared:
        _check_ids(_known_ids(declared, store_choice), [id_])
    click.echo(f"{id_} is usable again." if is_cleared else "No credential with this id cools down or is quarantined.")


@keys.command(short_help="Enable all credentials.")
@_KEYS
@_STORE
def reset(keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Enable all disabled or quarantined credentials; with --keys or --key-env only those.

    \b
    Example:
      agentos keys reset
    """
    declared = _read_keys(keys_file, key_env)
    store_choice = choose_store(store, declared)
    ids = disabled_keys.enable(None if declared is None else _ids(declared))
    candidates = (
        _ids(declared) if declared is not None else [state.key_id for state in _read_store(store_choice).states]
    )
    ids += [id_ for id_ in _set_quarantine(store_choice, dict.fromkeys(candidates)) if id_ not in ids]
    click.echo(f"Enabled: {', '.join(ids)}." if ids else "No credential was disabled or quarantined.")


@keys.command(short_help="Move a damaged pool aside.")
@_KEYS
@_STORE
def repair(keys_file: Path | None, key_env: str | None, store: str | None) -> None:
    """Move the damaged file of a shared pool aside, as PATH.damaged-1, so that runs can begin with a new one. Refuses
    while runs use the pool, and if nothing is damaged.

    \b
    Example:
      agentos keys repair
    """
    store_choice = choose_store(store, _read_keys(keys_file, key_env))
    try:
        moved = shared_state.repair(store_choice.url)
    except StoreError as error:
        raise Failure(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(
        f"The damaged pool is now {moved}.\n"
        "The next run begins with a new pool, which does not know what was used today, nor which keys are quarantined."
    )


# --- which keys -------------------------------------------------------------------------------------------------------


def _read_keys(file: Path | None, pattern: str | None) -> Keys | None:
    """Return the keys that the options name; None without options. An option that was typed outranks a variable of the
    environment; two of the same rank are an error."""
    if file is not None and pattern is not None:
        context = click.get_current_context()
        typed = [
            name
            for name in ("keys_file", "key_env")
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        ]
        if len(typed) != 1:
            raise click.UsageError("--keys and --key-env exclude each other: give one of them")
        file, pattern = (file, None) if typed == ["keys_file"] else (None, pattern)
    if file is not None:
        return load_keys(file)
    return None if pattern is None else keys_from_environment(pattern, os.environ)


def _keys_or_newest(file: Path | None, pattern: str | None, store: str | None) -> tuple[Keys | None, str | None]:
    """Return the keys and the store that the options name; without options, those of the newest run that has keys."""
    keys = _read_keys(file, pattern)
    if keys is not None or store is not None:
        return keys, store
    spec = _newest_with_keys()
    if spec is None:
        return None, None
    name = spec.options.get("keys") or spec.options["key_env"]
    try:
        keys = read_keys(spec.options.get("keys"), spec.options.get("key_env"), spec.cwd)
    except KeysFileError as error:
        click.echo(f"Warning: the keys of run {spec.run_id} cannot be read: {error}", err=True)
        return None, spec.options.get("store")
    click.echo(f"Keys of run {spec.run_id}: {name}", err=True)
    return keys, spec.options.get("store")


def _newest_with_keys() -> RunSpec | None:
    """Return the newest run with keys that can be read. A demo's keys exist only while it runs."""
    for folder in run_folders():
        with contextlib.suppress(HomeError):
            spec = folder.read_spec()
            if ("keys" in spec.options or "key_env" in spec.options) and not folder.run_id.startswith(DEMO):
                return spec
    return None


def _require_keys(file: Path | None, pattern: str | None, store: str | None) -> tuple[Keys, str | None]:
    keys, store = _keys_or_newest(file, pattern, store)
    if keys is None:
        raise _no_keys()
    _warn(keys)
    return keys, store


def _no_keys() -> click.UsageError:
    newest = next(run_folders(), None)
    demo = ""
    if newest is not None and newest.run_id.startswith(DEMO):
        demo = ". The keys of the newest run, a demo, existed only while it ran"
    return click.UsageError(f"no keys given: use --keys FILE or --key-env PATTERN, or set AGENTOS_KEYS{demo}")


def _warn(keys: Keys) -> None:
    for warning in keys.warnings:
        click.echo(f"Warning: {warning}", err=True)


def _ids(keys: Keys) -> list[str]:
    return [credential.id for credential in keys.credentials]


def _known_ids(keys: Keys | None, store: StoreChoice) -> list[str]:
    """Return the ids of the declared credentials; without any, of all that the store knows."""
    return [state.key_id for state in _read_store(store).states] if keys is None else _ids(keys)


def _check_ids(known: list[str], ids: Iterable[str]) -> None:
    """Raise for an unknown id, if any are known. The message does not repeat it: it may be the key itself."""
    if known and not set(ids) <= set(known):
        raise click.UsageError(f"no credential has this id; there are {', '.join(known)}")


# --- the store that runs share ----------------------------------------------------------------------------------------


def _read_store(store: StoreChoice) -> PoolView:
    try:
        return shared_state.look(store.url)
    except StoreError as error:
        raise store_failure(error) from None


def _set_quarantine(store: StoreChoice, reasons: Mapping[str, str | None]) -> list[str]:
    """Quarantine credentials in the store, or restore those whose reason is None. Return the ids that changed."""
    try:
        return shared_state.set_quarantine(store.url, reasons)
    except StoreError as error:
        problem = "changed for runs on this machine, but the shared store could not be updated"
        raise Failure(f"{problem}: {error}") from None


def _json(record: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
