"""Run a fake provider on this machine, to try things without a key: it has limits, refuses and fails as you say.

The first line of output is JSON with the address and the keys. The provider serves until it gets a signal (Ctrl-C) or,
if stdin is a pipe, until the program at its other end closes it: a provider does not outlive the program that uses it.
`GET /_stats` returns its counters and its log, `GET /_log` one record for each request that has ended (without its
key), and `POST /_control` changes its behaviour: see `agentos.testing.control`.

KEY in an option is the number of a key, from 1, or the key itself.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import threading
from collections.abc import Sequence
from typing import get_args

from . import control
from .dialects import Style
from .endpoints import TEXT
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
from .scripts import Scripted, parse_scripted


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        provider = _provider(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    with provider:
        started = {"url": provider.url, "base_url": provider.base_url, "keys": list(provider.keys)}
        sys.stdout.write(json.dumps(started) + "\n")
        sys.stdout.flush()
        try:
            _wait_for_the_end()
        except KeyboardInterrupt:
            return 130
    return 0


def _wait_for_the_end() -> None:
    """Block until a piped stdin ends. Any other stdin (the null device, a file, a terminal whose shell goes on, none)
    ends too early, or would stop a program in the background: then only a signal ends the provider."""
    try:
        is_pipe = sys.stdin is not None and stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or replaced by an object in memory
        is_pipe = False
    if is_pipe:
        sys.stdin.read()
    else:
        threading.Event().wait()


def _provider(options: argparse.Namespace) -> SimulatedProvider:
    """Return the provider that the options describe. Raise `ValueError` or `OSError` for unusable options."""
    keys = options.key or [f"sim-key-{number}" for number in range(1, options.keys + 1)]
    groups = {key: f"group-{number % options.groups}" for number, key in enumerate(keys)} if options.groups else {}
    limits = {groups.get(key, key): _rules(options) for key in keys}
    for text in options.key_limit:
        limited_key, limit = _of_key(text, keys)
        if limited_key is None:
            raise ValueError(f"--key-limit {text} names no key: write KEY=N/S")
        limits[groups.get(limited_key, limited_key)].append(SlidingWindow(*_window(limit)))
    provider = SimulatedProvider(
        keys,
        limits=limits,
        groups=groups,
        counts_refused=options.counts_refused,
        latency=Latency.lognormal(options.latency, options.sigma) if options.sigma else Latency.fixed(options.latency),
        seed=options.seed,
        style=options.style,
        headers=options.headers,
        retry_after=None if options.retry_after == "none" else options.retry_after,
        overload=[_episode(text, keys) for text in options.overload],
        dead=[control.find_key(keys, key) for key in options.dead],
        text=options.text if options.words is None else " ".join(f"word-{n}" for n in range(1, options.words + 1)),
        prompt_cache=options.prompt_cache,
        port=options.port,
        request_log=options.log,
    )
    for status, out in ((429, options.no_quota), (402, options.no_credit)):
        for key in out:
            provider.exhaust(control.find_key(keys, key), status=status)
    for text in options.script:
        key, answers = _of_key(text, keys)
        provider.script(map(_answer, answers.split(",")), key=key, retry_after=options.script_retry_after)
    return provider


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
    answers.add_argument("--text", default=TEXT, help="the answer; a stream has an event for each of its words")
    answers.add_argument("--words", type=int, metavar="N", help="or an answer of N words")
    answers.add_argument("--prompt-cache", action="store_true", help="state repeated beginnings of prompts as cached")
    _add_faults(parser)
    server = parser.add_argument_group("server")
    server.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)")
    server.add_argument("--log", metavar="FILE", help="append each request that has ended as a line of JSON")
    return parser


def _add_faults(parser: argparse.ArgumentParser) -> None:
    faults = parser.add_argument_group("faults; each may be repeated")

    def add(name: str, metavar: str, text: str) -> None:
        faults.add_argument(name, action="append", default=[], metavar=metavar, help=text)

    add("--dead", "KEY", "refuse this key (401)")
    add("--no-quota", "KEY", "the quota of this key is used up (429 insufficient_quota)")
    add("--no-credit", "KEY", "the credit of this key is used up (402)")
    add("--key-limit", "KEY=N/S", "N requests per S seconds for this key's group, beside the limits above")
    add("--overload", "[KEY=]FROM-TO", "overloaded (503, for Anthropic 529) in these seconds: one key, or all")
    add(
        "--script",
        "[KEY=]ANSWERS",
        "the next answers, separated by commas: a status, a kind (limit, quota, payment, dead, overloaded, forbidden, "
        "bad_request, server_error), `break:KIND:N` (a stream that breaks with this kind after N events of its "
        "content), `cut:N` (a stream whose connection is closed after N events), `stall:S` (a stream that is silent "
        "for S seconds after its first event) or `drop` (no answer)",
    )
    faults.add_argument("--script-retry-after", type=float, metavar="S", help="the wait that scripted limits state")


def _of_key(text: str, keys: Sequence[str]) -> tuple[str | None, str]:
    """Return the key and the rest of `KEY=REST`; without a key None."""
    key, separator, rest = text.partition("=")
    return (control.find_key(keys, key), rest) if separator else (None, text)


def _answer(text: str) -> int | str | Scripted:
    """Return an answer of `--script`."""
    word, _, rest = text.strip().partition(":")
    if word == "drop":
        return Scripted(drops=True)
    if word == "cut":
        return Scripted(cuts_after=int(rest))
    if word == "stall":
        return Scripted(stalls=float(rest))
    if word == "break":
        kind, _, count = rest.partition(":")
        return Scripted(breaks_with=parse_scripted(kind).kind, breaks_after=int(count or 0))
    return int(word) if word.isdecimal() else word


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


def _episode(text: str, keys: Sequence[str]) -> tuple[float, float] | tuple[float, float, str]:
    key, span = _of_key(text, keys)
    start, _, end = span.partition("-")
    return (float(start), float(end)) if key is None else (float(start), float(end), key)


if __name__ == "__main__":
    sys.exit(main())
