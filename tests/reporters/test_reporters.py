"""Reporters: lines for people, JSON lines for programs, and which progress gets a line."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import events as events_module
from agentos.events import (
    JSON_VERSION,
    AttemptAbandoned,
    AttemptEnded,
    CoolDownStarted,
    CredentialBenched,
    CredentialQuarantined,
    CredentialRecovered,
    CredentialRested,
    DryRun,
    Heartbeat,
    ItemEnded,
    KeysReloaded,
    LimitLearned,
    Output,
    PoolWaiting,
    RunEnded,
    RunResumed,
    RunStarted,
    RunStopping,
    StoreReached,
    StoreUnreachable,
)
from agentos.reporters.sentences import is_worth_a_line, waiting_text
from agentos.reporters.writers import warn_capped
from agentos.testing import FakeClock
from agentos.verdict import Verdict
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    JsonReporter,
    PlainReporter,
    ProgressStats,
    WorkflowResult,
)

START = 1_700_000_000.0
PATIENCE = 30  # seconds until a thread counts as stuck


def stats(total: int | None = 4, completed: int = 0, failed: int = 0, **more: Any) -> ProgressStats:
    succeeded = completed - failed
    return ProgressStats(total, completed, failed, succeeded, START, START + 12.5, **more)


def plain(event: Any) -> str:
    stream = io.StringIO()
    PlainReporter(stream)(event)
    return stream.getvalue()


def no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def as_json(event: Any) -> dict[str, Any]:
    """Return the one JSON line of an event, parsed strictly."""
    stream = io.StringIO()
    JsonReporter(stream)(event)
    assert stream.getvalue().endswith("\n")
    assert len(stream.getvalue().splitlines()) == 1
    values = json.loads(stream.getvalue(), parse_constant=no_constant)
    assert isinstance(values, dict)
    return values


# One of each type.
EVENTS: list[Any] = [
    PoolWaiting("exhausted", 3, 3, 0, None),
    CoolDownStarted("group", "team", None, 60.0, "rate_limited"),
    StoreUnreachable("redis://somewhere:6379/0", "connection refused", 1e9),
    StoreReached("redis://somewhere:6379/0", 12.0),
    LimitLearned("group", "team", None, 594.3),
    CredentialRested("key-1", None, 4.0, "rate_limited", "HTTP 429"),
    CredentialBenched("key-1", "small", 3, 1.0),
    CredentialRecovered("key-1"),
    CredentialQuarantined("key-1", "refused by the provider 2 times in a row"),
    KeysReloaded(["key-3"], ["key-1"], ["key-2"]),
    RunStarted("run-1", 4, 2, 3),
    RunResumed("run-1", 2, 10, 1, 3, True),
    AttemptEnded("item-1", 1, "key-1", "transient", 0.5, "reset"),
    ItemEnded(WorkflowResult("item-1", True, value="done"), stats(completed=1)),
    AttemptAbandoned("item-1", 30.0, 1),
    Heartbeat(stats(8, 2), PoolWaiting("rate_limited", 1, 0, 1, 12.0)),
    RunStopping("interrupted", 2, 3, 30.0),
    RunEnded(stats(completed=4), 0, "2 workers"),
    DryRun(2, ["item-1", "item-2"]),
]
TYPES = [type(event).__name__ for event in EVENTS]


def test_every_event_type_has_sample() -> None:
    tuples = {thing for thing in vars(events_module).values() if inspect.isclass(thing) and hasattr(thing, "_fields")}
    # No reporter is called with Output: see tests/terminal.
    assert {type(event) for event in EVENTS} == tuples - {Verdict, Output}


# --- lines for people ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS, ids=TYPES)
def test_every_event_line_starts_with_coordinator(event: Any) -> None:
    assert plain(event).startswith("[COORDINATOR] ")
    assert plain(event).endswith("\n")


def test_unknown_event_is_ignored() -> None:
    assert plain(object()) == ""
    assert plain(("RunStarted", 1)) == ""


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (RunStarted("r", 4, 2, None), "[COORDINATOR] Starting parallel execution of 4 items with 2 workers\n"),
        (
            RunStarted("r", 4, 2, 3),
            "[COORDINATOR] Starting parallel execution of 4 items with 2 workers over 3 credentials\n",
        ),
        (RunStarted("r", None, 2, None), "[COORDINATOR] Starting parallel execution of items with 2 workers\n"),
        (
            RunStarted("r", 4, 2, 3, is_auto=True),
            "[COORDINATOR] Starting parallel execution of 4 items over 3 credentials\n",
        ),
    ],
)
def test_start_line_has_items_workers_and_credentials(event: RunStarted, line: str) -> None:
    assert plain(event) == line


def test_progress_line_has_percentage() -> None:
    event = ItemEnded(WorkflowResult("item-1", True), stats(total=8, completed=3))
    assert plain(event) == "[COORDINATOR] Progress: 3/8 (37.5%)\n"


def test_progress_line_without_total_is_count() -> None:
    assert plain(ItemEnded(WorkflowResult("item-1", True), stats(None, 7))) == "[COORDINATOR] Progress: 7\n"


def test_progress_between_steps_gets_no_line() -> None:
    assert plain(ItemEnded(WorkflowResult("item-1", True), stats(10_000, 7))) == ""
    assert plain(ItemEnded(WorkflowResult("item-1", True), stats(10_000, 700))) != ""


def test_failure_line_has_item_and_first_error_line() -> None:
    result = WorkflowResult("item-1", False, "\n  no such page  \nTraceback: …\n")
    assert plain(ItemEnded(result, stats(8, 2, 1))) == (
        "[COORDINATOR] Failed: item-1: no such page  \n[COORDINATOR] Progress: 2/8 (25.0%)\n"
    )


def test_failure_gets_line_without_progress() -> None:
    text = plain(ItemEnded(WorkflowResult("item-1", False, "gone"), stats(10_000, 7, 1)))
    assert text == "[COORDINATOR] Failed: item-1: gone\n"


def test_long_error_is_cut() -> None:
    text = plain(ItemEnded(WorkflowResult("item-1", False, "x" * 100_000), stats(10_000, 7, 1)))
    assert text.startswith("[COORDINATOR] Failed: item-1: xxxx")
    assert 300 <= len(text) < 400


@pytest.mark.parametrize("error", [None, "", "\n"])
def test_failure_without_error_text_gets_line(error: str | None) -> None:
    text = plain(ItemEnded(WorkflowResult("item-1", False, error), stats(10_000, 7, 1)))
    assert text.startswith("[COORDINATOR] Failed: item-1")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("transient", "transient"), ("auth_failed", "key refused"), ("quota_exhausted", "out of quota")],
)
def test_retried_attempt_line_has_reason_and_pause(verdict: str, words: str) -> None:
    event = AttemptEnded("item-1", 2, "key-1", verdict, 1.5, "reset by peer\nmore")
    assert plain(event) == f"[COORDINATOR] item-1: attempt 2: {words}, retry in 1.5 s: reset by peer\n"
    at_once = event._replace(retry_in=0.0)
    assert plain(at_once) == f"[COORDINATOR] item-1: attempt 2: {words}, retry now: reset by peer\n"


def test_try_with_another_key_says_why() -> None:
    event = AttemptEnded("a", 1, "k1", "transient", 0.0, "exit status 3", "key k1 has not worked yet in this run")
    assert plain(event) == (
        "[COORDINATOR] a: attempt 1: exit status 3; key k1 has not worked yet in this run, so the item is tried with "
        "other keys; this does not count as a retry\n"
    )
    assert plain(event._replace(attempt=2, keys_tried=2)) == ""


def test_failure_with_several_keys_says_with_how_many() -> None:
    result = WorkflowResult("a", False, "exit status 3", 1.0, {"keys_tried": 3}, None, 3, "k3")
    assert plain(ItemEnded(result, ProgressStats(total=1))).startswith(
        "[COORDINATOR] Failed: a: exit status 3 (it failed with 3 keys, so the cause is probably not a key)\n"
    )


def test_long_pause_after_a_limit_counts_no_attempts() -> None:
    """The attempts before it had no line."""
    event = AttemptEnded("5", 4, "key-1", "rate_limited", 60.0, "HTTP 429")
    assert plain(event) == "[COORDINATOR] 5: rate-limited, continues in 60.0 s: HTTP 429\n"


def test_summary_counts_recorded_items_by_outcome() -> None:
    stats = ProgressStats(20, 20, 5, 15, recorded=8, recorded_failed=3)
    text = plain(RunEnded(stats, 0, "nothing", is_recorded=True))
    assert "  Succeeded: 15 (5 of them already on record)\n  Failed: 5 (3 of them already on record)\n" in text


def test_resumed_run_says_what_is_left_and_selected() -> None:
    assert "of 20 items (8 of them already on record) with" in plain(RunStarted("r", 20, 2, None, 8))
    retried = RunResumed("r", 2, 10, 7, 0, True)
    assert plain(retried).endswith("10 succeeded, 7 failed (to be retried), 0 started but not finished\n")
    selected = plain(retried._replace(selected=1))
    assert selected.endswith("10 succeeded, 7 failed, 0 started but not finished; selected: 1 item\n")


@pytest.mark.parametrize("verdict", ["rate_limited", "overloaded"])
def test_rate_limited_attempt_gets_no_line(verdict: str) -> None:
    assert plain(AttemptEnded("item-1", 2, "key-1", verdict, 0.0, "HTTP 429")) == ""
    assert verdict.replace("_", "-") in plain(CoolDownStarted("group", "team", None, 60.0, verdict))


def test_exhausted_pool_line_waits_for_release() -> None:
    text = plain(PoolWaiting("exhausted", 3, 3, 0, None))
    assert text == "[COORDINATOR] Credential pool exhausted: 3 of 3 credentials in use; waiting for a release\n"
    assert "rate" not in text


def test_exhausted_pool_line_counts_paused() -> None:
    text = plain(PoolWaiting("exhausted", 3, 2, 1, 41.0))
    assert "Credential pool exhausted: 2 of 3 credentials in use, 1 paused; waiting for a release" in text


def test_rate_limited_pool_line_has_wait() -> None:
    text = plain(PoolWaiting("rate_limited", 3, 0, 3, 41.5))
    assert text == (
        "[COORDINATOR] Waiting for the provider: "
        "all 3 usable credentials are rate-limited or cooling down, the next usable in 41.5 s\n"
    )
    assert "exhausted" not in text
    assert "release" not in text


@pytest.mark.parametrize(
    ("verdict", "held", "text"),
    [
        (
            "unreachable: 127.0.0.1:9", 2,
            "the provider at 127.0.0.1:9 cannot be reached, the next try is in 4.0 s; check base_url, HTTPS_PROXY and "
            "the network",
        ),
        ("overloaded", 2, "the provider is overloaded, the next try is in 4.0 s"),
        ("overloaded", 1, "all 2 usable credentials are rate-limited or cooling down, the next usable in 4.0 s"),
    ],
)  # fmt: skip
def test_wait_for_a_provider_names_its_reason(verdict: str, held: int, text: str) -> None:
    """Unless not all credentials wait for the same."""
    assert waiting_text(PoolWaiting("rate_limited", 2, 0, 2, 4.0, verdict=verdict, held=held)) == text


def test_waiting_text() -> None:
    assert waiting_text(PoolWaiting("exhausted", 3, 3, 0, None)) == "3 of 3 credentials in use"
    assert "the next usable in 0.0 s" in waiting_text(PoolWaiting("rate_limited", 3, 0, 3, None))
    assert waiting_text(PoolWaiting("store_lost", 3, 0, 0, None)) == "the pool's store is unreachable"
    assert waiting_text(PoolWaiting("store_lost", 3, 0, 0, 25.0)).endswith("which expire in 25.0 s at the latest")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            CoolDownStarted("group", "team", None, 60.0, "rate_limited"),
            "[COORDINATOR] Cooling down group team for 60.0 s: rate-limited\n",
        ),
        (
            CoolDownStarted("group", "credential key-1", None, 60.0, "rate_limited"),
            "[COORDINATOR] Cooling down credential key-1 for 60.0 s: rate-limited\n",
        ),
        (
            CoolDownStarted("credential", "key-1", None, 5.0, "auth_failed"),
            "[COORDINATOR] Cooling down credential key-1 for 5.0 s: key refused\n",
        ),
        (
            CoolDownStarted("provider", "acme", "model-a", 1.0, "overloaded"),
            "[COORDINATOR] Cooling down provider acme for model-a for 1.0 s: overloaded\n",
        ),
        (
            CoolDownStarted("provider", None, None, 1.0, "overloaded"),
            "[COORDINATOR] Cooling down provider (not named) for 1.0 s: overloaded\n",
        ),
        (
            CoolDownStarted("group", "team", None, 86_400.0, "rate_limited", 100_000.0),
            "[COORDINATOR] Cooling down group team for 24.0 hours: rate-limited "
            "(capped: the provider asked for 100000 s)\n",
        ),
        (
            CoolDownStarted("group", "credential key-1", None, 8.0, "unreachable: host\x1b:9"),
            "[COORDINATOR] The provider at host\\x1b:9 cannot be reached: credential key-1 rests for 8.0 s\n",
        ),
    ],
)
def test_cool_down_line_has_target_duration_and_verdict(event: CoolDownStarted, line: str) -> None:
    assert plain(event) == line


def test_short_cool_down_gets_no_line() -> None:
    assert plain(CoolDownStarted("group", "team", None, 0.19, "rate_limited")) == ""
    assert plain(CoolDownStarted("group", "team", None, 0.2, "rate_limited")) != ""


def test_quarantine_line_has_credential_and_reason() -> None:
    text = plain(CredentialQuarantined("key-1", "refused twice"))
    assert text == "[COORDINATOR] Credential key-1 is quarantined: refused twice\n"


def test_abandoned_thread_gets_line() -> None:
    text = plain(AttemptAbandoned("item-1", 2.5, 3))
    assert text.startswith("[COORDINATOR] item-1 did not end within 2.5 s and cannot be killed:")
    assert "(3 so far)" in text


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            RunStopping("interrupted", 2, 3, 30.0),
            "[COORDINATOR] Received SIGINT (Ctrl-C or agentos stop), graceful shutdown: nothing new starts; "
            "waiting up to 30 s for 3 running items (a second signal stops at once)\n",
        ),
        (
            RunStopping("interrupted", 15, 3, 5.0, 3),
            "[COORDINATOR] Received SIGTERM, graceful shutdown: nothing new starts; 3 running programs were told "
            "to end (SIGTERM) and have 5 s (a second signal stops at once)\n",
        ),
        (
            RunStopping("halted", None, 1, 5.0, 1),
            "[COORDINATOR] Stopping: halted, graceful shutdown: nothing new starts; 1 running program was told to end "
            "(SIGTERM) and has 5 s\n",
        ),
        (
            RunStopping("closed early", None, 1, None),
            "[COORDINATOR] Stopping: closed early, graceful shutdown: nothing new starts; waiting for 1 running item\n",
        ),
        (
            RunStopping("stream closed early", None, 0, 30.0),
            "[COORDINATOR] Stopping: stream closed early, graceful shutdown: nothing new starts\n",
        ),
    ],
)
def test_stopping_line_has_reason_and_running_items(event: RunStopping, line: str) -> None:
    assert plain(event) == line


def test_summary_has_all_figures() -> None:
    assert plain(RunEnded(stats(4, 4, 1), 0, "2 workers")).splitlines() == [
        "[COORDINATOR] Execution complete:",
        "  Total: 4",
        "  Succeeded: 3",
        "  Failed: 1",
        "  Duration: 12.50s",
        "  Bound by: 2 workers",
    ]


def test_stopped_summary_has_reason_and_unfinished_items() -> None:
    lines = plain(RunEnded(stats(9, 4, 1, stopped="stream closed early"), 5, "2 workers")).splitlines()
    assert lines[0] == "[COORDINATOR] Execution stopped early: stream closed early:"
    assert "  Unfinished: 5 (see get_checkpoints())" in lines


def test_summary_of_unread_input_has_no_total() -> None:
    lines = plain(RunEnded(stats(None, 4, stopped="stream closed early"), None, "2 workers")).splitlines()
    assert "  Total: not known" in lines
    assert "  Unfinished: unread input (see get_checkpoints())" in lines


@pytest.mark.parametrize("ids", [["item-1", "item-2"], iter(["item-1", "item-2"])], ids=["list", "iterator"])
def test_dry_run_lists_ids(ids: Any) -> None:
    assert plain(DryRun(2, ids)).splitlines() == [
        "[COORDINATOR] Dry run mode: 2 items would be processed, nothing is started:",
        "  - item-1",
        "  - item-2",
    ]


def test_dry_run_has_count_beyond_listed_ids() -> None:
    assert "1000000 items would be processed" in plain(DryRun(1_000_000, ["item-1"]))


def test_capped_workers_warning_has_both_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    warn_capped(64, 32, JsonReporter())
    assert capsys.readouterr().out == ""  # JSON lines are read by programs
    warn_capped(64, 32, PlainReporter())
    text = capsys.readouterr().out
    assert text.startswith("Warning: 64 parallel workers were requested, the maximum is 32")
    assert "max_parallelism" in text


# --- lines for programs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS, ids=TYPES)
def test_every_event_is_json_object_with_its_fields(event: Any) -> None:
    values = as_json(event)
    assert list(values) == ["event", "v", *event._fields]
    assert values["v"] == JSON_VERSION
    assert values["event"] == type(event).__name__
    for name in set(event._fields) - {"stats", "result", "waiting"}:
        assert values[name] == json.loads(json.dumps(getattr(event, name)))


def test_result_and_stats_are_json_objects() -> None:
    result = WorkflowResult("item-1", False, "gone", 1.5, {"verdict": "permanent"}, None, 2, "key-1")
    values = as_json(ItemEnded(result, stats(8, 2, 1)))
    assert values["result"] == {
        "item_id": "item-1",
        "success": False,
        "error": "gone",
        "duration": 1.5,
        "metadata": {"verdict": "permanent"},
        "value": None,
        "attempts": 2,
        "credential_id": "key-1",
    }
    assert values["stats"]["total"] == 8
    assert values["stats"]["completed"] == 2
    assert values["stats"]["failed"] == 1


def test_dry_run_json_has_ids() -> None:
    assert as_json(DryRun(None, ["item-1", "item-2"]))["ids"] == ["item-1", "item-2"]


def test_each_event_is_one_json_line() -> None:
    stream = io.StringIO()
    reporter = JsonReporter(stream)
    for event in EVENTS:
        reporter(event)
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == TYPES


@given(item_id=st.text(), error=st.text())
def test_any_text_stays_one_json_line(item_id: str, error: str) -> None:
    values = as_json(ItemEnded(WorkflowResult(item_id, False, error), stats()))
    assert (values["result"]["item_id"], values["result"]["error"]) == (item_id, error)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


def circular() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    "make",
    [
        lambda: {1, 2},
        lambda: b"bytes",
        object,
        lambda: ValueError("an exception"),
        threading.Lock,
        lambda: (number for number in range(3)),
        lambda: Credential("sk-Zq7Xw9Vu3"),
        lambda: {(1, 2): "a pair as key"},
        lambda: float("nan"),
        lambda: [float("inf")],
        circular,
        Unprintable,
        lambda: 10**5000,  # more digits than Python converts
    ],
    ids=[
        *("set", "bytes", "object", "error", "lock", "generator", "credential", "key", "nan", "inf", "circular"),
        *("unprintable", "huge"),
    ],
)
def test_value_without_json_form_is_written_as_repr(make: Callable[[], Any]) -> None:
    values = as_json(ItemEnded(WorkflowResult("item-1", True, value=make()), stats(8, 2)))
    assert values["result"]["item_id"] == "item-1"
    assert values["stats"]["completed"] == 2
    assert "Zq7X" not in json.dumps(values)


def test_repr_of_cyclic_tree_is_bounded() -> None:
    root: dict[str, Any] = {"children": []}
    root["children"] += [{"name": name, "parent": root} for name in "abcdef"]
    values = as_json(ItemEnded(WorkflowResult("item-1", True, value=root), stats(8, 2)))
    assert "'name': 'a'" in values["result"]["value"]
    assert len(json.dumps(values)) < 50_000


# --- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [PlainReporter, JsonReporter])
def test_reporter_without_stream_uses_current_stdout(cls: Any) -> None:
    reporter = cls()
    first, second = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(first):
        reporter(RunStarted("r", 1, 2, None))
    with contextlib.redirect_stdout(second):
        reporter(CredentialQuarantined("key-1", "why"))
    assert first.getvalue().count("\n") == second.getvalue().count("\n") == 1
    assert "key-1" not in first.getvalue()
    assert "key-1" in second.getvalue()


@pytest.mark.parametrize("cls", [PlainReporter, JsonReporter])
def test_reporter_flushes_its_stream_and_leaves_stdout(cls: Any, capsys: pytest.CaptureFixture[str]) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")  # type: ignore[arg-type]
    cls(stream)(CredentialQuarantined("key-1", "why"))
    assert b"key-1" in raw.getvalue()
    assert capsys.readouterr().out == ""


# --- events of pools ----------------------------------------------------------------------------------------------


def listen_to(pool: CredentialCoordinator) -> io.StringIO:
    stream = io.StringIO()
    pool.listen(PlainReporter(stream))
    return stream


def test_pool_reports_capped_wait() -> None:
    pool = CredentialCoordinator([Credential("sk-one", id="one")], clock=FakeClock())
    stream = listen_to(pool)
    with pool.lease() as lease:
        lease.observe(httpx.Response(429, headers={"Retry-After": "100000"}))
    assert stream.getvalue() == (
        "[COORDINATOR] Cooling down credential one for 24.0 hours: rate-limited "
        "(capped: the provider asked for 100000 s)\n"
    )


def lines_while_waiting(pool: CredentialCoordinator, end_the_wait: Callable[[], None]) -> str:
    """Return the lines of a pool while a thread waits for a key, until `end_the_wait`."""
    stream, is_waiting = io.StringIO(), threading.Event()

    def listener(event: Any) -> None:
        PlainReporter(stream)(event)
        if isinstance(event, PoolWaiting):
            is_waiting.set()

    unlisten = pool.listen(listener)
    waiter = threading.Thread(target=pool.reserve, daemon=True)
    waiter.start()
    assert is_waiting.wait(PATIENCE)
    lines = stream.getvalue()
    end_the_wait()
    waiter.join(PATIENCE)
    assert not waiter.is_alive()
    unlisten()
    return lines


def test_pool_distinguishes_exhausted_from_rate_limited() -> None:
    clock = FakeClock()
    pool = CredentialCoordinator(["sk-one"], clock=clock)
    listen_to(pool)
    pool.mark_rate_limited("sk-one", 30)
    rate_limited = lines_while_waiting(pool, lambda: clock.advance(30))
    assert rate_limited.startswith("[COORDINATOR] Waiting for the provider: ")
    assert "the only usable credential is rate-limited or cooling down for 30.0 s" in rate_limited
    pool.release("sk-one")
    assert pool.reserve() == "sk-one"
    exhausted = lines_while_waiting(pool, lambda: pool.release("sk-one"))
    assert exhausted.startswith("[COORDINATOR] Credential pool exhausted: 1 of 1 ")


def test_pool_redacts_reason_of_quarantine() -> None:
    pool = CredentialCoordinator(["sk-Zq7Xw9Vu3"])
    stream = listen_to(pool)
    pool.quarantine(pool.states()[0].key_id, "sk-Zq7Xw9Vu3 was refused")
    assert "is quarantined: **** was refused" in stream.getvalue()
    assert "Zq7X" not in stream.getvalue()


# --- progress -----------------------------------------------------------------------------------------------------


def lines_of(total: int) -> list[int]:
    return [completed for completed in range(1, total + 1) if is_worth_a_line(completed, total)]


@given(total=st.integers(0, 100))
def test_small_run_has_line_per_item(total: int) -> None:
    assert lines_of(total) == list(range(1, total + 1))


@given(total=st.integers(101, 50_000))
def test_large_run_has_hundred_lines_including_last_item(total: int) -> None:
    lines = lines_of(total)
    assert 50 <= len(lines) <= 101
    assert lines[-1] == total
    gaps = {later - earlier for earlier, later in itertools.pairwise([0, *lines[:-1]])}
    assert len(gaps) == 1


@pytest.mark.parametrize("total", [1000, 10_000, 100_000, 123_456])
def test_run_of_hundreds_has_about_hundred_lines(total: int) -> None:
    assert 100 <= len(lines_of(total)) <= 111


def test_lines_without_total_become_rarer() -> None:
    lines = [completed for completed in range(1, 100_001) if is_worth_a_line(completed, None)]
    assert lines[:100] == list(range(1, 101))
    gaps = [later - earlier for earlier, later in itertools.pairwise(lines)]
    assert gaps == sorted(gaps)
    assert [gaps.count(gap) for gap in (1, 10, 100, 1000)] == [99, 90, 90, 90]
    assert len(lines) == 370
