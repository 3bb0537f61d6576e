"""The share of the legal maximum that is reached, and how often a provider has to refuse, against named peers.

8 keys of 10 requests a second each (and of 1, and of 50), 4 at once, answers of 20 ms, over HTTP. The provider and the
client have a process each; the provider's own log decides. The legal minimum is the time in which the same requests
could have been served had every limit been used from the first instant on.
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
from .bystanders import Bystanders
from .measuring import MARKS, Ratio, Row, aligned, spread
from .peers.job import Job
from .simulator import ROOT, Judged, Simulator
from .situations import DECLARED, GROUPS, PEERS, RETRY_AFTER, SITUATIONS, Figures, Repeated, Situation

ROW_NAMES = [situation.name for situation in SITUATIONS]
PACKAGES = ("httpx", "openai", "tenacity", "litellm", "aiolimiter")
# The share of the machine that others may use.
DISTURBED = 0.5
TITLES = ("situation", "share", "429s per 1,000", "not done", "CPU per request", "target", "")
PEERS_TITLES = ("situation", "share", "ours over it", *TITLES[2:5])
COMPARED = (DECLARED, RETRY_AFTER, *PEERS)
PEERS_TITLE = "Peers: 8 keys of 10 requests/s, 1,600 requests, Retry-After exact"
# What the peers know, which of ours knows as much, and how the plot of them is called.
PLOTS = {
    "limits": (DECLARED, "legal_speed_declared.svg", "Requests per second over time, limits declared"),
    "nothing": (RETRY_AFTER, "legal_speed_untold.svg", "Requests per second over time, nothing known beforehand"),
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
    """All of them, then again those that are to be measured more than once."""
    left = list(situations)
    measured: dict[Situation, list[Figures]] = {situation: [] for situation in left}
    while left:
        for figures in measure_quietly(left):
            measured[figures.situation].append(figures)
        left = [situation for situation in left if len(measured[situation]) < situation.times]
    return [Repeated(situation, runs) for situation, runs in measured.items()]


def measure_quietly(situations: list[Situation]) -> list[Figures]:
    """What was measured while others kept the machine busy is measured again, once; the quieter time counts."""
    measured = {figures.situation: figures for figures in measure_once(situations)}
    disturbed = [situation for situation, figures in measured.items() if figures.disturbance > DISTURBED]
    for again in measure_once(disturbed):
        first = measured[again.situation]
        measured[again.situation] = min(first, again, key=lambda figures: figures.disturbance)
    return list(measured.values())


def measure_once(situations: list[Situation]) -> Iterator[Figures]:
    """One after the other, except those that leave the machine idle: they come first, all at once."""
    idle = [situation for situation in situations if situation.is_idle]
    with Bystanders() as others, ThreadPoolExecutor(len(idle) or 1) as executor:
        beside = dict(zip(idle, executor.map(measure, idle), strict=True))
    for situation in situations:
        if situation in beside:
            figures = replace(beside[situation], disturbance=others.share)
        else:
            with Bystanders() as alone:
                figures = measure(situation)
            figures = replace(figures, disturbance=alone.share)
        print(figures, file=sys.stderr, flush=True)
        yield figures


def rows(names: Iterable[str] = ()) -> Iterator[Row]:
    wanted = set(names)
    for repeated in measure_all(s for s in SITUATIONS if not wanted or s.name in wanted):
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
    """For the page: a table for each group of situations, the plots, and what was missed."""
    measured: dict[Situation, Repeated] = {row.details.situation: row.details for row in rows}
    others = [run.disturbance for repeated in measured.values() for run in repeated.runs]
    lines = [f"In single rows, other programs used {min(others):.0%} to {max(others):.0%} of the machine."]
    for title, group in GROUPS:
        lines += ["", f"**{title}**", "", *aligned(TITLES, [cells(measured[situation]) for situation in group])]
    lines += ["", f"**{PEERS_TITLE}**", "", *aligned(PEERS_TITLES, [peer_cells(s, measured) for s in COMPARED])]
    lines += [line for _, name, title in PLOTS.values() for line in ("", f"![{title}](plots/{name})")]
    missed = [f"{r.situation.what}: {', '.join(r.misses)}" for r in measured.values() if r.is_met is False]
    return [*lines, *(["", "Missed:", "", *(f"- {miss}" for miss in missed)] if missed else [])]


def plots_of(rows: Iterable[Row]) -> dict[str, str]:
    """The first run of each client, by the name of the file."""
    measured: dict[str, Figures] = {row.details.situation.name: row.details.runs[0] for row in rows}
    drawn = {}
    for knows, (ours, name, title) in PLOTS.items():
        clients = [situation for situation in (ours, *PEERS) if situation.knows == knows]
        runs = [measured[situation.name] for situation in clients if situation.name in measured]
        panels = [plots.Panel(r.situation.shown, r.answered_at, r.limited_at, r.was_stopped) for r in runs]
        all_keys = len(ours.settings.keys)
        drawn[name] = plots.over_time(title, panels, ours.settings.rate * all_keys, ours.settings.burst * all_keys)
    return drawn


def cells(repeated: Repeated) -> tuple[str, ...]:
    situation, runs = repeated.situation, repeated.runs
    share, told = spread(repeated.shares, _percent), limited(repeated)
    if runs[0].was_stopped:
        share += f", {runs[0].answered:,} done in {runs[0].seconds:.0f} s"
    if situation.has_useless_keys:
        told += f" ({runs[0].refused} refusals in all)"
    return (
        situation.shown,
        share,
        told,
        f"{max(run.undone for run in runs):,}",
        f"{statistics.median(run.cpu_ms for run in runs):.1f} ms",
        situation.target.text,
        MARKS[repeated.is_met],
    )


def peer_cells(peer: Situation, measured: dict[Situation, Repeated]) -> tuple[str, ...]:
    """Instead of a target: how many times the peer's share ours is, when it knows as much."""
    shown, share, *others = cells(measured[peer])[: len(TITLES) - 2]
    ours, _, _ = PLOTS[peer.knows]
    # One that was measured once meets the first of ours.
    pairs = zip(measured[ours].shares, measured[peer].shares, strict=False)
    ratio = "" if peer == ours else str(Ratio([mine / its for mine, its in pairs if its]))
    return (shown, share, ratio, *others)


def limited(repeated: Repeated) -> str:
    return spread([run.per_1000 for run in repeated.runs], _one_digit)


def _one_digit(value: float) -> str:
    return f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"
