"""Properties of the keys file and of keys in the environment: any input gives keys, or an error without a key."""

from __future__ import annotations

import json
import os
import re
from datetime import date
from typing import Any

import pytest
from hypothesis import example
from hypothesis import strategies as st

from agentos.errors import KeysFileError
from agentos.keys.keys_file import (
    CREDENTIAL,
    LIMITS,
    PATTERN,
    PROVIDER,
    Keys,
    keys_from_environment,
    load_keys,
)
from tests.support.properties import holds_for
from tests.support.texts import NUMBERS, ODD, fuzzy, mutated, scratch

# Of letters, of digits and of characters that a shell changes. No eight of their characters in a row may be printed.
SECRETS = ["sk-Canary-Qx7WvZr2LmTk9", "73190246851973024685", "canary/Zw+8$`Hq'Lp=="]
NAMES = st.sampled_from(["a", "team-b", "gpt-5-mini", "project 7", "ü"])
ZONES = ["00:00 UTC", "06:30 America/Los_Angeles", "23:59 Asia/Tokyo"]


# --- generated files ------------------------------------------------------------------------------------------------


CREDENTIALS = st.fixed_dictionaries(
    {},
    optional={
        "provider": st.sampled_from(["openai", "gemini", "Claude", "my-own"]),
        "quota_group": NAMES,
        "scopes": st.lists(NAMES, max_size=2),
        "credential_env": st.sampled_from(["KEY", "_K2"]),
        "requests_per_minute": st.integers(1, 10**6) | st.sampled_from([0.5, 1e-3, 1e14]),
        "tokens_per_minute": st.integers(1, 10**9),
        "requests_per_day": st.integers(1, 10**6),
        "max_concurrent": st.integers(1, 100),
        "burst": st.integers(1, 50),
        "day_resets": st.sampled_from(ZONES),
        "base_url": st.sampled_from(["https://eu.example/v1", "http://127.0.0.1:80", "env:URL"]),
        "headers": st.dictionaries(st.sampled_from(["OpenAI-Project", "x-region"]), st.sampled_from(["p", "env:H"])),
        "command_env": st.dictionaries(st.sampled_from(["AWS_REGION", "DIR"]), st.sampled_from(["", "~/x", "file:f"])),
    },
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Generate a valid keys file, with at most one secret in plain."""
    document: dict[str, Any] = {"credential": []}
    for number in range(draw(st.integers(1, 3))):
        is_plain = number == 0 and draw(st.booleans())
        secret = draw(st.sampled_from(SECRETS)) if is_plain else f"env:KEY_{number}"
        document["credential"].append({"secret": secret, "id": f"c{number}", **draw(CREDENTIALS)})
    if draw(st.booleans()):
        document["pattern"] = [{"match": r"wait (?P<seconds>\d+)", "verdict": "rate_limited", "retry_after": 5}]
    if draw(st.booleans()):
        document["provider"] = {"my-own": {"base_url": "https://host.example/v1", "day_resets": ZONES[0]}}
    return document


def toml(document: dict[str, Any], end: str = "\n") -> str:
    """Return a document as TOML, one table after the other."""
    lines: list[str] = []
    for name, content in document.items():
        if isinstance(content, dict):
            for inner, table in content.items():
                lines += [f"[{key(name)}.{key(inner)}]"] if isinstance(table, dict) else []
                lines += pairs(table if isinstance(table, dict) else {inner: table})
        elif isinstance(content, list) and all(isinstance(table, dict) for table in content):
            for table in content:
                lines += [f"[[{key(name)}]]", *pairs(table), ""]
        else:
            lines.insert(0, f"{key(name)} = {value(content)}")
    return end.join([*lines, ""])


def pairs(table: dict[str, Any]) -> list[str]:
    return [f"{key(name)} = {value(content)}" for name, content in table.items()]


def key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else value(name)


def value(thing: Any) -> str:
    if isinstance(thing, str):
        return json.dumps(thing).replace("\x7f", "\\u007f")
    if isinstance(thing, dict):
        return "{" + ", ".join(pairs(thing)) + "}"
    if isinstance(thing, list):
        return "[" + ", ".join(map(value, thing)) + "]"
    return thing.isoformat() if isinstance(thing, date) else json.dumps(thing).replace("Infinity", "inf").lower()


# --- properties -----------------------------------------------------------------------------------------------------


def outcome(content: bytes) -> Keys | str:
    path = scratch() / "keys.toml"
    path.write_bytes(content)
    path.chmod(0o600)
    try:
        return load_keys(path)
    except KeysFileError as error:
        return str(error).replace(str(path), "FILE")


def shows_secret(text: str) -> bool:
    return any(secret[at : at + 8] in text for secret in SECRETS for at in range(len(secret) - 7))


def check(content: bytes) -> None:
    keys = outcome(content)
    if isinstance(keys, str):
        match = re.match(r"FILE, line (\d+): \S.*", keys, re.DOTALL)
        assert match is not None, keys
        assert 1 <= int(match[1]) <= content.count(b"\n") + 1
        assert not shows_secret(keys), keys
    else:
        assert keys.credentials
        names = [credential.id + str(credential.provider) + credential.quota_group for credential in keys.credentials]
        if not shows_secret("".join([*names, *keys.base_urls])):  # ids and names may be printed
            assert not shows_secret("".join(keys.warnings)), keys.warnings


@holds_for(
    examples=10,
    document=documents(),
    end=st.sampled_from(["\n", "\r\n", "\n\n", " # a comment\n"]),
    start=st.sampled_from(["", "\ufeff", "# ü\n"]),
)
def test_generated_file_loads_as_written(document: dict[str, Any], end: str, start: str) -> None:
    keys = outcome((start + toml(document, end)).encode())
    assert isinstance(keys, Keys), keys
    for table, credential in zip(document["credential"], keys.credentials, strict=True):
        assert credential.id == table["id"]
        assert credential.scopes == frozenset(table.get("scopes", ()))
        limits = {name: getattr(credential.limits, name) for name in LIMITS if name in table}
        assert limits == {name: table[name] for name in LIMITS if name in table}
        assert keys.references.get(credential.id, table["secret"]) == table["secret"]
    assert not shows_secret(repr(keys))
    assert not shows_secret("".join(keys.warnings))


PIECES = [
    piece.encode("utf-8", "surrogatepass")
    for piece in [
        *ODD, *NUMBERS, *SECRETS, "\n", "=", "[", "]", "[[", "]]", "{", "}", ",", ".", "#", '"""', "'''", "''",
        "\\u0000", "\\U00110000", "[[credential]]\n", "[credential]\n", "[provider.x]\n", "[credential.limits]\n",
        "[a.b.c]\n", "1979-05-27T07:32:00Z", "07:32", "true", "{a = [[{}]]}", "[" * 2000, "{a=" * 400,
        "a." * 500 + "a = 1\n", 'secret = "', 'id = "c0"\n', "\nmatch = '(?P<73190246851973024685>'\n",
        "\nmatch = '[[a]'\n", "\nbase_url = 'http://[::1'\n", "\nday_resets = '00:00 America'\n",
    ]
]  # fmt: skip


@holds_for(
    examples=20,
    content=mutated(documents().map(toml).map(str.encode), PIECES) | st.binary(max_size=60) | fuzzy().map(
        lambda text: text.encode("utf-8", "surrogatepass")
    ),
)  # fmt: skip
@example(content=b"\xff\xfe[\0[\0")
@example(content=b'[[credential]]\nsecret = "env:A"\nid = "x"\n[[pattern]]\nmatch = "[[a]"\nverdict = "transient"\n')
@example(content=f'["{SECRETS[0]}"]\n["{SECRETS[0]}"]\n'.encode())
@example(content=f'a = {{ "{SECRETS[1]}" = 1, "{SECRETS[1]}" = 2 }}\n'.encode())
@example(content=b"[" * 100_000)
@example(content=b"a=" + b"[" * 100_000 + b"]" * 100_000)
def test_damaged_file_error_has_line_and_no_key(content: bytes) -> None:
    check(content)


VALUES = st.recursive(
    st.sampled_from([*SECRETS, *(f"env:{secret}" for secret in SECRETS[:2]), *ODD[:8]])
    | st.sampled_from([0, -1, 73190246851973024685, -73190246851973024685, 73190246851973024685.5, 10**4000])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(
        [True, 1.5, float("inf"), float("nan"), date(2026, 11, 16), "(?P<73190246851973024685>)", "(" * 3000]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*LIMITS, *SECRETS, "secret", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
).filter(lambda thing: "\ud800" not in repr(thing) and not (isinstance(thing, str) and "\ud800" in thing))


@holds_for(examples=20, document=documents(), data=st.data())
def test_unexpected_value_error_has_line_and_no_key(document: dict[str, Any], data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        table, names = (
            data.draw(
                st.sampled_from(
                    [
                        (document, ("credential", "pattern", "provider")),
                        (document.setdefault("provider", {}), ("my-own", "openai", "claude")),
                        *((each, CREDENTIAL) for each in document["credential"] if isinstance(each, dict)),
                        ({}, PROVIDER),
                        ({}, PATTERN),
                    ]
                )
            )
            if isinstance(document.get("credential"), list) and isinstance(document.get("provider", {}), dict)
            else (document, ())
        )
        name = data.draw(st.sampled_from([*names, *SECRETS, "api_key", "über", ""]))
        table[name] = data.draw(VALUES)
        if names is PROVIDER:
            document["provider"]["my-own"] = table
        elif names is PATTERN:
            document["pattern"] = [{"match": "x", "verdict": "transient", **table}]
    check(toml(document).encode())


TEXTS = ("secret", "id", "provider", "quota_group", "credential_env", "day_resets")
FIGURES = ("requests_per_minute", "tokens_per_minute", "burst")
WRONG: dict[str, list[Any]] = {
    **{name: [1, True, [], {}, ""] for name in TEXTS},
    **{name: ["x", 0, -1, float("nan"), True, [1]] for name in FIGURES},
    "requests_per_day": ["x", 0.5, 0, 1e16],
    "max_concurrent": ["x", 0, 1.5, True],
    "scopes": ["gpt", [""], [1], 5],
    "limits": [1, "x", [], {"requests": 5}],
}


BEFORE = ["", "# ü\n\n", "[[pattern]]\nmatch = '''\n[\n\n]'''\nverdict = 'transient'\n"]


@holds_for(examples=10, document=documents(), data=st.data())
def test_wrong_value_error_has_its_own_line(document: dict[str, Any], data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(document["credential"]))
    name = data.draw(st.sampled_from(sorted(WRONG)))
    wrong = data.draw(st.sampled_from(WRONG[name]))
    table[name] = wrong
    text = data.draw(st.sampled_from(BEFORE)) + toml(document)
    line = next(number for number, line in enumerate(text.split("\n"), 1) if line == f"{key(name)} = {value(wrong)}")
    message = outcome(text.encode())
    assert isinstance(message, str)
    assert message.startswith(f"FILE, line {line}: ")
    assert name in message or "limits" in message


# --- from the environment -------------------------------------------------------------------------------------------


@holds_for(
    environ=st.dictionaries(
        (st.sampled_from(["KEY", "key_", "KEY_1", "KEY-1", "KEY_01", "OPENAI_API_KEY", "9" * 5000]) | fuzzy(8)).map(
            lambda name: name.replace("\0", "").replace("=", "") or "K"
        ),
        st.sampled_from([*SECRETS, "", " "]) | fuzzy(12),
        max_size=5,
    ),
    pattern=st.sampled_from(["*", "KEY*", "[", "[z-a]*", "[!K]*", "?EY_*", "**", "[[a]*"]) | fuzzy(6),
)
@example(environ={"K" + "9" * 5000: "a", "K" + "9" * 4999: "b"}, pattern="*")
def test_any_environment_gives_keys_or_error_without_key(environ: dict[str, str], pattern: str) -> None:
    try:
        keys = keys_from_environment(pattern, environ)
    except KeysFileError as error:
        message = str(error)
    else:
        message = "".join(keys.warnings) + repr(keys)
        assert len(keys.credentials) == len(keys.references) >= 1
        assert {reference.removeprefix("env:") for reference in keys.references.values()} <= set(environ)
    assert not shows_secret(message)


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@holds_for(examples=10, secret=st.sampled_from(SECRETS), mode=st.integers(0, 0o177).map(lambda mode: 0o400 | mode))
def test_plain_key_is_refused_for_every_readable_mode(secret: str, mode: int) -> None:
    path = scratch() / "plain.toml"
    path.unlink(missing_ok=True)
    path.write_text(f"[[credential]]\nsecret = {value(secret)}\n")
    path.chmod(mode)
    try:
        message = "".join(load_keys(path).warnings)
    except KeysFileError as error:
        message = str(error)
    assert ("other users can read" in message) == bool(mode & 0o077)
    assert not shows_secret(message)
