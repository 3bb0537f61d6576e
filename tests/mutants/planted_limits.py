"""Planted bugs of the limits: how fast a group may be used."""

from __future__ import annotations

from . import Mutant, tests_of

WINDOWS = "limits/test_windows"
LIMITS = "limits/test_limiter"
LEARNING = "limits/test_rate_estimator"
SWEEP = "limits/test_sweep"
ANSWERS = "pool/conformance/test_limits"

MUTANTS = (
    Mutant(
        "The estimator ignores Retry-After",
        "limits/_rate_estimator.py",
        "return hint if hint is not None else delay(",
        "return delay(",
        tests_of(LEARNING, "test_wait_after_a_refusal_equals_the_hint"),
    ),
    Mutant(
        "A bucket that headers have made adds its jitter to each interval of the search",
        "limits/_rate_estimator.py",
        "level=level, jitter=0.0)",
        "level=level)",
        tests_of("limits/test_rate_estimator", "test_header_of_a_refusal_does_not_slow_its_limit_down"),
    ),
    Mutant(
        "Every refusal of one episode doubles the back-off",
        "limits/_rate_estimator.py",
        "if sent_at > self._cut_at:",
        "if sent_at > -math.inf:",
        tests_of(LEARNING, "test_refusals_of_one_episode_double_the_wait_once"),
    ),
    Mutant(
        "Rate-limit headers of an older request replace those of a newer one",
        "limits/_rate_estimator.py",
        "if sent_at < self._snapshot_at or not",
        "if not",
        tests_of(LEARNING, "test_headers_of_an_older_request_are_ignored"),
    ),
    Mutant(
        "Requests in flight are not subtracted from the remaining requests in a header",
        "limits/_rate_estimator.py",
        "uncounted = max(0, self.in_flight - 1)",
        "uncounted = 0",
        tests_of(LEARNING, "test_requests_in_flight_reduce_remaining_requests_in_headers"),
    ),
    # --- learned limits -------------------------------------------------------------------------------------------
    Mutant(
        "Requests served before slow start ended are not counted for the first estimate",
        "limits/pace.py",
        "        self.count(lease.requests, now)\n        limiter, estimator",
        "        limiter, estimator",
        tests_of(SWEEP, "test_random_latencies_around_one_limit", "test_unknown_limit_is_reached_with_few_refusals"),
    ),
    Mutant(
        "A rate that stored requests made possible counts as sustained",
        "limits/_rate_search.py",
        "self.rate * (1.0 - (credit + 1.0) / self._length)",
        "self.rate",
        tests_of(SWEEP, "test_unknown_limit_is_reached_with_few_refusals"),
    ),
    Mutant(
        "The rate grows although requests do not wait for it",
        "limits/_rate_estimator.py",
        "self._limited_share <= MIN_LIMITED_SHARE",
        "self._limited_share < 0.0",
        tests_of(SWEEP, "test_rate_that_is_not_used_does_not_grow"),
    ),
    Mutant(
        "After a refusal a request starts at once although another has used the allowance",
        "limits/_rate_estimator.py",
        "            self.bucket.restore(0.0, self._last_at)",
        "            self.bucket.restore(1.0, now + wait)",
        tests_of(SWEEP, "test_unknown_limit_is_reached_with_few_refusals"),
    ),
    Mutant(
        "The search never tries a higher rate after it has converged",
        "limits/_rate_search.py",
        "        if was_narrow or self.high <= self.low:",
        "        if self.high <= 0.0:",
        tests_of(SWEEP, "test_changed_limit_is_followed"),
    ),
    Mutant(
        "The cost of a refusal is not earned before the next one",
        "limits/_rate_search.py",
        "self._hold = self._length = max(self._hold, self._cost / gain * min(1.0, LARGE_GAIN / gain))",
        "self._hold = self._length = self._hold",
        tests_of(SWEEP, "test_unknown_limit_is_reached_with_few_refusals"),
    ),
    Mutant(
        "Requests that were sent after a refused one, and answered before it, count as admitted before it",
        "limits/pace.py",
        "            later = estimator.sent - charge.number\n",
        "            pass\n",
        tests_of(LEARNING, "test_requests_sent_after_a_refused_one_do_not_count"),
    ),
    Mutant(
        "One refusal discards a rate that many successes have proven",
        "limits/_rate_search.py",
        "self._proven, self._fall = self.high / self._fall,",
        "self._proven, self._fall = 0.0,",
        tests_of(LEARNING, "test_early_refusals_reduce_a_proven_rate_in_growing_steps"),
    ),
    Mutant(
        "An estimate without evidence doubles after every success",
        "limits/_rate_search.py",
        "        self._retreats = 0\n        if self._hold > 0.0:",
        "        self._retreats = 0\n        if self._hold < 0.0:",
        tests_of(SWEEP, "test_unknown_limit_is_reached_with_few_refusals"),
    ),
    Mutant(
        "A rate that stored requests had sustained never falls",
        "limits/_rate_search.py",
        "if self.low and self._retreats < MAX_RETREATS:",
        "if self.low:",
        tests_of(SWEEP, "test_bucket_that_is_empty_at_the_start_is_learned"),
    ),
    Mutant(
        "A refusal before any success is taken for the time of one request",
        "limits/_rate_estimator.py",
        "if self.estimate is None and self._max_rate is None and not is_evidence:",
        "if False and not is_evidence:",
        tests_of("limits/test_rate_estimator", "test_refusal_before_any_success_gives_no_estimate"),
    ),
    Mutant(
        "A refusal of one declared group slows another group of the same provider",
        "pool/_rules/feedback.py",
        "        self._allocator.cool(group, record.scope, max(wait",
        "        for other in credential.provider.members.values():\n"
        "            self._allocator.cool(other.group, record.scope, max(wait, hint or 0.0), RATE_LIMITED, now)\n"
        "        self._allocator.cool(group, record.scope, max(wait",
        tests_of(LEARNING, "test_refusals_of_one_group_never_slow_another"),
    ),
    Mutant(
        "A probe counts the requests between refusals without their time",
        "limits/_rate_probe.py",
        "max(PROBE_ADMISSIONS, PROBE_GAIN * allowed)",
        "PROBE_ADMISSIONS",
        tests_of(SWEEP, "test_whole_second_waits_never_pass_for_other_reasons"),
    ),
    Mutant(
        "After a probe the rate falls without end before the next one",
        "limits/_rate_probe.py",
        " or MAX_FALL * rate < self._confirmed_rate",
        "",
        tests_of(SWEEP, "test_random_refusals_do_not_slow_a_key_down"),
    ),
    # --- declared limits ------------------------------------------------------------------------------------------
    Mutant(
        "The sliding window is 59 seconds long",
        "limits/declaration.py",
        '_LENGTHS = {"minute": _MINUTE',
        '_LENGTHS = {"minute": 59.0',
        tests_of(ANSWERS, "test_window_admits_no_more_requests_than_declared"),
    ),
    Mutant(
        "A failed request gets its charge back",
        "pool/_rules/lease_end.py",
        "        if group.pace.end(charge, record, now, has_verdict=has_verdict):\n",
        "        if record.is_answered:\n"
        "            group.pace.correct(charge, record, 0, record.tokens, record.detail, now)\n"
        "        if group.pace.end(charge, record, now, has_verdict=has_verdict):\n",
        tests_of(LIMITS, "test_failed_request_stays_counted"),
    ),
    Mutant(
        "A token bucket forgets debt below zero",
        "limits/_windows.py",
        "self._level = min(self.capacity, max(level - amount, lowest))",
        "self._level = max(0.0, min(self.capacity, level - amount))",
        tests_of(LIMITS, "test_bucket_in_debt_admits_nothing"),
    ),
    Mutant(
        "An idle token bucket fills beyond its capacity",
        "limits/_windows.py",
        "return level if level < self.capacity else self.capacity",
        "return level",
        tests_of(LIMITS, "test_unused_bucket_fills_up_to_its_capacity"),
    ),
    Mutant(
        "A request without a token estimate is granted while the token window is in debt",
        "limits/_limiter.py",
        "if (next_at := counter.ready_at(tokens, now)) > at:",
        "if tokens and (next_at := counter.ready_at(tokens, now)) > at:",
        tests_of(ANSWERS, "test_settled_overshoot_of_tokens_is_debt"),
    ),
    Mutant(
        "Tokens used beyond a reservation expire with the reservation, not a minute after they are reported",
        "limits/_windows.py",
        "            self.take(amount - counted, now)\n",
        "            entry.amount += amount - counted\n            self.total += amount - counted\n",
        tests_of(LIMITS, "test_correction_counts_overshoot_from_now_and_frees_surplus"),
    ),
    Mutant(
        "The daily counter is not reset when the day ends",
        "limits/_periods.py",
        "        self.total, self.others = self.late, 0.0\n",
        "",
        tests_of(LIMITS, "test_day_usage_resets_when_the_day_ends"),
    ),
    Mutant(
        "A correction of yesterday's usage changes today's counter",
        "limits/_periods.py",
        "if more > 0 or (entry.at == self.began_at and self.ends_at > now):",
        "if more:",
        tests_of(LIMITS, "test_correction_after_the_reset_leaves_today_unchanged"),
    ),
    Mutant(
        "The laxer of two limits declared for one quota group wins",
        "limits/declaration.py",
        "if second is None else min(first, second)",
        "if second is None else max(first, second)",
        tests_of(LIMITS, "test_strictest_of_two_declarations_holds"),
    ),
    Mutant(
        "Adding a credential to a quota group resets the group's usage",
        "limits/pace.py",
        "self.limiter.change(limits, calendar, now)",
        "self.limiter = RateLimiter(limits, calendar, now)",
        tests_of(LIMITS, "test_further_key_of_a_group_keeps_its_usage"),
    ),
    Mutant(
        "Settling for less does not make the freed tokens available to waiters",
        "limits/_limiter.py",
        'only the excess counts."""\n        self._version += 1\n',
        'only the excess counts."""\n',
        tests_of(LIMITS, "test_requests_freed_by_settle_serve_a_waiter"),
    ),
    # --- windows --------------------------------------------------------------------------------------------------
    Mutant(
        "Requests of other models count in a window of one model",
        "limits/_window_table.py",
        "fnmatchcase(scope, pattern)",
        "bool(pattern)",
        tests_of(WINDOWS, "test_requests_of_other_models_do_not_count"),
    ),
    Mutant(
        "A request that was answered after the earliest end of its period does not count in the next one",
        "limits/_periods.py",
        "        if now <= self.began_at + self.seconds:\n",
        "        if True:\n",
        tests_of(WINDOWS, "test_request_that_arrived_in_time_counts_once"),
    ),
    Mutant(
        "A first-use window begins with a request that was never sent",
        "limits/_periods.py",
        "        if not self.is_confirmed:\n            self.ends_at = now",
        "        if not self.ends_at:\n            self.ends_at = now",
        tests_of(WINDOWS, "test_first_use_window_counts_from_its_first_success"),
    ),
    Mutant(
        "What is taken just before midnight does not count after it",
        "limits/_periods.py",
        "        self.late += amount\n",
        "",
        tests_of(WINDOWS, "test_late_use_of_a_period_counts_in_the_next"),
    ),
    Mutant(
        "A slot of a long window expires with its first request",
        "limits/_windows.py",
        "            last.at = now\n",
        "",
        tests_of(WINDOWS, "test_million_requests_in_a_week_need_bounded_memory"),
    ),
    Mutant(
        "The reserve for people is used up",
        "limits/declaration.py",
        "window.amount * (1.0 - self.reserve) if self.reserve else window.amount",
        "window.amount",
        tests_of(WINDOWS, "test_reserve_leaves_a_share_of_every_window"),
    ),
    Mutant(
        "Input and output tokens of unknown direction do not count",
        "limits/amounts.py",
        "        return requests, tokens, tokens, tokens, 0, PLAN_SHARE\n",
        "        return requests, tokens, 0, tokens, 0, PLAN_SHARE\n",
        tests_of(WINDOWS, "test_tokens_of_unknown_direction_count_as_either"),
    ),
    Mutant(
        "An older answer replaces what a newer one has said about a window",
        "limits/_reports.py",
        "            if sent_at >= counted.reported_at:\n",
        "            if True:\n",
        tests_of("providers/test_reported_windows", "test_report_of_older_request_is_ignored"),
    ),
    Mutant(
        "Tokens of a first request count from its grant, before it has arrived",
        "limits/_limiter.py",
        "                entry.at += FIRST_ARRIVAL_SECONDS\n",
        "",
        tests_of(LIMITS, "test_late_first_request_causes_no_refusal"),
    ),
    Mutant(
        "A day begins a second time when clocks go back",
        "limits/reset_times.py",
        "int(minutes), tzinfo=tz)",
        "int(minutes), tzinfo=tz, fold=datetime.fromtimestamp(epoch, tz).fold)",
        tests_of("pool/conformance/test_windows", "test_one_reset_a_day_while_clocks_change"),
    ),
)
