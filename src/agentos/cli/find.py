"""Finds the run or the item that a person named, and suggests names for one that does not exist."""

from __future__ import annotations

import heapq
import itertools
from difflib import SequenceMatcher

import click

from agentos.home.paths import home
from agentos.home.run_folder import RunFolder, run_folders
from agentos.ledger.reader import Ledger

MAX_SUGGESTIONS = 3
# Names the newest run, in every command that takes a run.
LAST = "last"
# Ids of a run that are compared with an unknown one: bounds the time that a suggestion takes.
MAX_COMPARED = 20_000
# Similarity from which an id is suggested, as of `SequenceMatcher.ratio`.
MIN_SIMILARITY = 0.6


def find_run(name: str | None) -> RunFolder:
    """Return the folder of the run that `name` names: its id, an unambiguous prefix of its id, or `last` (and None) for
    the newest run. An id that equals `name` wins. Raise `UsageError` or `UnknownRun` if there is none, and `HomeError`
    if another user may have written what is in it."""
    folder = _find(name)
    folder.check()
    return folder


def _find(name: str | None) -> RunFolder:
    if name is None:
        return _newest()
    try:
        folder = RunFolder(name)
    except ValueError as error:
        raise click.UsageError(f"not a run id: {error}; agentos runs lists the runs") from None
    if folder.exists():
        return folder
    if name == LAST:
        return _newest()
    matches = [other for other in run_folders() if other.run_id.startswith(name)]
    if len(matches) > 1:
        first_ids = ", ".join(other.run_id for other in matches[:MAX_SUGGESTIONS])
        more = ", …" if len(matches) > MAX_SUGGESTIONS else ""
        raise click.UsageError(f"{len(matches)} runs begin with {name!r} ({first_ids}{more}): type more of the id")
    match = matches[0] if matches else folder
    match.read_spec()  # raises `UnknownRun` if there is none
    return match


def _newest() -> RunFolder:
    newest = next(run_folders(), None)
    if newest is None:
        raise click.UsageError(f"there is no run in {home() / 'runs'}")
    return newest


def unknown_item(ledger: Ledger, item_id: str) -> click.UsageError:
    """Return the error for an id that the run does not have, with suggestions."""
    suggestions = ", ".join(repr(suggestion)[:80] for suggestion in similar_ids(ledger, item_id))
    hint = (
        f": did you mean {suggestions}?"
        if suggestions
        else f": it has not started, or has another id (agentos export {ledger.run_id} lists those that have)"
    )
    return click.UsageError(f"run {ledger.run_id} has no item {repr(item_id)[:80]}{hint}")


def similar_ids(ledger: Ledger, unknown_id: str) -> list[str]:
    """Return ids of the run that contain the unknown one, in any case, or are spelled alike; the most similar first."""
    matcher = SequenceMatcher(b=unknown_id.casefold()[:200], autojunk=False)

    def similarity(item_id: str) -> float:
        text = item_id.casefold()[:200]
        if unknown_id and unknown_id.casefold() in text:
            return 1.0 + 1.0 / len(text)
        matcher.set_seq1(text)
        if matcher.real_quick_ratio() < MIN_SIMILARITY or matcher.quick_ratio() < MIN_SIMILARITY:
            return 0.0
        return matcher.ratio()

    scores = ((similarity(item_id), item_id) for item_id in itertools.islice(ledger.ids(), MAX_COMPARED))
    return [item_id for score, item_id in heapq.nlargest(MAX_SUGGESTIONS, scores) if score >= MIN_SIMILARITY]
