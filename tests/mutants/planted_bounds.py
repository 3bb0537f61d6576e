"""Planted bugs of what binds a run, of plans, of learned requests at once, and of the number of items at once."""

from __future__ import annotations

from . import Mutant, tests_of

BOUNDS = "test_bounds"
PLAN = "plans/test_plan"
PLAN_WINDOWS = "plans/test_plan_windows"
LEARNED = "limits/test_concurrency"
AUTO = "runs/test_auto_parallel"
WINDOWS = "limits/test_windows"

MUTANTS = (
    # --- what binds a run
    Mutant(
        "A slow reader is blamed on the credentials",
        "bounds.py",
        "    if facts.is_reader_slow:\n        return Bound(READER)\n    if facts.is_ledger_slow:\n"
        "        return Bound(LEDGER)\n    if facts.waiting is not None:\n"
        "        return bound_of_pool(facts.waiting, now)\n",
        "    if facts.waiting is not None:\n        return bound_of_pool(facts.waiting, now)\n"
        "    if facts.is_reader_slow:\n        return Bound(READER)\n    if facts.is_ledger_slow:\n"
        "        return Bound(LEDGER)\n",
        tests_of(BOUNDS, "test_each_situation_has_one_bound"),
    ),
    Mutant(
        "Workers bind a run that waits for its last items",
        "bounds.py",
        "        if not facts.has_more:\n            return None\n",
        "",
        tests_of(BOUNDS, "test_each_situation_has_one_bound"),
    ),
    Mutant(
        "A full limit binds a run whose leases are all in use",
        "bounds.py",
        "            self._count(bound, (seconds - late) * SHARE_OF_UNSURE)\n",
        "            self._count(bound, seconds - late)\n",
        tests_of(BOUNDS, "test_limit_binds_if_it_outlasts_the_leases"),
    ),
    Mutant(
        "The bound that ended a run is outranked by a longer one",
        "bounds.py",
        "        if self._final is not None:\n            return self._final\n",
        "        if self._final is not None and not self.seconds:\n            return self._final\n",
        tests_of(BOUNDS, "test_bound_that_ended_the_run_counts_however_short"),
    ),
    # --- plans
    Mutant(
        "A plan begins with windows that nobody has used",
        "pool/simulation.py",
        "            pace.restore_usage(forecast.usage, calendar, 0.0)\n",
        "            pass\n",
        tests_of(PLAN_WINDOWS, "test_plan_in_the_middle_of_windows_counts_their_usage"),
    ),
    Mutant(
        "A plan extrapolates although a long window will bind",
        "pool/simulation.py",
        "                    return False\n    return True\n",
        "                    return True\n    return True\n",
        tests_of(PLAN_WINDOWS, "test_window_that_binds_late_is_not_extrapolated_over"),
    ),
    Mutant(
        "Automatic workers of a what-if are those of the plan",
        "pool/simulation.py",
        "        return min(self.work.workers, with_open_requests(self.running))\n",
        "        return min(self.work.workers, 4)\n",
        tests_of(PLAN_WINDOWS, "test_automatic_workers_follow_each_what_if"),
    ),
    Mutant(
        "A plan ignores a cool-down",
        "pool/simulation.py",
        "        if forecast.cooling:\n",
        "        if forecast.cooling < 0:\n",
        tests_of(PLAN, "test_plan_includes_cooldowns"),
    ),
    # --- requests at once
    Mutant(
        "A success with fewer requests in flight raises the limit at once",
        "limits/concurrency.py",
        "        if in_flight < self.limit or granted_at < self._since:\n            return False\n        self._has",
        "        if granted_at < self._since:\n            return False\n        self._has",
        tests_of(LEARNED, "test_success_below_the_limit_proves_nothing"),
    ),
    Mutant(
        "Each refusal of one moment lowers the limit at once",
        "limits/concurrency.py",
        "        if granted_at < self._since:  # in flight together with one that was refused\n",
        "        if False:\n",
        tests_of(LEARNED, "test_refusals_of_one_moment_count_once"),
    ),
    Mutant(
        "A refused number of requests at once is tried again as often as before",
        "limits/concurrency.py",
        "            self._probe_seconds *= 2.0\n",
        "            pass\n",
        tests_of(LEARNED, "test_refused_number_is_probed_less_and_less_often"),
    ),
    Mutant(
        "Requests at once grow while the rate holds requests back",
        "pool/_rules/lease_end.py",
        "        if pace.is_free or pace.binding(scope, 1, 0, now).at <= now:\n",
        "        if True:\n",
        tests_of("pool/test_learned_concurrency", "test_number_does_not_grow_while_the_rate_binds"),
    ),
    Mutant(
        "A number of requests that is also served explains refusals",
        "limits/concurrency.py",
        "or self._served_suspects > self._suspicions:",
        "or self._suspicions < 0:",
        tests_of(LEARNED, "test_number_that_is_also_served_explains_nothing"),
    ),
    Mutant(
        "A burst that is refused is taken for a limit at once",
        "limits/concurrency.py",
        " or self._served_below < MIN_SERVED_BELOW * self._suspicions:",
        ":",
        tests_of(LEARNED, "test_burst_explains_nothing"),
    ),
    # --- items at once
    Mutant(
        "Memory of running items counts twice",
        "runs/_rules/auto_parallel.py",
        "            total = max(0.0, machine.free_bytes) + sum(use.bytes for use in machine.running)\n",
        "            total = max(0.0, machine.free_bytes) + 2 * sum(use.bytes for use in machine.running)\n",
        tests_of(AUTO),
    ),
    Mutant(
        "The last item decides how much memory the next one takes",
        "runs/_rules/auto_parallel.py",
        "        largest = max((use.bytes for use in (*self._ended, *machine.running)), default=0.0)\n",
        "        largest = [0.0, *(use.bytes for use in (*self._ended, *machine.running))][-1]\n",
        tests_of(AUTO),
    ),
    Mutant(
        "The number of first items grows although none has run",
        "runs/_rules/auto_parallel.py",
        "            if running >= self._first and self._is_known(machine):\n",
        "            if self._is_known(machine):\n",
        tests_of(AUTO, "test_items_that_stay_unused_do_not_raise_the_number"),
    ),
    Mutant(
        "A gateway adds items while requests wait",
        "runs/_rules/auto_parallel.py",
        "        if running >= self._through_gateway and not is_waiting:\n",
        "        if running >= self._through_gateway:\n",
        tests_of(AUTO, "test_gateway_adds_items_only_while_no_request_waits"),
    ),
    # --- money
    Mutant(
        "Windows of money add up fractions",
        "limits/amounts.py",
        "    return requests, tokens, input_tokens, output_tokens, units(cost) if cost else 0, PLAN_SHARE\n",
        "    return requests, tokens, input_tokens, output_tokens, cost * 1e9 * (1 + 1e-15), PLAN_SHARE\n",
        tests_of(WINDOWS, "test_as_much_money_fits_as_the_limit_says"),
    ),
    Mutant(
        "A stored window of money comes back in other units",
        "limits/_usage_rows.py",
        "            counter, amount = counted.counter, counted.in_units(row.amount)\n",
        "            counter, amount = counted.counter, row.amount\n",
        tests_of(WINDOWS, "test_as_much_money_fits_as_the_limit_says"),
    ),
)
