"""Spells what binds a run. Display, summary, `show`, plan and progress lines all print these sentences."""

from __future__ import annotations

import math
from collections.abc import Callable

from agentos import bounds
from agentos.bounds import TRIAL, Bound
from agentos.items.parallelism import FIRST_ITEMS
from agentos.limits.declaration import DECLARED_AS, SLOW_START
from agentos.plurals import plural
from agentos.verdict import QUOTA_EXHAUSTED

from .format import clock_time, escape_controls
from .sentences import CHECK_ADDRESS, unreachable_address, verdict_text

# What `limits` calls a limit that was learned -> how a sentence begins with it.
LEARNED = "learned from answers"
_LEARNED = {name: f"the {declared} {LEARNED}" for name, declared in DECLARED_AS.items()}

_FITS = "the next request fits at"
# Seconds. A bound that ends sooner is over when its text is read: the text of a run in progress, and of one that has
# ended.
MIN_AHEAD = 1.0
MIN_AHEAD_OF_END = 3600.0


def bound_text(bound: Bound | None, now: float | None = None, is_over: bool = False) -> str:
    """Return what binds a run, as the end of a sentence that begins with "Bound by".

    `now`: epoch seconds; without it, or if the bound ends soon or has ended, the sentence names no instant. `is_over`:
    the run has ended: what other keys waited for is not said, and an instant has its date.
    """
    if bound is None:
        return "nothing: there is little to do"
    if is_over and bound.name == FIRST_ITEMS:
        return _first_items_of_ended(bound)
    text, when = _TEXTS[bound.kind](bound)
    text += "" if is_over else _others(bound)
    ahead = MIN_AHEAD_OF_END if is_over else MIN_AHEAD
    if not when or now is None or bound.until is None or not now + ahead <= bound.until < math.inf:
        return text
    return f"{text}; {when} {clock_time(bound.until, now, has_date=is_over)}"


def _limit(bound: Bound) -> tuple[str, str]:
    if bound.name == SLOW_START:
        known = "the limits of" if bound.held > 1 else "the limit of"
        return f"a cautious start: {known} {_keys(bound)} {'are' if bound.held > 1 else 'is'} not known yet", _FITS
    name = bound.name or "a limit"
    subject = escape_controls(_LEARNED.get(name, name))
    facts = [] if bound.amount is None else [_amount(bound.amount) + ("" if bound.groups <= 1 else " together")]
    facts += [f"in part {LEARNED}"] if bound.learned else []
    amount = f" ({', '.join(facts)})" if facts else ""
    return f"{subject} on {_keys(bound)}{amount}", _FITS


def _cool_down(bound: Bound) -> tuple[str, str]:
    is_one = bound.groups == 1
    if bound.name == QUOTA_EXHAUSTED:
        text = f"the used-up quota of {_keys(bound)}"
        return text, "it resets at" if is_one else "the first resets at"
    if (address := unreachable_address(bound.name)) is not None:
        return f"the provider at {address}, which cannot be reached ({CHECK_ADDRESS})", "the next try is at"
    noun = "the cool-down" if is_one else "the cool-downs"
    reason = "" if bound.name is None else f" ({verdict_text(bound.name)})"
    return f"{noun} of {_keys(bound)}{reason}", "it ends at" if is_one else "the first ends at"


def _keys(bound: Bound) -> str:
    """Return which keys wait for a limit or a cool-down. The owner of a shared pool of an older version does not count
    them."""
    if bound.on is not None:
        return escape_controls(bound.on.removeprefix("credential "))
    if bound.held in (0, bound.credentials):
        return f"all {bound.credentials} keys" if bound.credentials > 1 else "the key"
    return plural(bound.held, "key")


def _others(bound: Bound) -> str:
    """Return what the other keys do: for AT_ONCE by what they wait for, else how many wait longer."""
    if bound.kind == bounds.AT_ONCE:
        return _other_keys_of_at_once(bound)
    if not 0 < bound.held < bound.credentials:
        return ""
    rest = bound.credentials - bound.held
    return f", while {rest} more {'key waits' if rest == 1 else 'keys wait'} longer"


def _at_once(bound: Bound) -> tuple[str, str]:
    count = int(bound.amount or 0)
    limit = "the learned max_concurrent" if bound.is_learned else "max_concurrent"
    if bound.on is not None:
        holder = f" on {escape_controls(bound.on)}"
    else:
        holder = f" on {plural(bound.credentials, 'key')}" if bound.credentials else " over all keys"
    return f"{limit}: {plural(count, 'request')} at once{holder}, all in use", ""


def _other_keys_of_at_once(bound: Bound) -> str:
    """Return what the keys do that could have more requests at once. Display and sentence count paused keys alike."""
    paced = "" if not bound.paced else f"{bound.paced} more {'waits' if bound.paced == 1 else 'wait'} for a limit"
    more = "" if paced else " more"
    paused = "" if not bound.paused else f"{bound.paused}{more} {'is' if bound.paused == 1 else 'are'} paused"
    others = ", ".join(text for text in (paced, paused) if text)
    return f"; {others}" if others else ""


def _probe(bound: Bound) -> tuple[str, str]:
    if bound.name == TRIAL:
        each, them = ("one item", "it") if bound.held == 1 else ("one item each", "them")
        return f"the trial of {_keys(bound)} after failures: {each}, before more use {them}", ""
    if bound.credentials == 1:
        return "the first answer of a new key, before more requests use it", ""
    return f"the first answers of {bound.credentials} new keys, before more requests use them", ""


def _no_credential(bound: Bound) -> tuple[str, str]:
    counts = ((bound.quarantined, "quarantined"), (bound.disabled, "disabled"))
    listed = ", ".join(f"{count} {state}" for count, state in counts if count)
    return f"the lack of a usable key{': ' if listed else ''}{listed}", ""


def _workers(bound: Bound) -> tuple[str, str]:
    count = int(bound.amount or 0)
    if bound.name is None:
        return f"{plural(count, 'worker')}{', not the keys' if bound.has_keys else ''}", ""
    return f"{escape_controls(bound.detail or bound.name)}: room for {plural(count, 'item')} at once", ""


def _first_items_of_ended(bound: Bound) -> str:
    count = plural(int(bound.amount or 0), "item")
    return f"the careful start of the run, which ended at {count} at once; --parallel N starts N at once"


def _ramp(bound: Bound) -> tuple[str, str]:
    count = plural(int(bound.amount or 0), "item")
    return f"the number of items at once: {count} so far, more while no request waits for a key", ""


def _store(_bound: Bound) -> tuple[str, str]:
    return "the pool's store, which is unreachable or may have lost leases", "older leases have expired at"


def _fixed(text: str) -> Callable[[Bound], tuple[str, str]]:
    return lambda _bound: (text, "")


def _amount(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 or amount == int(amount) else f"{amount:,.3g}"


# Kind -> the text, and the words before the instant at which the bound ends.
_TEXTS: dict[str, Callable[[Bound], tuple[str, str]]] = {
    bounds.LIMIT: _limit,
    bounds.COOL_DOWN: _cool_down,
    bounds.AT_ONCE: _at_once,
    bounds.PROBE: _probe,
    bounds.NO_CREDENTIAL: _no_credential,
    bounds.STORE: _store,
    bounds.WORKERS: _workers,
    bounds.RAMP: _ramp,
    bounds.BUDGET: _fixed("the budget: the next item may cost more than is left"),
    bounds.COST: _fixed("the budget: what a request or an item has cost is not known"),
    bounds.INPUT: _fixed("the input: items arrive more slowly than they run"),
    bounds.READER: _fixed("the code that reads the results"),
    bounds.LEDGER: _fixed("the ledger: the disk writes results more slowly than they arrive"),
    bounds.REFUSALS: _fixed("refusals of the provider: items wait until it accepts requests again"),
    bounds.PAUSES: _fixed("pauses before retries"),
}
