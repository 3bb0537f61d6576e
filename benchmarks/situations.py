"""The situations that `legal_speed` measures: client, provider and target of each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from .peers.job import Job
from .simulator import Settings

KEYS = [f"sim-key-{number}" for number in range(1, 9)]
CONCURRENT = 4
LATENCY = 0.02
# The error bodies of this endpoint name no wait, so that the client learns it from headers only.
NO_WAIT_IN_BODY = "/v1/messages"
PLAIN = "/v1/work"
# Seconds until a client is stopped; several times the legal minimum of every situation.
CAP = 150.0
PEERS_CAP = 65.0
# Repetitions of the situations that are compared with peers; the others are measured once.
TIMES = 3


class Target(NamedTuple):
    """The figures that ours has to reach; peers have no target."""

    share: float = 0.0
    per_1000: float | None = None  # answers with 429
    refused: int | None = None  # answers with 401 or 429, in all

    @property
    def text(self) -> str:
        if self.refused is not None:
            return f">= {self.share:.0%}, <= {self.refused} refusals in all"
        return f">= {self.share:.0%}, <= {self.per_1000:g} per 1,000" if self.share else ""

    def misses(self, *, share: float, per_1000: float, refused: float, undone: int) -> list[str]:
        """Return a text for each figure that was not reached."""
        misses = [f"{undone} items failed"] if undone else []
        if share < self.share:
            misses.append(f"{share:.1%} instead of {self.share:.0%}")
        if self.per_1000 is not None and per_1000 > self.per_1000:
            misses.append(f"{per_1000:.1f} instead of {self.per_1000:g} per 1,000")
        if self.refused is not None and refused > self.refused:
            misses.append(f"{refused:g} instead of {self.refused} refusals")
        return misses


NO_TARGET = Target()


@dataclass(frozen=True)
class Situation:
    """One line of the table: a client, description it knows, and the provider's behaviour."""

    name: str
    description: str
    target: Target = NO_TARGET
    client: str = "ours"
    knows: Literal["limits", "headers", "nothing"] = "nothing"
    path: str = NO_WAIT_IN_BODY
    headers: str = "off"
    retry_after: str | None = "seconds"
    rate: float = 10.0
    requests: int = 1600
    # Number of keys, from the first, that share one limit.
    sharing: int = 0
    has_useless_keys: bool = False
    cap: float = CAP
    # Uses so little of the machine that other situations can run at the same time.
    is_idle: bool = False
    times: int = 1
    # The provider's limit on requests at once, None for no limit; and whether the client has to learn it.
    concurrent: int | None = CONCURRENT
    is_concurrency_learned: bool = False
    latency: float = LATENCY

    @property
    def shown(self) -> str:
        return f"ours, {self.description}" if self.client == "ours" else self.description

    @cached_property
    def settings(self) -> Settings:
        return Settings(
            keys=KEYS,
            rate=self.rate,
            burst=self.rate,  # a second's worth
            concurrent=self.concurrent,
            latency=self.latency,
            headers=self.headers,
            retry_after=self.retry_after,
            groups=dict.fromkeys(KEYS[: self.sharing], "shared"),
            dead=KEYS[:1] if self.has_useless_keys else [],
            out_of_quota=KEYS[1:2] if self.has_useless_keys else [],
        )

    def job(self, base_url: str) -> Job:
        return Job(
            base_url=base_url,
            path=self.path,
            keys=KEYS,
            requests=self.requests,
            knows=self.knows,
            rate=self.rate,
            burst=self.rate,
            concurrent=None if self.is_concurrency_learned else CONCURRENT,
            cap=self.cap,
        )

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Figures:
    """The figures of one measurement."""

    situation: Situation
    seconds: float
    legal_minimum: float  # for the answered requests, in seconds
    answered: int
    undone: int
    limited: int
    refused: int
    peak: int
    cpu: float  # processor seconds of the client
    was_stopped: bool
    answered_at: Sequence[float] = ()  # seconds since the first request
    limited_at: Sequence[float] = ()
    disturbance: float = 0.0  # share of the machine that other programs used, 0 to 1

    @property
    def share(self) -> float:
        return self.legal_minimum / self.seconds if self.seconds else 0.0

    @property
    def per_1000(self) -> float:
        return self.limited / self.answered * 1000 if self.answered else 0.0

    @property
    def cpu_ms(self) -> float:
        """Return milliseconds per answered request."""
        return self.cpu / self.answered * 1000 if self.answered else 0.0

    def __str__(self) -> str:
        state = ", stopped" if self.was_stopped else ""
        return (
            f"{self.situation.name}: {self.share:.1%} of the legal maximum ({self.seconds:.2f} s{state}), "
            f"{self.limited} x 429 ({self.per_1000:.1f} per 1,000), {self.refused} refusals, {self.undone} undone, "
            f"{self.peak} at once, {self.cpu_ms:.2f} ms of processor per request, "
            f"others used {self.disturbance:.0%} of the machine"
        )


@dataclass(frozen=True)
class Repeated:
    """The figures of all measurements of a situation; targets apply to medians."""

    situation: Situation
    runs: list[Figures]

    @property
    def shares(self) -> list[float]:
        return [run.share for run in self.runs]

    @property
    def is_met(self) -> bool | None:
        """Return whether the target is met; None without a target."""
        return None if self.situation.target == NO_TARGET else not self.misses

    @property
    def misses(self) -> list[str]:
        return self.situation.target.misses(
            share=statistics.median(self.shares),
            per_1000=statistics.median(run.per_1000 for run in self.runs),
            refused=statistics.median(run.refused for run in self.runs),
            undone=max(run.undone for run in self.runs),
        )


def peer(name: str, client: str, description: str) -> Situation:
    """Return the situation of a peer, with provider and requests of `RETRY_AFTER`."""
    knows: Literal["limits", "nothing"] = "limits" if description.endswith("limits declared") else "nothing"
    return Situation(name, description, client=client, knows=knows, cap=PEERS_CAP, times=TIMES)


DECLARED = Situation("declared", "limits declared", Target(0.98, 1), knows="limits", path=PLAIN, times=TIMES)
HEADERS = Situation("headers", "limits in headers only", Target(0.95, 5), knows="headers", path=PLAIN, headers="on")
RETRY_AFTER = Situation("retry-after", "nothing known, Retry-After exact", Target(0.90, 30), times=TIMES)
WHOLE = Situation(
    "retry-after-whole", "nothing known, Retry-After in whole seconds", Target(0.90, 30), retry_after="whole"
)
NO_RETRY_AFTER = Situation("no-retry-after", "nothing known, no Retry-After", Target(0.80, 50), retry_after=None)
LEARNED = (HEADERS, RETRY_AFTER, WHOLE, NO_RETRY_AFTER)

USUAL = (
    DECLARED,
    *LEARNED,
    Situation("shared", "4 keys secretly share one limit, Retry-After exact", Target(0.85, 60), sharing=4),
    Situation(
        "shared-whole",
        "4 keys secretly share one limit, Retry-After in whole seconds",
        Target(0.85, 60),
        sharing=4,
        retry_after="whole",
    ),
    Situation(
        "dead",
        "limits declared, one key dead, one out of quota",
        Target(0.97, refused=3),
        knows="limits",
        path=PLAIN,
        has_useless_keys=True,
    ),
)
# At 1/s the share may be five points lower.
SLOW = tuple(
    replace(
        s,
        name=f"{s.name}-1",
        description=f"{s.description}, 1/s",
        target=s.target._replace(share=round(s.target.share - 0.05, 2)),
        rate=1.0,
        cap=2 * CAP,
        is_idle=True,
        times=1,
    )
    for s in LEARNED
)
FAST = tuple(
    replace(s, name=f"{s.name}-50", description=f"{s.description}, 50/s", rate=50.0, requests=8 * 1000, times=1)
    for s in LEARNED
)
# Half a second per request: 10 requests/s are 5 at once, so that limits of 1 and 4 at once bind, and 32 does not.
AUTO = tuple(
    replace(
        RETRY_AFTER,
        name=f"auto-{limit or 'none'}",
        description=f"nothing known, {'no limit' if limit is None else f'a limit of {limit}'} on requests at once",
        path=PLAIN,  # its answers name the limit that refused
        concurrent=limit,
        is_concurrency_learned=True,
        latency=0.5,
        times=1,
    )
    for limit in (1, 4, 32, None)
)
PEERS = (
    peer("openai-tenacity", "openai_tenacity", "OpenAI SDK, tenacity, a random key for each try"),
    peer("litellm-shuffle", "litellm_router", "litellm.Router, simple-shuffle, limits declared"),
    peer("litellm-usage", "litellm_usage", "litellm.Router, usage-based-routing-v2, limits declared"),
    peer("aiolimiter", "aiolimiter_keys", "aiolimiter per key, keys in turn, limits declared"),
    replace(peer("naive", "naive", "one user per key, a refused key rests for 60 s"), is_idle=True, times=1),
)
SITUATIONS = (*USUAL, *SLOW, *FAST, *AUTO, *PEERS)
GROUPS = (
    ("8 keys of 10 requests/s, 1,600 requests", USUAL),
    (f"8 keys of 1 request/s, {SLOW[0].requests:,} requests", SLOW),
    (f"8 keys of 50 requests/s, {FAST[0].requests:,} requests", FAST),
    (
        f'8 keys of 10 requests/s, answers of 500 ms, {AUTO[0].requests:,} requests, max_concurrent = "auto" and '
        "nothing declared",
        AUTO,
    ),
)
