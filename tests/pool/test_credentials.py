"""Credentials: ids that may be shown, secrets that may not, and references to secrets."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import logging
import operator
import os
import pickle
import pprint
import re
import shlex
import signal
import subprocess
import sys
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.pool import references
from agentos.pool.credential import fingerprint
from agentos.pool.lease import LeasedKey
from agentos.workflows.parallel import Credential, CredentialCoordinator, CredentialError, Lease, Limits
from tests.conftest import eventually
from tests.workers.test_processes import is_alive

# No four characters in a row can be part of a word, an id or a memory address.
SECRET = "sk-Zq7Xw9Vu3Tj5Rm8Ph2Nk4Gz"
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def assert_not_shown(text: str, secret: str = SECRET) -> None:
    for start in range(len(secret) - 3):
        assert secret[start : start + 4] not in text


def command(program: str, *args: str) -> str:
    """Return a `cmd:` reference to a Python program."""
    return "cmd:" + shlex.join([sys.executable, "-c", program, *args])


def error_of(credential: Credential) -> CredentialError:
    with pytest.raises(CredentialError) as caught:
        _ = credential.secret
    return caught.value


@pytest.fixture
def key_file(tmp_path: Path) -> Callable[..., Path]:
    def make(content: str | bytes = SECRET, mode: int = 0o600) -> Path:
        path = tmp_path / "key"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    return make


@pytest.fixture
def lease() -> Iterator[Lease]:
    with CredentialCoordinator([SECRET]).lease() as lease:
        yield lease


@pytest.fixture
def key() -> LeasedKey:
    reserved = CredentialCoordinator([SECRET]).reserve()
    assert reserved is not None
    return reserved


# --- ids ----------------------------------------------------------------------------------------------------------


@given(secret=st.text(min_size=1))
def test_generated_id_has_eight_hex_digits(secret: str) -> None:
    assert re.fullmatch(r"key-[0-9a-f]{8}", fingerprint(secret))
    assert Credential(secret).id == fingerprint(secret)


def test_invalid_unicode_secret_has_an_id() -> None:
    assert re.fullmatch(r"key-[0-9a-f]{8}", fingerprint("sk-\ud800"))


def test_id_is_stable_across_processes_and_releases() -> None:
    # Ids are in logs and in users' settings: a change of this value is a breaking change.
    assert fingerprint("sk-abcdef") == "key-ec8bf0d4"


# Letters that occur neither in "key-" nor in hexadecimal digits: a common substring is never a coincidence.
@given(secret=st.text(alphabet="ghijlmnopqrstuvwxzGHIJLMNOPQRSTUVWXZ_.", min_size=4))
def test_id_holds_no_part_of_the_secret(secret: str) -> None:
    assert not set(secret) & set(fingerprint(secret))
    assert_not_shown(Credential(secret).id, secret)


@given(
    start=st.text(max_size=20), end=st.text(max_size=20), characters=st.sets(st.characters(), min_size=2, max_size=2)
)
def test_similar_secrets_have_different_ids(start: str, end: str, characters: set[str]) -> None:
    ids = {fingerprint(f"{start}{character}{end}") for character in characters}
    assert len(ids) == 2


def test_given_id_is_used() -> None:
    assert Credential(SECRET, id="team-a").id == "team-a"


def test_id_of_reference_is_independent_of_key(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set()
    for value in ("first", "second"):
        monkeypatch.setenv("SOME_KEY", value)
        credential = Credential("env:SOME_KEY")
        assert credential.secret == value
        ids.add(credential.id)
    assert len(ids) == 1


@pytest.mark.parametrize("chosen", ["", SECRET, 7])
def test_id_that_cannot_be_shown_is_refused(chosen: Any) -> None:
    with pytest.raises(ValueError, match="id is displayed") as caught:
        Credential(SECRET, id=chosen)
    assert_not_shown(str(caught.value))


@pytest.mark.parametrize("secret", ["", None, 7, SECRET.encode()])
def test_empty_or_non_string_secret_is_refused(secret: Any) -> None:
    with pytest.raises(ValueError, match="must be a non-empty string") as caught:
        Credential(secret)
    assert_not_shown(str(caught.value))


def test_string_as_scopes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scopes=\[name\]"):
        Credential(SECRET, scopes="model-a")
    assert Credential(SECRET, scopes=["model-a", "model-b", "model-a"]).scopes == {"model-a", "model-b"}


def test_credential_without_group_has_its_own() -> None:
    own = {Credential(secret).quota_group for secret in ("sk-one", "sk-two")}
    assert len(own) == 2
    assert Credential("sk-one", quota_group="team").quota_group == "team"


# --- ids that collide ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def colliding() -> tuple[str, str]:
    """Return two keys with the same short fingerprint: among some hundred thousand there is a pair."""
    secrets: dict[str, str] = {}
    for number in itertools.count():
        secret = f"sk-{number}"
        twin = secrets.setdefault(fingerprint(secret), secret)
        if twin != secret:
            return twin, secret
    raise AssertionError


def test_keys_with_colliding_ids_both_join(colliding: tuple[str, str]) -> None:
    first, second = colliding
    assert Credential(first).id == Credential(second).id
    pool = CredentialCoordinator([first, second])
    ids = [state.key_id for state in pool.states()]
    assert ids[0] == fingerprint(first)
    assert re.fullmatch(r"key-[0-9a-f]{24}", ids[1])
    keys = [pool.reserve_credential(), pool.reserve_credential()]
    assert {key: key.credential_id for key in keys if key is not None} == dict(zip(colliding, ids, strict=True))
    assert pool.reserve_credential() is None
    pool.release(second)
    assert [state.in_use for state in pool.states()] == [True, False]


def test_longer_id_keeps_all_other_fields(colliding: tuple[str, str]) -> None:
    first, second = colliding
    pool = CredentialCoordinator([first])
    limits = Limits(max_concurrent=3)
    added = pool.add(Credential(second, provider="acme", quota_group="team", scopes=["model-a"], limits=limits))
    state = pool.states()[1]
    assert (state.key_id, state.provider, state.quota_group, state.max_concurrent) == (added, "acme", "team", 3)
    pool.quarantine(fingerprint(first), "only the other one is left")
    with pool.lease(scope="model-a") as lease:
        assert lease.secret == second


@pytest.mark.filterwarnings("ignore:a string that begins with")
def test_key_that_looks_like_reference_joins_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    pool = CredentialCoordinator(["env:SOME_KEY", Credential("env:SOME_KEY")])
    assert {pool.reserve_credential(), pool.reserve_credential()} == {"env:SOME_KEY", SECRET}


def test_duplicate_given_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="two credentials have the id 'team'") as caught:
        CredentialCoordinator([Credential("sk-one", id="team"), Credential(SECRET, id="team")])
    assert_not_shown(str(caught.value))


# --- references ---------------------------------------------------------------------------------------------------


def test_plain_secret_is_returned() -> None:
    assert Credential(SECRET).secret == SECRET


@pytest.mark.parametrize("secret", ["env:", "file:", "cmd:", "ENV:HOME", "sk:abc", "environment:X", ":", " env:HOME"])
def test_incomplete_reference_is_the_key_itself(secret: str) -> None:
    assert Credential(secret).secret == secret


@pytest.mark.filterwarnings("ignore:a string that begins with")
@pytest.mark.parametrize("reference", ["env:SOME_KEY", "file:/no/such/file", "cmd:false", "cmd:no-such-command"])
def test_pool_takes_reference_like_strings_as_keys(monkeypatch: pytest.MonkeyPatch, reference: str) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    pool = CredentialCoordinator([reference])
    assert pool.reserve() == reference
    twin = CredentialCoordinator(["sk-one"])
    assert twin.add(reference) == fingerprint(reference)
    assert twin.states()[1].key_id == fingerprint(reference)


def test_env_variable_is_read_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    credential = Credential("env:SOME_KEY")
    monkeypatch.setenv("SOME_KEY", f"  {SECRET}\n")
    assert credential.secret == SECRET
    monkeypatch.setenv("SOME_KEY", "another")
    assert credential.secret == SECRET


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_error_names_unset_env_variable(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("SOME_KEY", raising=False)
    else:
        monkeypatch.setenv("SOME_KEY", value)
    message = str(error_of(Credential("env:SOME_KEY", id="team")))
    assert "team" in message
    assert "the environment variable SOME_KEY is not set or empty" in message


def test_reference_is_read_when_joining_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    pool = CredentialCoordinator([Credential("env:SOME_KEY")])
    monkeypatch.delenv("SOME_KEY")
    assert pool.reserve() == SECRET
    with pytest.raises(CredentialError, match="SOME_KEY"):
        pool.add(Credential("env:SOME_KEY"))
    assert len(pool.states()) == 1


def test_key_of_two_references_joins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    pool = CredentialCoordinator([SECRET])
    with pytest.raises(ValueError, match=f"already in the pool, as {fingerprint(SECRET)}") as caught:
        pool.add(Credential("env:SOME_KEY"))
    assert_not_shown(str(caught.value))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_file_of_owner_only_is_read(key_file: Callable[..., Path], mode: int) -> None:
    path = key_file(SECRET + "  \n", mode)
    assert Credential(f"file:{path}").secret == SECRET


def test_byte_order_mark_of_file_is_left_out(key_file: Callable[..., Path]) -> None:
    path = key_file("\ufeff" + SECRET + "\r\n", 0o600)
    assert Credential(f"file:{path}").secret == SECRET


def test_file_path_may_start_with_tilde(monkeypatch: pytest.MonkeyPatch, key_file: Callable[..., Path]) -> None:
    path = key_file()
    monkeypatch.setenv("HOME", str(path.parent))
    assert Credential("file:~/key").secret == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o666, 0o444, 0o777])
def test_file_readable_by_others_is_refused_with_advice(key_file: Callable[..., Path], mode: int) -> None:
    path = key_file(SECRET, mode)
    message = str(error_of(Credential(f"file:{path}")))
    assert f"other users can read {path}" in message
    assert f"chmod 600 {path}" in message
    assert_not_shown(message)
    path.chmod(0o600)
    assert Credential(f"file:{path}").secret == SECRET


def test_file_checks_the_target_of_a_link(key_file: Callable[..., Path], tmp_path: Path) -> None:
    path = key_file()
    link = tmp_path / "link"
    link.symlink_to(path)
    assert Credential(f"file:{link}").secret == SECRET
    path.chmod(0o644)
    assert "other users can read" in str(error_of(Credential(f"file:{link}")))


def test_error_names_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    error = error_of(Credential(f"file:{path}", id="team"))
    assert str(error) == f"cannot read the key file {path}: No such file or directory"
    assert error.credential_id == "team"


@pytest.mark.parametrize("content", ["", "\n", "  \n\n"])
def test_error_names_empty_file(key_file: Callable[..., Path], content: str) -> None:
    path = key_file(content)
    assert f"the file {path} is not set or empty" in str(error_of(Credential(f"file:{path}")))


def test_file_that_is_not_text_is_refused(key_file: Callable[..., Path]) -> None:
    path = key_file(SECRET.encode() + b"\xff")
    error = error_of(Credential(f"file:{path}"))
    assert str(error) == f"cannot read the key file {path}: it is not text in UTF-8"
    assert_not_shown("".join(traceback.format_exception(error)))


def test_folder_as_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    assert str(folder) in str(error_of(Credential(f"file:{folder}")))


@pytest.mark.parametrize("path", ["~no-such-user-here/key", "a\0b"])
def test_impossible_path_raises_credential_error(path: str) -> None:
    assert "key file" in str(error_of(Credential(f"file:{path}")))


def test_cmd_returns_first_line_of_output() -> None:
    assert Credential(command(f"print(' {SECRET} '); print('second line')")).secret == SECRET


def test_cmd_runs_once_and_without_a_shell(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import sys; open(sys.argv[1], 'a').write('run '); print(*sys.argv[2:])"
    credential = Credential(f"{command(program, str(log))} $HOME '~ and' ; false")
    assert credential.secret == "$HOME ~ and ; false"
    assert credential.secret == "$HOME ~ and ; false"
    assert log.read_text() == "run "


@pytest.mark.parametrize("status", [1, 3])
def test_failed_cmd_shows_status_not_output(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("LEAK", SECRET)
    program = (
        f"import os, sys; print(os.environ['LEAK']); print(os.environ['LEAK'], file=sys.stderr); sys.exit({status})"
    )
    error = error_of(Credential(command(program), id="team"))
    assert str(error).startswith("credential team: its command ")
    assert str(error).endswith(f" failed: it ended with status {status}")
    assert_not_shown("".join(traceback.format_exception(error)))


def test_missing_cmd_raises_credential_error() -> None:
    message = str(error_of(Credential("cmd:no-such-command-anywhere --key", id="team")))
    assert message == "credential team: its command failed: there is no such program"


@pytest.mark.parametrize("reference", ["cmd:'", "cmd:a\0b", "cmd: ", "cmd:''"])
def test_malformed_cmd_raises_credential_error(reference: str) -> None:
    assert "credential team: its command failed" in str(error_of(Credential(reference, id="team")))


def test_cmd_without_output_raises_credential_error() -> None:
    message = str(error_of(Credential(command("pass"), id="team")))
    assert message == "credential team: the output of its command is not set or empty"


@pytest.mark.parametrize("character", ["\0", "\x1b", "\t", "\x7f"])
def test_key_with_control_character_is_refused(key_file: Callable[..., Path], character: str) -> None:
    """No command can have a variable with NUL, and no request a header with another: all items would fail."""
    key = f"{SECRET}{character}{SECRET}"
    sources = [key, f"file:{key_file(content=key)}", command(f"print({key!r})")]
    for message in (str(error_of(Credential(source, id="team"))) for source in sources):
        assert message.startswith("credential team: ")
        assert message.endswith(" has a control character; a key has none")
        assert SECRET not in message


def test_cmd_with_binary_output_raises_credential_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAK", SECRET)
    program = r"import os, sys; sys.stdout.buffer.write(os.environ['LEAK'].encode() + b'\xff')"
    error = error_of(Credential(command(program), id="team"))
    assert str(error).endswith(" failed: it printed no text in UTF-8")
    assert_not_shown("".join(traceback.format_exception(error)))


def test_endless_cmd_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "COMMAND_TIMEOUT_SECONDS", 0.01)
    error = error_of(Credential(command("import signal; signal.pause()"), id="team"))
    assert str(error).endswith(" failed: it did not end within 0.01 s")


# --- nothing shows a secret ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Holder:
    """A record of a user's program with a secret in it."""

    thing: Any


def shown_by_locals(thing: Any) -> str:
    """Return a traceback with local variables, as error trackers send it."""

    def fail(record: Any) -> None:
        raise ValueError("something else")

    try:
        fail(thing)
    except ValueError as error:
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    raise AssertionError


WAYS_TO_SHOW: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "ascii": ascii,
    "in a list": lambda thing: repr([thing]),
    "in a record": lambda thing: repr(Holder(thing)),
    "percent r": lambda thing: operator.mod("%r", (thing,)),
    "format r": lambda thing: f"{thing!r}",
    "pprint": lambda thing: pprint.pformat({"thing": thing}),
    "locals of a traceback": shown_by_locals,
}
WAYS_OF_STR: dict[str, Callable[[Any], str]] = {
    "str": str,
    "format": format,
    "f-string": lambda thing: f"{thing}",
    "percent s": lambda thing: operator.mod("%s", (thing,)),
    "log line": lambda thing: logging.LogRecord("n", 20, "p", 1, "using %s", (thing,), None).getMessage(),
    "json of what it cannot hold": lambda thing: json.dumps({"thing": thing}, default=str),
}
WAYS_TO_COPY: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a record": lambda thing: copy.deepcopy(Holder(thing)),
    "asdict of a record": lambda thing: dataclasses.asdict(Holder(thing)),
    **{f"pickle {n}": lambda thing, n=n: pickle.dumps(thing, n) for n in PROTOCOLS},
    **{f"pickle in a list {n}": lambda thing, n=n: pickle.dumps([thing], n) for n in PROTOCOLS},
}


def unresolved() -> Credential:
    return Credential(SECRET, provider="acme")


def resolved() -> Credential:
    credential = unresolved()
    assert credential.secret == SECRET
    return credential


@pytest.mark.parametrize("way", [*WAYS_TO_SHOW, *WAYS_OF_STR])
@pytest.mark.parametrize("make", [unresolved, resolved, lambda: Credential.literal(SECRET)])
def test_repr_of_credential_is_masked(make: Callable[[], Credential], way: str) -> None:
    text = (WAYS_TO_SHOW | WAYS_OF_STR)[way](make())
    assert_not_shown(text)
    assert "****" in text
    assert fingerprint(SECRET) in text


@pytest.mark.parametrize("way", [*WAYS_TO_SHOW, *WAYS_OF_STR])
def test_repr_of_lease_is_masked(lease: Lease, way: str) -> None:
    text = (WAYS_TO_SHOW | WAYS_OF_STR)[way](lease)
    assert_not_shown(text)
    assert "****" in text
    assert fingerprint(SECRET) in text


def test_reprs_are_readable(lease: Lease, key: LeasedKey) -> None:
    shown = fingerprint(SECRET)
    assert repr(Credential(SECRET, provider="acme")) == f"Credential(****, id='{shown}', provider='acme')"
    assert repr(lease) == f"<Lease of {shown} ****, fence 1, live>"
    assert repr(key) == f"<{shown} ****>"


@pytest.mark.parametrize("way", WAYS_TO_COPY)
def test_credential_cannot_be_copied(way: str) -> None:
    with pytest.raises(TypeError, match="a Credential holds a secret") as caught:
        WAYS_TO_COPY[way](resolved())
    assert_not_shown(str(caught.value))


@pytest.mark.parametrize("way", WAYS_TO_COPY)
def test_lease_cannot_be_copied(lease: Lease, way: str) -> None:
    with pytest.raises(TypeError, match="a Lease holds a secret") as caught:
        WAYS_TO_COPY[way](lease)
    assert_not_shown(str(caught.value))


@pytest.mark.parametrize("look", [vars, dataclasses.asdict, json.dumps])
def test_credential_and_lease_have_no_dict(lease: Lease, look: Callable[[Any], object]) -> None:
    for thing in (resolved(), lease):
        with pytest.raises(TypeError) as caught:
            look(thing)
        assert_not_shown(str(caught.value))


def test_credential_is_immutable() -> None:
    credential = resolved()
    for name in ("id", "secret", "provider", "quota_group", "scopes", "limits", "note"):
        with pytest.raises(AttributeError):
            setattr(credential, name, "x")
    assert credential.secret == SECRET


def test_pool_repr_has_counts_and_pool_cannot_be_copied() -> None:
    pool = CredentialCoordinator([SECRET])
    for way in (*WAYS_TO_SHOW.values(), *WAYS_OF_STR.values()):
        assert_not_shown(way(pool))
    assert "1 total" in repr(pool)
    for copied in WAYS_TO_COPY.values():
        with pytest.raises(TypeError, match="a CredentialCoordinator holds a secret"):
            copied(pool)
    assert_not_shown(repr(pool.states()))


def test_repr_of_ended_lease_is_masked() -> None:
    with CredentialCoordinator([SECRET]).lease() as lease:
        while_live = repr(lease)
    assert repr(lease) != while_live
    assert_not_shown(repr(lease))


# --- leased keys --------------------------------------------------------------------------------------------------


def test_leased_key_equals_the_key(key: LeasedKey) -> None:
    assert isinstance(key, str)
    assert key == SECRET
    assert hash(key) == hash(SECRET)
    assert {SECRET: "found"}[key] == "found"
    assert len(key) == len(SECRET)
    assert key.encode() == SECRET.encode()
    assert key.startswith("sk-")
    assert key.credential_id == fingerprint(SECRET)


@pytest.mark.parametrize("way", WAYS_TO_SHOW)
def test_repr_of_leased_key_is_masked(key: LeasedKey, way: str) -> None:
    text = WAYS_TO_SHOW[way](key)
    assert_not_shown(text)
    assert "****" in text
    assert fingerprint(SECRET) in text


@pytest.mark.parametrize("way", WAYS_OF_STR)
def test_leased_key_acts_as_key_in_texts(key: LeasedKey, way: str) -> None:
    assert WAYS_OF_STR[way](key) == WAYS_OF_STR[way](SECRET)


def test_leased_key_joins_and_formats_as_key(key: LeasedKey) -> None:
    assert "Bearer " + key == f"Bearer {SECRET}"
    assert f"{key:>40}" == f"{SECRET:>40}"
    assert " ".join(["Bearer", key]) == f"Bearer {SECRET}"
    assert json.dumps({"key": key}) == json.dumps({"key": SECRET})


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        str,
        *(lambda key, n=n: pickle.loads(pickle.dumps(key, n)) for n in PROTOCOLS),
        lambda key: dataclasses.asdict(Holder(key))["thing"],
    ],
)
def test_copy_of_leased_key_is_plain_string(key: LeasedKey, copied: Callable[[LeasedKey], str]) -> None:
    twin = copied(key)
    assert type(twin) is str
    assert twin == SECRET


def test_leased_key_and_plain_copy_both_release() -> None:
    pool = CredentialCoordinator([SECRET])
    for released in (lambda key: key, copy.copy):
        key = pool.reserve_credential()
        assert key is not None
        assert pool.reserve_credential() is None
        pool.release(released(key))
        assert pool.get_available_count() == 1


# --- limits -------------------------------------------------------------------------------------------------------

RATES = ["requests_per_minute", "tokens_per_minute", "requests_per_day", "burst"]


def test_default_limits_are_unknown_with_one_lease() -> None:
    limits = Limits()
    assert [getattr(limits, name) for name in RATES] == [None] * 4
    assert limits.max_concurrent == 1
    assert limits.day_resets == "00:00 UTC"
    assert Credential(SECRET).limits == limits


def test_limits_keep_given_values() -> None:
    limits = Limits(0.5, 90_000.5, 1000, 4, 1.5, "23:59 Europe/Berlin")
    assert dataclasses.astuple(limits)[:6] == (0.5, 90_000.5, 1000, 4, 1.5, "23:59 Europe/Berlin")
    assert Credential(SECRET, limits=limits).limits is limits
    assert pickle.loads(pickle.dumps(limits)) == limits


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "60"])
def test_invalid_rate_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        Limits(**{name: value})
    assert str(caught.value) == f"{name} must be a number above 0, or None if it is not known; not {value!r}"


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, True, "2", None])
def test_invalid_concurrency_is_refused(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        Limits(max_concurrent=value)
    assert str(caught.value) == f"max_concurrent must be a whole number from 1, or 'auto'; not {value!r}"


@pytest.mark.parametrize("value", ["", "00:00", "24:00 UTC", "12:60 UTC", "0:00 UTC", "midnight", "00:00 UTC\n"])
def test_invalid_reset_time_is_refused(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        Limits(day_resets=value)
    assert str(caught.value) == f"day_resets must look like '00:00 UTC', not {value!r}"


def test_limits_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().max_concurrent = 2  # type: ignore[misc]


def test_cmd_reads_nothing_of_our_stdin() -> None:
    """The items of a run may come by stdin."""
    program = (
        "from agentos.workflows.parallel import Credential\n"
        "import sys\n"
        "print('secret', Credential(sys.argv[1]).secret)\n"
        "print('left', sys.stdin.read())\n"
    )
    helper = command(f"import sys; print('{SECRET}' + sys.stdin.read())")
    done = subprocess.run(
        [sys.executable, "-c", program, helper], input="items", capture_output=True, text=True, check=True
    )
    assert done.stdout == f"secret {SECRET}\nleft items\n"


def test_timed_out_cmd_is_killed_with_its_descendants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import signal, subprocess, sys\n"
        "sleeper = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(sleeper.pid, file=open(sys.argv[1], 'w'), flush=True)\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(references, "COMMAND_TIMEOUT_SECONDS", 2.0)
    assert "it did not end within 2 s" in str(error_of(Credential(command(program, str(pid_file)), id="team")))
    pid = int(pid_file.read_text())
    eventually(lambda: not is_alive(pid))


def test_cmd_that_leaves_a_process_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import subprocess, sys\n"
        "sleeper = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"print('{SECRET}', sleeper.pid, flush=True)\n"
    )
    monkeypatch.setattr(references, "COMMAND_TIMEOUT_SECONDS", 600.0)
    secret, pid = Credential(command(program)).secret.split()
    assert secret == SECRET
    os.kill(int(pid), signal.SIGKILL)


def test_endless_output_of_cmd_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    monkeypatch.setattr(references, "COMMAND_TIMEOUT_SECONDS", 1.0)
    tracemalloc.start()
    try:
        error_of(Credential(command(program), id="team"))
        assert tracemalloc.get_traced_memory()[1] < 10 * references.MAX_OUTPUT_BYTES
    finally:
        tracemalloc.stop()


def test_lost_status_of_cmd_is_no_success() -> None:
    """A program that ignores SIGCHLD never learns how the helper ended."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        error = error_of(Credential(command(f"print('{SECRET}'); raise SystemExit(1)"), id="team"))
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert "exit status is lost" in str(error)
    assert_not_shown(str(error))
