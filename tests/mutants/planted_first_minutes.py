"""Planted bugs of what a newcomer meets first: order of results, pilots, words, and the choice of items."""

from __future__ import annotations

from . import Mutant, tests_of

LIBRARY = "workflows/test_friendly_library"
PILOT = "cli/test_pilot"
DISPLAY = "terminal/test_display"

MUTANTS = (
    Mutant(
        "Results come in the order in which items end",
        "items/results.py",
        "    results.sort(key=lambda result: positions[result.item_id])\n",
        "",
        tests_of(LIBRARY, "test_results_have_input_order_streams_completion_order"),
    ),
    Mutant(
        "A worker with one parameter is refused by every attempt, not before the start",
        "runs/checks.py",
        "    check_signature(worker_func)\n",
        "",
        tests_of(LIBRARY, "test_worker_with_wrong_signature_is_refused_before_start"),
    ),
    Mutant(
        "A plain key that looks like a reference is used without a word",
        "workflows/parallel/credential_coordinator.py",
        "        _warn(_unread_references(used))\n        hidden",
        "        hidden",
        tests_of(LIBRARY, "test_string_that_looks_like_reference_warns"),
    ),
    Mutant(
        "A pilot of stdin loses the items after its limit",
        "cli/launch/selection.py",
        "                rest_count += 1\n",
        "                rest_count += 1\n                break\n",
        tests_of(PILOT, "test_pilot_of_stdin_keeps_the_rest_for_resume"),
    ),
    Mutant(
        "The next launch after a pilot counts its limit from the first item again",
        "cli/launch/selection.py",
        "            if standing is not None and standing[0] != UNFINISHED:\n",
        "            if standing is None and limit < 0:\n",
        tests_of(PILOT, "test_pilot_runs_the_first_items_resume_the_rest"),
    ),
    Mutant(
        "A run that has items left after its limit counts as finished",
        "home/run_status.py",
        "self.launches[-1].stopped is None and not self.is_pilot",
        "self.launches[-1].stopped is None",
        tests_of(PILOT, "test_pilot_runs_the_first_items_resume_the_rest"),
    ),
    Mutant(
        "A retry of a pilot runs the items that were never started",
        "cli/commands/run.py",
        '        spec.options["limit"] = 0',
        "        pass",
        tests_of(PILOT, "test_retry_of_a_pilot_starts_no_further_items"),
    ),
    Mutant(
        "A retry by class runs every failed item",
        "cli/launch/selection.py",
        "            if class_ids & {name.lower() for name in classes_of_item}:\n",
        "            if wanted:\n",
        tests_of(PILOT, "test_retry_by_class_runs_only_those_failures"),
    ),
    Mutant(
        "The display takes the reason of a pause from one cause and its end from another",
        "pool/pauses.py",
        "    return max(lasting, key=lambda pause: (pause.scope is None, pause.until), default=None)\n",
        "    last = max(lasting, key=lambda pause: (pause.scope is None, pause.until), default=None)\n"
        "    return None if last is None else lasting[0]._replace(until=last.until)\n",
        tests_of(DISPLAY, "test_limit_that_outlasts_a_cool_down_is_the_reason"),
    ),
    Mutant(
        "The reason of a failed command is its last line",
        "workers/command/_reason.py",
        "    for find in (_last_exception, _first_error):\n",
        "    for find in ():\n",
        tests_of("workers/test_failure_reason", "test_reason_is_the_error_line"),
    ),
)
