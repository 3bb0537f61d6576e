"""Run a simulated provider in a separate process, so that a benchmark measures only its client.

The first line of output is JSON with the address and the keys. The provider serves until stdin is closed.
`GET /_stats` returns its counters and its log.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import get_args

from .dialects import Style
from .latency import Latency
from .provider import SimulatedProvider
from .rules import (
    Concurrency,
    DailyQuota,
    FixedWindow,
    PerSecondSlices,
    Rule,
    SlidingWindow,
    TokenBucket,
    TokensPerMinute,
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    keys = options.key or [f"sim-key-{number}" for number in range(1, options.keys + 1)]
    provider = SimulatedProvider(
        keys,
        limits=_rules(options),
        groups={key: f"group-{number % options.groups}" for number, key in enumerate(keys)} if options.groups else None,
        counts_refused=options.counts_refused,
        latency=Latency.lognormal(options.latency, options.sigma) if options.sigma else Latency.fixed(options.latency),
        seed=options.seed,
        style=options.style,
        headers=options.headers,
        retry_after=None if options.retry_after == "none" else options.retry_after,
        overload=[_episode(text) for text in options.overload],
    )
    with provider:
        started = {"url": provider.url, "base_url": provider.base_url, "keys": keys}
        sys.stdout.write(json.dumps(started) + "\n")
        sys.stdout.flush()
        try:
            sys.stdin.read()
        except KeyboardInterrupt:
            return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentos.testing", description=__doc__, allow_abbrev=False)
    keys = parser.add_argument_group("keys")
    keys.add_argument("--key", action="append", help="a key; may be repeated")
    keys.add_argument("--keys", type=int, default=4, metavar="N", help="or N generated keys: sim-key-1, … (default 4)")
    keys.add_argument(
        "--groups", type=int, metavar="N", help="N quota groups, assigned to keys in turn (default: none)"
    )
    limits = parser.add_argument_group("limits of each group; a request must pass all of them")
    limits.add_argument("--rate", type=float, metavar="R", help="token bucket: R requests per second")
    limits.add_argument("--burst", type=float, default=5, metavar="N", help="capacity of the token bucket (default 5)")
    limits.add_argument("--fixed", type=_window, metavar="N/S", help="fixed window: N requests per S seconds")
    limits.add_argument("--sliding", type=_window, metavar="N/S", help="sliding window: N requests per S seconds")
    limits.add_argument("--per-minute", type=float, metavar="N", help="N requests per minute, checked every second")
    limits.add_argument("--per-day", type=int, metavar="N", help="N requests per day, reset at 00:00 UTC")
    limits.add_argument("--concurrent", type=int, metavar="N", help="N concurrent requests")
    limits.add_argument("--tokens-per-minute", type=float, metavar="N", help="N model tokens per minute")
    limits.add_argument("--counts-refused", action="store_true", help="refused requests count against limits, too")
    answers = parser.add_argument_group("answers")
    answers.add_argument("--latency", type=float, default=0.02, metavar="S", help="seconds per answer (median)")
    answers.add_argument("--sigma", type=float, default=0.0, help="lognormal spread of the latency (default 0)")
    answers.add_argument("--seed", type=int, default=0)
    answers.add_argument("--style", choices=get_args(Style), default="openai", help="format of the plain endpoint")
    answers.add_argument("--headers", choices=("on", "off"), default="on", help="send rate-limit headers")
    answers.add_argument("--retry-after", choices=("seconds", "whole", "ms", "date", "none"), default="seconds")
    answers.add_argument(
        "--overload",
        action="append",
        default=[],
        metavar="FROM-TO",
        help="overloaded in these seconds",
    )
    return parser


def _rules(options: argparse.Namespace) -> list[Rule]:
    rules: list[Rule | None] = [
        options.rate and TokenBucket(options.rate, options.burst),
        options.fixed and FixedWindow(*options.fixed),
        options.sliding and SlidingWindow(*options.sliding),
        options.per_minute and PerSecondSlices(options.per_minute),
        options.per_day and DailyQuota(options.per_day),
        options.concurrent and Concurrency(options.concurrent),
        options.tokens_per_minute and TokensPerMinute(options.tokens_per_minute),
    ]
    return [rule for rule in rules if rule]


def _window(text: str) -> tuple[float, float]:
    limit, _, period = text.partition("/")
    return float(limit), float(period or 60)


def _episode(text: str) -> tuple[float, float]:
    start, _, end = text.partition("-")
    return float(start), float(end)


if __name__ == "__main__":
    sys.exit(main())
