"""`agentos keys`: its output, the files it writes, and that neither holds a key."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentos.cli import main
from agentos.errors import HomeError
from agentos.keys.check import NO_KEY, NOT_CHECKED
from agentos.keys.disabled_keys import disable, disabled
from agentos.pool.store_url import StoreAt
from agentos.testing import SimulatedProvider
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits

from .cli_runs import prepare

CANARY = "sk-canary-1a2b3c4d5e6f"

Agentos = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("AGENTOS_") or name.endswith(("_BASE_URL", "_proxy", "_PROXY")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("AGENTOS_HOME", str(home))
    monkeypatch.setenv("TEST_CANARY", CANARY)
    return home


@pytest.fixture
def agentos(home: Path, tmp_path: Path) -> Iterator[Agentos]:
    """Invoke `agentos keys`; afterwards check that no output and no file holds the key."""
    outputs = []

    def agentos(*arguments: str, **options: Any) -> Result:
        result = CliRunner().invoke(main, ["keys", *arguments], **options)
        outputs.append(result.output)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    yield agentos
    assert CANARY not in "".join(outputs)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes()


@pytest.fixture
def keys_file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "keys.toml"
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return write


TWO = """
[[credential]]
secret = "env:TEST_CANARY"
id = "team-a"
provider = "openai"
quota_group = "org-1"
requests_per_minute = 60
tokens_per_minute = 1000000
max_concurrent = 5

[[credential]]
secret = "env:TEST_NOT_SET"
id = "team-b"
provider = "gemini"
requests_per_day = 250
burst = 2
"""


# --- status -----------------------------------------------------------------------------------------------------------


def test_status_prints_declared_limits_and_state(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    result = agentos("status", "--keys", keys_file(TWO))
    assert result.exit_code == 0
    head, first, second = (line.split("  ") for line in result.stdout.splitlines())
    assert [cell.strip() for cell in head if cell] == ["ID", "PROVIDER", "GROUP", "IN USE", "LIMITS", "STATE"]
    assert [cell.strip() for cell in first if cell] == [
        "team-a",
        "openai",
        "org-1",
        "0 of 5",
        "60 requests/min, 1,000,000 tokens/min",
        "usable",
    ]
    assert [cell.strip() for cell in second if cell] == [
        "team-b",
        "gemini",
        "-",
        "0 of auto",
        "250 requests/day from 00:00 America/Los_Angeles, burst 2",
        "variable TEST_NOT_SET not set",
    ]


def test_keys_without_command_prints_status(
    agentos: Agentos, keys_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keys_file(TWO)
    status_text = agentos("status", "--keys", path).stdout
    assert agentos("--keys", path).stdout == status_text
    monkeypatch.setenv("AGENTOS_KEYS", path)
    assert agentos().stdout == status_text
    assert "status" in agentos("--help").stdout
    assert "status" in agentos("--keys", path, "-h").stdout
    assert "[env var: AGENTOS_KEYS]" in agentos("status", "--help").stdout


def test_status_as_json(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    agentos("disable", "team-b", "--reason", "leaked", "--keys", keys_file(TWO))
    record = json.loads(agentos("--json", "--keys", keys_file(TWO)).stdout)
    first, second = record["credentials"]
    assert first["id"] == "team-a"
    assert first["limits"]["requests_per_minute"] == 60
    assert (first["credential_env"], first["state"]) == ("OPENAI_API_KEY", "usable")
    assert (second["quota_group"], second["state"]) == (None, "disabled: leaked")
    assert record["disabled"] == {"team-b": "leaked"}
    assert record["pool"] == []


def test_status_runs_no_secret_command(agentos: Agentos, keys_file: Callable[[str], str], tmp_path: Path) -> None:
    marker = tmp_path / "made"
    (tmp_path / "open.key").write_text("a-key-for-all")
    (tmp_path / "open.key").chmod(0o644)
    text = f"""
        credential = [
            {{ id = "command", secret = "cmd:touch {marker}" }},
            {{ id = "file", secret = "file:open.key" }},
        ]
    """
    lines = agentos("--keys", keys_file(text)).stdout.splitlines()
    assert lines[1].endswith("usable")
    assert "other users can read" in lines[2]
    assert not marker.exists()


def test_keys_are_read_from_environment_pattern(agentos: Agentos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY_1", CANARY)
    result = agentos("--key-env", "OPENAI_API_KEY_*")
    assert "openai-api-key-1  openai" in result.stdout
    assert agentos("--key-env", "NOTHING_LIKE_IT*").exit_code == 2


def test_typed_option_outranks_environment(
    agentos: Agentos, keys_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_KEY_ENV", "NOTHING_LIKE_IT*")
    assert "team-a" in agentos("--keys", keys_file(TWO)).stdout
    monkeypatch.setenv("AGENTOS_KEYS", "/not/there")
    assert "test-canary" in agentos("--key-env", "TEST_CANARY").stdout
    result = agentos("--keys", keys_file(TWO), "--key-env", "X*")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


def test_command_without_keys_is_refused_with_advice(agentos: Agentos) -> None:
    for command in ((), ("check",), ("disable", "x")):
        result = agentos(*command)
        assert result.exit_code == 2
        assert "use --keys FILE or --key-env PATTERN, or set AGENTOS_KEYS" in result.stderr


def test_invalid_keys_file_is_refused(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    result = agentos("--keys", keys_file("[[credential]]\nsecrte = 'x'\n"))
    assert result.exit_code == 2
    assert "line 2: a credential has no 'secrte': did you mean secret?" in result.stderr


def test_plain_key_is_never_printed(home: Path, keys_file: Callable[[str], str]) -> None:
    path = keys_file(f'[[credential]]\nsecret = "{CANARY}"\nid = "a"\n')
    for arguments in (["--keys", path], ["--json", "--keys", path], ["check", "--keys", path], ["disable", CANARY]):
        result = CliRunner().invoke(main, ["keys", *arguments], env={"AGENTOS_KEYS": path})
        assert CANARY not in result.output
    assert "holds keys in plain text (a)" in CliRunner().invoke(main, ["keys", "--keys", path]).stderr


# --- what the store says ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(home: Path) -> str:
    """Return the default store of this machine."""
    return f"sqlite:///{home}/pool.db"


def test_status_without_keys_prints_store(agentos: Agentos, store: str) -> None:
    credentials = [
        Credential("env:TEST_CANARY", id="team-a", limits=Limits(requests_per_minute=60, burst=9, max_concurrent=5)),
        Credential("key-b", id="team-b"),
        Credential("key-c", id="team-c"),
    ]
    with CredentialCoordinator(credentials, store=StoreAt(store, "nightly")) as pool:
        pool.listen(lambda _event: None)  # else its events would be printed into the output of the command
        keys = [pool.reserve_credential(f"doc-{number}") for number in range(6)]
        pool.quarantine("team-b", "no credit")
        pool.mark_rate_limited(next(str(key) for key in keys if key == "key-c"), 90)
        pool.states()
        out = agentos("status").stdout
        record = json.loads(agentos("status", "--json").stdout)
    *tables, members, source = out.split("\n\n")
    assert source == f"Usage and leases: {store}\n"
    rows, held = ([line.split() for line in part.splitlines() if line.startswith("team")] for part in tables)
    assert members.startswith("Pool owner: ")
    assert members.splitlines()[2].split()[:3] == ["nightly", "5", "0"]  # leases, and requests that wait
    lines = {row[0]: " ".join(row) for row in rows}
    assert lines["team-a"] == "team-a - - 4 of 5 4 of 60 requests/min usable"
    assert lines["team-b"].endswith("quarantined: no credit")
    assert re.search(r"rate-limited for (90|8\d) s$", lines["team-c"])
    assert len(held) == 5
    assert all((row[2], row[-3:]) == ("nightly", [f"{socket.gethostname()},", "pid", str(os.getpid())]) for row in held)

    assert record["store"] == store
    assert [entry["id"] for entry in record["pool"]] == ["team-a", "team-b", "team-c"]
    first, second, third = record["pool"]
    assert {(entry["run"], entry["pid"]) for entry in first["holders"]} == {("nightly", os.getpid())}
    assert len(first["holders"]) == 4
    assert first["used"] == {"requests per minute": {"used": 4, "limit": 60}}
    assert second["quarantine"] == "no credit"
    assert third["cooling"][0]["reason"] == "rate_limited"


def test_status_leaves_out_keys_of_others(agentos: Agentos, keys_file: Callable[[str], str], store: str) -> None:
    path = keys_file(TWO)
    with CredentialCoordinator(
        [Credential("key-b", id="other-b"), Credential("key-c", id="other-c")], store=store
    ) as pool:
        pool.reserve_credential("doc-1")
        pool.states()
        own = agentos("--keys", path).stdout
        whole = agentos("--keys", path, "--all").stdout
    assert [line.split()[0] for line in own.splitlines()[:4] if line] == ["ID", "team-a", "team-b"]
    assert "doc-1" not in own
    assert own.endswith("\n2 other credentials are not shown: add --all\n")
    assert "other-b" in whole
    assert "doc-1" in whole
    assert "not shown" not in whole


def test_status_has_state_of_unreadable_key(agentos: Agentos, keys_file: Callable[[str], str], store: str) -> None:
    """A quarantine or a used-up quota is shown also where the variable of the key is not set."""
    with CredentialCoordinator([Credential("key-b", id="team-b")], store=store) as pool:
        pool.quarantine("team-b", "no credit")
        pool.states()
        out = agentos("--keys", keys_file(TWO)).stdout
    assert "  quarantined: no credit; in this shell: variable TEST_NOT_SET not set\n" in out


def test_status_neither_creates_nor_changes_store(agentos: Agentos, home: Path, store: str) -> None:
    assert agentos("status").exit_code == 2
    assert not home.exists()
    with CredentialCoordinator([Credential("key-a", id="a")], store=store) as pool:
        pool.states()
        before = (home / "pool.db").read_bytes()
        assert agentos("status").exit_code == 0
        assert (home / "pool.db").read_bytes() == before


def test_terminal_codes_in_item_id_are_escaped(agentos: Agentos, store: str) -> None:
    with CredentialCoordinator([Credential("key-a", id="a")], store=store) as pool:
        pool.reserve_credential("\x1b[2J\nRun forged")
        out = agentos().stdout
    assert "\x1b" not in out
    assert len(out.splitlines()) == 11


def test_status_omits_released_lease(agentos: Agentos, store: str) -> None:
    with CredentialCoordinator([Credential("key-a", id="a")], store=store) as pool:
        pool.reserve_credential("doc")
        assert "doc" in agentos().stdout
    out = agentos().stdout
    assert "doc" not in out
    assert "0 of 1" in out


# --- disable, enable, reset -------------------------------------------------------------------------------------------


def test_disabled_key_stays_disabled_until_enabled(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    path = keys_file(TWO)
    result = agentos("disable", "team-a", "--reason", "leaked", "--keys", path)
    assert result.stdout.startswith("team-a is disabled, also in executing runs. To undo:")
    assert disabled() == {"team-a": "leaked"}
    assert "disabled: leaked" in agentos("--keys", path).stdout
    assert "disabled: leaked" in agentos().stdout  # without --keys, too
    assert agentos("enable", "team-a").stdout == "team-a is enabled.\n"
    assert disabled() == {}
    assert "No credential with this id was disabled or quarantined" in agentos("enable", "team-a").stdout


def test_options_are_accepted_before_command(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    path = keys_file(TWO)
    assert agentos("--keys", path, "disable", "team-a", "--reason", "x").exit_code == 0
    assert agentos(f"--keys={path}", "--reason", "reset", "disable", "team-b").exit_code == 0
    assert disabled() == {"team-a": "x", "team-b": "reset"}
    assert agentos("--keys", path, "nonsense").exit_code == 2


def test_reset_enables_all_or_declared_keys(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    path = keys_file(TWO)
    agentos("disable", "team-a", "--keys", path)
    agentos("disable", "team-b", "--keys", path)
    agentos("disable", "test-canary", "--key-env", "TEST_CANARY")
    assert disabled() == dict.fromkeys(("team-a", "team-b", "test-canary"), "by hand")
    assert re.search(r"^test-canary .* disabled: by hand$", agentos("--keys", path, "--all").stdout, re.MULTILINE)
    assert agentos("reset", "--keys", path).stdout == "Enabled: team-a, team-b.\n"
    assert agentos("reset").stdout == "Enabled: test-canary.\n"
    assert agentos("reset").stdout == "No credential was disabled or quarantined.\n"


def test_known_key_is_disabled_without_its_file(agentos: Agentos, store: str) -> None:
    """The keys file has an error, or is on another machine: the store knows the ids."""
    with CredentialCoordinator([Credential("env:TEST_CANARY", id="team-a")], store=store):
        assert agentos("disable", "team-a").exit_code == 0
        assert disabled() == {"team-a": "by hand"}
        for command in ("disable", "enable"):
            result = agentos(command, CANARY)
            assert result.exit_code == 2
            assert "no credential has this id; there are team-a" in result.stderr


def test_unknown_id_is_not_repeated_in_message(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    for command in ("disable", "enable"):
        result = agentos(command, CANARY, "--keys", keys_file(TWO))
        assert result.exit_code == 2
        assert "no credential has this id; there are team-a, team-b" in result.stderr
    assert agentos("enable", CANARY).exit_code == 0


def test_damaged_list_of_disabled_keys_fails(agentos: Agentos, home: Path) -> None:
    home.mkdir()
    (home / "disabled.json").write_text('{"team-a": ')
    with pytest.raises(HomeError, match="repair it, or remove it"):
        disabled()
    result = agentos("reset")
    assert result.exit_code == 3
    assert (home / "disabled.json").read_text() == '{"team-a": '


def test_disable_and_enable_reach_other_pools_of_store(
    agentos: Agentos, keys_file: Callable[[str], str], store: str
) -> None:
    path = keys_file(TWO)
    credentials = [Credential("env:TEST_CANARY", id="team-a"), Credential("key-b", id="team-b")]
    with CredentialCoordinator(credentials, store=store) as pool:

        def quarantined() -> dict[str, str]:
            return {state.key_id: state.quarantined for state in pool.states() if state.quarantined is not None}

        agentos("disable", "team-a", "--reason", "leaked", "--keys", path)
        assert quarantined() == {"team-a": "disabled: leaked"}
        agentos("enable", "team-a")
        assert quarantined() == {}
        pool.quarantine("team-b", "HTTP 401: refused")
        assert agentos("enable", "team-b").stdout.endswith("team-b is enabled.\n")
        assert quarantined() == {}
        pool.quarantine("team-b", "HTTP 401: refused")
        agentos("disable", "team-a", "--keys", path)
        assert agentos("reset").stdout.endswith("Enabled: team-a, team-b.\n")
        assert quarantined() == {}


def test_concurrent_disables_are_all_recorded(home: Path) -> None:
    threads = [threading.Thread(target=disable, args=(f"k{number}", "x")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(disabled()) == 8


# --- check ------------------------------------------------------------------------------------------------------------


def answers_of(result: Result) -> dict[str, str]:
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()[1:]]
    return {row[0]: row[2] for row in rows}


def providers_at(url: str) -> str:
    return f"""
[provider.openai]
base_url = "{url}/v1"
[provider.anthropic]
base_url = "{url}"
[provider.gemini]
base_url = "{url}/"
"""


def test_check_uses_the_call_of_each_provider(
    agentos: Agentos, keys_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, keys, text = ("openai", "anthropic", "gemini"), [], ""
    for name in names:
        for kind in ("good", "dead"):
            keys.append(f"{CANARY}-{name}-{kind}")
            monkeypatch.setenv(f"TEST_{name}_{kind}", keys[-1])
            text += f'[[credential]]\nid = "{name}-{kind}"\nprovider = "{name}"\nsecret = "env:TEST_{name}_{kind}"\n'
    with SimulatedProvider(keys, dead=keys[1::2], latency=0.0) as provider:
        result = agentos("check", "--keys", keys_file(text + providers_at(provider.base_url)))
        assert sorted(entry.key for entry in provider.log if entry.status == 200) == sorted(keys[::2])
    assert result.exit_code == 1
    answers = answers_of(result)
    assert [answers[f"{name}-good"] for name in names] == ["ok"] * 3
    assert answers["openai-dead"] == "refused: HTTP 401: Incorrect API key provided."
    assert answers["anthropic-dead"] == "refused: HTTP 401: invalid x-api-key"
    assert answers["gemini-dead"] == "refused: HTTP 400: API key not valid."


def test_check_reports_limits_and_their_end(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    with SimulatedProvider([CANARY], latency=0.0) as provider:
        path = keys_file(text + providers_at(provider.base_url))
        provider.script([429], retry_after=125)
        assert answers_of(agentos("check", "--keys", path)) == {"a": "limited, resets in 2.1 minutes"}
        provider.exhaust(CANARY)
        answer = answers_of(agentos("check", "--keys", path))["a"]
        assert answer.startswith("limited")
        assert "The quota of this account is used up." in answer
        provider.refill(CANARY)
        provider.script([503])
        assert answers_of(agentos("check", "--keys", path))["a"].startswith("no answer (overloaded)")
        result = agentos("check", "--keys", path)
        assert (result.exit_code, answers_of(result)) == (0, {"a": "ok"})
        records = json.loads(agentos("check", "--json", "--keys", path).stdout)
        assert records == [{"id": "a", "provider": "openai", "is_ok": True, "text": "ok"}]


def test_check_uses_address_and_headers_of_the_credential(
    agentos: Agentos, keys_file: Callable[[str], str], hostile_provider: tuple[str, list[str]], monkeypatch: Any
) -> None:
    """The answer repeats all headers of the request, which has no `Authorization`."""
    url, requests = hostile_provider
    monkeypatch.setenv("TEST_HEADER", "hdr-canary-1234567890")
    text = (
        '[[credential]]\nid = "a"\nprovider = "azure"\nsecret = "env:TEST_CANARY"\n'
        f'base_url = "{url}/openai/deployments/one"\n[credential.headers]\nX-Token = "env:TEST_HEADER"\n'
    )
    result = agentos("check", "--keys", keys_file(text))
    assert requests == ["/openai/models?api-version=2024-10-21"]  # not below the deployment
    assert answers_of(result)["a"].startswith("refused")
    assert "X-Token: ****" in json.loads(agentos("check", "--json", "--keys", keys_file(text)).stdout)[0]["text"]
    assert "hdr-canary" not in result.output


def test_check_skips_log_ins_without_key(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "anthropic"\ncommand_env = { CLAUDE_CONFIG_DIR = "~/.claude-a" }\n'
    result = agentos("check", "--keys", keys_file(text))
    assert (result.exit_code, answers_of(result)) == (0, {"a": NO_KEY})


def test_status_reports_settings_without_values(
    agentos: Agentos, keys_file: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        '[[credential]]\nid = "a"\nsecret = "env:TEST_CANARY"\nbase_url = "https://eu.example"\n'
        f'command_env = {{ REGION = "hidden", CALL = "cmd:touch {tmp_path}/called" }}\n'
        '[credential.headers]\nX-Token = "env:TEST_NOT_SET"\n'
    )
    result = agentos("status", "--json", "--keys", keys_file(text))
    (record,) = json.loads(result.stdout)["credentials"]
    assert (record["base_url"], record["headers"]) == ("https://eu.example", ["X-Token"])
    assert record["command_env"] == ["CALL", "REGION"]
    assert record["state"] == "variable TEST_NOT_SET not set"
    assert "hidden" not in result.stdout
    monkeypatch.setenv("TEST_NOT_SET", "x")
    (record,) = json.loads(agentos("status", "--json", "--keys", keys_file(text)).stdout)["credentials"]
    assert record["state"] == "usable"
    assert not (tmp_path / "called").exists()


def test_check_fails_for_unreadable_keys_only(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    unchecked = '[[credential]]\nid = "a"\nprovider = "our-gateway"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(unchecked))
    assert (result.exit_code, answers_of(result)) == (0, {"a": NOT_CHECKED})
    agentos("disable", "a", "--keys", keys_file(unchecked))
    assert answers_of(agentos("check", "--keys", keys_file(unchecked))) == {"a": f"{NOT_CHECKED} (disabled)"}
    unread = '[[credential]]\nid = "b"\nprovider = "openai"\nsecret = "env:TEST_NOT_SET"\n'
    result = agentos("check", "--keys", keys_file(unread))
    assert result.exit_code == 1
    assert "the environment variable TEST_NOT_SET is not set or empty" in answers_of(result)["b"]


def test_check_reports_unreachable_provider(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    with SimulatedProvider([CANARY]) as provider:
        url = provider.base_url  # no server listens there after this block
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text + providers_at(url)))
    assert (result.exit_code, answers_of(result)) == (1, {"a": "no answer: Connection refused"})


@pytest.mark.parametrize("url", ["file:///etc/hosts", "nonsense", "https://"])
def test_check_reports_invalid_base_url(
    agentos: Agentos, keys_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text))
    assert result.exit_code == 1
    assert answers_of(result)["a"].startswith("no answer")


class HostileProvider(BaseHTTPRequestHandler):
    """A provider whose answers repeat the key, or redirect the request."""

    paths: list[str]

    def do_GET(self) -> None:
        type(self).paths.append(self.path)
        if self.path.startswith("/elsewhere"):
            self.send_response(200)
            body = b"{}"
        elif self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            body = b""
        else:
            key = self.headers.get("Authorization") or " ".join(f"{n}: {v}" for n, v in self.headers.items())
            key = key.removeprefix("Bearer ")
            self.send_response(401)
            pad = self.path.split("/")[1] if self.path.startswith("/pad") else ""
            body = json.dumps({"error": {"message": f"Bad key: {pad}{key}", "code": "invalid_api_key"}}).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hostile_provider() -> Iterator[tuple[str, list[str]]]:
    HostileProvider.paths = []
    with HTTPServer(("127.0.0.1", 0), HostileProvider) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", HostileProvider.paths
        server.shutdown()
        thread.join()


def test_key_in_answer_is_redacted(
    agentos: Agentos, keys_file: Callable[[str], str], hostile_provider: tuple[str, list[str]]
) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{hostile_provider[0]}"\n'))
    assert answers_of(result) == {"a": "refused: HTTP 401: Bad key: ****"}
    assert hostile_provider[1] == ["/models"]


@pytest.mark.parametrize("length", [170, 180, 190, 270, 280, 290, 380, 480, 490, 500, 980, 990])
def test_key_cut_by_long_answer_is_redacted(
    agentos: Agentos, keys_file: Callable[[str], str], hostile_provider: tuple[str, list[str]], length: int
) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    url = f"{hostile_provider[0]}/pad{'x' * length}"
    result = agentos("check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{url}"\n'))
    assert CANARY[:4] not in result.output


def test_check_does_not_follow_redirect(
    agentos: Agentos, keys_file: Callable[[str], str], hostile_provider: tuple[str, list[str]]
) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos(
        "check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{hostile_provider[0]}/moved"\n')
    )
    assert result.exit_code == 1
    assert answers_of(result)["a"].startswith("no answer from the API: HTTP 302")
    assert hostile_provider[1] == ["/moved/models"]


@pytest.mark.parametrize(
    ("tail", "answer"),
    [("\x01", "cannot be read: credential a: the environment variable TEST_CANARY"), ("é€", "refused")],
)
def test_key_invalid_in_header_is_not_printed(
    agentos: Agentos,
    keys_file: Callable[[str], str],
    hostile_provider: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tail: str,
    answer: str,
) -> None:
    monkeypatch.setenv("TEST_CANARY", CANARY + tail)
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{hostile_provider[0]}"\n'))
    assert result.exit_code == 1
    assert answers_of(result)["a"].startswith(answer)
    assert CANARY not in result.output


# --- the program itself -----------------------------------------------------------------------------------------------


def test_keys_commands_as_processes(home: Path, keys_file: Callable[[str], str]) -> None:
    def program(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentos.cli", "keys", *arguments]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert CANARY not in process.stdout + process.stderr
        return process

    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    with SimulatedProvider([CANARY], latency=0.0) as provider:
        path = keys_file(text + providers_at(provider.base_url))
        process = program("check", "--keys", path)
        assert (process.returncode, process.stdout) == (0, "ID  PROVIDER  ANSWER\na   openai    ok\n")
        provider.kill(CANARY)
        assert program("check", "--keys", path).returncode == 1
    assert program("disable", "a", "--keys", path).returncode == 0
    assert program("--keys", path).stdout.endswith("disabled: by hand\n")
    keys_file("[[credential]]\n")
    process = program("--keys", path)
    assert process.returncode == 2
    assert "line 1: secret is missing" in process.stderr


# --- the keys of the newest run ---------------------------------------------------------------------------------------


def test_keys_need_no_arguments_after_a_keyed_run(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    """One row for each credential: what its keys declare and what the store knows agree."""
    path = keys_file('[[credential]]\nid = "team-a"\nsecret = "env:TEST_CANARY"\nrequests_per_minute = 60\nburst = 9\n')
    runner = CliRunner()
    arguments = ["run", "--run-id", "r", "--item", "a", "--keys", path, "--credential-env", "KEY", "--", "true"]
    assert runner.invoke(main, arguments).exit_code == 0
    result = agentos()
    assert result.stderr == f"Keys of run r: {path}\n"
    head, row = result.stdout.splitlines()[:2]
    assert head.split("  ")[0] == "ID"
    assert row.split("  ")[0] == "team-a"
    assert "1 of 60 requests/min" in row
    assert row.endswith("usable")
    assert result.stdout.count("team-a") == 1
    agentos("disable", "team-a", "--reason", "leaked")
    assert agentos().stdout.splitlines()[1].endswith("disabled: leaked")


def test_keys_of_a_run_without_its_file_show_store(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    path = keys_file('[[credential]]\nid = "team-a"\nsecret = "env:TEST_CANARY"\n')
    arguments = ["run", "--run-id", "r", "--item", "a", "--keys", path, "--credential-env", "KEY", "--", "true"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    Path(path).unlink()
    result = agentos()
    assert "Warning: the keys of run r cannot be read: " in result.stderr
    assert "team-a" in result.stdout


def test_keys_after_a_demo_say_where_its_keys_are(agentos: Agentos) -> None:
    prepare("demo-20261116-093012-1f3a", ["a"])
    assert "The keys of the newest run, a demo, existed only while it ran" in agentos().stderr


# --- errors of keys name file and line --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('secret = "env:A"\nprovider = "mycorp"', "the provider 'mycorp' is not known; add credential_env"),
        ('secret = "env:A"', 'add provider = "openai"'),
        ('secret = "env:TEST_NOT_SET"\nprovider = "openai"', "the environment variable TEST_NOT_SET is not set"),
        ('secret = "cmd:false --hush"\nprovider = "openai"', "its command false failed: it ended with status 1"),
        ('secret = "cmd:nosuch --hush"\nprovider = "openai"', "its command failed: there is no such program"),
        ('secret = "file:nope.key"\nprovider = "openai"', "nope.key: No such file or directory\n"),
    ],
)
def test_run_names_line_of_unusable_key(home: Path, keys_file: Callable[[str], str], entry: str, problem: str) -> None:
    path = keys_file(f'\n[[credential]]\nid = "a"\n{entry}\n')
    arguments = ["run", "--item", "x", "--keys", path, "--", "true"]
    result = CliRunner().invoke(main, arguments, env={"A": "key-value-12345"})
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {path}, line 2: ")
    assert problem in result.stderr
    assert "hush" not in result.stderr


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("env:", "the name of a variable is missing after env:"),
        ("file: ", "the path of a file is missing after file:"),
        ("env: A", "without spaces around it"),
    ],
)
def test_incomplete_reference_names_what_is_missing(
    agentos: Agentos, keys_file: Callable[[str], str], secret: str, problem: str
) -> None:
    path = keys_file(f'[[credential]]\nsecret = "{secret}"\n')
    assert f"{path}, line 2: " in (stderr := agentos("--keys", path).stderr)
    assert problem in stderr
