"""Planted bugs of keys that never work, of printed refusals, and of cool-downs whose end is a guess."""

from __future__ import annotations

from . import Mutant, tests_of

BREAKER = "runs/_rules/circuit_breaker.py"
GUESSES = "pool/_rules/guessed_cool_downs.py"
RUNS = "runs/test_dead_keys"
POOL = "pool/test_guessed_cool_downs"

MUTANTS = (
    Mutant(
        "A key with which every item fails is never benched",
        BREAKER,
        "len(health.failed_items) >= MIN_FAILURES and",
        "False and",
        tests_of(RUNS, "test_breaker_speaks_once_and_items_go_on"),
    ),
    Mutant(
        "An item that met a dead key is not tried with another one",
        BREAKER,
        "is_free = not is_own and has_others and trail.free_tries < self._max_free_tries(scope)",
        "is_free = False",
        tests_of(RUNS, "test_dead_key_costs_no_item"),
    ),
    Mutant(
        "A key that works again stays benched",
        BREAKER,
        "        self._forget(scope, credential_id)\n        if health.is_benched",
        "        if health.is_benched",
        tests_of(RUNS, "test_recovered_key_is_probed_and_used_again"),
    ),
    Mutant(
        "A printed refusal takes a key out of use for longer with every repetition, without end",
        BREAKER,
        "        seconds = min(seconds, MAX_REST_SECONDS)\n",
        "",
        tests_of(RUNS, "test_item_outlives_a_limit_of_hours_that_was_printed", "test_probe_goes_alone_and_pauses_grow"),
    ),
    Mutant(
        "An item whose printed refusals were wrong is believed again",
        BREAKER,
        "trail.is_discredited = True",
        "trail.is_discredited = False",
        tests_of(RUNS, "test_items_that_echo_refusals_hold_up_their_run_briefly"),
    ),
    Mutant(
        "A cool-down whose end is a guess is waited out",
        GUESSES,
        "return max(min(seconds, until_probe), verdict.retry_after or 0.0)",
        "return seconds",
        tests_of(POOL, "test_probes_come_at_growing_intervals"),
    ),
    Mutant(
        "A cool-down whose end the provider named is probed early",
        GUESSES,
        "if hint_of(verdict) is not None and not verdict.is_guess:",
        "if False:",
        tests_of(POOL, "test_named_time_is_obeyed_to_its_end"),
    ),
)  # fmt: skip
