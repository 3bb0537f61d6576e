"""The keys file: what it may contain, and the errors for anything else."""

from __future__ import annotations

import pickle
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.errors import KeysFileError
from agentos.keys._toml_lines import line_of
from agentos.keys.keys_file import CREDENTIAL as CREDENTIAL_NAMES
from agentos.keys.keys_file import PATTERN as PATTERN_NAMES
from agentos.keys.keys_file import PROVIDER as PROVIDER_NAMES
from agentos.keys.keys_file import Keys, keys_from_environment, load_keys
from agentos.workflows.parallel import Limits, Price

CANARY = "sk-canary-9f8e7d6c5b4a"
DIGITS = "73190246851973024685"  # a key, too

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "keys.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return path

    return write


def refusal(path: Path) -> str:
    with pytest.raises(KeysFileError) as caught:
        load_keys(path)
    message = str(caught.value)
    assert CANARY not in message
    assert DIGITS not in message
    assert CANARY not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


def load(write: Write, text: str, mode: int = 0o600) -> Keys:
    return load_keys(write(text, mode))


# --- content ----------------------------------------------------------------------------------------------------------


def test_credential_has_all_values_of_its_table(write: Write) -> None:
    keys = load(
        write,
        """
        [[credential]]
        secret = "env:TEAM_A"
        id = "team-a"
        provider = "openai"
        quota_group = "org-1"
        scopes = ["gpt-5", "gpt-5-mini"]
        requests_per_minute = 60
        tokens_per_minute = 90000.5
        requests_per_day = 1000
        max_concurrent = 4
        burst = 10
        day_resets = "09:30 Europe/Berlin"
        """,
    )
    (credential,) = keys.credentials
    assert (credential.id, credential.provider, credential.quota_group) == ("team-a", "openai", "org-1")
    assert credential.scopes == {"gpt-5", "gpt-5-mini"}
    assert credential.limits == Limits(60, 90000.5, 1000, 4, 10, "09:30 Europe/Berlin")
    assert keys.variables == {"team-a": "OPENAI_API_KEY"}
    assert keys.references == {"team-a": "env:TEAM_A"}
    assert keys.warnings == []


def test_concurrency_can_be_learned(write: Write) -> None:
    keys = load(write, '[[credential]]\nsecret = "env:A"\nmax_concurrent = "auto"\n')
    assert keys.credentials[0].limits == Limits(max_concurrent="auto")


def test_limits_are_read_from_sub_table(write: Write) -> None:
    in_table = load(write, '[[credential]]\nsecret = "env:A"\n[credential.limits]\nburst = 3\nmax_concurrent = 2\n')
    in_line = load(write, '[[credential]]\nsecret = "env:A"\nlimits = { burst = 3, max_concurrent = 2 }\n')
    dotted = load(write, '[[credential]]\nsecret = "env:A"\nlimits.burst = 3\nlimits.max_concurrent = 2\n')
    assert [keys.credentials[0].limits for keys in (in_table, in_line, dotted)] == [
        Limits(max_concurrent=2, burst=3)
    ] * 3


def test_preset_adds_variable_and_day_reset(write: Write) -> None:
    keys = load(
        write,
        """
        [[credential]]
        secret = "env:A"
        id = "daily"
        provider = "Google"
        requests_per_day = 250

        [[credential]]
        secret = "env:B"
        id = "own-day"
        provider = "gemini"
        requests_per_day = 250
        day_resets = "00:00 UTC"
        credential_env = "MY_KEY"

        [[credential]]
        secret = "env:C"
        id = "no-day"
        provider = "gemini"

        [[credential]]
        secret = "env:D"
        id = "stranger"
        provider = "our-gateway"
        """,
    )
    assert {key.id: key.limits.day_resets for key in keys.credentials} == {
        "daily": "00:00 America/Los_Angeles",
        "own-day": "00:00 UTC",
        "no-day": "00:00 UTC",
        "stranger": "00:00 UTC",
    }
    assert keys.variables == {"daily": "GEMINI_API_KEY", "own-day": "MY_KEY", "no-day": "GEMINI_API_KEY"}
    assert [key.provider for key in keys.credentials] == ["gemini", "gemini", "gemini", "our-gateway"]


def test_provider_table_overrides_preset(write: Write) -> None:
    keys = load(
        write,
        """
        [provider.google]
        credential_env = "GOOGLE_API_KEY"
        day_resets = "06:00 UTC"
        base_url = "http://127.0.0.1:8080/"
        [provider.our-gateway]
        credential_env = "GATEWAY_KEY"
        base_url = "http://gateway.example/v1"
        [[credential]]
        secret = "env:A"
        id = "a"
        provider = "gemini"
        requests_per_day = 10
        [[credential]]
        secret = "env:B"
        id = "b"
        provider = "our-gateway"
        """,
    )
    assert keys.credentials[0].limits.day_resets == "06:00 UTC"
    assert keys.variables == {"a": "GOOGLE_API_KEY", "b": "GATEWAY_KEY"}
    assert keys.base_urls == {"gemini": "http://127.0.0.1:8080", "our-gateway": "http://gateway.example/v1"}
    assert keys.warnings == ["base_url of our-gateway is not https: keys would be sent unencrypted"]


def test_prices_are_read_by_model_and_pattern(write: Write) -> None:
    text = '[price."m-5.2"]\ninput = 1\noutput = 2.5\n[price."*"]\ninput = 3\noutput = 4\ncache_read = 0\n'
    assert load(write, CREDENTIAL + text).prices == {"m-5.2": Price(1, 2.5), "*": Price(3, 4, cache_read=0)}


def test_patterns_are_compiled(write: Write) -> None:
    keys = load(
        write,
        """
        [[credential]]
        secret = "env:A"
        [[pattern]]
        match = 'slow down for (?P<seconds>\\d+)'
        verdict = "rate-limited"
        [[pattern]]
        match = '''(?x) plan
        \\ used \\ up'''
        verdict = "quota_exhausted"
        retry_after = 3600
        """,
    )
    first, second = keys.patterns
    match = first.regex.search("please slow down for 12 s")
    assert match is not None
    assert (match["seconds"], first.verdict, first.retry_after) == ("12", "rate_limited", None)
    assert second.regex.search("plan used up")
    assert second.retry_after == 3600.0


def test_credential_without_id_gets_fingerprint(write: Write) -> None:
    keys = load(write, '[[credential]]\nsecret = "env:A"\n[[credential]]\nsecret = "env:B"\n')
    ids = [credential.id for credential in keys.credentials]
    assert len(set(ids)) == 2
    assert all(id_.startswith("key-") for id_ in ids)


def test_loading_resolves_no_reference_and_runs_no_command(write: Write, tmp_path: Path) -> None:
    output = tmp_path / "made"
    keys = load(
        write, f'[[credential]]\nsecret = "cmd:touch {output}"\n[[credential]]\nsecret = "env:NOT_SET_ANYWHERE"\n'
    )
    assert len(keys.credentials) == 2
    assert not output.exists()


def test_relative_path_counts_from_keys_file(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "a.key"
    key.write_text("the-key-itself\n")
    key.chmod(0o600)
    monkeypatch.chdir("/")
    keys = load(write, '[[credential]]\nsecret = "file:a.key"\n[[credential]]\nsecret = "file:~/b.key"\n')
    assert keys.credentials[0].secret == "the-key-itself"
    assert list(keys.references.values()) == [f"file:{key}", "file:~/b.key"]


def test_byte_order_mark_and_crlf_are_accepted(write: Write) -> None:
    path = write(b'\xef\xbb\xbf[[credential]]\r\nsecret = "env:A"\r\nburst = 0\r\n')
    assert "line 3: burst must be a number above 0, not 0" in refusal(path)


# --- keys in plain ----------------------------------------------------------------------------------------------------


def test_plain_key_in_private_file_warns(write: Write) -> None:
    keys = load(write, f'[[credential]]\nid = "a"\nsecret = "{CANARY}"\n')
    assert keys.credentials[0].secret == CANARY
    assert keys.references == {}
    (warning,) = keys.warnings
    assert "holds keys in plain text (a)" in warning
    assert CANARY not in warning + repr(keys)
    with pytest.raises(TypeError, match="holds a secret"):
        pickle.dumps(keys)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_plain_key_in_readable_file_is_refused(write: Write, mode: int) -> None:
    path = write(f'[[credential]]\nid = "a"\nsecret = "{CANARY}"\n', mode)
    message = refusal(path)
    assert f"{path}, line 3: a plain-text key in a file that other users can read" in message
    assert f"run chmod 600 {path}" in message


def test_readable_file_with_references_is_accepted(write: Write) -> None:
    assert load(write, '[[credential]]\nsecret = "env:A"\n', 0o644).warnings == []


# --- errors -----------------------------------------------------------------------------------------------------------

CREDENTIAL = '[[credential]]\nsecret = "env:A"\n'


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "there is no credential: write [[credential]]"),
        ("# nothing\n\n", 1, "there is no credential"),
        ("credential = []\n", 1, "there is no credential"),
        ("[[credential]]\n[[credential]]\n", 1, 'secret is missing: write secret = "env:NAME"'),
        (CREDENTIAL + "[[credential]]\nid = 'b'\n", 3, "secret is missing"),
        ('[credential]\nsecret = "env:A"\n', 1, "write [[credential]] with two brackets"),
        ("credential = 3\n", 1, "tables that begin with [[credential]]"),
        ('[[credentials]]\nsecret = "env:A"\n', 1, "a keys file has no 'credentials': did you mean credential?"),
        (CREDENTIAL + "\n# half\nrequest_per_minute = 60\n", 5, "did you mean requests_per_minute?"),
        (CREDENTIAL + "rpm = 60\n", 3, "a credential has no 'rpm': did you mean requests_per_minute?"),
        (CREDENTIAL + "qqq = 60\n", 3, "allowed are secret, id, provider"),
        (CREDENTIAL + f'"{CANARY}" = 60\n', 3, "a credential has no such field"),
        (CREDENTIAL + "[credential.limits]\nbrust = 60\n", 4, "limits has no 'brust': did you mean burst?"),
        (CREDENTIAL + "limits = { max_concurrent = 1, brust = 60 }\n", 3, "did you mean burst?"),
        (CREDENTIAL + "limits = 60\n", 3, "limits must be a table, not a number"),
        (CREDENTIAL + "burst = 1\nlimits = { burst = 60 }\n", 4, "burst is given twice"),
        (CREDENTIAL + f"requests_per_minute = '{CANARY}'\n", 3, "requests_per_minute must be a number, such as 60"),
        (CREDENTIAL + "requests_per_minute = true\n", 3, "not true or false"),
        (CREDENTIAL + "requests_per_minute = 2026-01-01\n", 3, "not a date or time"),
        (CREDENTIAL + "requests_per_minute = 0\n", 3, "requests_per_minute must be a number above 0, not 0"),
        (CREDENTIAL + "requests_per_minute = nan\n", 3, "requests_per_minute must be a number above 0, not nan"),
        (CREDENTIAL + f"requests_per_minute = -{DIGITS}\n", 3, "requests_per_minute must be a number above 0"),
        (CREDENTIAL + "requests_per_day = 1.5\n", 3, "requests_per_day must be a whole number, not 1.5"),
        (CREDENTIAL + "max_concurrent = 0\n", 3, "max_concurrent must be a whole number from 1, or 'auto', not 0"),
        (CREDENTIAL + "max_concurrent = 1.5\n", 3, "max_concurrent must be a whole number from 1"),
        (CREDENTIAL + "burst = 0.5\n", 3, "burst must be at least 1"),
        (CREDENTIAL + "day_resets = 'midnight'\n", 3, "such as '00:00 America/Los_Angeles'"),
        (CREDENTIAL + "day_resets = '00:00 Mars/Base'\n", 3, "this machine does not know the time zone"),
        (CREDENTIAL + "id = 7\n", 3, "id must be a string in quotes, not a number"),
        ("credential = [\n{secret='env:A'}, # {\n\n{secret='env:B', id=7}]\n", 4, "id must be a string in quotes"),
        (
            "credential = [{secret='env:A'},\n{secret='env:A'}]\n",
            2,
            "the credential in line 1 already has the same secret",
        ),
        (CREDENTIAL + "id = ''\n", 3, "id must be a non-empty string of one line"),
        (CREDENTIAL + 'id = "two\\nlines"\n', 3, "id must be a non-empty string of one line"),
        (CREDENTIAL + "provider = ['openai']\n", 3, "provider must be a string in quotes, not a list"),
        (CREDENTIAL + "scopes = 'gpt-5'\n", 3, "scopes must be a list of names"),
        (CREDENTIAL + "scopes = ['gpt-5', 5]\n", 3, "scopes must be a list of names"),
        (CREDENTIAL + "credential_env = '2 WORDS'\n", 3, "credential_env must be the name of an environment variable"),
        ("[[credential]]\nsecret = 5\n", 2, "secret must be a string in quotes, not a number"),
        ("[[credential]]\nsecret = ''\n", 2, "secret must be a non-empty string of one line"),
        ("[[credential]]\nsecret = 'env:'\n", 2, "such as env:OPENAI_API_KEY"),
        ("[[credential]]\nsecret = 'cmd: pass'\n", 2, "such as cmd:pass show openai"),
        ("[[credential]]\nsecret = 'env:A-B'\n", 2, "env: must be followed by the name"),
        ("[[credential]]\nsecret = '$A'\n", 2, "written as env:NAME, without a dollar sign"),
        ("[[credential]]\nsecret = '${A}'\n", 2, "written as env:NAME, without a dollar sign"),
        (f"[[credential]]\nsecret = 'two {CANARY}'\n", 2, "a key contains no spaces"),
        (f"[[credential]]\nsecret = '{CANARY}'\nid = '{CANARY}'\n", 3, "id is displayed"),
        (f"[[credential]]\nsecret = '{CANARY}'\nquota_group = 'of {CANARY}'\n", 3, "quota_group is displayed"),
        ("[[credential]]\nsecret = 'env:A'\nid = 'env:A'\n", 3, "id is displayed"),
        (
            CREDENTIAL + "id='a'\n[[credential]]\nsecret='env:B'\nid='a'\n",
            4,
            "the credential in line 1 already has the same id",
        ),
        (
            CREDENTIAL + f"id='{CANARY}'\n[[credential]]\nsecret='env:B'\nid='{CANARY}'\n",
            4,
            "the credential in line 1 already has the same id",
        ),
        (
            CREDENTIAL + f"[[pattern]]\nmatch = '(?P<{CANARY}>x)'\nverdict = 'permanent'\n",
            4,
            "match must be a regular expression: bad character in group name",
        ),
        (CREDENTIAL + "\n" + CREDENTIAL, 4, "the credential in line 1 already has the same secret"),
        (CREDENTIAL + "[price.m]\ninput = 1\n", 3, "a price needs input and output: money per million tokens"),
        (CREDENTIAL + "[price.m]\ninput = 1\noutput = -1\n", 5, "output must be money per million tokens, from 0"),
        (CREDENTIAL + f"[price.m]\ninput = 1\noutput = '{CANARY}'\n", 5, "output must be money per million tokens, "),
        (CREDENTIAL + "[price.m]\ninputs = 1\n", 4, "a price has no 'inputs': did you mean input?"),
        (CREDENTIAL + "[price.m-5.2]\ninput = 1\n", 3, 'write the name of the model in quotes: [price."MODEL"]'),
        (CREDENTIAL + "[[pattern]]\nverdict = 'permanent'\n", 3, "match is missing"),
        (CREDENTIAL + "[[pattern]]\nmatch = 'x'\n", 3, "verdict is missing"),
        (CREDENTIAL + "[[pattern]]\nmatch = '('\nverdict = 'permanent'\n", 4, "match must be a regular expression: "),
        (CREDENTIAL + "[[pattern]]\nmatch = 'x'\nverdict = 'rate_limit'\n", 5, "did you mean rate_limited?"),
        (CREDENTIAL + "[[pattern]]\nmatch = 'x'\nverdict = 'no'\n", 5, "verdict must be one of auth_failed, over"),
        (CREDENTIAL + "[[pattern]]\nregex = 'x'\n", 4, "a pattern has no 'regex': did you mean match?"),
        (
            CREDENTIAL + "[[pattern]]\nmatch='x'\nverdict='transient'\nretry_after = -1\n",
            6,
            "a number of seconds from 0",
        ),
        (
            CREDENTIAL + "[[pattern]]\nmatch='x'\nverdict='transient'\nretry_after = '1 s'\n",
            6,
            "a number of seconds, not",
        ),
        (CREDENTIAL + "[provider.openai]\nurl = 'https://x'\n", 4, "a provider has no 'url': did you mean base_url?"),
        (CREDENTIAL + "[provider.openai]\nbase_url = 'x'\n", 4, "base_url must be an address such as https://host"),
        (CREDENTIAL + f"[provider.openai]\nbase_url = 'https://u:{CANARY}@x'\n", 4, "without ? or @"),
        (CREDENTIAL + f"[provider.openai]\nbase_url = 'https://x/?key={CANARY}'\n", 4, "without ? or @"),
        (CREDENTIAL + "[provider.openai]\nbase_url = 'https://[x'\n", 4, "base_url must be an address"),
        (CREDENTIAL + "[provider]\nopenai = 'x'\n", 4, "openai must be a table, not a string"),
        (CREDENTIAL + f"[provider]\n{CANARY} = 'x'\n", 4, "this must be a table, not a string"),
        (CREDENTIAL + "[provider.gemini]\n[provider.google]\n", 4, "the provider gemini already has a table"),
        (CREDENTIAL + "[provider.openai]\nday_resets = 'noon'\n", 4, "day_resets must be a time and a zone"),
    ],
)
def test_error_has_line_and_expectation(write: Write, text: str, line: int, expected: str) -> None:
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}, line {line}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{CANARY}\n", 1),
        (f"[[credential]]\nsecret = {CANARY}\n", 2),
        (f'[[credential]]\nsecret = "{CANARY}\n', 2),
        (f'[[credential]]\n\nsecret = "{CANARY}" "{CANARY}"\n', 3),
        (f'[["{CANARY}"]]\n["{CANARY}"]\n', 2),
        (f'["{CANARY}"]\n["{CANARY}"]\n', 2),
        (f'a = {{ "{CANARY}" = 1, "{CANARY}" = 2 }}\n', 1),
        (f'[[credential]]\nsecret = """{CANARY}\n', 3),
        (f"[[credential]]\nsecret = ['{CANARY}'\n", 3),
        (f"[[credential\nsecret = '{CANARY}'\n", 1),
        ("\n\na = " + "[" * 5000, 3),
        ("a = " + "1" * 5000, 1),
    ],
)
def test_syntax_error_has_line_and_no_content(write: Write, text: str, line: int) -> None:
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}, line {line}: invalid TOML")
    assert "expected a [[table]] or name = value" in message


def test_endless_file_is_refused() -> None:
    assert "it is no keys file" in refusal(Path("/dev/zero"))


def test_invalid_utf8_error_has_line(write: Write) -> None:
    path = write(b'[[credential]]\nsecret = "\xff\xfe"\n')
    assert f"{path}, line 2: not UTF-8" in refusal(path)


def test_unreadable_file_error_has_path_and_reason(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert refusal(missing) == f"the keys file {missing} cannot be read: No such file or directory"
    assert "Is a directory" in refusal(tmp_path)
    assert "not a path" in refusal(Path("\0"))


# --- lines ------------------------------------------------------------------------------------------------------------

LAYOUTS = """\
# a comment with "quotes" and [brackets]
top = 1
[[credential]]
secret = "env:A"  # [not.a.header]
scopes = [
  "one", # ]
  "two",
]
limits = { burst = 3, "max_concurrent" = 2 }
[[credential]]
secret = '''
[credential]
id = "no"
'''
"id" = "b"
[credential.limits]
burst . x = 1.5
[provider."our.gateway"]
base_url = \"\"\"a
b = 1\"\"\"\"\"
at = 1979-05-27 07:32:00
[[credential.deep]]
x = {}
[[credential.deep]]
y = [[1, 2], [
  {z = []}]]
last = true
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("credential",), 3),
        (("credential", 0), 3),
        (("credential", 0, "secret"), 4),
        (("credential", 0, "scopes", 1), 5),
        (("credential", 0, "limits", "burst"), 9),
        (("credential", 0, "limits", "max_concurrent"), 9),
        (("credential", 1), 10),
        (("credential", 1, "id"), 15),
        (("credential", 1, "limits"), 16),
        (("credential", 1, "limits", "burst", "x"), 17),
        (("provider", "our.gateway"), 18),
        (("provider", "our.gateway", "base_url"), 19),
        (("provider", "our.gateway", "at"), 21),
        (("credential", 1, "deep", 0, "x"), 23),
        (("credential", 1, "deep", 1), 24),
        (("credential", 1, "deep", 1, "y", 1, 0, "z"), 25),
        (("credential", 1, "deep", 1, "last"), 27),
        (("credential", 1, "deep", 1, "missing"), 24),
        (("missing",), 1),
    ],
)
def test_line_of_path(path: tuple[str | int, ...], line: int) -> None:
    tomllib.loads(LAYOUTS)
    assert line_of(LAYOUTS, path) == line


VALUES = st.recursive(
    st.sampled_from(["1", "1.5", '"a # b"', "'[x]'", '"""a\n]"""', "'''\n'''", '"\\""', "true", "1979-05-27"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[\n" + ", # c\n".join(items) + "\n]")
        | st.lists(inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"k{number} = {item}" for number, item in enumerate(items)) + "}"
        )
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=4))
def test_line_after_multi_line_values(values: list[str]) -> None:
    text = "".join(f"[[t]]\nv = {value}\n" for value in values) + "[[t]]\nlast = 1"
    tomllib.loads(text)
    assert line_of(text, ("t", len(values), "last")) == text.count("\n") + 1


def test_pattern_with_nested_set_raises_no_future_warning(write: Write) -> None:
    keys = load(write, CREDENTIAL + "[[pattern]]\nmatch = '[[a]b'\nverdict = 'transient'\n")
    assert keys.patterns[0].read("failed: [b") is not None


# --- from the environment ---------------------------------------------------------------------------------------------


def test_matching_variables_become_credentials_in_natural_order() -> None:
    environ = {
        "OPENAI_API_KEY_10": "c",
        "OPENAI_API_KEY": "a",
        "OPENAI_API_KEY_2": "b",
        "PATH": "x",
        "openai_api_key": "",
    }
    keys = keys_from_environment("OPENAI_API_KEY*", environ)
    assert [key.id for key in keys.credentials] == ["openai-api-key", "openai-api-key-2", "openai-api-key-10"]
    assert {key.provider for key in keys.credentials} == {"openai"}
    assert set(keys.variables.values()) == {"OPENAI_API_KEY"}
    assert keys.references["openai-api-key-2"] == "env:OPENAI_API_KEY_2"


def test_variable_with_thousands_of_digits_is_sorted() -> None:
    environ = {"K" + "9" * 5000: "c", "K10": "b", "K009": "a"}
    assert [key.id for key in keys_from_environment("K*", environ).credentials][:2] == ["k009", "k10"]


def test_variable_without_preset_has_no_provider() -> None:
    keys = keys_from_environment("TEAM_?_KEY", {"TEAM_A_KEY": "a"})
    assert [(key.id, key.provider) for key in keys.credentials] == [("team-a-key", None)]
    assert keys.variables == {}


def test_empty_and_duplicate_variables_are_skipped_with_warning() -> None:
    keys = keys_from_environment("K*", {"K1": CANARY, "K2": f" {CANARY}\n", "K3": " "})
    assert [key.id for key in keys.credentials] == ["k1"]
    assert keys.warnings == ["K2 has the same value as K1 and is ignored", "K3 is empty and is ignored"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "no environment variable matches K*: set one, or change --key-env"),
        ({"K1": ""}, "every environment variable that matches K* is empty"),
        ({"K_A": "1", "K-A": "2"}, "K-A and K_A would both get the id k-a: rename one"),
    ],
)
def test_environment_without_usable_keys_is_refused(environ: dict[str, Any], expected: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        keys_from_environment("K*", environ)
    assert str(caught.value) == expected


# --- the documentation ------------------------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()


def test_examples_in_documentation_load(write: Write) -> None:
    keys = load(write, "\n".join(re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)))
    assert [key.id for key in keys.credentials][:4] == ["team-a", "team-b", "max-plan", "azure-eu"]
    assert [key.id for key in keys.credentials if not key.has_secret] == ["claude-a", "claude-b"]
    assert [pattern.verdict for pattern in keys.patterns] == ["rate_limited", "quota_exhausted"]


@pytest.mark.parametrize("name", sorted({*CREDENTIAL_NAMES, *PATTERN_NAMES, *PROVIDER_NAMES} - {"limits"}))
def test_documentation_lists_every_name(name: str) -> None:
    assert f"`{name}`" in DOCUMENT or f"\n{name} = " in DOCUMENT


# --- the store ----------------------------------------------------------------------------------------------------


def test_relative_store_counts_from_keys_file(write: Write, tmp_path: Path) -> None:
    text = '[[credential]]\nsecret = "env:A"\n'
    assert load(write, text).store is None
    assert load(write, 'store = "sqlite:///pool.db"\n' + text).store == f"sqlite:///{tmp_path}/pool.db"
    assert load(write, 'store = "sqlite:////var/pool.db"\n' + text).store == "sqlite:////var/pool.db"
    assert load(write, 'store = "redis://somewhere"\n' + text, mode=0o644).store == "redis://somewhere"


def test_store_password_in_readable_file_is_refused(write: Write) -> None:
    text = f'store = "redis://:{CANARY}@somewhere"\n[[credential]]\nsecret = "env:A"\n'
    keys = load(write, text)
    assert keys.store == f"redis://:{CANARY}@somewhere"
    assert CANARY not in repr(keys)
    assert "a plain-text password in a file that other users can read" in refusal(write(text, 0o640))
    assert "line 1: the store's address must look like" in refusal(write(text.replace("@", "/x@")))


@pytest.mark.parametrize(
    ("provider", "near"),
    [("antropic", "anthropic"), ("opnai", "openai"), ("Claud", "claude"), ("our-gateway", None), ("openai", None)],
)
def test_misspelt_provider_is_a_warning(tmp_path: Path, provider: str, near: str | None) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[[credential]]\nid = "a"\nprovider = "{provider}"\nsecret = "env:A"\n')
    warnings = load_keys(file).warnings
    if near is None:
        assert warnings == []
    else:
        assert warnings == [f"{file}, line 3: the provider {provider!r} is not known: did you mean {near}?"]
