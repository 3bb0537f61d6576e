"""Properties of item formats: items are read back as written, in any chunks; errors name the line."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from typing import Any

import pytest
from hypothesis import example
from hypothesis import strategies as st

from agentos.cli.launch._item_formats import FORMATS, STDIN, BadItems, Item, items_in
from agentos.cli.launch.item_input import read_items
from agentos.home.run_folder import ItemSource, RunFolder
from tests.redaction.test_redaction import in_chunks
from tests.support.properties import holds_for
from tests.support.texts import NUMBERS, ODD, fuzzy, json_values, mutated, scratch

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | fuzzy(12)
OBJECTS = st.dictionaries(fuzzy(6), json_values(fuzzy(6), SCALARS, 5), max_size=3)
CUTS = st.lists(st.integers(0, 500), max_size=5)
ENDS = st.sampled_from(["\n", "\r\n"])
MARKS = st.sampled_from([b"", b"\xef\xbb\xbf"])


@st.composite
def written_as_json(draw: st.DrawFn) -> tuple[str, bytes, list[Item]]:
    items = draw(st.lists(fuzzy(12) | OBJECTS, max_size=4))
    format_ = draw(st.sampled_from(["json", "jsonl"]))
    end, is_ascii = draw(ENDS), draw(st.booleans())
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", "\t: ")]))
    indent = draw(st.sampled_from([None, 1])) if format_ == "json" else None
    text = [json.dumps(item, ensure_ascii=is_ascii, separators=separators, indent=indent) for item in items]
    written = (
        f"[{f',{end}'.join(text)}]"
        if format_ == "json"
        else end.join([*text, *draw(st.lists(st.just(" "), max_size=2))])
    )
    if not is_ascii:  # lone surrogates have no UTF-8
        written = re.sub("[\ud800-\udfff]", "?", written)
        items = json.loads(re.sub("[\ud800-\udfff]", "?", json.dumps(items, ensure_ascii=False)))
    return format_, draw(MARKS) + written.encode(), items


@st.composite
def written_as_csv(draw: st.DrawFn) -> tuple[str, bytes, list[Item]]:
    texts = fuzzy(8).map(lambda text: re.sub("[\ud800-\udfff]", "?", text))
    header = draw(st.lists(texts, min_size=1, max_size=3, unique=True).filter(lambda names: names[0][:1] != "\ufeff"))
    rows = draw(st.lists(st.lists(texts, min_size=len(header), max_size=len(header)), max_size=3))
    # Not a lone carriage return: `csv.writer` does not quote it, and some readers end a line there.
    has_return = any("\r" in text for row in [header, *rows] for text in row)
    quoting = csv.QUOTE_ALL if has_return else draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=draw(ENDS), quoting=quoting)
    writer.writerow(header)
    for row in rows:
        file.write(draw(st.sampled_from(["", "", "\n"])))
        writer.writerow(row)
    content = file.getvalue().encode()
    return "csv", draw(MARKS) + content, [dict(zip(header, row, strict=True)) for row in rows]


@st.composite
def written_as_lines(draw: st.DrawFn) -> tuple[str, bytes, list[Item]]:
    lines = draw(st.lists(st.binary(max_size=12).map(lambda line: b"x" + line.replace(b"\n", b"") + b"x"), max_size=4))
    end = draw(ENDS).encode()
    texts: list[Item] = [line.decode("utf-8", "surrogateescape") for line in lines]
    return "txt", end.join([*lines, *draw(st.lists(st.just(b" \t"), max_size=2))]), texts


WRITTEN = st.one_of(written_as_json(), written_as_csv(), written_as_lines())


@holds_for(examples=30, written=WRITTEN, cuts=CUTS)
@example(written=("csv", b'a,b\r\n"1\r\n2",\r\n', [{"a": "1\r\n2", "b": ""}]), cuts=[7])
def test_written_items_are_read_back(written: tuple[str, bytes, list[Item]], cuts: list[int]) -> None:
    format_, content, items = written
    assert [item for _, item in items_in("a", format_, [content])] == items
    assert [item for _, item in items_in("a", format_, in_chunks(content, cuts))] == items


PIECES = [
    piece.encode("utf-8", "surrogatepass")
    for piece in [
        *ODD, *NUMBERS, "\n", '"', ",", "{", "}", "[", "]", ":", "null", "[" * 3000, '{"a":' * 120, "\\ud800", "\\u",
        "\\x", "//", '{"id": 1}\n', '""', "\n\n",
    ]
] + [b"\xff\xfe", b"\xfe\xff", b"\xff", b"\xc3", b"\xed\xa0\x80"]  # fmt: skip


@holds_for(
    examples=40,
    content=mutated(WRITTEN.map(lambda written: written[1]), PIECES),
    format_=st.sampled_from([*FORMATS, None]),
    cuts=CUTS,
)
@example(content=b"[" * 100_000, format_="json", cuts=[])
@example(content=b'{"a":' * 100_000, format_="jsonl", cuts=[])
@example(content=b'"' + b"9" * 5000, format_="csv", cuts=[])
@example(content=b"[1, NaN]", format_="json", cuts=[])
def test_error_is_the_same_for_every_chunking(content: bytes, format_: str | None, cuts: list[int]) -> None:
    whole = outcome("the file", format_, [content])
    assert outcome("the file", format_, in_chunks(content, cuts)) == whole
    if isinstance(whole, str):
        assert whole.startswith("the file")
        line = re.match(r"the file, line (\d+): ", whole)
        if format_ in ("jsonl", "csv") and "found nothing" not in whole:
            assert line is not None, whole
        assert line is None or 1 <= int(line[1]) <= content.count(b"\n") + 1
    else:
        for number, item in whole:
            assert isinstance(item, str | dict)
            assert number >= 1
        assert [number for number, _ in whole] == sorted({number for number, _ in whole})


def outcome(name: str, format_: str | None, chunks: list[bytes]) -> list[tuple[int, Item]] | str:
    try:
        return list(items_in(name, format_, chunks))
    except BadItems as error:
        return error.format_message()


# --- by file and by stdin -------------------------------------------------------------------------------------------


@holds_for(
    examples=15,
    content=WRITTEN.map(lambda written: written[1])
    | mutated(WRITTEN.map(lambda written: written[1]), PIECES, max_changes=2),
    format_=st.sampled_from(FORMATS),
    id_field=st.sampled_from([None, "a"]),
)
def test_file_and_stdin_give_the_same_items(content: bytes, format_: str, id_field: str | None) -> None:
    """Also for the items of stdin that a resume reads."""
    folder = RunFolder("fuzz").path
    for name in ("items.jsonl", "items.end"):
        (folder / name).unlink(missing_ok=True)
    path = scratch() / f"items.{format_}"
    path.write_bytes(content)
    by_file = read("file", format_, str(path), id_field)
    with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        by_stdin = read(STDIN, format_, None, id_field)
    if isinstance(by_file, str):
        # Two items with one id are an error in a file; from stdin the second is skipped as already kept.
        assert by_file == by_stdin or "is also that of" in by_file
    else:
        assert by_stdin == by_file
        assert read(STDIN, format_, None, id_field, is_resume=True) == by_file


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(scratch()))


def read(kind: str, format_: str, path: str | None, id_field: str | None, **more: Any) -> list[Item] | str:
    try:
        return list(read_items([ItemSource(kind, format_, path)], RunFolder("fuzz"), id_field, **more))
    except BadItems as error:
        return re.sub(r"name the file .json|--format json| \(for plain lines use --format txt\)", "", error.problem)
