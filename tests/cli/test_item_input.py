"""Items of the command line: formats, mistakes in them, and the items of stdin that are kept."""

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
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli import main
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


def file_items(
    folder: RunFolder, name: str, content: bytes, format_: str | None = None, id_field: str | None = None
) -> Items:
    Path(name).write_bytes(content)
    return read_items([ItemSource("file", format_, name)], folder, id_field)


def problem(folder: RunFolder, name: str, content: bytes, id_field: str | None = None) -> str:
    with pytest.raises(BadItems) as caught:
        file_items(folder, name, content, id_field=id_field)
    assert caught.value.exit_code == 2
    return caught.value.format_message()


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Replace stdin by a pipe, and return its other end."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield writing
    os.close(writing)


def feed(stdin: int, content: bytes) -> None:
    """Write all of stdin, and close it."""
    os.write(stdin, content)
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), stdin)


# --- formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
def test_every_format_with_line_ends_and_byte_order_marks(
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
    assert list(file_items(folder, "a.txt", contents["a.txt"])) == ["one", "two three"]
    assert list(file_items(folder, "a.jsonl", contents["a.jsonl"])) == ["one", {"id": "two"}, "3", "true"]
    assert list(file_items(folder, "a.json", contents["a.json"])) == ["one", {"id": "two"}, "3", "true"]
    text = f'a "b"{end.decode()}c'
    assert list(file_items(folder, "a.csv", contents["a.csv"])) == [
        {"id": "one", "text": text},
        {"id": "two", "text": ""},
    ]


def test_format_by_extension_then_option_then_plain_lines(folder: RunFolder) -> None:
    content = b'{"id": "a"}\n'
    assert list(file_items(folder, "a.ndjson", content)) == [{"id": "a"}]
    assert list(file_items(folder, "a.txt", content, "jsonl")) == ['{"id": "a"}']
    assert list(file_items(folder, "a", content, "jsonl")) == [{"id": "a"}]
    assert list(file_items(folder, "a", content)) == ['{"id": "a"}']
    assert list(file_items(folder, "a.json", content, "jsonl")) == [{"id": "a"}]  # the option outranks .json


def test_plain_lines_keep_other_separators(folder: RunFolder) -> None:
    content = b" a \nb\x0bc\xe2\x80\xa8d\re\nf\xff\n\x00\n"
    assert list(file_items(folder, "a.txt", content)) == [" a ", "b\x0bc\u2028d\re", "f\udcff", "\x00"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
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
        (
            "a.jsonl",
            b'{"id":1,"x":' + b"[" * 150 + b"]" * 150 + b"}",
            "line 1: expected at most 100 nested",
        ),
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
        ("a.csv", b"\n", "a.csv: expected CSV with a header row, and found nothing"),
        ("a.csv", b"id\nf\xffg\n", "a.csv, line 2: expected UTF-8, and byte 2 is 0xff"),
        ("a.txt", "\ufeffa\nb\n".encode("utf-16-le"), "a.txt, line 1: expected UTF-8, and found UTF-16"),
        (
            "a.txt",
            b"a\nb\na\n",
            "a.txt, line 3: the id 'a' is also that of a.txt, line 1: ids must be",
        ),
        (
            "a.json",
            b'["1", 1]',
            "a.json, element 2: the id '1' is also that of a.json, element 1: ids",
        ),
        ("a.jsonl", b'{"name": "x", "n": 1}', "line 1: expected a field 'id' as its id, and found 'name', 'n'"),
        ("a.jsonl", b"{}", "line 1: expected a field 'id' as its id, and found no fields: name one with --id-field"),
        ("a.jsonl", b'{"id": [1]}', "line 1: expected a string or a number in 'id' as its id, and found [1]"),
        ("a.jsonl", b'{"id": null}', "line 1: expected a string or a number in 'id' as its id, and found null"),
        ("a.jsonl", b'{"id": ""}', "line 1: expected an id, and found an empty one"),
    ],
)
def test_mistake_is_reported_with_location_and_expectation(
    folder: RunFolder, name: str, content: bytes, message: str
) -> None:
    assert message in problem(folder, name, content)


def test_missing_or_unreadable_file_is_refused(folder: RunFolder) -> None:
    for name in ("none.txt", ".", "a\0b"):
        with pytest.raises(BadItems, match="expected a file"):
            read_items([ItemSource("file", None, name)], folder, None)


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")), st.sampled_from(FORMATS))
def test_any_bytes_are_items_or_bad_items(content: bytes, format_: str) -> None:
    try:
        items = list(items_in("a", format_, [content[:3], content[3:]]))
    except BadItems as error:
        message = error.format_message()
    else:
        message = "a"
        assert all(isinstance(item, str | dict) for _, item in items)
    assert message.startswith("a")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("id"), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_values, max_size=4), st.sampled_from(["a.json", "a.jsonl", "a"]))
def test_any_json_is_items_or_bad_items(values: list[Any], name: str) -> None:
    text = json.dumps(values) if name == "a.json" else "\n".join(map(json.dumps, values))
    with tempfile.TemporaryDirectory() as folder_name:
        path = Path(folder_name) / name
        path.write_text(text)
        try:
            items = read_items([ItemSource("file", None, str(path))], RunFolder("fuzz"), None)
        except BadItems:
            return
        ids = [items.id_of(item) for item in items]
        assert len(set(ids)) == len(ids) == items.total


# --- arguments, ids and fields ------------------------------------------------------------------------------------


def test_argument_is_string_or_object(folder: RunFolder) -> None:
    given = ["a", "12", "[1]", '{"id": 7}', "{id}", " {broken"]
    items = read_items([ItemSource("inline", items=given)], folder, None)
    assert list(items) == ["a", "12", "[1]", {"id": 7}, "{id}", " {broken"]
    assert [items.id_of(item) for item in items] == ["a", "12", "[1]", "7", "{id}", " {broken"]


def test_duplicate_id_across_sources_is_refused(folder: RunFolder) -> None:
    Path("a.csv").write_text("id\nx\ny\n")
    sources = [ItemSource("file", None, "a.csv"), ItemSource("inline", items=["z", "y"])]
    with pytest.raises(BadItems, match=r"--item 2: the id 'y' is also that of a.csv, line 3"):
        read_items(sources, folder, None)


def test_id_is_taken_from_named_field(folder: RunFolder) -> None:
    content = b'{"id": 1, "at": {"url": "u1"}}\n{"id": 1, "at": {"url": true}}\n{"id": 1, "at": {"url": 0.5}}\n'
    items = file_items(folder, "a.jsonl", content, id_field="at.url")
    assert [items.id_of(item) for item in items] == ["u1", "true", "0.5"]
    assert "expected a field 'url' as its id, and found 'id', 'at'" in problem(folder, "a.jsonl", content, "url")


def test_fields_are_text_or_json() -> None:
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


def test_files_and_arguments_are_sized(folder: RunFolder) -> None:
    items = file_items(folder, "a.txt", b"a\nb\n")
    assert isinstance(items, SizedItems)
    assert type(items.source) is list
    assert len(items) == items.total == 2
    stats, results = ParallelCoordinator(reporter=None).execute_parallel(
        items.source, lambda item, _: item, items.id_of
    )
    assert stats.total == 2
    assert {result.item_id for result in results} == {"a", "b"}


# --- files that change --------------------------------------------------------------------------------------------


def test_changed_and_missing_files_are_reported(folder: RunFolder) -> None:
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
        f"{Path('b.txt').absolute()} does not exist any more",
    ]


def test_spec_keeps_arguments_that_are_not_utf8(folder: RunFolder) -> None:
    spec = RunSpec(1, "run-1", 0.0, "/tmp/\udcff", [ItemSource("inline", items=["\udc80"])], command=["x", "\udcfe"])
    folder.make()
    folder.write_spec(spec)
    assert folder.read_spec() == spec


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"created_at": 1e308}, {"created_at": -1e18}, {"run_id": "../../x"}], ids=str
)
def test_impossible_spec_is_named_and_other_runs_are_listed(folder: RunFolder, change: dict[str, Any]) -> None:
    """Of a newer version, or changed by hand, without a checksum as the message advises."""
    folder.make()
    fields = {"version": 1, "run_id": "run-1", "created_at": 0.0, "cwd": "/tmp", "items": [], "command": ["true"]}
    (folder.path / "run.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(HomeError, match=r"run\.json cannot be read"):
        folder.read_spec()
    result = CliRunner().invoke(main, ["runs"])
    assert result.exit_code == 0
    assert "cannot be read" in result.output


@pytest.mark.parametrize("number", range(0, 120, 7))
def test_flipped_bit_in_spec_is_noticed(folder: RunFolder, number: int) -> None:
    """A resume would execute another command, or work on other items."""
    spec = RunSpec(1, "run-1", 0.0, "/tmp", [ItemSource("inline", items=["a"])], command=["rm", "-r", "/tmp/a/b"])
    folder.make()
    folder.write_spec(spec)
    path = folder.path / "run.json"
    content = bytearray(path.read_bytes())
    at = content.index(b'"version"') + number
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(HomeError, match=r"run\.json"):
        folder.read_spec()


# --- stdin --------------------------------------------------------------------------------------------------------


def stdin_items(folder: RunFolder, format_: str | None = None, *, is_resume: bool = False) -> Items:
    return read_items([ItemSource("stdin", format_)], folder, None, is_resume=is_resume)


def test_stdin_items_are_kept_before_they_are_yielded(folder: RunFolder, stdin: int) -> None:
    items = stdin_items(folder)
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


def test_resume_reads_kept_items_and_not_stdin(folder: RunFolder, stdin: int) -> None:
    items = iter(stdin_items(folder))
    os.write(stdin, b'{"id": 1}\n{"id": 2}\n')
    assert [next(items), next(items)] == [{"id": 1}, {"id": 2}]
    os.write(stdin, b'{"id": 3}\n')
    with folder.items.open("ab") as file:
        file.write(b'{"id": "torn')  # as by a kill
    again = stdin_items(folder, is_resume=True)
    assert list(again) == [{"id": 1}, {"id": 2}]
    assert not again.is_whole


def test_resume_knows_whether_stdin_ended(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b"a\n")
    assert list(stdin_items(folder)) == ["a"]
    again = stdin_items(folder, is_resume=True)
    assert list(again) == ["a"]
    assert again.is_whole


@pytest.mark.parametrize("damaged", [b'"first"\n"secone"\n', b'"first"\n', b""])
def test_resume_refuses_damaged_kept_items(folder: RunFolder, stdin: int, damaged: bytes) -> None:
    feed(stdin, b"first\nsecond")
    list(stdin_items(folder))
    assert list(stdin_items(folder, is_resume=True)) == ["first", "second"]
    folder.items.write_bytes(damaged)
    with pytest.raises(BadItems, match="damaged"):
        stdin_items(folder, is_resume=True)


def test_resume_without_kept_items_does_not_read_stdin(folder: RunFolder, stdin: int) -> None:
    stdin_items(folder)
    again = stdin_items(folder, is_resume=True)
    assert list(again) == []
    assert not again.is_whole


def test_second_launch_appends_new_stdin_items(folder: RunFolder, stdin: int) -> None:
    items = iter(stdin_items(folder))
    os.write(stdin, b"a\nb\n")
    assert [next(items), next(items)] == ["a", "b"]
    with folder.items.open("ab") as file:
        file.write(b'"torn')  # as by a kill
    feed(stdin, b"b\nc\n")
    assert list(stdin_items(folder)) == ["a", "b", "c"]
    again = stdin_items(folder, is_resume=True)
    assert list(again) == ["a", "b", "c"]
    assert again.is_whole


def test_dry_run_keeps_no_items(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b"a\n")
    assert list(read_items([ItemSource("stdin")], folder, None, keep=False)) == ["a"]
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("format_", "content", "items"),
    [
        (None, b'\n{"id": 1}\n', [{"id": 1}]),
        (None, b'  "a"\n"b"\n', ["a", "b"]),
        (None, b"a\n{b}\n", ["a", "{b}"]),
        ("txt", b'{"id": 1}\n', ['{"id": 1}']),
        ("json", b'[\n"a",\n2]', ["a", "2"]),
        ("csv", b"id,x\n1,\n", [{"id": "1", "x": ""}]),
        ("tsv", b"id\tx\n1\ta,b\n", [{"id": "1", "x": "a,b"}]),
    ],
)
def test_stdin_format_by_option_or_first_line(
    folder: RunFolder, stdin: int, format_: str | None, content: bytes, items: list[Item]
) -> None:
    feed(stdin, content)
    assert list(stdin_items(folder, format_)) == items
    assert list(stdin_items(folder, is_resume=True)) == items


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_input_without_items_is_an_error(folder: RunFolder, stdin: int, content: bytes) -> None:
    assert "a.txt: expected items, and found none" in problem(folder, "a.txt", content)
    feed(stdin, content)
    with pytest.raises(BadItems, match="stdin: expected items, and found none"):
        list(stdin_items(folder))


def test_empty_stdin_beside_other_items_is_no_error(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b"")
    assert list(read_items([ItemSource("stdin"), ItemSource("inline", items=["a"])], folder, None)) == ["a"]


def test_delimiter_separates_fields_of_csv(folder: RunFolder) -> None:
    Path("a.csv").write_bytes(b"id;x\n1;a,b\n")
    assert list(read_items([ItemSource("file", None, "a.csv", delimiter=";")], folder, None)) == [
        {"id": "1", "x": "a,b"}
    ]
    assert list(file_items(folder, "b.tsv", b"id\tx\n1\ta,b\n")) == [{"id": "1", "x": "a,b"}]


def test_mistake_in_stdin_is_raised_when_reached(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b'{"id": 1}\n{"name": 2}\n')
    items = iter(stdin_items(folder))
    assert next(items) == {"id": 1}
    with pytest.raises(BadItems, match="stdin, line 2: expected a field 'id'"):
        next(items)
    feed(stdin, b"")
    with pytest.raises(BadItems, match="given twice"):
        read_items([ItemSource("stdin"), ItemSource("stdin")], folder, None)


def test_array_on_stdin_suggests_format_option(folder: RunFolder, stdin: int) -> None:
    assert "found an array (an array of items: name the file .json)" in problem(folder, "a.jsonl", b'["a"]')
    feed(stdin, b'["a", "b"]\n')
    with pytest.raises(BadItems, match=r"stdin, line 1: .* found an array .*--format json"):
        list(stdin_items(folder))


def test_files_precede_stdin(folder: RunFolder, stdin: int) -> None:
    feed(stdin, b"b\n")
    items = read_items([ItemSource("stdin"), ItemSource("inline", items=["a"])], folder, None)
    assert list(items) == ["a", "b"]


def test_unwritable_folder_for_stdin_fails(folder: RunFolder, stdin: int) -> None:
    folder.path.parent.mkdir(parents=True)
    folder.path.write_text("in the way")
    with pytest.raises(HomeError, match="run-1 cannot be created: File exists"):
        stdin_items(folder)


@given(st.lists(st.text(alphabet=st.characters(), min_size=1), min_size=1, unique=True), st.data())
def test_kept_items_have_the_same_ids(ids: list[str], data: st.DataObject) -> None:
    content = b"".join(
        json.dumps({"id": item_id} if data.draw(st.booleans()) else item_id).encode() + b"\n" for item_id in ids
    )
    check_kept(content, "jsonl")


@given(st.binary())
def test_kept_items_have_the_same_bytes(content: bytes) -> None:
    check_kept(content, "txt")


def check_kept(content: bytes, format_: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, content[:60_000])
    os.close(writing)
    with tempfile.TemporaryDirectory() as folder_name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTOS_HOME", folder_name)
        folder = RunFolder("run-1")
        with os.fdopen(reading, "rb", buffering=0) as file:
            patch.setattr(sys, "stdin", file)
            try:
                items = stdin_items(folder, format_)
                before = list(items)
            except BadItems:
                assert format_ == "txt"
                is_empty = not content.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
                assert is_empty or content.startswith((b"\xff\xfe", b"\xfe\xff"))
                return
        again = stdin_items(folder, is_resume=True)
        after = list(again)
        assert before == after
        assert [items.id_of(item) for item in before] == [again.id_of(item) for item in after]
        if format_ == "txt":
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


def test_blocked_stdin_reader_does_not_delay_exit(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdin.write(b"first\n")
    program.stdin.flush()
    assert program.wait(30) == 0  # while stdin is open and its reader blocks in read()
    assert program.stdout.read() == b"first\nover\n"
    assert program.stderr.read() == b""
    for stream in (program.stdin, program.stdout, program.stderr):
        stream.close()


def test_coordinator_may_abandon_stdin(folder: RunFolder, stdin: int) -> None:
    os.write(stdin, b"".join(b"%d\n" % number for number in range(100)))
    items = stdin_items(folder)
    coordinator = ParallelCoordinator(2, reporter=None, ledger=folder.path / "ledger.db")
    with coordinator.stream(items.source, lambda item, _: item, items.id_of) as results:
        first = [result.item_id for result in itertools.islice(results, 5)]
    assert set(first) <= {str(number) for number in range(100)}
    kept_items = list(stdin_items(folder, is_resume=True))
    assert set(first) <= set(map(str, kept_items))
    feed(stdin, b"")


def test_folder_and_other_delimiter_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "semi.csv").write_text("id;title\n1;b\n")
    separated = CliRunner().invoke(main, ["run", "--items", str(tmp_path / "semi.csv"), "--", "true"])
    assert separated.stderr.endswith("perhaps its fields are separated: --delimiter ';'\n")
    folder = CliRunner().invoke(main, ["run", "--items", str(tmp_path), "--", "true"])
    assert folder.stderr.endswith(f"found a folder; for its files: ls {tmp_path}/* | agentos run --items -\n")
