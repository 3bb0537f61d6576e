"""Names of files and folders for any ids: plain, distinct, and inside their folder."""

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
    """Draw two ids that a file system or a person may confuse."""
    first = draw(IDS)
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
    return first, change(first)


def comparable_forms(name: str) -> set[str]:
    """Return the forms of a name that file systems compare: without case, normalised, without final dots and spaces."""
    folded = {unicodedata.normalize(form, name).casefold() for form in ("NFC", "NFD", "NFKC", "NFKD")}
    return folded | {form.rstrip(". ") for form in folded}


@holds_for(examples=50, pair=twins())
@example(pair=("a" * 10_240, "a" * 10_239))
def test_distinct_ids_have_distinct_file_names(pair: tuple[str, str]) -> None:
    first, second = pair
    assume(first != second)
    for name in (log_name, database_name, folder_name):
        assert not comparable_forms(name(first)) & comparable_forms(name(second))
        assert name(first) == name(first)


@holds_for(examples=40, item_id=IDS)
def test_file_names_are_plain_and_stay_in_their_folder(item_id: str) -> None:
    folder = Path(os.path.realpath(scratch()))
    for name in (log_name(item_id), database_name(item_id), folder_name(item_id)):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name)
        assert not name.endswith((".", " "))
        assert len(name) <= 100  # "-journal" is appended, and encrypted file systems allow 143 bytes
        assert name.partition(".")[0].lower() not in RESERVED
        path = folder / name
        assert Path(os.path.realpath(path)).parent == folder
    path = folder / log_name(item_id)
    path.write_bytes(b"")
    assert path.name in {entry.name for entry in folder.iterdir()}
    path.unlink()


@holds_for(examples=25, run_id=IDS)
def test_run_folder_is_below_runs_or_id_is_refused(run_id: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTOS_HOME", str(scratch()))
        try:
            folder = RunFolder(run_id)
        except ValueError as error:
            message = str(error)
        else:
            message = ""
            assert folder.path.parent == scratch() / "runs"
            assert os.path.realpath(folder.path) == os.path.realpath(scratch() / "runs") + "/" + run_id
            assert sanitize_identifier(run_id) == run_id
            assert re.fullmatch(r"[A-Za-z0-9_-]+", run_id)
        assert not message or (message.startswith("Invalid identifier") and len(message) < 1200)
