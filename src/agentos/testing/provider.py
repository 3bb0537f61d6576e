"""Simulated provider in virtual time: limits, answers, and a log to evaluate a client by.

No HTTP and no waiting here. `ask` returns the answer to a request at an instant, and charges the limits if the request
is served; `finish` ends the request. `with provider:` serves the same rules over HTTP.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from agentos.clock import Clock

from . import dialects
from .answers import OK, Answer, LogEntry
from .clock import TimeLine
from .dialects import Refusal, RetryAfter, Style
from .endpoints import TEXT
from .latency import Draw, Latency
from .owned_objects import OwnedObjects
from .prompt_cache import PromptCache
from .request_log import RequestLog
from .rules import Concurrency, Rule, TokenBucket
from .scripts import Kind, Scripted, parse_scripted

if TYPE_CHECKING:
    from .http_server import HttpServer

# Entries of the log, enough for the longest benchmark. Older ones are dropped, but stay in the counts.
LOG_SIZE = 1_000_000
Limiting = Sequence[Rule] | Mapping[str, Sequence[Rule]]


class SimulatedProvider:
    """A provider of rate-limited keys, in virtual time or, in a `with` block, on a port of this machine.

    `requests_per_second` and `burst` are a token bucket for each key. `limits` replaces it: rules that must all admit a
    request, for each group of keys, or a mapping of groups to rules. `groups` maps keys to the group that they share
    (by default, each key has its own), `key_limits` are additional rules for each single key, and `per_model` counts
    each model separately. Keys that are not among `keys` are refused like dead ones. `overload` are pairs of seconds
    since the start between which all keys are answered as overloaded; a third value is the key that alone is.

    Over HTTP: `text` is the answer, whose words are the events of a stream. With `prompt_cache`, beginnings of prompts
    that a group of keys has sent before are stated as cached. `port` is 0 for any free one. `request_log` is a file to
    which each request is appended as a line of JSON when it has ended; `requests` has the same records.

    `clock` is a `FakeClock`, any callable that returns seconds, or None for real time. Methods accept `now` instead.
    """

    def __init__(
        self,
        keys: Iterable[str],
        *,
        requests_per_second: float = 2.0,
        burst: float = 5,
        limits: Limiting | None = None,
        key_limits: Sequence[Rule] = (),
        groups: Mapping[str, str] | None = None,
        per_model: bool = False,
        counts_refused: bool = False,
        latency: float | Draw = 0.02,
        seed: int = 0,
        style: Style = "openai",
        headers: Literal["on", "off"] = "on",
        retry_after: RetryAfter = "seconds",
        overload: Iterable[tuple[float, float] | tuple[float, float, str]] = (),
        dead: Iterable[str] = (),
        out_of_quota: Iterable[str] = (),
        clock: Clock | Callable[[], float] | None = None,
        text: str = TEXT,
        prompt_cache: bool = False,
        port: int = 0,
        request_log: str | Path | None = None,
    ) -> None:
        self.keys = tuple(dict.fromkeys(keys))
        self.text = text
        self.prompt_cache = PromptCache() if prompt_cache else None
        self.owned_objects = OwnedObjects()
        self.requests = RequestLog(None if request_log is None else Path(request_log))
        self._port = port
        self.style: Style = style
        self.headers = headers
        self.retry_after: RetryAfter = retry_after
        self.counts_refused = counts_refused
        self.per_model = per_model
        self._groups = {key: key for key in self.keys} | dict(groups or {})
        self._limits: Limiting = [TokenBucket(requests_per_second, burst)] if limits is None else limits
        self._key_limits = tuple(key_limits)
        self._latency = latency if callable(latency) else Latency.fixed(latency)
        self._chance = random.Random(seed)  # noqa: S311 - not for secrets
        self._time = TimeLine(clock)
        self._episodes = [(*episode, None)[:3] for episode in overload]  # seconds since the start, and a key
        self._lock = threading.Lock()  # guards all below, and the rules
        self._dead = set(dead)
        self._out_of_quota: dict[str, Kind] = {self._groups[key]: "quota" for key in out_of_quota}
        self._overloaded_until: dict[str | None, float] = {}  # by key; None: all keys
        self._rules: dict[tuple[str, str, str | None], list[Rule]] = {}
        self._scripts: dict[str | None, deque[Scripted]] = defaultdict(deque)
        self._running: Counter[str] = Counter()
        self.log: deque[LogEntry] = deque(maxlen=LOG_SIZE)
        self.counts: defaultdict[str, Counter[int]] = defaultdict(Counter)  # per key and status
        self.peak_concurrency: Counter[str] = Counter()  # per group
        self._server: HttpServer | None = None

    # --- requests -------------------------------------------------------------------------------------------------

    def ask(
        self,
        key: str,
        *,
        now: float | None = None,
        tokens: float = 0,
        model: str | None = None,
        style: Style | None = None,
    ) -> Answer:
        """Return the answer to a request with this key. `tokens`: the most that it may cost, as the request states."""
        with self._lock:
            now = self._time.read(now)
            date = self._time.date(now)
            group = self._groups.get(key, key)
            rules = self._rules_of(key, group, model) if key in self._groups else []
            script_entry = self._next_scripted(key)
            if script_entry is not None:
                refusal = Refusal(script_entry.kind, script_entry.retry_after) if script_entry.kind else None
            else:
                refusal = self._refusal(key, group, rules, now, tokens, model)
            answer = self._answer(refusal, date, style or self.style)
            if script_entry is not None:
                self._apply_script(answer, script_entry, style or self.style)
            elif refusal is None:
                answer.charges = [(rule, tokens if rule.counts == "tokens" else 1) for rule in rules]
                answer.taken_at = date
                for rule, amount in answer.charges:
                    rule.admit(date, amount)
            elif self.counts_refused and refusal.kind == "limit":
                for rule in rules:
                    if rule.counts == "requests" and not isinstance(rule, Concurrency):
                        rule.admit(date)
            if self.headers == "on":
                refused_by = refusal.rule if refusal is not None else None
                answer.headers |= dialects.limit_headers(style or self.style, rules, refused_by, date)
            self._record(answer, LogEntry(now, key, group, answer.status, answer.reason, model, tokens))
            return answer

    def finish(self, answer: Answer, *, now: float | None = None, tokens: float | None = None) -> None:
        """End a request that cost `tokens` (None: as many as it was admitted with)."""
        with self._lock:
            if answer.status >= 400:
                return
            date = self._time.date(self._time.read(now))
            self._running[answer.group] -= 1
            for rule, amount in answer.charges:
                if isinstance(rule, Concurrency):
                    rule.give_back(date, amount, answer.taken_at)
                elif rule.counts == "tokens" and tokens is not None:
                    rule.give_back(date, amount - tokens, answer.taken_at)
            answer.charges = []

    # --- faults ---------------------------------------------------------------------------------------------------

    def kill(self, key: str) -> None:
        """Refuse this key from now on."""
        with self._lock:
            self._dead.add(key)

    def revive(self, key: str) -> None:
        with self._lock:
            self._dead.discard(key)

    def exhaust(self, key: str, *, status: int = 429) -> None:
        """Refuse this key's group from now on, because its quota is used up; with status 429 or 402."""
        with self._lock:
            self._out_of_quota[self._groups[key]] = "payment" if status == 402 else "quota"

    def refill(self, key: str) -> None:
        with self._lock:
            self._out_of_quota.pop(self._groups[key], None)

    def overload_for(self, seconds: float, *, key: str | None = None, now: float | None = None) -> None:
        """Answer every request (of one key, or of all) as overloaded for `seconds`."""
        with self._lock:
            self._overloaded_until[key] = self._time.read(now) + seconds

    def script(
        self, answers: Iterable[int | str | Scripted], *, key: str | None = None, retry_after: float | None = None
    ) -> None:
        """Set the next answers, to one key or to any, regardless of the limits. They cost nothing.

        An answer is a status, a kind ("quota", "overloaded", …) or a `Scripted`.
        """
        with self._lock:
            self._scripts[key].extend(parse_scripted(answer, retry_after) for answer in answers)

    def reset(self) -> None:
        """Restore full limits, valid keys, no script and an empty log. Episodes of `overload` remain."""
        with self._lock:
            for state in (self._dead, self._out_of_quota, self._rules, self._scripts, self.log, self.counts):
                state.clear()
            self.peak_concurrency.clear()
            self._overloaded_until.clear()
            self.requests.records.clear()

    # --- evaluation -----------------------------------------------------------------------------------------------

    @property
    def answered(self) -> int:
        """Return the number of served requests."""
        with self._lock:
            return sum(counts[200] for counts in self.counts.values())

    @property
    def limited(self) -> int:
        """Return the number of answers with status 429."""
        with self._lock:
            return sum(counts[429] for counts in self.counts.values())

    def key_id(self, key: str) -> str:
        """Return the name of a key in the log of requests: `key-1`, `key-2`, …, or `unknown`."""
        return f"key-{self.keys.index(key) + 1}" if key in self.keys else "unknown"

    def stats(self) -> dict[str, Any]:
        """Return counts and log for an evaluation in another process."""
        with self._lock:
            return {
                "answered": sum(counts[200] for counts in self.counts.values()),
                "limited": sum(counts[429] for counts in self.counts.values()),
                "counts": {key: dict(counts) for key, counts in self.counts.items()},
                "peak_concurrency": dict(self.peak_concurrency),
                "log": [list(entry) for entry in self.log],
            }

    def legal_minimum(self, requests: int, *, tokens: float = 0, now: float | None = None) -> float:
        """Return the shortest time in seconds in which `requests` can be served within the limits of all keys.

        Limits are fresh at the start, and each request takes no time: concurrency is not considered.
        """
        with self._lock:
            start = self._time.date(self._time.read(now))
            lanes = list(self._fresh_lanes())
        soonest = [(start, number) for number in range(len(lanes))]
        last_at = start
        while requests > 0:
            at, number = soonest[0]
            fits_at = _fits_at(lanes[number], at, tokens)
            if fits_at <= at:
                for rule in lanes[number]:
                    rule.admit(at, tokens if rule.counts == "tokens" else 1)
                requests -= 1
                last_at = at
            elif fits_at == math.inf:
                return math.inf
            else:  # a key of the same group came first, or its limits are used up: try other keys before it
                heapq.heapreplace(soonest, (fits_at, number))
        return last_at - start

    # --- the HTTP side --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        from .http_server import HttpServer

        self._server = HttpServer(self, self._port)
        self._time.read()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.requests.close()

    @property
    def base_url(self) -> str:
        """Return the common prefix of all endpoints; the OpenAI SDK needs `/v1` after it."""
        if self._server is None:
            raise RuntimeError("the provider has an address only inside its `with` block")
        return self._server.base_url

    @property
    def url(self) -> str:
        """Return the plain endpoint: POST any body with a Bearer key."""
        return f"{self.base_url}/v1/work"

    # --- internal, under the lock ---------------------------------------------------------------------------------

    def _rules_of(self, key: str, group: str, model: str | None) -> list[Rule]:
        model = model if self.per_model else None
        rules = self._rules.get((group, "", model))
        if rules is None:
            rules = self._rules[group, "", model] = _fresh(self._limits, group)
        if not self._key_limits:
            return rules
        key_rules = self._rules.get((group, key, model))
        if key_rules is None:
            key_rules = self._rules[group, key, model] = _fresh(self._key_limits, group)
        return rules + key_rules

    def _fresh_lanes(self) -> Iterator[list[Rule]]:
        """Yield fresh rules for each key; keys of one group share the rules of the group."""
        of_group = {group: _fresh(self._limits, group) for group in self._groups.values()}
        for key in self.keys:
            rules = of_group[self._groups[key]] + _fresh(self._key_limits, key)
            yield [rule for rule in rules if not isinstance(rule, Concurrency)]

    def _next_scripted(self, key: str) -> Scripted | None:
        for script in (self._scripts[key], self._scripts[None]):
            if script:
                return script.popleft()
        return None

    def _refusal(
        self, key: str, group: str, rules: list[Rule], now: float, tokens: float, model: str | None
    ) -> Refusal | None:
        """Return None if the request is served."""
        model = model or "sim-1"
        if self._is_overloaded(key, now):
            return Refusal("overloaded", model=model)
        if key not in self._groups or key in self._dead:
            return Refusal("dead", model=model)
        if group in self._out_of_quota:
            return Refusal(self._out_of_quota[group], model=model)
        date = self._time.date(now)
        fits = [(rule.fits_at(date, tokens if rule.counts == "tokens" else 1), rule) for rule in rules]
        latest, rule = max(fits, key=lambda fit: fit[0], default=(date, None))
        if rule is None or latest <= date:
            return None
        return Refusal("limit", None if latest == math.inf else latest - date, rule, model)

    def _is_overloaded(self, key: str, now: float) -> bool:
        elapsed = self._time.since_start(now)
        if any(now < self._overloaded_until.get(each, -math.inf) for each in (None, key)):
            return True
        return any(start <= elapsed < end and which in (None, key) for start, end, which in self._episodes)

    def _answer(self, refusal: Refusal | None, date: float, style: Style) -> Answer:
        if refusal is None:
            return Answer(200, {}, {}, self._latency(self._chance), OK)
        status = dialects.status_of(style, refusal.kind)
        form = self.retry_after
        headers = {} if style == "gemini" else dialects.wait_headers(form, refusal.wait, date)
        reason = refusal.rule.name if refusal.rule is not None else refusal.kind
        return Answer(status, headers, dialects.error_body(style, status, refusal, form), 0.0, reason)

    def _apply_script(self, answer: Answer, script_entry: Scripted, style: Style) -> None:
        answer.reason = f"scripted {answer.reason}"
        answer.script = script_entry
        if script_entry.status is not None and script_entry.kind is not None:
            answer.status = script_entry.status
            if style == "gemini":
                answer.body["error"]["code"] = script_entry.status
        if script_entry.breaks_with is not None:
            refusal = Refusal(script_entry.breaks_with, script_entry.retry_after)
            status = dialects.status_of(style, refusal.kind)
            answer.breaks_with = dialects.error_body(style, status, refusal, self.retry_after)

    def _record(self, answer: Answer, entry: LogEntry) -> None:
        answer.group = entry.group
        if answer.status < 400:
            self._running[entry.group] += 1
            self.peak_concurrency[entry.group] = max(self.peak_concurrency[entry.group], self._running[entry.group])
        self.counts[entry.key][entry.status] += 1
        self.log.append(entry)


def _fresh(limits: Limiting, group: str) -> list[Rule]:
    rules = limits.get(group, ()) if isinstance(limits, Mapping) else limits
    return [rule.fresh() for rule in rules]


def _fits_at(rules: Sequence[Rule], date: float, tokens: float) -> float:
    return max((rule.fits_at(date, tokens if rule.counts == "tokens" else 1) for rule in rules), default=date)
