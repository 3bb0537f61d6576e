"""Ids become names of files that are plain, distinct and in their place, whatever the ids are."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, example
from hypothesis import strategies as st

from agentos.home.run_folder import RunFolder
from agentos.identifiers import sanitize_identifier
from agentos.items.file_names import MAX_READABLE, database_name, folder_name, log_name
from tests.support.properties import holds_for
from tests.support.texts import fuzzy, scratch

RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³")}
NASTY = [
    "", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "C:\\x", "c:", "CON", "con.txt", "NUL", "aux.",
    "com1", "LPT9.log", "a.", "a ", " a", "-rf", "~", "~root", "a\0b", "a\nb", "*", "?", "|", "a" * 300,
    "a" * 10_240, "ü" * 10_240, "A" * 300, "\ud800", "\udfff" * 100, "\u202eexe.txt", "é", "e\u0301", "K", "\u212a",
    "ß", "ẞ", "ss", "SS", "\u017f", "İ", "i̇", "ﬁ", "fi", ".hidden", "a.log", "a-log", ".report", ".unused-0",
    "desktop.ini", "$MFT", "a:b", "a;b", "%2e%2e%2f", "\u2215", "\uff0e\uff0e",
]  # fmt: skip
IDS = st.sampled_from(NASTY) | fuzzy(60) | st.text(st.characters(), min_size=1, max_size=8).map(lambda id_: id_ * 1500)


@st.composite
def twins(draw: st.DrawFn) -> tuple[str, str]:
    """Two ids that some file system, or some person, takes for one."""
    one = draw(IDS)
    change = draw(
        st.sampled_from(
            [
                str.lower, str.upper, str.casefold, str.swapcase, str.title, str.strip,
                *(lambda text, form=form: unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")),
                lambda text: text + ".", lambda text: text + " ", lambda text: text + "\0", lambda text: "./" + text,
                lambda text: text.replace("/", "\\"), lambda text: text[:-1], lambda text: text[:MAX_READABLE] + "x",
                lambda text: text.encode("utf-8", "replace").decode(), lambda text: text + "\u200b",
            ]
        )
    )  # fmt: skip
    return one, change(one)


def as_seen(name: str) -> set[str]:
    """As file systems compare names: in one case, in one normal form, without dots and spaces at the end."""
    folded = {unicodedata.normalize(form, name).casefold() for form in ("NFC", "NFD", "NFKC", "NFKD")}
    return folded | {one.rstrip(". ") for one in folded}


@holds_for(examples=50, pair=twins())
@example(pair=("a" * 10_240, "a" * 10_239))
def test_distinct_ids_have_distinct_file_names(pair: tuple[str, str]) -> None:
    one, other = pair
    assume(one != other)
    for name in (log_name, database_name, folder_name):
        assert not as_seen(name(one)) & as_seen(name(other))
        assert name(one) == name(one)


@holds_for(examples=40, item_id=IDS)
def test_file_names_are_plain_and_stay_in_their_folder(item_id: str) -> None:
    folder = Path(os.path.realpath(scratch()))
    for name in (log_name(item_id), database_name(item_id), folder_name(item_id)):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name)
        assert not name.endswith((".", " "))
        assert len(name) <= 100  # "-journal" comes behind it, and encrypted file systems have 143 bytes
        assert name.partition(".")[0].lower() not in RESERVED
        path = folder / name
        assert Path(os.path.realpath(path)).parent == folder
    path = folder / log_name(item_id)
    path.write_bytes(b"")
    assert path.name in {other.name for other in folder.iterdir()}
    path.unlink()


@holds_for(examples=25, run_id=IDS)
def test_run_folder_is_below_runs_or_id_is_refused(run_id: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTOS_HOME", str(scratch()))
        try:
            folder = RunFolder(run_id)
        except ValueError as error:
            told = str(error)
        else:
            told = ""
            assert folder.path.parent == scratch() / "runs"
            assert os.path.realpath(folder.path) == os.path.realpath(scratch() / "runs") + "/" + run_id
            assert sanitize_identifier(run_id) == run_id
            assert re.fullmatch(r"[A-Za-z0-9_-]+", run_id)
        assert not told or (told.startswith("Invalid identifier") and len(told) < 1200)
