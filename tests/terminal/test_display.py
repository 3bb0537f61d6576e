"""The live display: frames of scripted runs, at every size."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.bounds import bound_of_pool
from agentos.events import EXHAUSTED, STORE_LOST, ItemEnded, PoolWaiting, RunStopping, StoreReached, StoreUnreachable
from agentos.items.results import RunningItem
from agentos.runs.run_snapshot import RunSnapshot
from agentos.terminal._cells import text_width
from agentos.terminal.display import Display, amount_text, clock_text, countdown_text
from agentos.verdict import AUTH_FAILED, QUOTA_EXHAUSTED, RATE_LIMITED
from agentos.workflows.parallel import CredentialState, ProgressStats, WorkflowResult

START = 1_700_000_000.0
NOW = START + 125.0
LIMITS = {"requests per minute": (45.0, 60.0), "tokens per minute": (12_000.0, 40_000.0)}


class ScriptedRun:
    """A run whose figures a test sets; counts the snapshots of its pool."""

    def __init__(self, **more: Any) -> None:
        self.run_id = "nightly-42"
        self.figures = ProgressStats(None, start_time=START)
        self.items: list[RunningItem] = []
        self.keys: tuple[CredentialState, ...] = ()
        self.pool_waiting: PoolWaiting | None = None
        self.snapshots = 0
        self.now = NOW
        self.held = 0
        for name, value in more.items():
            setattr(self, name, value)

    def snapshot(self, max_running: int) -> RunSnapshot:
        self.snapshots += 1
        bound = None if self.pool_waiting is None else bound_of_pool(self.pool_waiting, self.now)
        return RunSnapshot(self.now, self.figures, self.items[:max_running], bound, self.keys, self.held)


def stats(total: int | None = 300, completed: int = 120, failed: int = 0, **more: Any) -> ProgressStats:
    return ProgressStats(total, completed, failed, completed - failed, START, **more)


def busy_run(items: int = 1000, keys: int = 20) -> ScriptedRun:
    return ScriptedRun(
        figures=stats(5000, 1200, 12, running=items, waiting=700, rate_limited=3),
        items=[RunningItem(f"document-{n:04d}", 1 + (n == 0), f"key-{n % keys}", 605.0 - n / 2) for n in range(items)],
        keys=tuple(
            CredentialState(
                f"key-{n}",
                in_use=n != 1,
                live_leases=2 * (n != 1),
                max_concurrent=4,
                used=LIMITS,
                rate_limited_until=NOW + 11.5 if n == 1 else None,
                cooled_until=NOW + 11.5 if n == 1 else None,
                cooled_by={"": RATE_LIMITED} if n == 1 else {},
                quarantined="refused by the provider 2 times in a row" if n == 2 else None,
            )
            for n in range(keys)
        ),
        pool_waiting=PoolWaiting(RATE_LIMITED, 20, 19, 20, 11.5, "tokens per minute", groups=20, amount=8e5),
    )


def failed(item_id: str, error: str, kind: str | None = "ValueError") -> ItemEnded:
    return ItemEnded(WorkflowResult(item_id, False, error, metadata={"error_type": kind}), None)


def display_of(run: ScriptedRun, *failures: ItemEnded, **more: Any) -> Display:
    display = Display(run, **{"clock": lambda: NOW, "color": False, **more})
    for event in failures:
        display.note(event)
    return display


def plain(line: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", line)


# --- whole frames -------------------------------------------------------------------------------------------------

SMALL = ScriptedRun(
    figures=stats(300, 120, 2, running=3, waiting=4),
    items=[
        RunningItem("document-0001", 1, "key-1", 65.0),
        RunningItem("文書-2", 3, "key-2", 12.9),
        RunningItem("document-0003", 1, None, 0.4),
    ],
    keys=(
        CredentialState("key-1", in_use=True, used=LIMITS),
        CredentialState("key-2", in_use=True, live_leases=1, max_concurrent=4, learned={"": 58.7}),
        CredentialState("key-3", cooled_until=NOW + 11.2, cooled_by={"": "overloaded"}, used=LIMITS),
        CredentialState("key-4", quarantined="refused by the provider: no such key"),
        CredentialState("key-5"),
    ),
    pool_waiting=PoolWaiting(EXHAUSTED, 4, 2, 1, 11.2, at_once=5, leases=5, paused=1),
)


def test_frame_shows_whole_run_if_it_fits() -> None:
    display = display_of(SMALL, failed("document-0007", "bad input\nsecond line"), failed("d-8", "Timeout", "Timeout"))
    assert display.frame(100, 30) == [
        "run nightly-42  2:05 elapsed, about 3.1 minutes to go, 58 items/min",
        "━" * 31 + "─" * 46 + " 120/300 done, 2 failed",
        "Bound by max_concurrent: 5 requests at once on 3 keys, all in use; 1 more is paused",
        "running 3, 177 to go",
        "  1:05  document-0001  key-1",
        "  0:12  文書-2         key-2  attempt 3",
        "  0:00  document-0003",
        "credentials 5: 2 in use, 1 free, 1 paused, 1 quarantined",
        "  key-1  ━━━━━━── 45/60 requests/min  ━━────── 12k/40k tokens/min  in use",
        "  key-2                                                            in use 1/4, learned 59 requests/…",
        "  key-3  ━━━━━━── 45/60 requests/min  ━━────── 12k/40k tokens/min  overloaded for 12 s",
        "  key-4                                                            quarantined: refused by the prov…",
        "  key-5                                                            free",
        "failed document-0007: ValueError: bad input",
        "failed d-8: Timeout",
    ]


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (
            60,
            12,
            [
                "run nightly-42  2:05 elapsed, about 6.6 minutes to go",
                "━━━━━━━━━───────────────────────── 1200/5000 done, 12 failed",
                "nothing starts for 12 s. Bound by tokens per minute on all …",
                "running 1000, 2800 to go (3 refused)",
                "  10:05  document-0000  key-0  attempt 2",
                "  10:04  document-0001  key-1",
                "  … and 998 more",
                "credentials 20: 18 in use, 1 paused, 1 quarantined",
                "  key-2  quarantined: refused by the provider 2 times in a …",
                "  … and 19 more",
                "failed document-8: ValueError: worse",
                "failed document-9: ValueError: worst",
            ],
        ),
        (
            40,
            6,
            [
                "run nightly-42  2:05 elapsed",
                "━━━━────────── 1200/5000 done, 12 failed",
                "nothing starts for 12 s. Bound by token…",
                "running 1000, 2800 to go (3 refused)",
                "credentials 20: 18 in use, 1 paused, 1 …",
                "failed document-9: ValueError: worst",
            ],
        ),
        (40, 4, ["run nightly-42  2:05 elapsed", "━━━━────────── 1200/5000 done, 12 failed",
                 "nothing starts for 12 s. Bound by token…", "running 1000, 2800 to go (3 refused)"]),
        (40, 2, ["run nightly-42  2:05 elapsed", "━━━━────────── 1200/5000 done, 12 failed"]),
        (40, 1, ["━━━━────────── 1200/5000 done, 12 failed"]),
        (20, 3, ["2:05 elapsed", "1200/5000, 12 failed", "nothing starts for …"]),
        (40, 0, []),
    ],
)  # fmt: skip
def test_smaller_frame_drops_rows_then_titles_then_lists(width: int, height: int, expected: list[str]) -> None:
    failures = [failed("document-7", "bad"), failed("document-8", "worse"), failed("document-9", "worst")]
    assert display_of(busy_run(), *failures).frame(width, height) == expected


def test_frame_before_first_event() -> None:
    run = ScriptedRun(run_id="")
    assert [line.rstrip() for line in display_of(run).frame(60, 10)] == ["run   2:05 elapsed", "0 done"]


def test_unknown_total_shows_no_bar_and_no_eta() -> None:
    run = ScriptedRun(figures=stats(None, 50, 1))
    assert display_of(run).frame(60, 2) == ["run nightly-42  2:05 elapsed, 24 items/min", "50 done, 1 failed"]


def test_color_codes_surround_texts_only() -> None:
    colored = display_of(busy_run(), failed("a", "b"), color=True).frame(100, 30)
    assert [plain(line).rstrip() for line in colored] == display_of(busy_run(), failed("a", "b")).frame(100, 30)
    assert any("\x1b[31m" in line for line in colored)
    assert all(len(re.findall(r"\x1b\[\d+m", line)) == line.count("\x1b[m") for line in colored)  # each is reset


def test_frame_without_unicode_is_ascii() -> None:
    run = ScriptedRun(figures=stats(running=1), items=[RunningItem("文書" * 30, 1, "ключ", 1.0)], keys=SMALL.keys)
    lines = display_of(run, failed("é", "…"), unicode=False).frame(60, 20)
    assert all(line.isascii() for line in lines)
    assert lines[1].startswith("####")
    assert any("\\u6587" in line and "..." in line for line in lines)


# --- content -----------------------------------------------------------------------------------------------------


def test_bar_shows_single_failure_and_unfinished_rest() -> None:
    bar = display_of(ScriptedRun(figures=stats(100_000, 99_998, 1)), color=True).frame(80, 1)[0]
    assert "\x1b[31m━\x1b[m" in bar
    done = display_of(ScriptedRun(figures=stats(10, 10, 0)), color=True).frame(80, 1)[0]
    assert "─" not in done


def test_recorded_items_do_not_count_for_rate() -> None:
    run = ScriptedRun(figures=stats(300, 120, recorded=118))
    assert "items/min" not in display_of(run).frame(100, 2)[0]


def test_bound_drops_its_instant_where_it_does_not_fit() -> None:
    run = busy_run()
    assert run.pool_waiting is not None
    run.pool_waiting = run.pool_waiting._replace(usable_in=1.4)
    wide = next(line for line in display_of(run).frame(160, 30) if "Bound by" in line)
    assert "; the next request fits at " in wide
    narrow = next(line for line in display_of(run).frame(90, 30) if "Bound by" in line)
    assert narrow == "nothing starts for 2 s. Bound by tokens per minute on all 20 keys (800,000 together)"


def test_countdown_continues_between_pool_snapshots() -> None:
    now = NOW
    run = busy_run()
    display = Display(run, clock=lambda: now, color=False)
    display.frame(100, 30)
    assert run.snapshots == 1
    now += 0.2
    frame = "\n".join(display.frame(100, 30))
    assert run.snapshots == 1
    assert "nothing starts for 12 s" in frame
    display.frame(100, 40)
    assert run.snapshots == 2  # more rows
    now = run.now = now + 0.3
    display.frame(100, 30)
    assert run.snapshots == 3
    now -= 3600  # the clock is set back
    display.frame(100, 30)
    assert run.snapshots == 4


def test_cooling_scope_is_shown() -> None:
    state = CredentialState("k", cooling={"large": NOW + 30, "small": NOW + 3}, cooled_by={"large": "quota_exhausted"})
    assert "  k  large: out of quota for 30 s" in display_of(ScriptedRun(keys=(state,))).frame(80, 9)


def test_binding_declared_limit_is_named() -> None:
    state = CredentialState("k", limited_until=NOW + 300, waits_for="requests per day")
    until = time.strftime("%H:%M", time.localtime(NOW + 300))
    lines = display_of(ScriptedRun(keys=(state,))).frame(80, 9)
    assert f"  k  next request at {until} (requests per day)" in lines


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"cooled_until": NOW + 3594, "cooled_by": {"": "quota_exhausted"}}, "out of quota until %H:%M"),
        ({"cooled_until": NOW + 90_000, "cooled_by": {"": "quota_exhausted"}}, "out of quota until %b %d, %H:%M"),
        ({"cooled_until": NOW + 59.1, "cooled_by": {"": "rate_limited"}}, "rate-limited for 60 s"),
        ({"cooled_until": NOW + 4.2, "cooled_by": {"": "auth_failed"}}, "key refused for 5 s"),
        (
            {"cooled_until": NOW + 8, "cooled_by": {"": "unreachable: a.test:443"}},
            "a.test:443 unreachable, rests for 8 s",
        ),
    ],
)
def test_pause_is_worded_with_its_end(state: dict[str, Any], text: str) -> None:
    expected = time.strftime(text, time.localtime(math.ceil(state["cooled_until"])))
    lines = display_of(ScriptedRun(keys=(CredentialState("k", **state),))).frame(80, 9)
    assert lines[-2:] == ["credentials 1: 1 paused", f"  k  {expected}"]


def test_limit_that_outlasts_a_cool_down_is_the_reason() -> None:
    """The reason and the end of a pause belong together: a short cool-down does not explain a long limit."""
    state = CredentialState(
        "k",
        cooled_until=NOW + 5,
        cooled_by={"": "overloaded"},
        limited_until=NOW + 40,
        waits_for="requests per minute",
    )
    lines = display_of(ScriptedRun(keys=(state,))).frame(80, 9)
    assert "  k  paced: next request in 40 s (requests per minute)" in lines


def test_pause_between_requests_is_not_shown_as_paused() -> None:
    state = CredentialState("k", in_use=True, limited_until=NOW + 0.4, waits_for="requests per minute")
    assert "  k  in use" in display_of(ScriptedRun(keys=(state,))).frame(80, 9)


def test_stopping_replaces_waiting_reason() -> None:
    run = busy_run()
    display = display_of(run)
    display.note(RunStopping("interrupted", 2, 8, 5.0))
    lines = display.frame(100, 10)
    assert lines[2] == "stopping, interrupted: 1000 still running (Ctrl-C again stops at once)"
    assert "to go" not in lines[0]
    display.note(RunStopping("halted: 3 failed", None, 8, None))
    assert display.frame(100, 10)[2] == "stopping, halted: 3 failed: 1000 still running"


def test_only_last_failures_are_kept() -> None:
    display = display_of(ScriptedRun())
    display.note(ItemEnded(WorkflowResult("fine", True), None))
    for number in range(9):
        display.note(failed(f"item-{number}", "bad", None))
    assert display.frame(80, 40)[2:] == [f"failed item-{number}: bad" for number in range(4, 9)]


def test_control_and_bidi_characters_are_escaped() -> None:
    run = ScriptedRun(figures=stats(running=1), items=[RunningItem("a\x1b[2J\n\u202eb\udc80", 1, "k\x07", 1.0)])
    frame = "\n".join(display_of(run, failed("\rx", "\x9b31m")).frame(100, 20))
    assert "a\\x1b[2J\\x0a\\u202eb\\udc80  k\\x07" in frame
    assert "failed \\x0dx: ValueError: \\x9b31m" in frame


def test_secrets_are_redacted_before_shortening() -> None:
    run = ScriptedRun(figures=stats(running=1), items=[RunningItem("see sk-secret-key there", 1, "k", 1.0)])
    display = Display(run, clock=lambda: NOW, color=False)
    display.redact_with(lambda text: text.replace("sk-secret-key", "[redacted]"))
    display.note(failed("sk-secret-key", "sk-secret-key"))
    for width in range(1, 80):
        assert "sk-" not in "\n".join(display.frame(width, 20))


# --- at every size ------------------------------------------------------------------------------------------------

texts = st.one_of(st.text(max_size=30), st.text("漢👩\u200d\ufe0f\u0301\u202e ", max_size=60), st.just("x" * 3000))
seconds = st.floats(0, 1e9)
instants = st.none() | st.floats(-10, 1e9).map(lambda seconds: NOW + seconds)
states = st.builds(
    CredentialState,
    texts,
    in_use=st.booleans(),
    rate_limited_until=instants,
    quarantined=st.none() | texts,
    live_leases=st.integers(0, 99),
    max_concurrent=st.integers(1, 99),
    cooling=st.dictionaries(texts, st.floats(-10, 1e9).map(lambda seconds: NOW + seconds), max_size=2),
    used=st.dictionaries(
        st.sampled_from(["requests per minute", "tokens per minute", "requests per day"]),
        st.tuples(st.floats(-10, 1e15), st.floats(0, 1e15)),
    ),
    learned=st.dictionaries(texts, st.floats(0, 1e6), max_size=2),
)
runs = st.builds(
    ProgressStats,
    st.none() | st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    start_time=st.floats(0, 2e9),
    waiting=st.integers(0, 1000),
    running=st.integers(0, 1000),
    rate_limited=st.integers(0, 10),
)


@given(
    width=st.integers(1, 120),
    height=st.integers(0, 40),
    run_id=texts,
    figures=runs,
    items=st.lists(st.builds(RunningItem, texts, st.integers(1, 99), st.none() | texts, seconds), max_size=4),
    keys=st.lists(states, max_size=4),
    failures=st.lists(st.tuples(texts, texts), max_size=3),
    pool_waiting=st.none() | st.builds(PoolWaiting, st.sampled_from([RATE_LIMITED, EXHAUSTED]), st.integers(0, 9),
                              st.integers(0, 9), st.integers(0, 9), st.none() | seconds | st.just(float("inf"))),
    unicode=st.booleans(),
)  # fmt: skip
def test_frame_never_exceeds_its_size(
    width: int,
    height: int,
    run_id: str,
    figures: ProgressStats,
    items: list[RunningItem],
    keys: list[CredentialState],
    failures: list[tuple[str, str]],
    pool_waiting: PoolWaiting | None,
    unicode: bool,
) -> None:
    run = ScriptedRun(run_id=run_id, figures=figures, items=items, keys=tuple(keys), pool_waiting=pool_waiting)
    events = [failed(*failure) for failure in failures]
    lines = display_of(run, *events, color=True, unicode=unicode).frame(width, height)
    assert len(lines) <= height
    assert len(lines) >= min(height, 2)
    for line in map(plain, lines):
        assert text_width(line) <= width
        assert line.isprintable()
        assert unicode or line.isascii()


def test_thousand_running_items_cost_as_much_as_visible_ones() -> None:
    """Ten frames a second in less than 5 % of a core."""
    now = NOW

    def clock() -> float:
        nonlocal now
        now += 0.1
        return now

    display = display_of(busy_run(), failed("a", "b"), clock=clock, color=True)
    display.frame(120, 50)
    began = time.process_time()
    for _ in range(100):
        display.frame(120, 50)
    assert time.process_time() - began < 0.5


# --- figures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (-3, "0:00"), (65.9, "1:05"), (3600, "1:00:00"), (360_000, "100:00:00")]
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (0.1, "1 s"), (12, "12 s"), (150, "2.5 minutes"), (float("inf"), "forever")]
)
def test_countdown_text(seconds: float, text: str) -> None:
    assert countdown_text(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (7.52, "7.5"), (10, "10"), (9999, "9999"), (12_345, "12k"), (999_000, "999k"), (3_400_000, "3.4M"),
     (4e10, "40G"), (5e15, "5000T")],
)  # fmt: skip
def test_amount_text(amount: float, text: str) -> None:
    assert amount_text(amount) == text


def test_short_wait_for_limit_shows_no_countdown() -> None:
    run = busy_run()
    assert run.pool_waiting is not None
    run.pool_waiting = run.pool_waiting._replace(usable_in=0.4)
    frame = "\n".join(display_of(run).frame(100, 30))
    assert "Bound by tokens per minute on all 20 keys (800,000 together)" in frame
    assert "nothing starts" not in frame


def test_lost_store_is_shown_until_reached_again() -> None:
    run = ScriptedRun(figures=stats(running=1), pool_waiting=PoolWaiting(STORE_LOST, 2, 0, 0, None))
    display = Display(run, clock=lambda: NOW, color=False)
    display.note(StoreUnreachable("redis://somewhere", "connection refused", NOW - 65.0))
    assert display.frame(80, 10)[2] == "the pool's store is unreachable for 1:05: nothing new starts"
    display.note(StoreReached("redis://somewhere", 65.0))
    assert "is lost for" not in display.frame(80, 10)[2]


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"cost": 3.214}, ", cost 3.21"),
        ({"cost": 3.214, "expected_cost": 8.0}, ", cost 3.21 of about 8.00"),
        ({"cost": 0.0, "budget": 20.0, "expected_cost": 8.0}, ", cost 0.00 of 20.00"),
        ({"tokens": 5}, ", 58 items/min"),
    ],
)
def test_header_has_the_cost_if_it_is_known(figures: dict[str, Any], text: str) -> None:
    run = ScriptedRun(figures=stats(**figures))
    assert text in display_of(run).frame(120, 2)[0]


def test_keys_that_need_a_person_come_first() -> None:
    until = {"rate_limited_until": NOW + 30, "cooled_until": NOW + 30}
    keys = (
        *(CredentialState(f"key-{n}", in_use=True) for n in range(30)),
        CredentialState("spaced", rate_limited_until=NOW + 2, limited_until=NOW + 2, is_available=False),
        CredentialState("slow", cooled_by={"": RATE_LIMITED}, **until),  # type: ignore[arg-type]
        CredentialState("empty", cooled_by={"": QUOTA_EXHAUSTED}, **until),  # type: ignore[arg-type]
        CredentialState("refused", cooled_by={"": AUTH_FAILED}, **until),  # type: ignore[arg-type]
        CredentialState("dead", quarantined="refused by the provider"),
    )
    frame = display_of(ScriptedRun(keys=keys)).frame(80, 9)
    assert [line.split()[0] for line in frame[3:8]] == ["dead", "refused", "empty", "slow", "key-0"]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            CredentialState("a", limited_until=NOW + 1.5, waits_for="requests per minute", is_available=False),
            "paced: next request in 2 s (requests per minute)",
        ),
        (CredentialState("a", limited_until=NOW + 0.3, is_available=False), "paced: next request in 1 s"),
        (CredentialState("a", is_available=False), "paced: next request in 1 s"),
        (CredentialState("a", limited_until=NOW + 1.5, in_use=True), "in use"),
        (
            CredentialState("a", cooled_until=NOW + 9, cooled_by={"": RATE_LIMITED}, in_use=True),
            "in use, rate-limited for 9 s",
        ),
        (
            CredentialState("a", cooled_until=NOW + 90, cooled_by={"": RATE_LIMITED}, in_use=True),
            "rate-limited for 90 s",
        ),
        (CredentialState("a", cooled_until=NOW + 0.4, cooled_by={"": AUTH_FAILED}), "key refused for 1 s"),
        (CredentialState("a", limited_until=NOW + 90, waits_for="requests per day"), "next request in 90 s (requests"),
    ],
)
def test_spacing_is_no_pause_and_a_refused_key_not_paced(state: CredentialState, text: str) -> None:
    frame = display_of(ScriptedRun(keys=(state,))).frame(80, 9)
    assert text in frame[-1]
    assert ("1 paused" in frame[-2]) == (not text.startswith(("paced", "in use")))


def test_running_items_that_wait_for_a_key_are_counted() -> None:
    run = ScriptedRun(figures=stats(120, 46, running=20), items=[], held=5)
    assert "running 20 (5 wait for a key), 54 to go" in display_of(run).frame(80, 9)
    run = ScriptedRun(figures=stats(None, 46, running=20))
    assert "running 20" in display_of(run).frame(80, 9)


def test_keys_and_sentence_belong_to_one_instant() -> None:
    """A cool-down that ends between the snapshot and the frame: the sentence names it, so the table has it, too."""
    key = CredentialState("a", cooled_until=NOW + 0.1, cooled_by={"": RATE_LIMITED}, is_available=False)
    run = ScriptedRun(keys=(key,), pool_waiting=PoolWaiting(RATE_LIMITED, 1, 0, 1, 0.1, verdict=RATE_LIMITED, groups=1))
    frame = display_of(run, clock=lambda: NOW + 0.2).frame(80, 12)
    assert "Bound by the cool-down of the key (rate-limited)" in " ".join(frame)
    assert frame[-2:] == ["credentials 1: 1 paused", "  a  rate-limited for 1 s"]
