"""CircuitBreaker: which credentials the items of one run leave alone for a while, because attempts with them failed.

Its evidence is weak: a text that a command printed or reported, an exit status, an exception that no provider caused.
A broken or hostile item can produce all of it. So the breaker acts for one run only, and a credential is never out of
use for more than a minute: then one item tries it.

- **A printed refusal** (a limit, a refused key) rests its credential at once: for the time that the text names, if that
  is at most MAX_REST_SECONDS; else for a second, doubled with each refusal in a row up to MAX_REST_SECONDS. If the
  credential serves another item before the time is over that the text claims, the text was wrong: the item is
  *discredited*, and what it prints rests no credential any more.
- **A plain failure** may be the fault of the item or of the credential. It is the item's if the credential has served
  an item of this run and no attempt with it has failed since. Else the item is tried with another credential, without
  spending a retry, until it succeeds, or fails with one that has served, or has tried all (at most MAX_FREE_TRIES). An
  attempt may have side effects and cost money, so three rules keep the number down: after a time-out an item gets one
  free try in all; an item that failed with MIN_KEYS credentials while none has served pauses, so that other items find
  one that works, which decides; and once every credential (or MAX_FREE_TRIES + 1 of them) has failed with
  MAX_HOPELESS_ITEMS items, the work is to blame, and an item gets one free try.
  The credential rests when MIN_FAILURES items have failed with it in a row, while another one worked on the same kind
  of work (the same scope). Failures of an item that also fails with a working credential, or with all, do not count
  against any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import inf
from typing import Any, NamedTuple

from agentos.bounds import TRIAL
from agentos.events import CredentialBenched, CredentialRecovered, CredentialRested
from agentos.items.item import Item
from agentos.limits import backoff
from agentos.limits.cool_downs import DEFAULT_COOL_DOWN, MAX_COOL_DOWN, hint_of
from agentos.verdict import AUTH_FAILED, QUOTA_EXHAUSTED, Verdict

# Seconds that one item has a credential for itself after a rest, unless it ends earlier: a credential that still does
# not work shows soon.
PROBE_SECONDS = 10.0
# Longest rest. Together with the probe a minute: weak evidence takes no credential out of use for longer.
MAX_REST_SECONDS = 60.0 - PROBE_SECONDS
# Seconds of the first rest; doubled with each one in a row.
FIRST_REST_SECONDS = 1.0
# Items in a row that must fail with a credential before it rests.
MIN_FAILURES = 3
# Attempts of one item with further credentials that spend no retry; and the same after a time-out, and once each
# credential has failed with MAX_HOPELESS_ITEMS items while none has worked.
MAX_FREE_TRIES = 5
MAX_TIMEOUT_TRIES = 1
MAX_HOPELESS_TRIES = 1
MAX_HOPELESS_ITEMS = 10
# Credentials with which an item must fail, while none has worked, before it pauses for other items.
MIN_KEYS = 3
# Longest pause (seconds) of an item between two printed refusals: other items go first, and show which text is wrong.
MAX_ITEM_PAUSE = 10.0
# Printed refusals of a key in a row, with rests between them, after which the run gives the credential up; and the
# same if no item is left that could show the opposite, because all have been refused.
MAX_AUTH_REFUSALS = 5
MAX_LAST_AUTH_REFUSALS = 2
# Scopes whose successes are remembered: a run may name one for each item.
MAX_SCOPES = 1000

# Why a credential rests with which items failed without a word.
FAILING = "items fail with it, set aside"
_NO_IDS: frozenset[str] = frozenset()


class Advice(NamedTuple):
    """What the breaker advises for an item whose attempt failed."""

    is_free: bool  # the next attempt spends nothing of the item
    pause: float = 0.0  # seconds until the next attempt
    reason: str = ""  # why a plain failure may be the credential's fault; `pause` is for other items then
    keys_tried: int = 0  # credentials with which the item has failed plainly


class Trail:
    """The failures of one item that may be the fault of credentials."""

    __slots__ = ("claim_until", "excluded", "failed_with", "free_tries", "is_discredited", "refusals")

    def __init__(self) -> None:
        self.failed_with: frozenset[str] = _NO_IDS  # credentials
        self.excluded: frozenset[str] = _NO_IDS  # credentials that the next attempt must not have
        self.free_tries = 0
        self.refusals = 0  # printed
        self.claim_until = -inf  # the instant until which, by its text, its credential cannot be used
        self.is_discredited = False


class _Health:
    """A credential that does not work at present, in one scope."""

    __slots__ = (
        "announced", "auth_refusals", "claims", "failed_items", "failing_since", "is_benched", "kind", "message",
        "probe_until", "rest_until", "rested_at", "rests",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.failing_since = now
        self.failed_items: dict[str, None] = {}  # ids of the items that failed in a row
        self.is_benched = False  # for plain failures
        self.rests = 0  # in a row
        self.rested_at = -inf
        self.rest_until = -inf
        self.probe_until = -inf
        self.auth_refusals = 0  # printed, in a row
        self.kind = FAILING  # why it rests: the kind of a verdict, or FAILING
        self.message = ""  # of the last printed refusal
        self.claims: dict[str, tuple[Trail, float, float]] = {}  # by item: its trail, since when, until when
        self.announced = 0.0  # seconds of the longest rest that was announced


_NO_HEALTH: dict[str, _Health] = {}
_NO_FAILURES: Counter[str] = Counter()


class CircuitBreaker:
    """The credentials of one run, by scope. `events` is taken by the run."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.version = 0  # changes with the credentials to leave alone
        self._unwell: dict[str | None, dict[str, _Health]] = {}
        self._worked: dict[str | None, set[str]] = {}
        self._failures: dict[str | None, Counter[str]] = {}  # items that failed with a credential, until one works
        self._last_success: dict[str | None, float] = {}

    # --- what happens to attempts ---------------------------------------------------------------------------------

    def started(self, item: Item, credential_id: str, now: float) -> None:
        """Note an attempt that starts. The first one after a rest is the probe."""
        health = self._unwell.get(item.scope, {}).get(credential_id)
        if health is not None and health.rests and health.rest_until <= now and health.probe_until <= now:
            health.probe_until = now + PROBE_SECONDS
            self.version += 1

    def succeeded(self, item: Item, credential_id: str, started_at: float, now: float) -> None:
        """Note an attempt that succeeded."""
        scope = item.scope
        self._last_success[scope] = now
        worked = self._worked.get(scope)
        if worked is None:
            if len(self._worked) >= MAX_SCOPES:
                self._worked.clear()
                self._failures.clear()
                self._last_success = {scope: now}
            worked = self._worked[scope] = set()
            self._failures.pop(scope, None)
        worked.add(credential_id)
        health = self._unwell[scope].get(credential_id) if scope in self._unwell else None
        if health is None:
            return
        health.failed_items.clear()
        if started_at < health.rested_at:
            return  # the rest began while the attempt ran, which says nothing about the time after it
        for trail, since, until in health.claims.values():
            if since <= started_at and now < until:
                trail.is_discredited = True
        self._forget(scope, credential_id)
        if health.is_benched:
            self.events.append(CredentialRecovered(credential_id))

    def refused(self, item: Item, credential_id: str, verdict: Verdict, started_at: float, now: float, jitter: float
                ) -> Advice | None:  # fmt: skip
        """Note a printed refusal. Return None if the item is discredited: then its failure is a plain one."""
        trail = self._trail(item)
        if trail.is_discredited:
            return None
        health = self._health(item.scope, credential_id, now)
        if started_at >= health.rested_at:  # else it ran when the rest began: the same episode
            health.auth_refusals = health.auth_refusals + 1 if verdict.kind == AUTH_FAILED else 0
            health.kind, health.message = verdict.kind or FAILING, verdict.message
            seconds = self._rest(health, _named_seconds(verdict), now)
            if seconds > health.announced:
                health.announced = seconds
                kind = verdict.kind or ""
                self.events.append(CredentialRested(credential_id, item.scope, seconds, kind, verdict.message))
        trail.refusals += 1
        is_free = now < trail.claim_until  # the text claimed before that the credential cannot be used yet
        claim = _claimed_seconds(verdict)
        if claim is not None:
            health.claims[item.id] = (trail, now, now + claim)
            if not is_free and claim != inf:
                trail.claim_until = now + claim
        pauses = trail.refusals if verdict.kind == AUTH_FAILED else trail.refusals - 1
        pause = backoff.delay(pauses, jitter, maximum=MAX_ITEM_PAUSE) if pauses else 0.0
        return Advice(is_free, pause)

    def failed(self, item: Item, credential_id: str, started_at: float, ids: Collection[str], now: float, *,
               usable: Callable[[], Collection[str]], is_timed_out: bool = False) -> Advice:  # fmt: skip
        """Note a plain failure. `ids`: of all credentials of the run; `usable` returns those that are not out of use.
        Return whether the item may be tried with another credential without spending a retry."""
        scope, trail = item.scope, self._trail(item)
        suspicion = self._suspicion(scope, credential_id)
        is_own = not suspicion
        health = self._health(scope, credential_id, now)
        if not health.failed_items:
            health.failing_since = now
        health.failed_items[item.id] = None
        trail.failed_with |= {credential_id}
        if not self._worked.get(scope):
            self._failures.setdefault(scope, Counter())[credential_id] += 1
        has_others = any(id_ not in trail.failed_with for id_ in ids)
        if is_own or not has_others:
            self._exonerate(item, None if not has_others else credential_id)
        self._bench_if_failing(scope, credential_id, health, started_at, now)
        max_tries = MAX_TIMEOUT_TRIES if is_timed_out else self._max_free_tries(scope, usable)
        is_free = not is_own and has_others and trail.free_tries < max_tries
        trail.free_tries += is_free
        trail.excluded = trail.failed_with if is_free else _NO_IDS
        self.version += 1
        pause = 0.0
        if not self._worked.get(scope) and len(trail.failed_with) >= MIN_KEYS:
            pause = min(2.0 ** (len(trail.failed_with) - MIN_KEYS), MAX_ITEM_PAUSE)
        keys_tried = len(trail.failed_with)
        return Advice(True, pause, suspicion, keys_tried) if is_free else Advice(False, keys_tried=keys_tried)

    def ignore_exclusions(self, item: Item) -> bool:
        """Let an item use credentials again with which it failed, because no other can serve it. Return whether there
        were any."""
        if item.trail is None or not item.trail.excluded:
            return False
        item.trail.excluded = _NO_IDS
        return True

    # --- what a request may use -----------------------------------------------------------------------------------

    def works(self, scope: str | None, credential_id: str) -> bool:
        """Return whether the last attempt with a credential that says something about it has succeeded."""
        health = self._unwell.get(scope, {}).get(credential_id)
        is_well = health is None or not (health.failed_items or health.rests)
        return is_well and credential_id in self._worked.get(scope, ())

    def has_worked(self, scope: str | None, credential_id: str) -> bool:
        """Return whether any attempt with a credential has succeeded in this run."""
        return credential_id in self._worked.get(scope, ())

    def resting(self, scope: str | None, now: float) -> frozenset[str]:
        """Return the credentials that the next request of a scope leaves alone."""
        unwell = self._unwell.get(scope)
        if not unwell:
            return _NO_IDS
        return frozenset(id_ for id_, health in unwell.items() if now < max(health.rest_until, health.probe_until))

    def rests(self, now: float, scopes: Collection[str | None] | None = None) -> dict[str, tuple[float, str]]:
        """Return the credentials that rest in one of these scopes, or in any: for how many seconds, and why; TRIAL
        and the seconds at most for those that one item tries after a rest. Called from any thread."""
        rests: dict[str, tuple[float, str]] = {}
        for scope, unwell in tuple(self._unwell.items()):
            if scopes is not None and scope not in scopes:
                continue
            for id_, health in tuple(unwell.items()):
                seconds = max(health.rest_until, health.probe_until) - now
                if seconds > rests.get(id_, (0.0, ""))[0]:
                    rests[id_] = seconds, health.kind if now < health.rest_until else TRIAL
        return rests

    def preferred(self, item: Item) -> str | None:
        """Return a working credential for an item that failed with others, if there is one: it decides whose fault that
        was."""
        trail = item.trail
        if trail is None or not trail.excluded:
            return None
        worked = sorted(self._worked.get(item.scope, ()))
        return next((id_ for id_ in worked if id_ not in trail.excluded and self.works(item.scope, id_)), None)

    def next_change(self, now: float) -> float | None:
        """Return when the next rest or probe is over; None if there is none."""
        ends = [
            end
            for unwell in self._unwell.values()
            for health in unwell.values()
            if (end := max(health.rest_until, health.probe_until)) > now
        ]
        return min(ends, default=None)

    def given_up(self, scope: str | None, unfinished: Collection[Item] | None) -> dict[str, str]:
        """Return the credentials that have been refused too often in a row, by what commands printed, and the text.
        `unfinished`: the items of the run, once all are known."""
        is_last = unfinished is not None and all(item.trail is not None and item.trail.refusals for item in unfinished)
        max_refusals = MAX_LAST_AUTH_REFUSALS if is_last else MAX_AUTH_REFUSALS
        return {
            id_: f"refused: {health.auth_refusals} times in a row, as its commands printed: {health.message}"
            for id_, health in self._unwell.get(scope, {}).items()
            if health.auth_refusals >= max_refusals
        }

    # --- inside ---------------------------------------------------------------------------------------------------

    def _suspicion(self, scope: str | None, credential_id: str) -> str:
        """Return why a plain failure may be the fault of its credential; an empty text if it is the item's."""
        if self.works(scope, credential_id):
            return ""
        has_failed = "has failed with another item" if self.has_worked(scope, credential_id) else "has not worked yet"
        return f"key {credential_id} {has_failed} in this run"

    def _max_free_tries(self, scope: str | None, usable: Callable[[], Collection[str]]) -> int:
        failures = self._failures.get(scope, _NO_FAILURES)
        tested = sum(count >= MAX_HOPELESS_ITEMS for count in failures.values())
        is_hopeless = tested > 0 and tested >= min(len(usable()), MAX_FREE_TRIES + 1)
        return MAX_HOPELESS_TRIES if is_hopeless else MAX_FREE_TRIES

    def _trail(self, item: Item) -> Trail:
        if item.trail is None:
            item.trail = Trail()
        trail: Trail = item.trail
        return trail

    def _health(self, scope: str | None, credential_id: str, now: float) -> _Health:
        unwell = self._unwell.setdefault(scope, {})
        health = unwell.get(credential_id)
        if health is None:
            health = unwell[credential_id] = _Health(now)
        return health

    def _forget(self, scope: str | None, credential_id: str) -> None:
        del self._unwell[scope][credential_id]
        if not self._unwell[scope]:
            del self._unwell[scope]
        self.version += 1

    def _rest(self, health: _Health, wait: float | None, now: float) -> float:
        """Begin a rest; return its seconds."""
        health.rests += 1
        seconds = FIRST_REST_SECONDS * 2.0 ** min(health.rests - 1, 32) if wait is None else max(wait, 1.0)
        seconds = min(seconds, MAX_REST_SECONDS)
        health.rested_at, health.rest_until, health.probe_until = now, now + seconds, -inf
        self.version += 1
        return seconds

    def _bench_if_failing(self, scope: str | None, credential_id: str, health: _Health, started_at: float, now: float
                          ) -> None:  # fmt: skip
        """Rest a credential with which too many items in a row have failed, or the probe after its last rest."""
        if started_at < health.rested_at:
            return  # it ran when the rest began
        is_failing = (
            len(health.failed_items) >= MIN_FAILURES and self._last_success.get(scope, -inf) >= health.failing_since
        )
        if health.is_benched and health.failed_items:
            self._rest(health, None, now)
        elif is_failing:
            health.is_benched, health.kind = True, FAILING
            seconds = self._rest(health, None, now)
            self.events.append(CredentialBenched(credential_id, scope, len(health.failed_items), seconds))

    def _exonerate(self, item: Item, failed_last_with: str | None) -> None:
        """Take back the failures of an item that is to blame itself, except for the last one: if another item fails
        there next, the credential has stopped working."""
        for id_ in item.trail.failed_with:
            health = self._unwell.get(item.scope, {}).get(id_)
            if health is not None and id_ != failed_last_with:
                health.failed_items.pop(item.id, None)


def _named_seconds(verdict: Verdict) -> float | None:
    """Return the wait that a text names; None if it names none, or one that is too long for a rest."""
    wait = hint_of(verdict._replace(cool_down=None) if verdict.is_guess else verdict)
    return None if wait is None or wait > MAX_REST_SECONDS else wait


def _claimed_seconds(verdict: Verdict) -> float | None:
    """Return for how long, by what was printed, a credential cannot be used; None if that is not said."""
    if verdict.kind == AUTH_FAILED:
        return inf
    wait = hint_of(verdict)
    if wait is None and verdict.kind == QUOTA_EXHAUSTED:
        return DEFAULT_COOL_DOWN[QUOTA_EXHAUSTED]
    return None if wait is None else min(wait, MAX_COOL_DOWN)
