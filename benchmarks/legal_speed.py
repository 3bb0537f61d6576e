"""The share of the legal maximum that is reached, and how often a provider has to refuse, against named peers.

8 keys of 10 requests a second each (and of 1, and of 50), 4 at once, answers of 20 ms, over HTTP. The provider and the
client have a process each; the provider's own log decides. The legal minimum is the time in which the same requests
could have been served had every limit been used from the first instant on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from . import page
from .bystanders import Bystanders
from .measuring import MARKS, Row, aligned
from .peers.job import Job
from .simulator import ROOT, Judged, Simulator
from .situations import GROUPS, SITUATIONS, Figures, Situation

ROW_NAMES = [situation.name for situation in SITUATIONS]
PACKAGES = ("agentos-parallel", "httpx", "openai", "tenacity", "litellm", "aiolimiter")
# The share of the machine that others may use.
DISTURBED = 0.5
TITLES = ("situation", "share", "429s per 1,000", "not done", "CPU per request", "target", "")


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
    )


def measure_all(situations: Iterable[Situation]) -> list[Figures]:
    """What was measured while others kept the machine busy is measured again, once; the quieter time counts."""
    measured = {figures.situation: figures for figures in measure_once(list(situations))}
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
    for figures in measure_all(s for s in SITUATIONS if not wanted or s.name in wanted):
        situation = figures.situation
        yield Row(
            situation.shown,
            f"{figures.seconds:.1f} s, {figures.per_1000:.1f} x 429 per 1,000",
            f"legal minimum, {figures.answered:,} requests",
            f"{figures.legal_minimum:.1f} s",
            figures.share,
            situation.target.text,
            figures.is_met,
            figures,
        )


def page_part(rows: Iterable[Row]) -> list[str]:
    """For the page: a table for each group of situations, and what was missed."""
    measured: dict[Situation, Figures] = {row.details.situation: row.details for row in rows}
    others = [figures.disturbance for figures in measured.values()]
    busy = f" Meanwhile, other programs used {min(others):.0%} to {max(others):.0%} of the machine."
    lines = [f"{line}  " for line in page.machine(PACKAGES)] + [f"Measured on {page.today()}, each row once.{busy}"]
    for title, group in GROUPS:
        lines += ["", f"**{title}**", "", *aligned(TITLES, [cells(measured[situation]) for situation in group])]
    aimed = [figures for figures in measured.values() if figures.is_met is not None]
    missed = [f"{f.situation.what}: {', '.join(f.misses)}" for f in aimed if not f.is_met]
    told = f"{len(missed)} of {len(aimed)} targets missed"
    return [
        *lines,
        "",
        f"{told}:" if missed else f"{told}.",
        *(["", *(f"- {miss}" for miss in missed)] if missed else []),
    ]


def cells(figures: Figures) -> tuple[str, ...]:
    situation = figures.situation
    share, limited = f"{figures.share:.1%}", f"{figures.per_1000:.1f}"
    if figures.was_stopped:
        share += f" ({figures.answered:,} done in {figures.seconds:.0f} s)"
    if situation.has_useless_keys:
        limited += f" ({figures.refused} refusals in all)"
    return (
        situation.shown,
        share,
        limited,
        f"{figures.undone:,}",
        f"{figures.cpu_ms:.1f} ms",
        situation.target.text,
        MARKS[figures.is_met],
    )
