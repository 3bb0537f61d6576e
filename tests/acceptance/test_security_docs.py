"""Every promise in docs/security.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = (TESTS.parent / "docs" / "security.md").read_text()


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", DOCUMENT)
    assert named
    assert not [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^(?:async )?def {test}\(", (TESTS / file).read_text(), re.MULTILINE)
    ]


def test_every_promise_names_a_test() -> None:
    promises = DOCUMENT.partition("## What is promised")[2].partition("## What is not")[0]
    each = re.split(r"^\d+\. ", promises, flags=re.MULTILINE)[1:]
    assert len(each) >= 8
    assert all("::test_" in promise for promise in each)
