"""Spells each event of a run or a pool for people: one sentence, several lines, or nothing.

`_TEXTS` at the end maps event types to functions.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from typing import Any

from agentos.costs.amounts import larger_amount, money_text, spent_text
from agentos.durations import format_duration
from agentos.events import (
    STORE_LOST,
    UNREACHABLE,
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
    PoolWaiting,
    RunEnded,
    RunResumed,
    RunStarted,
    RunStopping,
    StoreReached,
    StoreUnreachable,
)
from agentos.items.results import ProgressStats, WorkflowResult
from agentos.plurals import plural
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED

from .format import escape_controls, first_line
from .unusable_text import detail_lines, one_line, out_of_use_text

# Shorter cool-downs (seconds) get no line: they are over before a person has read it.
SHORT_COOL_DOWN = 0.2
# Seconds from which on the pause of one item before its next attempt gets a line.
LONG_PAUSE = 1.0
# A run of up to this many items reports progress with every item.
SMALL_RUN = 100
# How the reason of a run begins that its budget has stopped.
BUDGET_USED_UP = "the budget of "
# Kinds of verdicts in words. Programs get the kinds themselves.
_VERDICTS = {
    RATE_LIMITED: "rate-limited",
    QUOTA_EXHAUSTED: "out of quota",
    OVERLOADED: "overloaded",
    AUTH_FAILED: "key refused",
    STORE_LOST: "the store is new or was emptied: older leases must expire",
}
# What a person can do if a provider cannot be reached.
CHECK_ADDRESS = "check base_url, HTTPS_PROXY and the network"


def event_text(event: Any) -> str | None:
    """Return the line or lines for an event; None if it gets none."""
    return _TEXTS.get(type(event), _no_text)(event)


def failure_line(result: WorkflowResult[Any]) -> str:
    tried = result.metadata.get("keys_tried", 0)
    with_keys = f" (it failed with {tried} keys, so the cause is probably not a key)" if tried > 1 else ""
    return f"[COORDINATOR] Failed: {escape_controls(result.item_id)}: {error_text(result)}{with_keys}"


def error_text(result: WorkflowResult[Any]) -> str:
    """Return why an item failed, in one line."""
    kind, error = result.metadata.get("error_type"), first_line(result.error)
    return error if kind is None or kind == error else f"{kind}: {error}"


def waiting_text(waiting: PoolWaiting) -> str:
    """Return why requests wait for a credential, with the numbers that a person needs to act."""
    if waiting.reason == STORE_LOST:
        if waiting.usable_in is None:
            return "the pool's store is unreachable"
        left = format_duration(waiting.usable_in)
        return f"the pool's store is new or may have lost leases, which expire in {left} at the latest"
    if waiting.reason == RATE_LIMITED:
        usable_in = format_duration(waiting.usable_in or 0.0)
        if waiting.held == waiting.credentials and (address := unreachable_address(waiting.verdict)) is not None:
            return f"the provider at {address} cannot be reached, the next try is in {usable_in}; {CHECK_ADDRESS}"
        if waiting.held == waiting.credentials and waiting.verdict == OVERLOADED:
            return f"the provider is overloaded, the next try is in {usable_in}"
        limit = "" if waiting.limit is None else f" ({waiting.limit})"
        if waiting.credentials == 1:
            return f"the only usable credential is rate-limited or cooling down for {usable_in}{limit}"
        credentials = f"all {waiting.credentials} usable credentials"
        return f"{credentials} are rate-limited or cooling down, the next usable in {usable_in}{limit}"
    cooling = f", {waiting.cooling} paused" if waiting.cooling else ""
    return f"{waiting.in_use} of {plural(waiting.credentials, 'credential')} in use{cooling}"


def verdict_text(verdict: str) -> str:
    """Return the kind of a verdict, or the reason for a cool-down, in words."""
    address = unreachable_address(verdict)
    return _VERDICTS.get(verdict, verdict) if address is None else f"{address} unreachable"


def unreachable_address(verdict: str | None) -> str | None:
    """Return the address in the reason for a cool-down; None if the provider was reached."""
    if verdict is None or not verdict.startswith(UNREACHABLE):
        return None
    return escape_controls(verdict.removeprefix(UNREACHABLE))


def _no_text(_event: Any) -> None:
    return None


def _run_started(event: RunStarted) -> str:
    items = "items" if event.total is None else plural(event.total, "item")
    if event.recorded:
        items += f" ({event.recorded} of them already on record)"
    # A number that the run finds by itself changes: the lines about its progress and `--dry-run` say what bounds it.
    workers = "" if event.is_auto else f" with {plural(event.workers, 'worker')}"
    pool = "" if event.credentials is None else f" over {plural(event.credentials, 'credential')}"
    return f"[COORDINATOR] Starting parallel execution of {items}{workers}{pool}"


def _run_resumed(event: RunResumed) -> str:
    is_retried = event.retry_failed and event.failed and event.selected is None
    failed = f"{event.failed} failed" + (" (to be retried)" if is_retried else "")
    selected = "" if event.selected is None else f"; selected: {plural(event.selected, 'item')}"
    on_record = f"{event.succeeded} succeeded, {failed}, {event.unfinished} started but not finished"
    return f"[COORDINATOR] Resuming run {event.run_id} (launch {event.launch}); on record: {on_record}{selected}"


def _item_ended(event: ItemEnded) -> str | None:
    stats = event.stats
    lines = []
    if not event.result.success:
        lines.append(failure_line(event.result))
    if is_worth_a_line(stats.completed, stats.total):
        of_total = "" if stats.total is None else f"/{stats.total} ({stats.completion_rate:.1f}%)"
        lines.append(f"[COORDINATOR] Progress: {stats.completed}{of_total}")
    return "\n".join(lines) or None


def progress_text(stats: ProgressStats) -> str:
    """Return the progress of a run in one line."""
    of_total = "" if stats.total is None else f"/{stats.total} ({stats.completion_rate:.1f}%)"
    failed = f", {stats.failed} failed" if stats.failed else ""
    to_go = "" if not stats.eta else f", about {format_duration(stats.eta)} to go"
    return f"[COORDINATOR] Progress: {stats.completed}{of_total}{failed}{to_go}"


def is_worth_a_line(completed: int, total: int | None) -> bool:
    """Return True for each item of a small run, about a hundred times for a large one; increasingly rarely if the
    total is not known."""
    if total is not None:
        return total <= SMALL_RUN or completed == total or completed % -(-total // SMALL_RUN) == 0
    step = 1
    while completed >= SMALL_RUN * step:
        step *= 10
    return completed % step == 0


def _attempt_ended(event: AttemptEnded) -> str | None:
    item, error = escape_controls(event.item_id), first_line(event.error)
    if event.suspicion:
        if event.keys_tried > 1:
            return None  # said with the first key; the line of the item's failure counts the keys
        other = "so the item is tried with other keys; this does not count as a retry"
        return f"[COORDINATOR] {item}: attempt {event.attempt}: {error}; {escape_controls(event.suspicion)}, {other}"
    pause = f"in {format_duration(event.retry_in)}" if event.retry_in else "now"
    if event.verdict in ("transient", "auth_failed", "quota_exhausted", "worker_died"):
        return f"[COORDINATOR] {item}: attempt {event.attempt}: {verdict_text(event.verdict)}, retry {pause}: {error}"
    # A rate limit or an overload has its own event: a cool-down. Its attempts are not counted here, because most of
    # them are not announced.
    if event.retry_in >= LONG_PAUSE:
        return f"[COORDINATOR] {item}: {verdict_text(event.verdict)}, continues {pause}: {error}"
    return None


def _pool_waiting(event: PoolWaiting) -> str:
    if event.reason == RATE_LIMITED:
        return f"[COORDINATOR] Waiting for the provider: {waiting_text(event)}"
    if event.reason == STORE_LOST:
        return f"[COORDINATOR] Waiting for the store: {waiting_text(event)}"
    return f"[COORDINATOR] Credential pool exhausted: {waiting_text(event)}; waiting for a release"


def _cool_down_started(event: CoolDownStarted) -> str | None:
    if event.seconds < SHORT_COOL_DOWN:
        return None
    if event.verdict == STORE_LOST:
        return (
            f"[COORDINATOR] The pool's store is new or may have lost leases: nothing new starts for "
            f"{format_duration(event.seconds)}, until older leases have expired"
        )
    target = _target_text(event)
    if (address := unreachable_address(event.verdict)) is not None:
        rest = f"{target} rests for {format_duration(event.seconds)}"
        return f"[COORDINATOR] The provider at {address} cannot be reached: {rest}"
    scope = f" for {event.scope}" if event.scope is not None else ""
    capped = f" (capped: the provider asked for {event.hint:.0f} s)" if event.hint is not None else ""
    reason = f"{verdict_text(event.verdict)}{capped}"
    return f"[COORDINATOR] Cooling down {target}{scope} for {format_duration(event.seconds)}: {reason}"


def _limit_learned(event: LimitLearned) -> str:
    scope = f" for {event.scope}" if event.scope is not None else ""
    line = f"requests_per_minute = {math.floor(event.requests_per_minute)} (declared, it is known from the start)"
    return f"[COORDINATOR] Learned the limit of {_target_text(event)}{scope}: {line}"


def _target_text(event: CoolDownStarted | LimitLearned) -> str:
    """Return the credential, quota group or provider that an event is about."""
    name = event.name or "(not named)"
    return f"{event.kind} {name}" if event.kind != "group" or not name.startswith("credential ") else name


def _quarantined(event: CredentialQuarantined) -> str:
    return f"[COORDINATOR] Credential {event.credential_id} is {out_of_use_text(event.reason)}"


def reloaded_text(event: KeysReloaded) -> str:
    """Return what has changed when keys were read again."""
    lists = (("added", event.added), ("changed", event.changed), ("retired", event.retired))
    return "; ".join(f"{name} {', '.join(ids)}" for name, ids in lists if ids) or "nothing has changed"


def _reloaded(event: KeysReloaded) -> str:
    return f"[COORDINATOR] The keys were read again: {reloaded_text(event)}"


def _rested(event: CredentialRested) -> str:
    scope = f" for {event.scope}" if event.scope is not None else ""
    printed = f": {first_line(event.message)}" if event.message else ""
    rest = f"rests{scope} for {format_duration(event.seconds)} in this run, then one item tries it"
    reason = f"a command reported: {verdict_text(event.verdict)}{printed}"
    return f"[COORDINATOR] Credential {event.credential_id} {rest}: {reason}"


def _benched(event: CredentialBenched) -> str:
    scope = f" for {event.scope}" if event.scope is not None else ""
    return (
        f"[COORDINATOR] Credential {event.credential_id} is set aside{scope} in this run: {event.failures} items in a "
        "row failed with it while other credentials worked. These items are tried with another credential, at no cost "
        f"of retries. In {format_duration(event.seconds)}, and then less and less often, one item tries it again. To "
        "ask the provider about the key: agentos keys check"
    )


def _recovered(event: CredentialRecovered) -> str:
    return f"[COORDINATOR] Credential {event.credential_id} works again"


def _store_unreachable(event: StoreUnreachable) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(event.since))
    return (
        f"[COORDINATOR] The pool's store is unreachable since {since}: {first_line(event.reason)}. Running "
        "items continue, nothing new starts until it answers"
    )


def _store_reached(event: StoreReached) -> str:
    return f"[COORDINATOR] The pool's store answers again, after {format_duration(event.lost_for)}"


def _still_running(event: Heartbeat) -> str:
    stats = event.stats
    reason = "" if event.bound_by is None else f"; bound by {event.bound_by}"
    to_go = "" if stats.eta is None else f", about {format_duration(stats.eta)} to go"
    counts = f"{stats.completed} done, {stats.running} running, {stats.waiting} waiting"
    return f"[COORDINATOR] Still working: {counts}{to_go}{reason}"


def _thread_abandoned(event: AttemptAbandoned) -> str:
    item_id = escape_controls(event.item_id)
    return (
        f"[COORDINATOR] {item_id} did not end within {event.timeout:g} s and cannot be killed: "
        f"attempt abandoned ({event.abandoned_attempts} so far)"
    )


def _run_stopping(event: RunStopping) -> str:
    cause = (
        f"Received {_signal_text(event.signal)}" if event.signal is not None else f"Stopping: {one_line(event.reason)}"
    )
    grace = "" if event.grace is None else f" up to {event.grace:g} s"
    waits = f"; waiting{grace} for {plural(event.running, 'running item')}" if event.running else ""
    if event.terminated:
        was, has = ("was", "has") if event.terminated == 1 else ("were", "have")
        programs = plural(event.terminated, "running program")
        waits = f"; {programs} {was} told to end (SIGTERM) and {has} {event.grace or 0.0:g} s"
    hint = " (a second signal stops at once)" if event.signal is not None else ""
    return f"[COORDINATOR] {cause}, graceful shutdown: nothing new starts{waits}{hint}"


def _signal_text(number: int) -> str:
    if number == signal.SIGINT:
        return "SIGINT (Ctrl-C or agentos stop)"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _run_ended(event: RunEnded) -> str:
    call = "the same call with a larger budget" if larger_budget(event.stats) else "the same call"
    return summary_text(event, f"{call} continues them" if event.is_recorded else "see get_checkpoints()")


def larger_budget(stats: ProgressStats) -> str:
    """Return the option that a resume of the run needs, " --budget 40"; "" if no budget has stopped it: twice the
    budget, or twice what was spent if that is more."""
    if stats.stopped is None or not stats.stopped.startswith(BUDGET_USED_UP):
        return ""
    if stats.budget_tokens is not None and "tokens is used up" in stats.stopped:
        return f" --budget-tokens {larger_amount(stats.budget_tokens, stats.tokens)}"
    return "" if stats.budget is None else f" --budget {larger_amount(stats.budget, stats.cost or 0.0)}"


def cost_facts(stats: ProgressStats) -> list[str]:
    """Return what a run has spent of what, for a line with little room; an empty list if it is not known."""
    if stats.cost is None:
        return []
    if stats.budget is not None:
        return [f"cost {money_text(stats.cost)} of {money_text(stats.budget)}"]
    is_more = stats.expected_cost is not None and stats.expected_cost > stats.cost
    return [
        f"cost {money_text(stats.cost)}" + (f" of about {money_text(stats.expected_cost or 0.0)}" if is_more else "")
    ]


def has_spent(stats: ProgressStats) -> bool:
    """Return whether it is counted what the run spends."""
    return stats.cost is not None or stats.tokens > 0


def stats_cost_text(stats: ProgressStats) -> str:
    """Return what a run has spent and is expected to spend."""
    return spent_text(stats.cost, stats.tokens, stats.budget, stats.budget_tokens, stats.expected_cost)


def summary_text(event: RunEnded, continuation: str) -> str:
    """Return the lines at the end of a run; `continuation` says how unfinished items are continued."""
    stats = event.stats
    heading = "Execution complete" if stats.stopped is None else f"Execution stopped early: {one_line(stats.stopped)}"
    lines = [
        f"[COORDINATOR] {heading}:",
        *(f"  {line}" for line in detail_lines(stats.stopped)),
        f"  Total: {stats.total if stats.total is not None else 'not known'}",
        f"  Succeeded: {stats.success_count}{_recorded_text(stats.recorded - stats.recorded_failed)}",
        f"  Failed: {stats.failed}{_recorded_text(stats.recorded_failed)}",
    ]
    if event.unfinished is None or event.unfinished:
        unfinished = "unread input" if event.unfinished is None else event.unfinished
        lines.append(f"  Unfinished: {unfinished} ({continuation})")
    lines.append(f"  Duration: {stats.elapsed:.2f}s")
    if event.bound_by is not None:
        lines.append(f"  Bound by: {event.bound_by}")
    if has_spent(stats):
        lines.append(f"  Cost: {stats_cost_text(stats)}")
    if stats.items_over_budget:
        lines.append(f"  Item budget: {_over_budget_text(stats)}")
    return "\n".join(lines)


def _over_budget_text(stats: ProgressStats) -> str:
    count, most = plural(stats.items_over_budget, "item"), money_text(stats.max_item_cost)
    budget = money_text(stats.item_budget or 0.0)
    return f"{count} spent more than {budget} (at most {most}), because the cost of a request is known after it"


def _recorded_text(count: int) -> str:
    return f" ({count} of them already on record)" if count else ""


def _dry_run(event: DryRun) -> str:
    ids = [f"  - {escape_controls(item_id)}" for item_id in event.ids]
    count = plural(event.total, "item") if event.total is not None else f"at least {plural(len(ids), 'item')}"
    return "\n".join([f"[COORDINATOR] Dry run mode: {count} would be processed, nothing is started:", *ids])


_TEXTS: dict[type, Callable[[Any], str | None]] = {
    RunStarted: _run_started,
    RunResumed: _run_resumed,
    ItemEnded: _item_ended,
    AttemptEnded: _attempt_ended,
    PoolWaiting: _pool_waiting,
    CoolDownStarted: _cool_down_started,
    CredentialQuarantined: _quarantined,
    KeysReloaded: _reloaded,
    CredentialRested: _rested,
    CredentialBenched: _benched,
    CredentialRecovered: _recovered,
    LimitLearned: _limit_learned,
    StoreUnreachable: _store_unreachable,
    StoreReached: _store_reached,
    Heartbeat: _still_running,
    AttemptAbandoned: _thread_abandoned,
    RunStopping: _run_stopping,
    RunEnded: _run_ended,
    DryRun: _dry_run,
}
