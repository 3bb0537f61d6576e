"""`sanitize_identifier` returns an identifier unchanged, or raises with the reason."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.workflows.parallel import sanitize_identifier

ALLOWED = string.ascii_letters + string.digits + "-_"


def reason_of(identifier: str) -> str:
    with pytest.raises(ValueError) as caught:
        sanitize_identifier(identifier)
    assert str(caught.value).startswith("Invalid identifier")
    return str(caught.value).rpartition(": ")[2]


@pytest.mark.parametrize("identifier", ["a", "Z", "0", "_", "-", "item-1", "Item_2", "-rf", "__init__", ALLOWED, "C"])
def test_valid_identifiers_are_returned_unchanged(identifier) -> None:
    assert sanitize_identifier(identifier) == identifier


@pytest.mark.parametrize(
    "identifier", ["..", "../secret", "a/../b", "..\\secret", "a..b", "/../etc", "C:\\..\\x", "x/.."]
)
def test_two_dots_are_refused_as_path_traversal(identifier) -> None:
    assert reason_of(identifier) == "path traversal"


@pytest.mark.parametrize(
    "identifier", ["/", "/etc/passwd", "//host/share", "\\", "\\\\host\\share", "C:\\Windows", "c:/x", "Z:"]
)
def test_absolute_paths_of_any_system_are_refused(identifier) -> None:
    assert reason_of(identifier) == "absolute path"


@pytest.mark.parametrize("identifier", ["a/b", "a\\b", "a/", "a\\", "./a", "dir/sub/name"])
def test_path_separators_are_refused(identifier) -> None:
    assert reason_of(identifier) == "path separators not allowed"


@pytest.mark.parametrize(
    "identifier",
    [
        "",
        " ",
        "a b",
        " a",
        "a ",
        "a.b",
        ".",
        ".hidden",
        "a\n",
        "\na",
        "a\r",
        "a\t",
        "a\0",
        "\0",
        "naïve",
        "имя",
        "名",
        "\u0663",  # a digit, but not an ASCII one
        "a\u00b2",  # a superscript digit
        "\uff21",  # a full-width letter
        "e\u0301",  # a letter and its accent
        "a\ud800",  # half of a surrogate pair
        "1:b",
        "$HOME",
        "a;b",
        "a%2fb",
        "~",
        "*",
    ],
)
def test_other_characters_and_empty_text_are_refused(identifier) -> None:
    assert reason_of(identifier).startswith("invalid characters")


@pytest.mark.parametrize(("identifier", "text"), [("a b", "'a b'"), ("a\n", r"'a\n'"), ("a\0", r"'a\x00'"), ("", "''")])
def test_error_shows_the_identifier_escaped(identifier, text) -> None:
    with pytest.raises(ValueError) as caught:
        sanitize_identifier(identifier)
    assert text in str(caught.value)
    assert str(caught.value).isprintable()


def test_error_is_one_sentence() -> None:
    with pytest.raises(ValueError) as caught:
        sanitize_identifier("a/b")
    assert str(caught.value) == "Invalid identifier 'a/b': path separators not allowed"


def test_error_about_a_huge_identifier_is_short() -> None:
    with pytest.raises(ValueError) as caught:
        sanitize_identifier("x" * 100_000 + "!")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [None, 1, b"item-1", ["item-1"], object()])
def test_values_other_than_strings_are_refused_by_type(value) -> None:
    with pytest.raises(ValueError, match=f"^Invalid identifier.*not {type(value).__name__}"):
        sanitize_identifier(value)


IDENTIFIERS = st.text() | st.text(alphabet=ALLOWED + "./\\: \n\0é") | st.text(alphabet=ALLOWED)


@given(identifier=IDENTIFIERS)
@example(identifier="a\n")
@example(identifier="")
def test_accepted_identifiers_are_plain_and_unchanged(identifier) -> None:
    if re.fullmatch(r"[A-Za-z0-9_-]+", identifier):
        assert sanitize_identifier(identifier) == identifier
    else:
        reasons = ("path traversal", "absolute path", "path separators not allowed", "invalid characters")
        assert reason_of(identifier).startswith(reasons)


@given(identifier=st.text(alphabet=ALLOWED, min_size=1, max_size=100))
def test_accepted_identifier_can_name_a_file(tmp_path_factory, identifier) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert (folder / sanitize_identifier(identifier)).parent == folder
