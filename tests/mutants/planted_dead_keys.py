"""Planted bugs of keys that must be left alone: dead, quarantined or cooling ones, and refusals that were printed."""

from __future__ import annotations

from . import Mutant, tests_of

BREAKER = "runs/_rules/circuit_breaker.py"
GUESSES = "pool/_rules/guessed_cool_downs.py"
RUNS = "runs/test_dead_keys"
POOL = "pool/test_guessed_cool_downs"
FREE = "pool/test_free_leases"

MUTANTS = (
    Mutant(
        "A refusal in flight replaces the reason of a quarantine",
        "pool/_rules/feedback.py",
        "if credential.removed or credential.quarantine is not None:",
        "if credential.removed:",
        tests_of("pool/test_allocator", "test_later_refusals_leave_the_reason_of_a_quarantine"),
    ),
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
        "is_free = not is_own and has_others and trail.free_tries < max_tries",
        "is_free = False",
        tests_of(RUNS, "test_dead_key_costs_no_item"),
    ),
    Mutant(
        "An item that failed with three keys does not wait for the items that run",
        "runs/_rules/scheduler.py",
        "has_others = self.ready > 0 or self.running > 0 or not",
        "has_others = self.ready > 0 or not",
        tests_of(RUNS, "test_item_that_fails_with_three_keys_waits_for_running_ones"),
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
    Mutant(
        "A credential that has served requests is granted while it is quarantined",
        "pool/_rules/credential_changes.py",
        "credential.is_proven = credential.is_healthy = False",
        "credential.is_proven = False",
        tests_of(FREE, "test_healthy_credential_held_back_is_not_granted"),
    ),
    Mutant(
        "The success of a lease puts a quarantined credential back into use",
        "pool/_rules/feedback.py",
        "credential.is_healthy = credential.is_in_use and not (",
        "credential.is_healthy = not (",
        tests_of(FREE, "test_success_of_credential_out_of_use_puts_it_not_back"),
    ),
    Mutant(
        "A credential that has served requests is granted while it cools",
        "pool/_rules/free_leases.py",
        "or credential.cooled or last_used",
        "or last_used",
        tests_of(FREE, "test_healthy_credential_held_back_is_not_granted"),
    ),
    Mutant(
        "A stale entry of a heap grants a credential that is leased",
        "pool/_rules/free_leases.py",
        "or last_used != credential.last_used or",
        "or",
        tests_of(FREE, "test_leased_credential_is_not_granted_to_another_class"),
    ),
    Mutant(
        "A lease that nothing restricts ends without returning its credential",
        "pool/_rules/free_leases.py",
        "                heappush(heap, (load, last_used, credential))\n",
        "                pass\n",
        tests_of(FREE, "test_short_way_decides_as_the_long_way"),
    ),
)  # fmt: skip
