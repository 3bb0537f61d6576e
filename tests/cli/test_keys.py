"""`agentos keys`: what people see, what is kept, and that no key is in either."""

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
from agentos.keys.disabled_keys import disable, disabled
from agentos.pool.store_url import StoreAt
from agentos.testing import SimulatedProvider
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits

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
    """Runs the command; afterwards the key must be in nothing that was printed and in no file."""
    printed = []

    def agentos(*arguments: str, **options: Any) -> Result:
        result = CliRunner().invoke(main, ["keys", *arguments], **options)
        printed.append(result.output)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    yield agentos
    assert CANARY not in "".join(printed)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes()


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


def test_status_tells_what_is_declared_and_what_can_be_used(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    result = agentos("status", "--keys", keys_file(TWO))
    assert result.exit_code == 0
    head, first, second = (line.split("  ") for line in result.stdout.splitlines())
    assert [cell.strip() for cell in head if cell] == ["ID", "PROVIDER", "GROUP", "LIMITS", "STATE"]
    assert [cell.strip() for cell in first if cell] == [
        "team-a",
        "openai",
        "org-1",
        "60 requests/min, 1,000,000 tokens/min, 5 at once",
        "ready",
    ]
    assert [cell.strip() for cell in second if cell] == [
        "team-b",
        "gemini",
        "-",
        "250 requests/day from 00:00 America/Los_Angeles, burst 2, 1 at once",
        "variable TEST_NOT_SET not set",
    ]


def test_status_is_what_keys_does_without_a_command(
    agentos: Agentos, keys_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keys_file(TWO)
    told = agentos("status", "--keys", path).stdout
    assert agentos("--keys", path).stdout == told
    monkeypatch.setenv("AGENTOS_KEYS", path)
    assert agentos().stdout == told
    assert "status" in agentos("--help").stdout
    assert "status" in agentos("--keys", path, "-h").stdout
    assert "[env var: AGENTOS_KEYS]" in agentos("status", "--help").stdout


def test_status_can_be_read_by_programs(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    agentos("disable", "team-b", "--reason", "leaked", "--keys", keys_file(TWO))
    told = json.loads(agentos("--json", "--keys", keys_file(TWO)).stdout)
    first, second = told["credentials"]
    assert first["id"] == "team-a"
    assert first["limits"]["requests_per_minute"] == 60
    assert (first["credential_env"], first["state"]) == ("OPENAI_API_KEY", "ready")
    assert (second["quota_group"], second["state"]) == (None, "disabled: leaked")
    assert told["disabled"] == {"team-b": "leaked"}
    assert told["pool"] == []


def test_status_of_files_and_commands_asks_nobody(
    agentos: Agentos, keys_file: Callable[[str], str], tmp_path: Path
) -> None:
    made = tmp_path / "made"
    (tmp_path / "open.key").write_text("a-key-for-all")
    (tmp_path / "open.key").chmod(0o644)
    text = f"""
        credential = [
            {{ id = "command", secret = "cmd:touch {made}" }},
            {{ id = "file", secret = "file:open.key" }},
        ]
    """
    lines = agentos("--keys", keys_file(text)).stdout.splitlines()
    assert lines[1].endswith("ready")
    assert "can be read by others" in lines[2]
    assert not made.exists()


def test_keys_come_from_the_environment_too(agentos: Agentos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY_1", CANARY)
    result = agentos("--key-env", "OPENAI_API_KEY_*")
    assert "openai-api-key-1  openai" in result.stdout
    assert agentos("--key-env", "NOTHING_LIKE_IT*").exit_code == 2


def test_what_is_typed_counts_before_the_environment(
    agentos: Agentos, keys_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_KEY_ENV", "NOTHING_LIKE_IT*")
    assert "team-a" in agentos("--keys", keys_file(TWO)).stdout
    monkeypatch.setenv("AGENTOS_KEYS", "/not/there")
    assert "test-canary" in agentos("--key-env", "TEST_CANARY").stdout
    result = agentos("--keys", keys_file(TWO), "--key-env", "X*")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


def test_no_keys_at_all_is_wrong_usage_that_says_what_to_type(agentos: Agentos) -> None:
    for command in ((), ("check",), ("disable", "x")):
        result = agentos(*command)
        assert result.exit_code == 2
        assert "Give --keys FILE or --key-env PATTERN, or set AGENTOS_KEYS" in result.stderr


def test_a_wrong_file_is_wrong_usage(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    result = agentos("--keys", keys_file("[[credential]]\nsecrte = 'x'\n"))
    assert result.exit_code == 2
    assert "line 2: a credential has no 'secrte': did you mean secret?" in result.stderr


def test_a_key_in_plain_is_shown_to_nobody(home: Path, keys_file: Callable[[str], str]) -> None:
    path = keys_file(f'[[credential]]\nsecret = "{CANARY}"\nid = "a"\n')
    for arguments in (["--keys", path], ["--json", "--keys", path], ["check", "--keys", path], ["disable", CANARY]):
        result = CliRunner().invoke(main, ["keys", *arguments], env={"AGENTOS_KEYS": path})
        assert CANARY not in result.output
    assert "holds keys in plain (a)" in CliRunner().invoke(main, ["keys", "--keys", path]).stderr


# --- what the store says ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(home: Path) -> str:
    """That of this machine."""
    return f"sqlite:///{home}/pool.db"


def test_status_shows_what_the_store_says_also_without_keys(agentos: Agentos, store: str) -> None:
    credentials = [
        Credential("env:TEST_CANARY", id="team-a", limits=Limits(requests_per_minute=60, burst=9, max_concurrent=5)),
        Credential("key-b", id="team-b"),
        Credential("key-c", id="team-c"),
    ]
    with CredentialCoordinator(credentials, store=StoreAt(store, "nightly")) as pool:
        pool.listen(lambda _event: None)  # whose printing might end up in the command's
        keys = [pool.reserve_credential(f"doc-{number}") for number in range(6)]
        pool.quarantine("team-b", "no credit")
        pool.mark_rate_limited(next(str(key) for key in keys if key == "key-c"), 90)
        pool.states()
        out = agentos("status").stdout
        told = json.loads(agentos("status", "--json").stdout)
    assert out.startswith(f"In {store}:\n")
    rows, held = ([line.split() for line in part.splitlines() if line.startswith("team")] for part in out.split("\n\n"))
    lines = {row[0]: " ".join(row) for row in rows}
    assert lines["team-a"] == "team-a 4 of 5 4 of 60 requests/min usable"
    assert lines["team-b"].endswith("quarantined: no credit")
    assert re.search(r"usable in (90\.0|8\d\.\d) s: rate_limited$", lines["team-c"])
    assert len(held) == 5
    assert all((row[2], row[-3:]) == ("nightly", [f"{socket.gethostname()},", "pid", str(os.getpid())]) for row in held)

    assert told["store"] == store
    assert [one["id"] for one in told["pool"]] == ["team-a", "team-b", "team-c"]
    first, second, third = told["pool"]
    assert {(one["run"], one["pid"]) for one in first["holders"]} == {("nightly", os.getpid())}
    assert len(first["holders"]) == 4
    assert first["used"] == {"requests per minute": {"used": 4, "limit": 60}}
    assert second["quarantine"] == "no credit"
    assert third["cooling"][0]["reason"] == "rate_limited"


def test_looking_at_a_store_makes_none_and_changes_none(agentos: Agentos, home: Path, store: str) -> None:
    assert agentos("status").exit_code == 2
    assert not home.exists()
    with CredentialCoordinator([Credential("key-a", id="a")], store=store) as pool:
        pool.states()
        before = (home / "pool.db").read_bytes()
        assert agentos("status").exit_code == 0
        assert (home / "pool.db").read_bytes() == before


def test_an_item_that_is_called_like_a_terminal_command_does_no_harm(agentos: Agentos, store: str) -> None:
    with CredentialCoordinator([Credential("key-a", id="a")], store=store) as pool:
        pool.reserve_credential("\x1b[2J\nRun forged")
        out = agentos().stdout
    assert "\x1b" not in out
    assert len(out.splitlines()) == 6


def test_a_holder_that_has_left_is_not_shown(agentos: Agentos, store: str) -> None:
    with CredentialCoordinator([Credential("key-a", id="a")], store=store) as pool:
        pool.reserve_credential("doc")
        assert "doc" in agentos().stdout
    out = agentos().stdout
    assert "doc" not in out
    assert "0 of 1" in out


# --- disable, enable, reset -------------------------------------------------------------------------------------------


def test_what_is_disabled_stays_so_until_it_is_enabled(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    path = keys_file(TWO)
    result = agentos("disable", "team-a", "--reason", "leaked", "--keys", path)
    assert result.stdout.startswith("team-a is disabled, in executing runs too, until")
    assert disabled() == {"team-a": "leaked"}
    assert "disabled: leaked" in agentos("--keys", path).stdout
    assert "team-a  leaked" in agentos().stdout  # also without the keys
    assert agentos("enable", "team-a").stdout == "team-a is enabled.\n"
    assert disabled() == {}
    assert "No credential with this id was disabled or quarantined" in agentos("enable", "team-a").stdout


def test_options_may_stand_before_the_command(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    path = keys_file(TWO)
    assert agentos("--keys", path, "disable", "team-a", "--reason", "x").exit_code == 0
    assert agentos(f"--keys={path}", "--reason", "reset", "disable", "team-b").exit_code == 0
    assert disabled() == {"team-a": "x", "team-b": "reset"}
    assert agentos("--keys", path, "nonsense").exit_code == 2


def test_reset_enables_all_or_those_of_the_keys(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    path = keys_file(TWO)
    agentos("disable", "team-a", "--keys", path)
    agentos("disable", "team-b", "--keys", path)
    agentos("disable", "test-canary", "--key-env", "TEST_CANARY")
    assert disabled() == dict.fromkeys(("team-a", "team-b", "test-canary"), "by hand")
    assert (
        "Disabled, and not in these keys:\nID           REASON\ntest-canary  by hand" in agentos("--keys", path).stdout
    )
    assert agentos("reset", "--keys", path).stdout == "Enabled: team-a, team-b.\n"
    assert agentos("reset").stdout == "Enabled: test-canary.\n"
    assert agentos("reset").stdout == "No credential was disabled or quarantined.\n"


def test_an_id_that_nobody_has_is_not_repeated(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    for command in ("disable", "enable"):
        result = agentos(command, CANARY, "--keys", keys_file(TWO))
        assert result.exit_code == 2
        assert "no credential has this id; there are team-a, team-b" in result.stderr
    assert agentos("enable", CANARY).exit_code == 0


def test_a_damaged_list_of_the_disabled_stops_us(agentos: Agentos, home: Path) -> None:
    home.mkdir()
    (home / "disabled.json").write_text('{"team-a": ')
    with pytest.raises(HomeError, match="mend it, or remove it"):
        disabled()
    result = agentos("reset")
    assert result.exit_code == 3
    assert (home / "disabled.json").read_text() == '{"team-a": '


def test_what_is_disabled_or_enabled_is_so_at_once_for_all_who_share_the_store(
    agentos: Agentos, keys_file: Callable[[str], str], store: str
) -> None:
    path = keys_file(TWO)
    credentials = [Credential("env:TEST_CANARY", id="team-a"), Credential("key-b", id="team-b")]
    with CredentialCoordinator(credentials, store=store) as pool:

        def out_of_use() -> dict[str, str]:
            return {state.key_id: state.quarantined for state in pool.states() if state.quarantined is not None}

        agentos("disable", "team-a", "--reason", "leaked", "--keys", path)
        assert out_of_use() == {"team-a": "disabled: leaked"}
        agentos("enable", "team-a")
        assert out_of_use() == {}
        pool.quarantine("team-b", "HTTP 401: refused")
        assert agentos("enable", "team-b").stdout.endswith("team-b is enabled.\n")
        assert out_of_use() == {}
        pool.quarantine("team-b", "HTTP 401: refused")
        agentos("disable", "team-a", "--keys", path)
        assert agentos("reset").stdout.endswith("Enabled: team-a, team-b.\n")
        assert out_of_use() == {}


def test_those_who_disable_at_once_do_not_undo_each_other(home: Path) -> None:
    threads = [threading.Thread(target=disable, args=(f"k{number}", "x")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(disabled()) == 8


# --- check ------------------------------------------------------------------------------------------------------------


def checked(result: Result) -> dict[str, str]:
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


def test_check_asks_each_provider_in_its_own_way(
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
    told = checked(result)
    assert [told[f"{name}-good"] for name in names] == ["ok"] * 3
    assert told["openai-dead"] == "refused: HTTP 401: Incorrect API key provided."
    assert told["anthropic-dead"] == "refused: HTTP 401: invalid x-api-key"
    assert told["gemini-dead"] == "refused: HTTP 400: API key not valid."


def test_check_tells_limits_and_when_they_end(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    with SimulatedProvider([CANARY], latency=0.0) as provider:
        path = keys_file(text + providers_at(provider.base_url))
        provider.script([429], retry_after=125)
        assert checked(agentos("check", "--keys", path)) == {"a": "limited, resets in 2.1 minutes"}
        provider.exhaust(CANARY)
        told = checked(agentos("check", "--keys", path))["a"]
        assert told.startswith("limited")
        assert "The quota of this account is used up." in told
        provider.refill(CANARY)
        provider.script([503])
        assert checked(agentos("check", "--keys", path))["a"].startswith("not answered (overloaded)")
        result = agentos("check", "--keys", path)
        assert (result.exit_code, checked(result)) == (0, {"a": "ok"})
        told = json.loads(agentos("check", "--json", "--keys", path).stdout)
        assert told == [{"id": "a", "provider": "openai", "is_ok": True, "told": "ok"}]


def test_what_cannot_be_asked_is_no_failure_but_what_cannot_be_read_is(
    agentos: Agentos, keys_file: Callable[[str], str]
) -> None:
    asked = '[[credential]]\nid = "a"\nprovider = "our-gateway"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(asked))
    assert (result.exit_code, checked(result)) == (0, {"a": "no cheap call known"})
    agentos("disable", "a", "--keys", keys_file(asked))
    assert checked(agentos("check", "--keys", keys_file(asked))) == {"a": "no cheap call known (disabled)"}
    unread = '[[credential]]\nid = "b"\nprovider = "openai"\nsecret = "env:TEST_NOT_SET"\n'
    result = agentos("check", "--keys", keys_file(unread))
    assert result.exit_code == 1
    assert "the environment variable TEST_NOT_SET is not set or empty" in checked(result)["b"]


def test_where_nobody_answers_is_told(agentos: Agentos, keys_file: Callable[[str], str]) -> None:
    with SimulatedProvider([CANARY]) as provider:
        url = provider.base_url  # nobody's, after this block
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text + providers_at(url)))
    assert (result.exit_code, checked(result)) == (1, {"a": "no answer: Connection refused"})


@pytest.mark.parametrize("url", ["file:///etc/hosts", "nonsense", "https://"])
def test_an_environment_with_a_strange_address_is_told(
    agentos: Agentos, keys_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text))
    assert result.exit_code == 1
    assert checked(result)["a"].startswith("no answer")


class Strange(BaseHTTPRequestHandler):
    """Repeats the key, or sends it elsewhere."""

    seen: list[str]

    def do_GET(self) -> None:
        type(self).seen.append(self.path)
        if self.path.startswith("/elsewhere"):
            self.send_response(200)
            body = b"{}"
        elif self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            body = b""
        else:
            key = self.headers["Authorization"].removeprefix("Bearer ")
            self.send_response(401)
            pad = self.path.split("/")[1] if self.path.startswith("/pad") else ""
            body = json.dumps({"error": {"message": f"Bad key: {pad}{key}", "code": "invalid_api_key"}}).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def strange() -> Iterator[tuple[str, list[str]]]:
    Strange.seen = []
    with HTTPServer(("127.0.0.1", 0), Strange) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Strange.seen
        server.shutdown()
        thread.join()


def test_an_answer_that_repeats_the_key_is_shown_without_it(
    agentos: Agentos, keys_file: Callable[[str], str], strange: tuple[str, list[str]]
) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{strange[0]}"\n'))
    assert checked(result) == {"a": "refused: HTTP 401: Bad key: ****"}
    assert strange[1] == ["/models"]


@pytest.mark.parametrize("length", [170, 180, 190, 270, 280, 290, 380, 480, 490, 500, 980, 990])
def test_nor_is_its_beginning_where_a_long_answer_is_cut(
    agentos: Agentos, keys_file: Callable[[str], str], strange: tuple[str, list[str]], length: int
) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    url = f"{strange[0]}/pad{'x' * length}"
    result = agentos("check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{url}"\n'))
    assert CANARY[:4] not in result.output


def test_a_key_does_not_follow_a_redirect(
    agentos: Agentos, keys_file: Callable[[str], str], strange: tuple[str, list[str]]
) -> None:
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{strange[0]}/moved"\n'))
    assert result.exit_code == 1
    assert checked(result)["a"].startswith("no answer: HTTP 302")
    assert strange[1] == ["/moved/models"]


@pytest.mark.parametrize("tail", ["\x01", "é€"])
def test_a_key_that_no_header_can_carry_is_not_quoted(
    agentos: Agentos,
    keys_file: Callable[[str], str],
    strange: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tail: str,
) -> None:
    monkeypatch.setenv("TEST_CANARY", CANARY + tail)
    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    result = agentos("check", "--keys", keys_file(text + f'[provider.openai]\nbase_url = "{strange[0]}"\n'))
    assert result.exit_code == 1
    assert checked(result)["a"].startswith("refused")


# --- the program itself -----------------------------------------------------------------------------------------------


def test_the_program_itself_does_it(home: Path, keys_file: Callable[[str], str]) -> None:
    def program(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentos.cli", "keys", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert CANARY not in done.stdout + done.stderr
        return done

    text = '[[credential]]\nid = "a"\nprovider = "openai"\nsecret = "env:TEST_CANARY"\n'
    with SimulatedProvider([CANARY], latency=0.0) as provider:
        path = keys_file(text + providers_at(provider.base_url))
        done = program("check", "--keys", path)
        assert (done.returncode, done.stdout) == (0, "ID  PROVIDER  ANSWER\na   openai    ok\n")
        provider.kill(CANARY)
        assert program("check", "--keys", path).returncode == 1
    assert program("disable", "a", "--keys", path).returncode == 0
    assert program("--keys", path).stdout.endswith("disabled: by hand\n")
    keys_file("[[credential]]\n")
    done = program("--keys", path)
    assert done.returncode == 2
    assert "line 1: secret is missing" in done.stderr
