"""The number of requests at once of keys that declare none."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.keys.keys_file import keys_from_environment, load_keys
from agentos.workflows.parallel import Credential, CredentialCoordinator


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "auto"),
        ("max_concurrent = 3\n", 3),
        ('max_concurrent = "auto"\n', "auto"),
        ("[credential.limits]\n", "auto"),
        ("[credential.limits]\nmax_concurrent = 2\n", 2),
    ],
)
def test_key_of_a_file_learns_unless_it_declares_a_number(tmp_path: Path, line: str, expected: object) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[credential]]\nid = "a"\nsecret = "env:A"\n' + line)
    assert load_keys(file).credentials[0].limits.max_concurrent == expected


def test_key_of_the_environment_learns() -> None:
    assert keys_from_environment("A_*", {"A_1": "x"}).credentials[0].limits.max_concurrent == "auto"


def test_strings_and_credentials_of_a_program_keep_one() -> None:
    pool = CredentialCoordinator(["key-1-long-enough", Credential("key-2-long-enough")])
    assert [state.max_concurrent for state in pool.states()] == [1, 1]
    assert not any(state.is_concurrency_learned for state in pool.states())
