"""Reads the settings of a credential from its table: base URL, headers and variables of commands, with references."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from agentos.pool import credential_settings as settings
from agentos.pool.credential import Sources
from agentos.pool.references import is_reference

from ._toml_table import VARIABLE, Table

_REFERENCE = re.compile(r"(env|file|cmd):(.*)", re.DOTALL)
_EXAMPLES = {"env": "env:OPENAI_API_KEY", "file": "file:~/keys/openai", "cmd": "cmd:pass show openai"}
_MISSING = {"env": "the name of a variable", "file": "the path of a file", "cmd": "a command"}
# Headers whose values are keys: they must be references, because plain values are not redacted.
_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"})


class SettingsReader:
    """Reads the settings of one file; adds to its warnings."""

    def __init__(self, warnings: list[str]) -> None:
        self._warnings = warnings

    def of_credential(self, table: Table, name: str | None) -> Sources:
        """Return the settings of a credential. `name`: what a warning calls it."""
        headers = _values(table, "headers", settings.check_headers)
        for header, value in headers.items():
            if header.lower() in _SECRET_HEADERS and not is_reference(value):
                table.sub_table("headers").fail(
                    header, f"{header} is a key: write it as a reference (env:NAME, file:PATH or cmd:COMMAND)"
                )
        return Sources(
            self.base_url(table, name or "a credential"),
            headers,
            _values(table, "command_env", settings.check_command_env),
        )

    def base_url(self, table: Table, name: str) -> str | None:
        """Return the base URL in a table. Does not connect."""
        text = table.text("base_url")
        if text is None:
            return None
        base_url = read_source(table, "base_url", text)
        try:
            base_url = settings.checked_base_url(base_url)
        except ValueError as error:
            table.fail("base_url", str(error))
        if not is_reference(base_url):
            url = urlsplit(base_url)
            if url.scheme == "http" and url.hostname not in settings.LOCAL_HOSTS:
                self._warnings.append(f"base_url of {name} is not https: keys would be sent unencrypted")
        return base_url


def _values(table: Table, key: str, check: Callable[[object], None]) -> dict[str, str]:
    """Return the sub-table `key` as names and values; empty if there is none."""
    if key not in table.values:
        return {}
    values: dict[str, str] = {}
    rows = table.sub_table(key)
    for name, value in rows.values.items():
        if not isinstance(value, str):
            rows.fail_kind(name, "a string in quotes")
        try:
            check({name: value})
            values[name] = read_source(rows, name, value)
            check(values)  # all together: two headers may differ in case only
        except ValueError as error:
            rows.fail(name, str(error))
    return values


def read_source(table: Table, key: str, source: str) -> str:
    """Return a value, or a reference to one. A relative path of a file counts from the keys file. Fail for a reference
    that is not written well."""
    if re.fullmatch(r"\$\w+|\$\{\w+\}", source):
        table.fail(key, "a variable is written as env:NAME, without a dollar sign")
    reference = _REFERENCE.fullmatch(source)
    if reference is None:
        return source
    kind, target = reference.groups()
    if not target.strip():
        table.fail(key, f"{_MISSING[kind]} is missing after {kind}:, such as {_EXAMPLES[kind]}")
    if target != target.strip():
        table.fail(key, f"write the reference without spaces around it, such as {_EXAMPLES[kind]}")
    if kind == "env" and not VARIABLE.fullmatch(target):
        table.fail(key, "env: must be followed by the name of an environment variable")
    if kind == "file" and not target.startswith("~"):
        return f"file:{table.file.absolute().parent / target}"
    return source
