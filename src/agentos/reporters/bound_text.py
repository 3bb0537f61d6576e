"""Spells what binds a run. Display, summary, `show`, plan and progress lines all print these sentences."""

from __future__ import annotations

import math
from collections.abc import Callable

from agentos import bounds
from agentos.bounds import Bound
from agentos.plurals import plural
from agentos.verdict import QUOTA_EXHAUSTED

from .format import clock_time, escape_controls
from .sentences import verdict_text

# What `limits` calls a restriction that is no declared window -> how a sentence begins with it.
_UNDECLARED = {
    "slow start": "the slow start",
    "learned requests per minute": "the requests per minute learned from answers",
    "learned tokens per minute": "the tokens per minute learned from answers",
}


def bound_text(bound: Bound | None, now: float | None = None, is_over: bool = False) -> str:
    """Return what binds a run, as the end of a sentence that begins with "Bound by".

    `now`: epoch seconds; without it, or if the bound has ended, the sentence names no instant. `is_over`: the run has
    ended.
    """
    if bound is None:
        return f"nothing: there {'was' if is_over else 'is'} little to do"
    text, when = _TEXTS[bound.kind](bound)
    if not when or now is None or bound.until is None or not now < bound.until < math.inf:
        return text
    return f"{text}; {when} {clock_time(bound.until, now)}"


def _limit(bound: Bound) -> tuple[str, str]:
    name = bound.name or "a limit"
    subject = _UNDECLARED.get(name, name)
    together = "" if bound.groups <= 1 else " together"
    amount = "" if bound.amount is None else f" ({_amount(bound.amount)}{together})"
    return f"{escape_controls(subject)} on {_groups(bound)}{amount}{_others(bound)}", "the next request fits at"


def _cool_down(bound: Bound) -> tuple[str, str]:
    is_one = bound.groups <= 1
    if bound.name == QUOTA_EXHAUSTED:
        text = f"the used-up quota of {_groups(bound)}{_others(bound)}"
        return text, "it resets at" if is_one else "the first resets at"
    noun = "the cool-down" if is_one else "the cool-downs"
    reason = "" if bound.name is None else f" ({verdict_text(bound.name)})"
    return f"{noun} of {_groups(bound)}{reason}{_others(bound)}", "it ends at" if is_one else "the first ends at"


def _groups(bound: Bound) -> str:
    """Return which credentials wait for a limit or a cool-down."""
    if bound.on is not None:
        return escape_controls(bound.on.removeprefix("credential "))
    if bound.credentials == bound.groups:
        return f"all {bound.groups} credentials"
    return plural(bound.groups, "quota group")


def _others(bound: Bound) -> str:
    """Return that other credentials are held up by something else, and for longer."""
    is_one_of_many = bound.credentials > 1 and bound.on is not None and bound.on.startswith("credential ")
    return f", the first of {bound.credentials} credentials to be usable" if is_one_of_many else ""


def _at_once(bound: Bound) -> tuple[str, str]:
    count = int(bound.amount or 0)
    limit = "the learned max_concurrent" if bound.is_learned else "max_concurrent"
    if bound.on is not None:
        holder = f" on {escape_controls(bound.on)}"
    else:
        holder = f" on {plural(bound.credentials, 'credential')}" if bound.credentials else " over all credentials"
    paused = "" if not bound.paused else f"; {bound.paused} more {'is' if bound.paused == 1 else 'are'} paused"
    return f"{limit}: {plural(count, 'request')} at once{holder}, all in use{paused}", ""


def _probe(bound: Bound) -> tuple[str, str]:
    if bound.credentials == 1:
        return "the first answer of a new credential, before more requests use it", ""
    return f"the first answers of {bound.credentials} new credentials, before more requests use them", ""


def _no_credential(bound: Bound) -> tuple[str, str]:
    count = int(bound.amount or 0)
    quarantined = f": {count} quarantined" if count else ""
    return f"the lack of a usable credential{quarantined}", ""


def _workers(bound: Bound) -> tuple[str, str]:
    count = int(bound.amount or 0)
    if bound.name is None:
        return f"{plural(count, 'worker')}{', not the keys' if bound.has_keys else ''}", ""
    return f"{escape_controls(bound.detail or bound.name)}: room for {plural(count, 'item')} at once", ""


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
    bounds.BUDGET: _fixed("the budget: the next item may cost more than is left"),
    bounds.INPUT: _fixed("the input: items arrive more slowly than they run"),
    bounds.READER: _fixed("the code that reads the results"),
    bounds.LEDGER: _fixed("the ledger: the disk writes results more slowly than they arrive"),
    bounds.REFUSALS: _fixed("refusals of the provider: items wait until it accepts requests again"),
    bounds.PAUSES: _fixed("pauses before retries"),
}
