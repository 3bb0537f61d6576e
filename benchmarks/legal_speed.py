"""Share of the legal maximum speed and number of refusals, against named peers.

8 keys of 10 requests a second each (and of 1, and of 50), 4 at once, answers of 20 ms, over HTTP. The provider and the
client have a process each; only the provider's log counts. The legal minimum is the time in which the same requests
could have been served if every limit had been used from the first instant on.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from . import plots
from .machine_load import OtherLoad
from .measuring import MARKS, Ratio, Row, aligned, spread
from .peers.job import Job
from .simulator import ROOT, Judged, Simulator
from .situations import DECLARED, GROUPS, PEERS, RETRY_AFTER, SITUATIONS, Figures, Repeated, Situation

ROW_NAMES = [situation.name for situation in SITUATIONS]
PACKAGES = ("httpx", "openai", "tenacity", "litellm", "aiolimiter")
# Share of the machine that other programs may use before a measurement is repeated.
MAX_DISTURBANCE = 0.5
TITLES = ("situation", "share", "429s per 1,000", "not done", "CPU per request", "target", "")
PEERS_TITLES = ("situation", "share", "ours / peer", *TITLES[2:5])
COMPARED = (DECLARED, RETRY_AFTER, *PEERS)
PEERS_TITLE = "Peers: 8 keys of 10 requests/s, 1,600 requests, Retry-After exact"
# By what the peers know: the situation of ours that knows as much, and file and title of their plot.
PLOTS = {
    "limits": (DECLARED, "legal_speed_declared.svg", "Requests per second over time, limits declared"),
    "nothing": (
        RETRY_AFTER,
        "legal_speed_unknown_limits.svg",
        "Requests per second over time, nothing known beforehand",
    ),
}


def measure(situation: Situation) -> Figures:
    with Simulator(situation.settings) as simulator:
        job = situation.job(simulator.base_url)
        outcome = run_client(situation.client, job)
        return figures_of(situation, simulator.judge(), outcome)


def run_client(name: str, job: Job) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.peers", name, json.dumps(asdict(job))]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    outcome: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def figures_of(situation: Situation, judged: Judged, outcome: dict[str, float]) -> Figures:
    seconds = outcome["seconds"] if outcome["was_stopped"] else judged.seconds
    if outcome["first_error"]:
        print(f"{situation.name}: {outcome['first_error']}", file=sys.stderr)
    return Figures(
        situation=situation,
        seconds=seconds,
        legal_minimum=situation.settings.legal_minimum(judged.answered),
        answered=judged.answered,
        undone=situation.requests - int(outcome["succeeded"]),
        limited=judged.limited,
        refused=judged.refused,
        peak=judged.peak,
        cpu=outcome["cpu"],
        was_stopped=bool(outcome["was_stopped"]),
        answered_at=judged.answered_at,
        limited_at=judged.limited_at,
    )


def measure_all(situations: Iterable[Situation]) -> list[Repeated]:
    """Measure all situations once, then again those with `times` > 1."""
    remaining = list(situations)
    measured: dict[Situation, list[Figures]] = {situation: [] for situation in remaining}
    while remaining:
        for figures in measure_quietly(remaining):
            measured[figures.situation].append(figures)
        remaining = [situation for situation in remaining if len(measured[situation]) < situation.times]
    return [Repeated(situation, runs) for situation, runs in measured.items()]


def measure_quietly(situations: list[Situation]) -> list[Figures]:
    """Measure; repeat once what was disturbed by other programs. The less disturbed figures count."""
    measured = {figures.situation: figures for figures in measure_once(situations)}
    disturbed = [situation for situation, figures in measured.items() if figures.disturbance > MAX_DISTURBANCE]
    for again in measure_once(disturbed):
        first = measured[again.situation]
        measured[again.situation] = min(first, again, key=lambda figures: figures.disturbance)
    return list(measured.values())


def measure_once(situations: list[Situation]) -> Iterator[Figures]:
    """Measure one situation after the other; those that leave the machine idle come first, at the same time."""
    idle = [situation for situation in situations if situation.is_idle]
    with OtherLoad() as others, ThreadPoolExecutor(len(idle) or 1) as executor:
        idle_figures = dict(zip(idle, executor.map(measure, idle), strict=True))
    for situation in situations:
        if situation in idle_figures:
            figures = replace(idle_figures[situation], disturbance=others.share)
        else:
            with OtherLoad() as other_load:
                figures = measure(situation)
            figures = replace(figures, disturbance=other_load.share)
        print(figures, file=sys.stderr, flush=True)
        yield figures


def rows(names: Iterable[str] = ()) -> Iterator[Row]:
    chosen = set(names)
    for repeated in measure_all(s for s in SITUATIONS if not chosen or s.name in chosen):
        situation, runs = repeated.situation, repeated.runs
        yield Row(
            situation.shown,
            f"{spread([run.seconds for run in runs], _one_digit)} s, {limited(repeated)} x 429 per 1,000",
            f"legal minimum, {runs[0].answered:,} requests",
            f"{runs[0].legal_minimum:.1f} s",
            Ratio(repeated.shares),
            situation.target.text,
            repeated.is_met,
            repeated,
        )


def page_part(rows: Iterable[Row]) -> list[str]:
    """Return the lines for the page: a table for each group of situations, the plots, and the missed targets."""
    measured: dict[Situation, Repeated] = {row.details.situation: row.details for row in rows}
    others = [run.disturbance for repeated in measured.values() for run in repeated.runs]
    lines = [f"In single rows, other programs used {min(others):.0%} to {max(others):.0%} of the machine."]
    for title, group in GROUPS:
        lines += ["", f"**{title}**", "", *aligned(TITLES, [cells(measured[situation]) for situation in group])]
    lines += ["", f"**{PEERS_TITLE}**", "", *aligned(PEERS_TITLES, [peer_cells(s, measured) for s in COMPARED])]
    lines += [line for _, name, title in PLOTS.values() for line in ("", f"![{title}](plots/{name})")]
    missed = [f"{r.situation.description}: {', '.join(r.misses)}" for r in measured.values() if r.is_met is False]
    return [*lines, *(["", "Missed:", "", *(f"- {miss}" for miss in missed)] if missed else [])]


def plots_of(rows: Iterable[Row]) -> dict[str, str]:
    """Return the plots of the first run of each client, by file name."""
    measured: dict[str, Figures] = {row.details.situation.name: row.details.runs[0] for row in rows}
    files = {}
    for knows, (ours, name, title) in PLOTS.items():
        clients = [situation for situation in (ours, *PEERS) if situation.knows == knows]
        runs = [measured[situation.name] for situation in clients if situation.name in measured]
        panels = [plots.Panel(r.situation.shown, r.answered_at, r.limited_at, r.was_stopped) for r in runs]
        key_count = len(ours.settings.keys)
        files[name] = plots.over_time(title, panels, ours.settings.rate * key_count, ours.settings.burst * key_count)
    return files


def cells(repeated: Repeated) -> tuple[str, ...]:
    situation, runs = repeated.situation, repeated.runs
    share, refusals = spread(repeated.shares, _percent), limited(repeated)
    if runs[0].was_stopped:
        share += f", {runs[0].answered:,} done in {runs[0].seconds:.0f} s"
    if situation.has_useless_keys:
        refusals += f" ({runs[0].refused} refusals in all)"
    return (
        situation.shown,
        share,
        refusals,
        f"{max(run.undone for run in runs):,}",
        f"{statistics.median(run.cpu_ms for run in runs):.1f} ms",
        situation.target.text,
        MARKS[repeated.is_met],
    )


def peer_cells(peer: Situation, measured: dict[Situation, Repeated]) -> tuple[str, ...]:
    """Return the cells of a peer: instead of a target, our share over the peer's, when both know as much."""
    shown, share, *others = cells(measured[peer])[: len(TITLES) - 2]
    ours, _, _ = PLOTS[peer.knows]
    # A peer that was measured once is compared with our first measurement.
    pairs = zip(measured[ours].shares, measured[peer].shares, strict=False)
    ratio = (
        "" if peer == ours else str(Ratio([our_share / peer_share for our_share, peer_share in pairs if peer_share]))
    )
    return (shown, share, ratio, *others)


def limited(repeated: Repeated) -> str:
    return spread([run.per_1000 for run in repeated.runs], _one_digit)


def _one_digit(value: float) -> str:
    return f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"
