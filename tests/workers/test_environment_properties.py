"""Properties of the environment that commands inherit: no variable holds a secret of the pool."""

from __future__ import annotations

import os
import string
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from agentos.redaction.redactor import MIN_CONTAINED, Redactor
from agentos.workers.command.command import inherited_environment

SECRETS = st.text(string.ascii_letters + string.digits + "-_.+/=", min_size=1, max_size=40)
BEFORE = st.sampled_from(["", " ", "https://user:", "Bearer ", "a=", '"', ","])
AFTER = st.sampled_from(["", " ", "@host", '"', ",b", "\n"])


@given(st.lists(SECRETS, min_size=1, max_size=4), BEFORE, AFTER)
def test_no_inherited_variable_is_or_contains_a_secret(secrets: list[str], before: str, after: str) -> None:
    variables = {f"EQUAL_{n}": secret for n, secret in enumerate(secrets)}
    variables |= {f"PADDED_{n}": f" {secret}\n" for n, secret in enumerate(secrets)}
    contained = {n: secret for n, secret in enumerate(secrets) if len(secret) >= MIN_CONTAINED}
    variables |= {f"CONTAINS_{n}": before + secret + after for n, secret in contained.items()}
    with mock.patch.dict(os.environ, {**variables, "PATH": "/bin", "KEPT": "?"}, clear=True):
        assert inherited_environment(Redactor(secrets)).keys() <= {"PATH", "KEPT"}


def test_short_secret_inside_a_longer_word_keeps_the_variable() -> None:
    variables = {"PATH": "/usr/test/bin", "HOME": "/home/test", "MODE": "testing", "URL": "x:test@host", "K": "ab"}
    with mock.patch.dict(os.environ, variables, clear=True):
        assert inherited_environment(Redactor(["test", "b"])).keys() == {"PATH", "HOME", "MODE", "K"}
        assert inherited_environment(None) == variables
