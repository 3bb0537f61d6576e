"""`agentos demo`: the whole thing against a provider on this machine."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import click

from agentos.workflows.parallel import Credential, CredentialCoordinator, ParallelCoordinator
from agentos.workflows.parallel.testing import SimulatedProvider

ITEMS = 60
KEYS = 4
WORKERS = 8
REQUESTS_PER_SECOND = 2.0
BURST = 5
INTERRUPTED = 130


@click.command()
@click.pass_context
def demo(context: click.Context) -> None:
    """Run 60 items over 4 keys of a simulated provider that answers 429. Needs no key and no network."""
    context.exit(run_demo())


def run_demo() -> int:
    """Returns the exit status."""
    keys = [f"demo-key-{number}" for number in range(1, KEYS + 1)]
    # Waits in whole seconds, as most real providers tell them.
    provider = SimulatedProvider(
        keys, requests_per_second=REQUESTS_PER_SECOND, burst=BURST, headers="off", retry_after="whole"
    )
    with provider:
        print(
            f"A provider on {provider.url} allows each of {KEYS} keys a burst of {BURST} requests and then "
            f"{REQUESTS_PER_SECOND:g} a second.\n"
            f"{WORKERS} workers have {ITEMS} items to do. Press Ctrl-C to interrupt.\n"
        )
        pool = CredentialCoordinator([Credential(key, id=f"key-{n}") for n, key in enumerate(keys, start=1)])
        coordinator = ParallelCoordinator(WORKERS, pool)
        items = [f"document-{number:02d}" for number in range(1, ITEMS + 1)]
        stats, _ = coordinator.execute_parallel(items, lambda item, key: _review(provider.url, item, key))
        print(
            f"\n{stats.success_count} of {ITEMS} items succeeded in {stats.elapsed:.1f} s. "
            f"The legal minimum for {ITEMS} requests is {provider.legal_minimum(ITEMS):.1f} s.\n"
            f"The provider answered 429 {provider.limited} times; no item was lost to it."
        )
    if stats.stopped == "interrupted":
        print(f"Interrupted with {len(coordinator.get_checkpoints())} items unfinished.")
        return INTERRUPTED
    return 0 if stats.success_count == ITEMS else 1


def _review(url: str, item: str, key: str) -> Any:
    """One request. A 429 is raised by urllib as an HTTPError, and read from it: nothing to do here."""
    request = urllib.request.Request(url, data=item.encode(), headers={"Authorization": f"Bearer {key}"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - a server of our own
        return json.load(response)
