"""Items for the command line: every format, every mistake in it, and what is kept of stdin."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli.launch._item_formats import FORMATS, items_in
from agentos.cli.launch.item_input import BadItems, Item, Items, SizedItems, changed_files, read_items
from agentos.errors import HomeError
from agentos.home.run_folder import ItemSource, RunFolder, RunSpec
from agentos.items.fields import field_of
from agentos.workflows.parallel import ParallelCoordinator


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return RunFolder("run-1")


def of_file(
    folder: RunFolder, name: str, content: bytes, told: str | None = None, id_field: str | None = None
) -> Items:
    Path(name).write_bytes(content)
    return read_items([ItemSource("file", told, name)], folder, id_field)


def problem(folder: RunFolder, name: str, content: bytes, id_field: str | None = None) -> str:
    with pytest.raises(BadItems) as caught:
        of_file(folder, name, content, id_field=id_field)
    assert caught.value.exit_code == 2
    return caught.value.format_message()


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A pipe in the place of stdin; its other end."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield writing
    os.close(writing)


def feed(stdin: int, content: bytes) -> None:
    """All there will be."""
    os.write(stdin, content)
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), stdin)


# --- formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
def test_every_format_is_read_with_either_line_end_and_with_or_without_a_mark(
    folder: RunFolder, mark: bytes, end: bytes, last: bytes
) -> None:
    contents = {
        "a.txt": b"one\n\ntwo three",
        "a.jsonl": b'"one"\n\n{"id": "two"}\n3\ntrue',
        "a.json": b'["one",\n {"id": "two"}, 3, true]',
        "a.csv": b'id,text\none,"a ""b""\nc"\n\ntwo,',
    }
    for name, content in contents.items():
        contents[name] = mark + (content + last).replace(b"\n", end)
    assert list(of_file(folder, "a.txt", contents["a.txt"])) == ["one", "two three"]
    assert list(of_file(folder, "a.jsonl", contents["a.jsonl"])) == ["one", {"id": "two"}, "3", "true"]
    assert list(of_file(folder, "a.json", contents["a.json"])) == ["one", {"id": "two"}, "3", "true"]
    text = f'a "b"{end.decode()}c'
    assert list(of_file(folder, "a.csv", contents["a.csv"])) == [{"id": "one", "text": text}, {"id": "two", "text": ""}]


def test_the_extension_decides_then_what_was_told_then_plain_lines(folder: RunFolder) -> None:
    content = b'{"id": "a"}\n'
    assert list(of_file(folder, "a.ndjson", content)) == [{"id": "a"}]
    assert list(of_file(folder, "a.txt", content, "jsonl")) == ['{"id": "a"}']
    assert list(of_file(folder, "a", content, "jsonl")) == [{"id": "a"}]
    assert list(of_file(folder, "a", content)) == ['{"id": "a"}']
    assert list(of_file(folder, "a.json", content, "jsonl")) == [{"id": "a"}]  # which the extension does not tell


def test_plain_lines_keep_all_that_is_not_a_line_end(folder: RunFolder) -> None:
    content = b" a \nb\x0bc\xe2\x80\xa8d\re\nf\xff\n\x00\n"
    assert list(of_file(folder, "a.txt", content)) == [" a ", "b\x0bc\u2028d\re", "f\udcff", "\x00"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "a.jsonl",
            b'"a"\n{"id": }\n',
            "a.jsonl, line 2: expected a JSON string or object: Expecting value (column 8)",
        ),
        ("a.jsonl", b'"a"\n["b"]\n', "a.jsonl, line 2: expected a string or an object, and found an array"),
        ("a.jsonl", b'"a"\nnull\n', "a.jsonl, line 2: expected a string or an object, and found null"),
        ("a.jsonl", b'"a"\n"\xe9"\n', "a.jsonl, line 2: expected UTF-8, and byte 2 is 0xe9"),
        ("a.jsonl", b'{"id": 1, "x": NaN}', "line 1: expected a JSON string or object: NaN is not JSON"),
        ("a.jsonl", b'{"id": 1e999}', "line 1: expected a JSON string or object: 1e999 is too large a number"),
        ("a.jsonl", b'{"id": ' + b"1" * 5000 + b"}", "line 1: expected a JSON string or object: Exceeds the limit"),
        ("a.jsonl", b'{"id":1,"x":' + b"[" * 150 + b"]" * 150 + b"}", "line 1: expected an object, and found one with"),
        ("a.jsonl", b"[" * 99999, "line 1: expected a JSON string or object: it is nested too deeply"),
        ("a.json", b'["a",\n"b"', "a.json, line 2: expected a JSON array: Expecting ',' delimiter (column 4)"),
        ("a.json", b'["a",\n["b"]]', "a.json, element 2: expected a string or an object, and found an array"),
        ("a.json", b'{"items": []}', "a.json: expected a JSON array of strings or objects, and found an object with"),
        ("a.json", b"12", "a.json: expected a JSON array of strings or objects, and found 12"),
        ("a.json", b"", "a.json, line 1: expected a JSON array: Expecting value"),
        ("a.json", b'["a",\n"\xff"]', "a.json, line 2: expected UTF-8"),
        ("a.csv", b"id,b\n1,2\n3\n", "a.csv, line 3: expected 2 fields ('id', 'b'), and found 1"),
        ("a.csv", b'id,b\n"1\n1",2\n3,4,5\n', "a.csv, line 4: expected 2 fields ('id', 'b'), and found 3"),
        ("a.csv", b'id\n"a\n', "a.csv, line 2: expected CSV: unexpected end of data"),
        ("a.csv", b"id,id\n1,2\n", "a.csv, line 1: expected a name for each field, and found 'id' twice"),
        ("a.csv", b"\n", "a.csv: expected CSV with a row of names first, and found nothing"),
        ("a.csv", b"id\nf\xffg\n", "a.csv, line 2: expected UTF-8, and byte 2 is 0xff"),
        ("a.txt", "\ufeffa\nb\n".encode("utf-16-le"), "a.txt, line 1: expected UTF-8, and found UTF-16"),
        ("a.txt", b"a\nb\na\n", "a.txt, line 3: the id 'a' is that of a.txt, line 1, too"),
        ("a.json", b'["1", 1]', "a.json, element 2: the id '1' is that of a.json, element 1, too"),
        ("a.jsonl", b'{"name": "x", "n": 1}', "line 1: expected a field 'id' as its id, and found 'name', 'n'"),
        ("a.jsonl", b"{}", "line 1: expected a field 'id' as its id, and found no fields: name one with --id-field"),
        ("a.jsonl", b'{"id": [1]}', "line 1: expected a text or a number in 'id' as its id, and found [1]"),
        ("a.jsonl", b'{"id": null}', "line 1: expected a text or a number in 'id' as its id, and found null"),
        ("a.jsonl", b'{"id": ""}', "line 1: expected an id, and found an empty one"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_was_expected(
    folder: RunFolder, name: str, content: bytes, told: str
) -> None:
    assert told in problem(folder, name, content)


def test_a_file_that_is_not_there_or_cannot_be_read_is_wrong_usage(folder: RunFolder) -> None:
    for name in ("none.txt", ".", "a\0b"):
        with pytest.raises(BadItems, match="expected a file"):
            read_items([ItemSource("file", None, name)], folder, None)


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")), st.sampled_from(FORMATS))
def test_any_bytes_are_items_or_bad_items(content: bytes, told: str) -> None:
    try:
        items = list(items_in("a", told, [content[:3], content[3:]]))
    except BadItems as error:
        told = error.format_message()
    else:
        told = "a"
        assert all(isinstance(item, str | dict) for _, item in items)
    assert told.startswith("a")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("id"), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_values, max_size=4), st.sampled_from(["a.json", "a.jsonl", "a"]))
def test_any_json_is_items_or_bad_items(values: list[Any], name: str) -> None:
    text = json.dumps(values) if name == "a.json" else "\n".join(map(json.dumps, values))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / name
        path.write_text(text)
        try:
            items = read_items([ItemSource("file", None, str(path))], RunFolder("fuzz"), None)
        except BadItems:
            return
        ids = [items.id_of(item) for item in items]
        assert len(set(ids)) == len(ids) == items.total


# --- arguments, ids and fields ------------------------------------------------------------------------------------


def test_an_argument_is_a_string_or_an_object(folder: RunFolder) -> None:
    given = ["a", "12", "[1]", '{"id": 7}', "{id}", " {broken"]
    items = read_items([ItemSource("inline", items=given)], folder, None)
    assert list(items) == ["a", "12", "[1]", {"id": 7}, "{id}", " {broken"]
    assert [items.id_of(item) for item in items] == ["a", "12", "[1]", "7", "{id}", " {broken"]


def test_ids_are_compared_over_all_sources(folder: RunFolder) -> None:
    Path("a.csv").write_text("id\nx\ny\n")
    sources = [ItemSource("file", None, "a.csv"), ItemSource("inline", items=["z", "y"])]
    with pytest.raises(BadItems, match=r"--item 2: the id 'y' is that of a.csv, line 3, too"):
        read_items(sources, folder, None)


def test_the_id_is_the_field_that_was_named(folder: RunFolder) -> None:
    content = b'{"id": 1, "at": {"url": "u1"}}\n{"id": 1, "at": {"url": true}}\n{"id": 1, "at": {"url": 0.5}}\n'
    items = of_file(folder, "a.jsonl", content, id_field="at.url")
    assert [items.id_of(item) for item in items] == ["u1", "true", "0.5"]
    assert "expected a field 'url' as its id, and found 'id', 'at'" in problem(folder, "a.jsonl", content, "url")


def test_fields_are_text_as_it_is_and_anything_else_as_json() -> None:
    item = {"id": 7, "name": "Zoë", "at": {"b": [1, "é"], "c": None}, "x.y": 1.5}
    assert field_of(item, "name") == "Zoë"
    assert field_of(item, "id") == "7"
    assert field_of(item, "at.b") == '[1,"é"]'
    assert field_of(item, "at.c") == "null"
    assert field_of(item, "x.y") == "1.5"
    assert field_of(item, "at.none") is field_of(item, "name.b") is field_of(item, "x") is None
    assert field_of(item, "") == '{"id":7,"name":"Zoë","at":{"b":[1,"é"],"c":null},"x.y":1.5}'
    assert field_of("text", "") == "text"
    assert field_of("text", "name") is None


def test_files_and_arguments_are_a_sized_collection_for_the_coordinator(folder: RunFolder) -> None:
    items = of_file(folder, "a.txt", b"a\nb\n")
    assert isinstance(items, SizedItems)
    assert type(items.source) is list
    assert len(items) == items.total == 2
    stats, results = ParallelCoordinator(reporter=None).execute_parallel(
        items.source, lambda item, _: item, items.id_of
    )
    assert stats.total == 2
    assert {result.item_id for result in results} == {"a", "b"}


# --- files that change --------------------------------------------------------------------------------------------


def test_files_that_have_changed_or_are_gone_are_told(folder: RunFolder) -> None:
    Path("a.txt").write_text("a")
    Path("b.txt").write_text("b")
    sources = [ItemSource("file", None, "a.txt"), ItemSource("file", None, "b.txt"), ItemSource("inline", items=["c"])]
    read_items(sources, folder, None)
    assert sources[0].path == str(Path("a.txt").absolute())
    assert sources[0].format == "txt"
    spec = RunSpec(1, "run-1", 0.0, str(Path.cwd()), sources)
    folder.make()
    folder.write_spec(spec)
    spec = folder.read_spec()
    assert changed_files(spec) == []
    Path("a.txt").write_text("A")
    Path("b.txt").unlink()
    assert changed_files(spec) == [
        f"{Path('a.txt').absolute()} has changed since the run was created",
        f"{Path('b.txt').absolute()} is gone",
    ]


def test_arguments_and_names_that_are_no_text_are_kept_in_the_spec(folder: RunFolder) -> None:
    spec = RunSpec(1, "run-1", 0.0, "/tmp/\udcff", [ItemSource("inline", items=["\udc80"])], command=["x", "\udcfe"])
    folder.make()
    folder.write_spec(spec)
    assert folder.read_spec() == spec


# --- stdin --------------------------------------------------------------------------------------------------------


def from_stdin(folder: RunFolder, told: str | None = None, *, is_resume: bool = False) -> Items:
    return read_items([ItemSource("stdin", told)], folder, None, is_resume=is_resume)


def test_items_of_stdin_are_handed_out_as_they_come_and_kept_before(folder: RunFolder, stdin: int) -> None:
    items = from_stdin(folder)
    assert not hasattr(items, "__len__")
    assert items.total is None
    iterator = iter(items)
    os.write(stdin, b"first\nsec")
    assert next(iterator) == "first"
    assert folder.items.read_text() == '"first"\n'
    assert folder.items.stat().st_mode & 0o777 == 0o600
    feed(stdin, b"ond\nthird")
    assert next(iterator) == "second"
    assert list(iterator) == ["third"]
    assert folder.items.read_text() == '"first"\n"second"\n"third"\n'


def test_a_resume_reads_what_was_kept_and_leaves_stdin_alone(folder: RunFolder, stdin: int) -> None:
    items = iter(from_stdin(folder))
    os.write(stdin, b'{"id": 1}\n{"id": 2}\n')
    assert [next(items), next(items)] == [{"id": 1}, {"id": 2}]
    os.write(stdin, b'{"id": 3}\n')
    with folder.items.open("ab") as file:
        file.write(b'{"id": "torn')  # by a kill
    again = from_stdin(folder, is_resume=True)
    assert list(again) == [{"id": 1}, {"id": 2}]
    assert not again.is_whole


def test_a_resume_knows_whether_stdin_was_read_to_its_end(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b"a\n")
    assert list(from_stdin(folder)) == ["a"]
    again = from_stdin(folder, is_resume=True)
    assert list(again) == ["a"]
    assert again.is_whole


def test_a_run_that_was_ended_before_its_first_item_does_not_wait_for_stdin_again(
    folder: RunFolder, stdin: int
) -> None:
    from_stdin(folder)
    again = from_stdin(folder, is_resume=True)
    assert list(again) == []
    assert not again.is_whole


def test_what_comes_later_under_the_same_run_id_is_added_to_what_came_before(folder: RunFolder, stdin: int) -> None:
    items = iter(from_stdin(folder))
    os.write(stdin, b"a\nb\n")
    assert [next(items), next(items)] == ["a", "b"]
    with folder.items.open("ab") as file:
        file.write(b'"torn')  # by a kill
    feed(stdin, b"b\nc\n")
    assert list(from_stdin(folder)) == ["a", "b", "c"]
    again = from_stdin(folder, is_resume=True)
    assert list(again) == ["a", "b", "c"]
    assert again.is_whole


def test_a_dry_run_keeps_nothing(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b"a\n")
    assert list(read_items([ItemSource("stdin")], folder, None, keep=False)) == ["a"]
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("told", "content", "items"),
    [
        (None, b'\n{"id": 1}\n', [{"id": 1}]),
        (None, b'  "a"\n"b"\n', ["a", "b"]),
        (None, b"a\n{b}\n", ["a", "{b}"]),
        ("txt", b'{"id": 1}\n', ['{"id": 1}']),
        ("json", b'[\n"a",\n2]', ["a", "2"]),
        ("csv", b"id,x\n1,\n", [{"id": "1", "x": ""}]),
        (None, b"", []),
    ],
)
def test_the_format_of_stdin_is_as_told_or_as_its_first_line_looks(
    folder: RunFolder, stdin: int, told: str | None, content: bytes, items: list[Item]
) -> None:
    feed(stdin, content)
    assert list(from_stdin(folder, told)) == items
    assert list(from_stdin(folder, is_resume=True)) == items


def test_a_mistake_in_stdin_is_told_when_it_is_reached(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b'{"id": 1}\n{"name": 2}\n')
    items = iter(from_stdin(folder))
    assert next(items) == {"id": 1}
    with pytest.raises(BadItems, match="stdin, line 2: expected a field 'id'"):
        next(items)
    feed(stdin, b"")
    with pytest.raises(BadItems, match="once"):
        read_items([ItemSource("stdin"), ItemSource("stdin")], folder, None)


def test_an_array_on_stdin_says_which_format_to_tell(folder: RunFolder, stdin: int) -> None:
    assert "found an array (of all items? name the file .json)" in problem(folder, "a.jsonl", b'["a"]')
    feed(stdin, b'["a", "b"]\n')
    with pytest.raises(BadItems, match=r"stdin, line 1: .* found an array .*--format json"):
        list(from_stdin(folder))


def test_files_come_before_stdin(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b"b\n")
    items = read_items([ItemSource("stdin"), ItemSource("inline", items=["a"])], folder, None)
    assert list(items) == ["a", "b"]


def test_stdin_that_cannot_be_kept_is_our_own_failure(folder: RunFolder, stdin: int) -> None:
    folder.path.parent.mkdir(parents=True)
    folder.path.write_text("in the way")
    with pytest.raises(HomeError, match="run-1 cannot be made: File exists"):
        from_stdin(folder)


@given(st.lists(st.text(alphabet=st.characters(), min_size=1), unique=True), st.data())
def test_ids_with_any_characters_come_back_from_what_was_kept(ids: list[str], data: st.DataObject) -> None:
    content = b"".join(
        json.dumps({"id": item_id} if data.draw(st.booleans()) else item_id).encode() + b"\n" for item_id in ids
    )
    check_kept(content, "jsonl")


@given(st.binary())
def test_lines_of_any_bytes_come_back_from_what_was_kept(content: bytes) -> None:
    check_kept(content, "txt")


def check_kept(content: bytes, told: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, content[:60_000])
    os.close(writing)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTOS_HOME", place)
        folder = RunFolder("run-1")
        with os.fdopen(reading, "rb", buffering=0) as file:
            patch.setattr(sys, "stdin", file)
            try:
                items = from_stdin(folder, told)
                before = list(items)
            except BadItems:
                assert told == "txt"
                assert content.startswith((b"\xff\xfe", b"\xfe\xff"))
                return
        again = from_stdin(folder, is_resume=True)
        after = list(again)
        assert before == after
        assert [items.id_of(item) for item in before] == [again.id_of(item) for item in after]
        if told == "txt":
            lines = [line.removesuffix(b"\r") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
            assert [os.fsencode(str(item)) for item in before] == [line for line in lines if line.strip(b" \t")]


LEFT_BEHIND = """
import sys, threading
from agentos.errors import HomeError
from agentos.home.run_folder import ItemSource, RunFolder
from agentos.cli.launch.item_input import read_items

items = iter(read_items([ItemSource("stdin")], RunFolder("left"), None))
print(next(items), flush=True)
threading.Thread(target=next, args=(items, None), daemon=True).start()
print("over", flush=True)
"""


def test_a_reader_that_is_left_behind_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdin.write(b"first\n")
    program.stdin.flush()
    assert program.wait(30) == 0  # with stdin open, and its reader in the middle of a read
    assert program.stdout.read() == b"first\nover\n"
    assert program.stderr.read() == b""
    for stream in (program.stdin, program.stdout, program.stderr):
        stream.close()


def test_a_coordinator_reads_stdin_on_its_own_thread_and_may_leave_it_in_the_middle(
    folder: RunFolder, stdin: int
) -> None:
    os.write(stdin, b"".join(b"%d\n" % number for number in range(100)))
    items = from_stdin(folder)
    coordinator = ParallelCoordinator(2, reporter=None, ledger=folder.path / "ledger.db")
    with coordinator.stream(items.source, lambda item, _: item, items.id_of) as results:
        first = [result.item_id for result in itertools.islice(results, 5)]
    assert set(first) <= {str(number) for number in range(100)}
    kept = list(from_stdin(folder, is_resume=True))
    assert set(first) <= set(map(str, kept))
    feed(stdin, b"")
