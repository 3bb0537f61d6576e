"""The gateway against a direct call, a bare aiohttp proxy with a lease, TeamClaude and LiteLLM's proxy.

Upstream, proxies and clients are processes of their own. CPU time is that of the proxy's process; sides alternate. A
peer that is not installed is left out (see the Makefile).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import uvloop

from .measuring import Ratio, Row, Series, at_least, at_most, compared, measure, spread
from .proxies import processes
from .proxies.certificate import make_certificate
from .proxies.load import ANTHROPIC, OPENAI, Connection, request_bytes, run
from .proxies.processes import Proxy
from .simulator import ROOT, Settings, Simulator

ROW_NAMES = ["latency", "cpu", "teamclaude", "teamclaude_tls", "litellm", "first_byte", "legal_speed", "memory"]
ROUNDS = 5
# Requests on each of CONNECTIONS connections in a round, by the word that tells the upstream what to answer.
CONNECTIONS = 4
COUNTS = {"bench-small": 250, "bench-stream": 60, "bench-paced": 30}
KINDS = {
    "bench-small": "small request",
    "bench-stream": "stream of 20 events",
    "bench-paced": "stream of 20 events, one every 5 ms",
}
# CPU time of ours over that of TeamClaude: upstream in plain HTTP, and over TLS.
TARGETS = {"bench-small": (1.1, 0.7), "bench-stream": (0.55, 0.4), "bench-paced": (0.75, 0.75)}
# Rounds of both sides before TeamClaude is measured: Node compiles a program while it runs, and the first thousand
# requests take five times as long as those after several thousand.
WARM_UP_ROUNDS = 10
MAX_ADDED_SECONDS = 0.0015
MAX_ADDED_FIRST_BYTE = 0.010
STREAMS = 100
IDLE_STREAMS = 1_000
LEGAL = Settings(keys=[f"sim-key-{n}-0123456789" for n in range(8)], rate=10, burst=10, concurrent=4, latency=0.02)
LEGAL_REQUESTS = 1_200


def load(proxy: Proxy, kind: str, connections: int, count: int, path: str = ANTHROPIC, spread_over: float = 0.0
         ) -> list[Connection]:  # fmt: skip
    """Send requests through a proxy (or to the upstream itself) and return the connections with their times."""
    request = request_bytes(proxy.url, path, proxy.token, kind)
    return uvloop.run(run(proxy.url, request, connections, count, spread_over))


def cpu_of(proxy: Proxy, kind: str) -> Callable[[], float]:
    """Return a function that runs a round and returns the proxy's CPU seconds per request."""

    def run_round() -> float:
        before = proxy.cpu_seconds()
        load(proxy, kind, CONNECTIONS, COUNTS[kind])
        return (proxy.cpu_seconds() - before) / (CONNECTIONS * COUNTS[kind])

    return run_round


def added_latency(folder: Path) -> Iterator[Row]:
    with processes.upstream(folder / "up") as upstream, processes.ours(folder / "ours", upstream.url) as gateway:

        def p50(proxy: Proxy) -> Callable[[], float]:
            return lambda: statistics.median(load(proxy, "bench-small", 1, 300)[0].total)

        ours, direct = measure({"ours": p50(gateway), "direct call": p50(upstream)}, ROUNDS)
    yield _added("latency of one small request, p50", ours, direct, MAX_ADDED_SECONDS)


def cpu_per_request(folder: Path) -> Iterator[Row]:
    with ExitStack() as stack:
        upstream = stack.enter_context(processes.upstream(folder / "up"))
        gateway = stack.enter_context(processes.ours(folder / "ours", upstream.url))
        bare = stack.enter_context(processes.bare(folder / "bare", upstream.url, with_lease=True))
        for kind, name in KINDS.items():
            sides = {"ours": cpu_of(gateway, kind), "bare aiohttp proxy + lease": cpu_of(bare, kind)}
            ours, peer = measure(sides, ROUNDS)
            if kind == "bench-small":
                yield at_most(1.3, f"CPU, {name}", ours, peer)
            else:
                yield compared(f"CPU, {name}", ours, peer)


def against_teamclaude(folder: Path, *, is_tls: bool) -> Iterator[Row]:
    with ExitStack() as stack:
        certificate = make_certificate(folder / "tls") if is_tls else ()
        ca_file = certificate[0] if is_tls else None
        upstream = stack.enter_context(processes.upstream(folder / "up", *certificate))
        gateway = stack.enter_context(processes.ours(folder / "ours", upstream.url, ca_file=ca_file))
        peer = processes.teamclaude(folder / "teamclaude", upstream.url, ca_file)
        if peer is None:
            return
        stack.enter_context(peer)
        bare = stack.enter_context(processes.bare(folder / "bare", upstream.url, ca_file=ca_file))
        proxies = {"ours": gateway, "TeamClaude": peer, "bare aiohttp proxy": bare}
        for _ in range(WARM_UP_ROUNDS):
            for kind in ("bench-small", "bench-stream"):
                for proxy in proxies.values():
                    cpu_of(proxy, kind)()
        for kind, name in KINDS.items():
            sides = {side: cpu_of(proxy, kind) for side, proxy in proxies.items()}
            ours, theirs, without_rules = measure(sides, ROUNDS)
            title = f"CPU, {name}{', TLS' if is_tls else ''}"
            yield at_most(TARGETS[kind][is_tls], title, ours, theirs)
            yield compared(f"{title}: bare aiohttp proxy", without_rules, theirs)


def against_litellm(folder: Path) -> Iterator[Row]:
    """Compare requests per CPU second: one worker is bound by its processor, and others may use the machine."""
    with ExitStack() as stack:
        upstream = stack.enter_context(processes.upstream(folder / "up"))
        gateway = stack.enter_context(processes.ours(folder / "ours", upstream.url, "openai"))
        peer = processes.litellm(folder / "litellm", upstream.url)
        if peer is None:
            return
        stack.enter_context(peer)

        def cpu(proxy: Proxy, count: int) -> Callable[[], float]:
            def run_round() -> float:
                before = proxy.cpu_seconds()
                load(proxy, "bench-small", 16, count, OPENAI)
                return (proxy.cpu_seconds() - before) / (16 * count)

            return run_round

        ours, theirs = measure({"ours": cpu(gateway, 60), "LiteLLM proxy": cpu(peer, 4)}, 3)
        yield at_least(40, "requests per CPU second, 16 connections", ours, theirs)


def first_byte(folder: Path) -> Iterator[Row]:
    with processes.upstream(folder / "up") as upstream, processes.ours(folder / "ours", upstream.url) as gateway:

        def p99(proxy: Proxy) -> Callable[[], float]:
            def run_round() -> float:
                opened = load(proxy, "bench-slow", STREAMS, 3, spread_over=2.0)
                return statistics.quantiles([first for each in opened for first in each.first], n=100)[98]

            return run_round

        ours, direct = measure({"ours": p99(gateway), "direct call": p99(upstream)}, 3, warm_up=False)
    name = f"time to the first byte, p99, {STREAMS} streams at once"
    yield _added(name, ours, direct, MAX_ADDED_FIRST_BYTE)


def legal_speed(folder: Path) -> Iterator[Row]:
    """Measure the share of the legal maximum behind each proxy; only the provider's log counts."""
    limits = f"requests_per_minute = {LEGAL.rate * 60:g}\nburst = {LEGAL.burst:g}\nmax_concurrent = {LEGAL.concurrent}"

    def ours(url: str) -> Proxy:
        return processes.ours(folder / "ours", url, "openai", limits, keys=LEGAL.keys)

    def litellm(url: str) -> Proxy | None:
        return processes.litellm(folder / "litellm", url, LEGAL.keys, int(LEGAL.rate * 60))

    def teamclaude(url: str) -> Proxy | None:
        return processes.teamclaude(folder / "teamclaude", url, keys=LEGAL.keys)

    makers = {"ours": ("openai", ours), "LiteLLM proxy": ("openai", litellm), "TeamClaude": ("anthropic", teamclaude)}
    for name, (sdk, make) in makers.items():
        with Simulator(LEGAL) as provider:
            proxy = make(provider.base_url)
            if proxy is None:
                continue
            with proxy:
                command = [sys.executable, "-m", "benchmarks.proxies.clients", sdk, proxy.url, proxy.token]
                done = subprocess.run([*command, str(LEGAL_REQUESTS)], cwd=ROOT, check=True, stdout=subprocess.PIPE)
                counts = json.loads(done.stdout.splitlines()[-1])
            judged = provider.judge()
        if counts["first_error"]:
            print(f"{name}: {counts['first_error']}", file=sys.stderr)
        share = LEGAL.legal_minimum(judged.answered) / judged.seconds if judged.seconds else 0.0
        undone = LEGAL_REQUESTS - counts["succeeded"] - counts["failed"]
        figure = f"{judged.seconds:.1f} s, {counts['failed']} errors, {undone} not done, {judged.limited} x 429"
        is_ours = name == "ours"
        yield Row(
            f"32 clients with retries, {LEGAL_REQUESTS:,} requests: {name}", figure,
            f"legal minimum, {judged.answered:,} requests", f"{LEGAL.legal_minimum(judged.answered):.1f} s",
            Ratio([share]), ">= 98 %, 0 errors" if is_ours else "",
            share >= 0.98 and not counts["failed"] and not undone if is_ours else None,
        )  # fmt: skip


def memory(folder: Path) -> Iterator[Row]:
    with processes.upstream(folder / "up") as upstream, processes.ours(folder / "ours", upstream.url) as gateway:
        load(gateway, "bench-small", 4, 50)
        before = gateway.memory_mb()
        during = uvloop.run(_with_idle_streams(gateway))
    each = (during - before) * 1024 / IDLE_STREAMS
    yield Row(
        f"memory with {IDLE_STREAMS:,} idle streams", f"{during:.0f} MB, {each:.0f} KB each", "itself without",
        f"{before:.0f} MB", Ratio([during / before]), "", None,
    )  # fmt: skip


async def _with_idle_streams(gateway: Proxy) -> float:
    request = request_bytes(gateway.url, ANTHROPIC, gateway.token, "bench-idle")
    loading = asyncio.ensure_future(run(gateway.url, request, IDLE_STREAMS, 1))
    while int(await asyncio.to_thread(_under_way, gateway)) < IDLE_STREAMS:
        await asyncio.sleep(0.2)
    await asyncio.sleep(3)  # all streams have passed on their first events
    used = gateway.memory_mb()
    loading.cancel()
    return used


def _under_way(gateway: Proxy) -> int:
    with urllib.request.urlopen(f"{gateway.url}/-/health") as answer:
        return int(json.load(answer)["requests_under_way"])


def _added(name: str, ours: Series, direct: Series, most: float) -> Row:
    added = [through - alone for through, alone in zip(ours.values, direct.values, strict=True)]
    figure = f"+ {spread(added, lambda seconds: f'{seconds * 1e3:.2f}')} ms"
    target = f"<= + {most * 1e3:g} ms"
    return Row(name, figure, direct.name, str(direct), Ratio.of(ours, direct), target, statistics.median(added) <= most)


def rows(names: Iterable[str] = ()) -> Iterator[Row]:
    chosen = list(names) or ROW_NAMES
    parts: dict[str, Callable[[Path], Iterator[Row]]] = {
        "latency": added_latency,
        "cpu": cpu_per_request,
        "teamclaude": lambda folder: against_teamclaude(folder, is_tls=False),
        "teamclaude_tls": lambda folder: against_teamclaude(folder, is_tls=True),
        "litellm": against_litellm,
        "first_byte": first_byte,
        "legal_speed": legal_speed,
        "memory": memory,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in ROW_NAMES:
            if name in chosen:
                yield from parts[name](Path(folder) / name)
