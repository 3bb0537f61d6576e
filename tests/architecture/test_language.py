"""Plain language, as far as a search for words can check it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACTOR_RULE = """\
Rule: source and documentation name the actor: a thread, a process, a run, a lease, a user.
Reason: "who" and "nobody" hide which component acts, and that is what a comment or a message is for."""
LIMIT_RULE = """\
Rule: constants that are limits begin with MAX_ or MIN_.
Reason: one word for one thing can be searched for."""
TEST_NAME_RULE = """\
Rule: the name of a test says unit, condition and result in at most MAX_TEST_NAME_WORDS words.
Reason: longer names are not read; details go into the docstring."""
MAX_TEST_NAME_WORDS = 10
_PRONOUN = re.compile(r"\b(?:who(?:ever|m)?|(?:no|some|any|every)body|(?:some|any|every)one)\b", re.IGNORECASE)
_LIMIT = re.compile(r"^ *(?:MOST|LEAST)_(?!LOADED\b)\w+(?=:? )", re.MULTILINE)  # least-loaded is an order of a pool
_TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def sources() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))


def documentation() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def matches(pattern: re.Pattern[str], paths: list[Path]) -> Iterator[str]:
    """Yield the place and the text of each match."""
    for path in paths:
        text = path.read_text()
        for match in pattern.finditer(text):
            yield f"{path.name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0].strip()}"


def long_test_names(text: str) -> list[str]:
    return [name for name in _TEST_NAME.findall(text) if name.count("_") > MAX_TEST_NAME_WORDS]


def test_sources_and_documentation_name_the_actor() -> None:
    assert not list(matches(_PRONOUN, [*sources(), *documentation()])), ACTOR_RULE


def test_limits_are_named_max_and_min() -> None:
    assert not list(matches(_LIMIT, sources())), LIMIT_RULE


def test_test_names_have_at_most_ten_words() -> None:
    names = [name for path in (ROOT / "tests").rglob("test_*.py") for name in long_test_names(path.read_text())]
    assert not names, TEST_NAME_RULE


@pytest.mark.parametrize(
    ("pattern", "bad", "good"),
    [
        (_PRONOUN, "Nobody waits.", "No thread waits."),
        (_PRONOUN, "for whoever asks", "for the client, whose request it is"),
        (_LIMIT, "MOST_KEYS = 3", 'LEAST_LOADED = "least-loaded"'),
    ],
)
def test_pattern_matches_only_the_violation(tmp_path: Path, pattern: re.Pattern[str], bad: str, good: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"{good}\n{bad}\n")
    assert [match.partition(":")[2].partition(":")[0] for match in matches(pattern, [path])] == ["2"]


def test_eleven_words_in_a_test_name_are_reported() -> None:
    words = "_".join("abcdefghijk")
    assert long_test_names(f"def test_{words}() -> None:\ndef test_{words[2:]}() -> None:\n") == [f"test_{words}"]
