"""Reads the keys file, a TOML file with credentials, or keys from environment variables.

Resolves no reference and runs no command. Every error has the file, the line and what was expected. No error contains a
value: a value in the wrong place may be a key.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentos.costs.prices import Price
from agentos.errors import KeysFileError
from agentos.limits.declaration import AUTO, Limits, strictest
from agentos.pool.credential import Credential
from agentos.pool.order import LEAST_LOADED, ORDERS, check_order
from agentos.pool.references import is_reference
from agentos.pool.store_url import absolute, passwords
from agentos.providers.patterns import Pattern
from agentos.providers.presets import PROVIDER_NAMES, preset_of, preset_of_variable
from agentos.redaction.mask import MIN_REDACTED
from agentos.verdict import VERDICT_KINDS

from ._limits import LIMITS, WINDOWS, credential_limits, group_limits
from ._settings import SettingsReader, read_source
from ._toml_table import Table, nearest, parse

ENTRIES = ("credential", "group", "order", "pattern", "price", "provider", "store")
SETTINGS = ("base_url", "headers", "command_env")
CREDENTIAL = (
    "secret",
    "id",
    "provider",
    "quota_group",
    "scopes",
    "credential_env",
    *SETTINGS,
    "limits",
    *LIMITS,
    WINDOWS,
)
PATTERN = ("match", "verdict", "retry_after")
PRICE = ("input", "output", "cache_read", "cache_write")
PROVIDER = ("credential_env", "day_resets", "base_url")


# Bytes: more than any keys file has. A device or a wrong file must not fill the memory.
MAX_FILE_BYTES = 16 << 20
# Of a key in a variable of the environment: as for a key in a file that declares none.
NO_LIMITS = Limits(max_concurrent=AUTO)


@dataclass(frozen=True)
class Keys:
    """Credentials and settings of a keys file or of the environment. References are not resolved."""

    credentials: list[Credential]
    variables: dict[str, str] = field(default_factory=dict)  # credential id -> variable for the key in a command
    patterns: list[Pattern] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    # credential id -> `env:…`, `file:…` or `cmd:…`; no repr, as the arguments of a command may be secret
    references: dict[str, str] = field(default_factory=dict, repr=False)
    base_urls: dict[str, str] = field(default_factory=dict)  # by provider
    prices: dict[str, Price] = field(default_factory=dict)  # by model or pattern
    store: str | None = field(default=None, repr=False)  # URL of the pool's store; may contain a password
    order: str = LEAST_LOADED  # in which credentials are granted
    places: dict[str, str] = field(default_factory=dict)  # credential id -> file and line; empty for variables


def load_keys(path: Path) -> Keys:
    """Read a keys file. Raises `KeysFileError`."""
    return _Reader(path).keys()


def keys_from_environment(pattern: str, environ: Mapping[str, str]) -> Keys:
    """Return the keys in variables whose names match a pattern such as `OPENAI_API_KEY*`. Raises `KeysFileError`."""
    names = sorted((name for name in environ if fnmatch.fnmatchcase(name, pattern)), key=_natural)
    if not names:
        raise KeysFileError(f"no environment variable matches {pattern}: set one, or change --key-env")
    keys = Keys([])
    owners: dict[str, str] = {}
    for name in names:
        value = environ[name].strip()
        if not value:
            keys.warnings.append(f"{name} is empty and is ignored")
        elif value in owners:
            keys.warnings.append(f"{name} has the same value as {owners[value]} and is ignored")
        else:
            owners[value] = name
            _add_variable(keys, name)
    if not keys.credentials:
        raise KeysFileError(f"every environment variable that matches {pattern} is empty")
    return keys


def _add_variable(keys: Keys, name: str) -> None:
    id_ = name.lower().replace("_", "-")
    if id_ in keys.references:
        raise KeysFileError(
            f"{keys.references[id_].removeprefix('env:')} and {name} would both get the id {id_}: rename one"
        )
    preset = preset_of_variable(name)
    credential = Credential(f"env:{name}", id=id_, provider=None if preset is None else preset.name, limits=NO_LIMITS)
    keys.credentials.append(credential)
    keys.references[id_] = f"env:{name}"
    if preset is not None:
        keys.variables[id_] = preset.variable


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts KEY_2 before KEY_10. Without `int`, which refuses thousands of digits."""
    pieces = re.split(r"([0-9]+)", name)
    return [(len(number := piece.lstrip("0")), number) if n % 2 else (-1, piece) for n, piece in enumerate(pieces)]


class _Reader:
    """Builds `Keys` from one file."""

    def __init__(self, path: Path) -> None:
        self._file = path
        text, self._mode = _read(path)
        self._root = parse(path, text)
        self._providers: dict[str, Table] = {}
        self._owners: dict[tuple[str, str], Table] = {}  # ("id" or "secret", value) -> its credential
        self._in_plain: list[str] = []
        self._groups: dict[str, Table] = {}  # by name of the quota group
        self._keys = Keys([])
        self._settings = SettingsReader(self._keys.warnings)

    def keys(self) -> Keys:
        self._root.check_names(ENTRIES, "a keys file")
        self._keys = replace(self._keys, store=self._store(), order=self._order())
        if "provider" in self._root.values:
            self._read_providers(self._root.sub_table("provider"))
        if "price" in self._root.values:
            prices = self._root.sub_table("price")
            self._keys.prices.update({model: _price(prices.sub_table(model)) for model in prices.values})
        credentials = self._root.tables("credential")
        if not credentials:
            self._root.fail(None, 'there is no credential: write [[credential]] and below it secret = "env:NAME"')
        groups = self._root.sub_table("group") if "group" in self._root.values else None
        self._groups = {} if groups is None else {name: groups.sub_table(name) for name in groups.values}
        for table in credentials:
            self._read_credential(table)
        for name, group in self._groups.items():
            if name not in {credential.quota_group for credential in self._keys.credentials}:
                group.fail(None, "no credential has this group as its quota_group")
        self._keys.patterns.extend(map(_pattern, self._root.tables("pattern")))
        if self._in_plain:
            self._keys.warnings.append(
                f"{self._file} holds keys in plain text ({', '.join(self._in_plain)}): write env:NAME, file:PATH or "
                "cmd:COMMAND to keep them out of copies and backups"
            )
        return self._keys

    def _store(self) -> str | None:
        """Return the URL of the store; a relative path counts from the keys file. Does not connect."""
        url = self._root.text("store")
        if url is None:
            return None
        try:
            secrets = passwords(url)
        except ValueError as error:
            self._root.fail("store", str(error))
        if secrets and self._mode & 0o077:
            self._root.fail(
                "store",
                "a plain-text password in a file that other users can read: run "
                f"chmod 600 {shlex.quote(str(self._file))}, or set AGENTOS_STORE instead",
            )
        return absolute(url, self._file.absolute().parent)

    def _read_providers(self, providers: Table) -> None:
        for name in providers.values:
            table = providers.sub_table(name)
            table.check_names(PROVIDER, "a provider")
            table.variable("credential_env")
            table.day_resets()
            provider = _canonical_name(name)
            if provider in self._providers:
                table.fail(None, f"the provider {provider} already has a table, under another name")
            self._providers[provider] = table
            base_url = self._settings.base_url(table, str(table.path[-1]))
            if base_url is not None:
                if is_reference(base_url):
                    table.fail("base_url", "base_url of a provider is an address; a credential's may be a reference")
                self._keys.base_urls[provider] = base_url

    def _read_credential(self, table: Table) -> None:
        table.check_names(CREDENTIAL, "a credential")
        has_secret = "secret" in table.values or not table.values.get("command_env")
        source = _secret(table) if has_secret else None
        names = {key: table.text(key) for key in ("id", "provider", "quota_group")}
        provider = None if names["provider"] is None else _canonical_name(names["provider"])
        self._suggest_provider(table, provider)
        scopes = _scopes(table)
        if source is None:
            names["id"] = table.required_text("id", '"team-a"')
        else:
            _check_names(table, names, source)
        credential = Credential(
            source,
            id=names["id"],
            provider=provider,
            quota_group=names["quota_group"],
            scopes=scopes,
            limits=self._limits(table, provider, names["quota_group"]),
            **self._settings.of_credential(table, names["id"])._asdict(),
        )
        self._must_be_new(
            table, ("use", _use_of(source, credential)), "the same secret" if source else "the same command_env"
        )
        self._must_be_new(table, ("id", credential.id), "the same id")
        self._keys.credentials.append(credential)
        self._keys.places[credential.id] = f"{self._file}, line {table.line}"
        if source is not None and is_reference(source):
            self._keys.references[credential.id] = source
        elif source is not None:
            self._allow_in_plain(table, credential.id)
        variable = table.variable("credential_env") or self._variable(provider)
        if variable is not None:
            if variable in credential.sources.command_env:
                table.fail("command_env", f"command_env and credential_env both name {variable}")
            self._keys.variables[credential.id] = variable

    def _order(self) -> str:
        order = self._root.text("order") or LEAST_LOADED
        try:
            check_order(order)
        except ValueError:
            self._root.fail("order", f"order must be one of {', '.join(ORDERS)}")
        return order

    def _limits(self, table: Table, provider: str | None, group: str | None) -> Limits:
        """Return the limits of a credential and of its group: the stricter of both."""
        day_resets = self._day_resets(provider)
        limits = credential_limits(table, day_resets)
        if group not in self._groups:
            return limits
        of_group = group_limits(self._groups[group], day_resets)
        return replace(strictest(limits, of_group), max_concurrent=limits.max_concurrent)

    def _suggest_provider(self, table: Table, provider: str | None) -> None:
        """Warn of a provider that is not known but spelled like one that is."""
        if provider is None or provider in self._providers or preset_of(provider) is not None:
            return
        near = nearest(provider, [*PROVIDER_NAMES, *self._providers])
        if near is not None:
            line = table.line_of("provider")
            self._keys.warnings.append(
                f"{self._file}, line {line}: the provider {provider!r} is not known: did you mean {near}?"
            )

    def _must_be_new(self, table: Table, key: tuple[str, str], description: str) -> None:
        if key in self._owners:
            table.fail(None, f"the credential in line {self._owners[key].line} already has {description}")
        self._owners[key] = table

    def _allow_in_plain(self, table: Table, id_: str) -> None:
        if self._mode & 0o077:
            table.fail(
                "secret",
                "a plain-text key in a file that other users can read: run "
                f"chmod 600 {shlex.quote(str(self._file))}, or write env:NAME, file:PATH or cmd:COMMAND",
            )
        self._in_plain.append(id_)

    def _variable(self, provider: str | None) -> str | None:
        if provider in self._providers and "credential_env" in self._providers[provider].values:
            return self._providers[provider].variable("credential_env")
        preset = preset_of(provider)
        return None if preset is None else preset.variable

    def _day_resets(self, provider: str | None) -> str | None:
        """Return when the provider's day begins, for credentials with a daily limit that do not say so themselves."""
        if provider in self._providers and "day_resets" in self._providers[provider].values:
            return self._providers[provider].day_resets()
        preset = preset_of(provider)
        return None if preset is None else preset.day_resets


def _read(path: Path) -> tuple[str, int]:
    """Return the text of a file and its mode."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a path"
        raise KeysFileError(f"the keys file {path} cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise KeysFileError(f"the keys file {path} has more than {MAX_FILE_BYTES >> 20} MiB: it is no keys file")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n"), mode
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise KeysFileError(f"{path}, line {line}: not UTF-8: save the keys file as UTF-8") from None


def _canonical_name(provider: str) -> str:
    """Return the preset's name for any of its aliases; other names unchanged."""
    preset = preset_of(provider)
    return provider if preset is None else preset.name


def _secret(table: Table) -> str:
    """Return the secret or a reference to it. A relative path counts from the keys file."""
    source = read_source(table, "secret", table.required_text("secret", '"env:NAME"'))
    if not is_reference(source) and any(map(str.isspace, source)):
        table.fail("secret", "a key contains no spaces; a reference is env:NAME, file:PATH or cmd:COMMAND")
    return source


def _check_names(table: Table, names: dict[str, str | None], source: str) -> None:
    """Fail for a name that contains the secret."""
    is_plain = not is_reference(source) and len(source) >= MIN_REDACTED
    for key, name in names.items():
        if name == source or (is_plain and source in (name or "")):
            table.fail(key, f"{key} is displayed and must not contain the secret")


def _use_of(source: str | None, credential: Credential) -> str:
    """Return a text that two credentials have in common if they are the same: the secret and all settings."""
    base_url, headers, command_env = credential.sources
    return repr((source, base_url, sorted(headers.items()), sorted(command_env.items())))


def _scopes(table: Table) -> list[str]:
    scopes = table.values.get("scopes", [])
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope for scope in scopes):
        table.fail("scopes", 'scopes must be a list of names, such as ["gpt-5-mini"]')
    return scopes


def _price(table: Table) -> Price:
    """Return the money per million tokens of a model."""
    for name, value in table.values.items():
        if isinstance(value, dict):  # a dot in the name
            table.sub_table(name).fail(None, 'write the name of the model in quotes: [price."MODEL"]')
    table.check_names(PRICE, "a price")
    amounts: dict[str, float | None] = {}
    for name in PRICE:
        amount = amounts[name] = table.number(name, "money per million tokens, such as 2.5")
        if amount is not None and not 0 <= amount < 1e9:
            table.fail(name, f"{name} must be money per million tokens, from 0")
    if amounts["input"] is None or amounts["output"] is None:
        table.fail(None, "a price needs input and output: money per million tokens")
    return Price(**amounts)  # type: ignore[arg-type]


def _pattern(table: Table) -> Pattern:
    table.check_names(PATTERN, "a pattern")
    expression = table.required_text("match", "'rate limit'", is_one_line=False)
    kinds = sorted(VERDICT_KINDS)
    verdict = table.required_text("verdict", '"rate_limited"').replace("-", "_")
    if verdict not in VERDICT_KINDS:
        near = nearest(verdict, kinds)
        advice = f"; did you mean {near}?" if near else ""
        table.fail("verdict", f"verdict must be one of {', '.join(kinds)}{advice}")
    retry_after = table.number("retry_after", "a number of seconds")
    if retry_after is not None and not 0 <= retry_after < 1e9:
        table.fail("retry_after", "retry_after must be a number of seconds from 0")
    try:
        with warnings.catch_warnings():
            # Warns of sets whose meaning may change in a later Python.
            warnings.simplefilter("ignore", FutureWarning)
            compiled = re.compile(expression)
        return Pattern(compiled, verdict, None if retry_after is None else float(retry_after))
    except (re.error, OverflowError, RecursionError) as error:
        # Without the names that the message quotes.
        reason = error.msg.partition(" '")[0] if isinstance(error, re.error) else "too large"
        table.fail("match", f"match must be a regular expression: {reason}")
