"""`agentos export`: results as rows of JSON lines and CSV."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

from agentos.workflows.parallel import ParallelCoordinator

from .cli_runs import (
    agentos,
    execute,
    make_failures,
    make_interrupted,
    make_run,
    prepare,
    program,
    same,
)


def test_export_writes_a_row_per_item() -> None:
    make_failures()
    rows = {row["id"]: row for row in map(json.loads, program("export", "mixed").stdout.splitlines())}
    assert sorted(rows) == ["a", "b", "c", "d", "e", "f"]
    assert list(rows["a"]) == [
        "id",
        "input",
        "outcome",
        "output",
        "value",
        "error",
        "attempts",
        "duration",
        "ended_at",
        "credential_id",
        "tokens",
        "cost",
        "requests",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "held_seconds",
        "refusals",
    ]
    assert (rows["a"]["outcome"], rows["a"]["value"], rows["a"]["error"]) == ("succeeded", "a", None)
    assert rows["b"]["error"] == "item b has 17 faults\nand more"
    table = list(csv.DictReader(io.StringIO(agentos("export", "mixed", "--format", "csv").stdout, newline="")))
    assert {row["id"]: row["value"] for row in table}["a"] == '"a"'
    assert {row["id"]: row["error"] for row in table}["b"] == "item b has 17 faults\nand more"
    assert {row["id"]: row["value"] for row in table}["b"] == ""


def test_export_takes_the_format_from_the_name_of_the_file(tmp_path: Path) -> None:
    make_failures()
    for name, first in (("r.csv", "id,outcome,"), ("r.CSV", "id,outcome,"), ("r.jsonl", '{"id": '), ("r", '{"id": ')):
        program("export", "mixed", "--output", str(tmp_path / name))
        assert (tmp_path / name).read_text().startswith(first)
    program("export", "mixed", "--format", "jsonl", "--output", str(tmp_path / "r.csv"))
    assert (tmp_path / "r.csv").read_text().startswith('{"id": ')


def test_export_filters_by_outcome() -> None:
    make_failures()
    make_interrupted("half")
    ids = [json.loads(line)["id"] for line in agentos("export", "mixed", "--only", "succeeded").stdout.splitlines()]
    assert sorted(ids) == ["a", "f"]
    assert len(agentos("export", "mixed", "--only", "failed").stdout.splitlines()) == 4
    (row,) = map(json.loads, agentos("export", "half", "--only", "unfinished").stdout.splitlines())
    assert (row["id"], row["outcome"], row["ended_at"] is not None) == ("b", "unfinished", True)


def test_export_replaces_file_only_when_complete(tmp_path: Path) -> None:
    folder = make_failures()
    target = tmp_path / "out.csv"
    target.write_text("before")
    agentos("export", "mixed", "--format", "csv", "--output", str(target))
    assert len(list(csv.reader(io.StringIO(target.read_text(), newline="")))) == 7
    assert not list(tmp_path.glob("*.part"))
    assert "cannot be written" in agentos("export", "mixed", "--output", str(tmp_path / "no" / "x"), status=3).stderr
    assert "cannot be written" in agentos("export", "mixed", "--output", str(tmp_path), status=3).stderr
    target.write_text("before")
    folder.ledger.write_bytes(b"no database" * 100)
    agentos("export", "mixed", "--output", str(target), status=3)
    assert target.read_text() == "before"


def test_export_writes_ids_that_are_not_utf8() -> None:
    ids = ["caf\udce9", "\ud800", "nul\0", 'a,"b"\r\n', "=1"]
    folder = prepare("odd", [])
    execute(folder, ids, same)
    rows = [json.loads(line)["id"] for line in program("export", "odd").stdout.splitlines()]
    assert sorted(rows) == sorted(ids)
    table = program("export", "odd", "--format", "csv").stdout
    assert b"caf\xe9" in table
    assert rb"\ud800" in table
    assert b'"a,""b""\r\n"' in table
    assert b"nul\0" in table


def test_export_into_closed_pipe_prints_no_error() -> None:
    items = [f"item-{number}-{'x' * 500}" for number in range(1000)]
    make_run("long", items, same)
    process = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m agentos.cli export long | head -1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert json.loads(process.stdout)["outcome"] == "succeeded"
    assert process.stderr == ""


def test_export_has_input_fields_and_plain_output() -> None:
    """A field whose name a column has is `input.NAME`; the field that is the id is not repeated."""
    folder = prepare("fields", [])
    items = [{"id": "a", "title": "one, two", "outcome": 3}, {"id": "b", "tags": ["x"]}]
    execute(folder, items, lambda item, _: item.get("title") or {"found": 2})
    text = agentos("export", "fields", "--format", "csv").stdout
    first, second = csv.DictReader(io.StringIO(text))
    assert list(first)[:7] == ["id", "input.outcome", "title", "tags", "outcome", "output", "value"]
    assert (first["title"], first["input.outcome"], first["tags"]) == ("one, two", "3", "")
    assert (first["outcome"], first["output"], first["value"]) == ("succeeded", "one, two", '"one, two"')
    assert (second["tags"], second["output"]) == ('["x"]', '{"found":2}')
    rows = [json.loads(line) for line in agentos("export", "fields").stdout.splitlines()]
    assert [row["input"] for row in rows] == items
    assert rows[0]["output"] == "one, two"


def test_exported_output_of_a_command_is_what_it_printed(tmp_path: Path) -> None:
    agentos("run", "--run-id", "echo", "--item", "a", "--item", "b", "--", "echo", "hello {id}")
    rows = list(csv.DictReader(io.StringIO(agentos("export", "echo", "--format", "csv").stdout)))
    assert sorted((row["id"], row["output"]) for row in rows) == [("a", "hello a"), ("b", "hello b")]
    assert "input" not in rows[0]  # the same as the id


def test_exported_id_field_of_another_name_keeps_both() -> None:
    folder = prepare("names", [])
    items = [{"id": 1, "name": "x"}]
    ParallelCoordinator(1, ledger=folder.ledger, reporter=None).execute_parallel(
        items, lambda item, _: "y", lambda item: item["name"], run_id="names"
    )
    (row,) = csv.DictReader(io.StringIO(agentos("export", "names", "--format", "csv").stdout))
    assert (row["id"], row["input.id"], row["name"]) == ("x", "1", "x")
