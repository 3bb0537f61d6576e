"""Windows, groups and the order in keys files."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.errors import KeysFileError
from agentos.keys.keys_file import Keys, load_keys
from agentos.workflows.parallel import Limits, Window

KEY = '[[credential]]\nsecret = "env:KEY"\nid = "k"\n'


def load(path: Path, text: str) -> Keys:
    file = path / "keys.toml"
    file.write_text(text)
    return load_keys(file)


def test_windows_of_a_credential_are_read(tmp_path: Path) -> None:
    keys = load(
        tmp_path,
        KEY + "input_tokens_per_minute = 40000\nreserve = 0.25\n"
        '[[credential.window]]\nof = "requests"\namount = 45\nevery = "5h"\nresets = "first-use"\n'
        '[[credential.window]]\nof = "cost"\namount = 9.5\nevery = 3600\nscope = "*opus*"\n',
    )
    assert keys.credentials[0].limits == Limits(
        input_tokens_per_minute=40000,
        reserve=0.25,
        max_concurrent="auto",
        windows=[Window("requests", 45, "5h", "first-use"), Window("cost", 9.5, 3600, scope="*opus*")],
    )


def test_limits_of_a_group_hold_for_its_credentials(tmp_path: Path) -> None:
    keys = load(
        tmp_path,
        KEY + 'quota_group = "team"\nrequests_per_minute = 90\nmax_concurrent = 4\n'
        '[[credential]]\nsecret = "env:OTHER"\nid = "other"\nprovider = "gemini"\nquota_group = "team"\n'
        '[[credential]]\nsecret = "env:THIRD"\nid = "third"\n'
        "[group.team]\nrequests_per_minute = 60\nrequests_per_day = 500\nreserve = 0.1\n"
        '[[group.team.window]]\nof = "tokens"\namount = 100\nevery = "month"\n',
    )
    first, other, third = (credential.limits for credential in keys.credentials)
    assert (first.requests_per_minute, first.max_concurrent, first.reserve) == (60, 4, 0.1)
    assert first.windows == other.windows == (Window("tokens", 100, "month"),)
    assert (other.requests_per_minute, other.day_resets) == (60, "00:00 America/Los_Angeles")
    assert third == Limits(max_concurrent="auto")


def test_order_is_read_from_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, KEY).order == "least-loaded"
    assert load(tmp_path, 'order = "soonest-reset"\n' + KEY).order == "soonest-reset"


WINDOW = KEY + "[[credential.window]]\n"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (WINDOW + 'amount = 5\nevery = "1h"\n', 4, 'of is missing: write of = "tokens"'),
        (WINDOW + 'of = "tokens"\nevery = "1h"\n', 4, "amount is missing"),
        (WINDOW + 'of = "tokens"\namount = 5\n', 4, "every is missing"),
        (WINDOW + 'of = "pages"\namount = 5\nevery = "1h"\n', 5, "of must be one of requests, tokens"),
        (WINDOW + 'of = "tokens"\namount = -5\nevery = "1h"\n', 6, "amount must be a number above 0"),
        (WINDOW + 'of = "tokens"\namount = 5\nevery = "soon"\n', 7, "every must be a duration"),
        (WINDOW + 'of = "tokens"\namount = 5\nevery = "5h"\nresets = "00:00 UTC"\n', 8, "resets must be 'rolling'"),
        (WINDOW + 'of = "tokens"\namount = 5\nevery = "1d"\nresets = "00:00 No/Where"\n', 8, "time zone"),
        (WINDOW + 'of = "tokens"\namount = 5\nper = "1h"\n', 7, "a window has no 'per'"),
        (KEY + "reserve = 2\n", 4, "reserve must be a share from 0 to below 1"),
        (KEY + "[group.team]\nrequests_per_minute = 5\n", 4, "no credential has this group"),
        (KEY + 'quota_group = "team"\n[group.team]\nmax_concurrent = 5\n', 6, "a group has no 'max_concurrent'"),
        ('order = "fastest"\n' + KEY, 1, "order must be one of least-loaded, soonest-reset, listed"),
    ],
)
def test_errors_name_line_and_expectation(tmp_path: Path, text: str, line: int, expected: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        load(tmp_path, text)
    assert f"line {line}:" in str(caught.value)
    assert expected in str(caught.value)
