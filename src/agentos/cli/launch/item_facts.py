"""What an item of a run takes, for its plan: as options state it, else as the ledger of a run recorded it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentos.home.run_folder import RunFolder
from agentos.ledger.reader import Ledger

# Seconds that an item of a plan takes, if nothing gives a duration.
ITEM_SECONDS = 10.0


class ItemFacts(NamedTuple):
    """What an item takes; None: not known."""

    item_seconds: float | None = None
    requests_per_item: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    item_cost: float | None = None

    def plan_arguments(self) -> dict[str, Any]:
        """Return the arguments of `ParallelCoordinator.plan`."""
        seconds = self.item_seconds or ITEM_SECONDS
        return {**self._asdict(), "item_seconds": seconds, "requests_per_item": self.requests_per_item or 1.0}


def item_facts(folder: RunFolder | None, options: Mapping[str, Any], item_seconds: float | None = None) -> ItemFacts:
    """Return what an item takes: by options, then by the ledger of a run."""
    recorded = ItemFacts() if folder is None else recorded_facts(folder)
    given: dict[str, Any] = {name: options.get(name) for name in ItemFacts._fields} | {"item_seconds": item_seconds}
    facts = recorded._replace(**{name: value for name, value in given.items() if value is not None})
    if facts.item_seconds is None and options.get("timeout") is not None:
        return facts._replace(item_seconds=min(ITEM_SECONDS, options["timeout"]))
    return facts


def recorded_facts(folder: RunFolder) -> ItemFacts:
    """Return what the items of a run have taken so far; nothing for a run without a ledger."""
    if not folder.ledger.exists():
        return ItemFacts()
    with Ledger.open(folder.ledger) as ledger:
        durations = [item.duration for item in ledger.items("succeeded") if item.duration]
        usage, spent = ledger.usage(of_ended=True), ledger.spent()
    seconds = statistics.median(durations) if durations else None
    cost, ended = spent.item_cost, spent.ended
    if usage is None or not ended or not usage.requests:
        return ItemFacts(seconds, item_cost=cost)
    if seconds is not None:  # the plan adds the time for which requests wait for a key
        seconds = max(seconds - usage.held_seconds / ended, seconds / 100)
    requests = max(1.0, usage.requests / ended)
    return ItemFacts(seconds, requests, round(usage.input_tokens / ended), round(usage.output_tokens / ended), cost)
