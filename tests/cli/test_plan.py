"""`agentos plan`, of items and of runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentos.workers.machine import Machine
from agentos.workflows.parallel import current_item

from .cli_runs import agentos, execute, make_interrupted, make_run, prepare, same


def test_plan_of_a_run_starts_from_its_ledger() -> None:
    folder = prepare("half", ["a", "b", "c", "d"], total=4, options={"parallel": 1})

    def worker(item: str, _: str | None) -> str:
        if item == "b":
            raise RuntimeError("stop here")
        return item

    execute(folder, ["a", "b", "c", "d"], worker, halt="now,fail=1", retries=0)
    text = agentos("plan", "half", "--item-seconds", "60").stdout
    left = int(re.match(r"(\d) item", text)[1])  # type: ignore[index]
    assert 0 < left < 4
    assert f"about {left}.0 minutes" in text or f"about {60.0 * left} s" in text
    assert " 1 worker)" in text


def test_plan_of_a_finished_run_has_nothing_to_do() -> None:
    make_run("done", ["a", "b"], same)
    assert agentos("plan", "done").stdout.startswith("0 items: nothing to do")


def test_options_of_the_command_outrank_those_of_the_run() -> None:
    prepare("waiting", [str(number) for number in range(8)], total=8, options={"parallel": 1})
    text = agentos("plan", "waiting", "--parallel", "4", "--item-seconds", "10").stdout
    assert text.startswith("8 items: about 20.0 s")


def test_plan_of_a_run_takes_tokens_from_its_unfinished_items(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.touch(0o600)
    keys.write_text('[[credential]]\nid = "a"\nsecret = "sk-plan"\ntokens_per_minute = 1000\nmax_concurrent = 4\n')
    items = ['{"id": "x", "size": 900}', '{"id": "y", "size": 900}']
    prepare("sized", items, total=2, options={"keys": str(keys), "tokens": "size", "store": "memory:"})
    # The window of the first item counts from its answer.
    text = agentos("plan", "sized", "--item-seconds", "1").stdout
    assert text.startswith("2 items: about 62.2 s")
    assert "Bound by: tokens per minute on a (1,000)" in text


def test_plan_and_dry_run_explain_the_same_number_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys admit 40, and the memory is for 5."""
    monkeypatch.setattr(Machine, "free_bytes", lambda _: 5.7e9)
    keys = tmp_path / "keys.toml"
    keys.touch(0o600)
    keys.write_text('[[credential]]\nid = "a"\nsecret = "sk-plan"\nprovider = "openai"\nmax_concurrent = 40\n')
    options = ("--keys", str(keys), "--store", "memory:", "--item-seconds", "1")
    items = [word for number in range(50) for word in ("--item", str(number))]
    dry = agentos("run", "--dry-run", *options, *items, "--", "echo", "{}").stdout.splitlines()
    plan = agentos("plan", *options, *items).stdout.splitlines()
    bound = "  Bound by: memory, 1.0 GB per item assumed until some have ended, 5.4 GB free: room for 5 items at once"
    for lines in (dry[5:], plan):
        assert "and up to 5 items at once)" in lines[0]
        assert lines[1] == bound
        assert any("With room for twice as many items at once" in line for line in lines)
    assert [line for line in dry if re.search(r"\d+ (items )?at once", line)] == dry[5:7]


def test_plan_of_a_run_subtracts_its_spending() -> None:
    names = [str(number) for number in range(40)]
    folder = prepare("spent", names, total=40, options={"budget": 10.0, "budget_reported": True})

    def worker(item: str, _: str | None) -> str:
        current_item().report_usage(cost=1.0)
        if item == "3":
            raise RuntimeError("stop here")
        return item

    execute(folder, names, worker, halt="now,fail=1", retries=0)
    text = agentos("plan", "spent").stdout
    assert "(1.00 per item)" in text
    assert re.search(r"[3-6]\.00 is left of the budget of 10\.00, enough for about [3-6] items", text)


def test_plan_needs_one_source_of_items() -> None:
    make_interrupted("half")
    assert "no items given" in agentos("plan", status=2).stderr
    assert "one of them" in agentos("plan", "last", "--count", "3", status=2).stderr
