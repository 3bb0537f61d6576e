"""Planted bugs of the pool and of the limits: which request gets which credential, and when."""

from __future__ import annotations

from . import Mutant, tests_of

POOL = "pool/test_allocator"
LIMITS = "limits/test_limiter"
LEARNING = "limits/test_rate_estimator"
SWEEP = "limits/test_sweep"
ANSWERS = "pool/conformance/test_limits"
CALLERS = "pool/conformance/test_pool"

MUTANTS = (
    # --- order of the wait queue ----------------------------------------------------------------------------------
    Mutant(
        "The wait queue serves the newest request first",
        "pool/_rules/wait_queue.py",
        "        if front:\n            queue.move_to_end",
        "        if not front:\n            queue.move_to_end",
        tests_of(POOL, "test_new_request_does_not_overtake_a_waiter"),
    ),
    Mutant(
        "Of two wait queues the allocator serves the one whose head is younger",
        "pool/_rules/allocator.py",
        "head.sequence < first.sequence:",
        "head.sequence > first.sequence:",
        tests_of(POOL, "test_oldest_waiter_of_all_scopes_is_served"),
    ),
    Mutant(
        "A request that the provider refused joins the queue at its end, not at its front",
        "pool/_rules/allocator.py",
        "self.queue.add(record, front)",
        "self.queue.add(record, False)",
        tests_of(POOL, "test_request_with_front_is_served_first"),
    ),
    Mutant(
        "Small requests of another scope starve an older large request",
        "pool/_rules/allocator.py",
        "return not (record.tokens and self.waiting and self.queue.has_older_token_claim(credential, record, now))",
        "return True",
        tests_of(LIMITS, "test_small_requests_of_other_scopes_starve_no_large_one"),
    ),
    # --- leases and usage -----------------------------------------------------------------------------------------
    Mutant(
        "A bucket records any debt, so that a forged report of usage blocks its key for years",
        "limits/_windows.py",
        "max(level - amount, lowest))",
        "level - amount)",
        tests_of("pool/conformance/test_limits", "test_forged_usage_of_a_minute_is_forgotten_after_it"),
    ),
    Mutant(
        "Limits in the headers of a printed body reach the pool of all runs",
        "pool/lease_pool.py",
        "verdict = Verdict(TRANSIENT, message=verdict.message, is_printed=True)",
        "verdict = verdict._replace(kind=TRANSIENT)",
        tests_of("runs/test_dead_key_properties", "test_no_text_takes_a_key_out_of_use"),
    ),
    Mutant(
        "A credential gets one live lease more than max_concurrent",
        "pool/_rules/records.py",
        "return len(self.leases) < self.max_concurrent and",
        "return len(self.leases) <= self.max_concurrent and",
        tests_of(POOL, "test_release_serves_exactly_the_first_waiter"),
    ),
    Mutant(
        "A credential without a free lease returns to the free list",
        "pool/_rules/allocator.py",
        "if credential.max_concurrent > len(credential.leases):",
        "if credential.max_concurrent >= len(credential.leases):",
        tests_of(POOL, "test_live_leases_never_exceed_max_concurrent"),
    ),
    Mutant(
        "A credential that is removed and added again reuses fencing tokens",
        "pool/_rules/membership.py",
        "self._fences[id_] = credential.fence",
        "self._fences[id_] = 0",
        tests_of(POOL, "test_fence_grows_when_credential_leaves_and_returns"),
    ),
    Mutant(
        "A release ends the newest lease of the credential instead of its own",
        "pool/_rules/lease_end.py",
        "del credential.leases[record.fence]",
        "credential.leases.popitem()",
        tests_of(POOL, "test_release_ends_only_its_own_lease"),
    ),
    Mutant(
        "A second release of one lease is carried out",
        "pool/_rules/lease_end.py",
        "if record.state != LIVE:\n            return False\n        allocator, credential =",
        "if record.state == WAITING:\n            return False\n        allocator, credential =",
        tests_of(POOL, "test_second_release_changes_nothing"),
    ),
    Mutant(
        "A granted lease that its requester never picked up keeps its charge",
        "pool/_rules/lease_end.py",
        "        self._allocator.correct(record, 0, 0, now)\n",
        "",
        tests_of(LIMITS, "test_withdrawn_lease_uses_nothing"),
    ),
    Mutant(
        "A lease can be settled twice",
        "pool/_rules/allocator.py",
        "if record.state != LIVE or record.settled:",
        "if record.state != LIVE:",
        tests_of(POOL, "test_settle_counts_once_while_lease_is_live"),
    ),
    Mutant(
        "A waiter gets a credential whose cool-down began between grant and pick-up",
        "pool/_rules/allocator.py",
        "and (credential.usable_at(record.scope) <= now or self.guessed.is_probe(record, credential.group))",
        "and True",
        tests_of(POOL, "test_confirm_rejects_lease_of_unusable_credential"),
    ),
    Mutant(
        "A lease that is set aside ends instead of waiting again",
        "pool/_rules/lease_end.py",
        "self._end_unused(record, now, WAITING)",
        "self._end_unused(record, now, ENDED)",
        tests_of("pool/test_lease_states", "test_random_histories_make_exactly_the_listed_transitions"),
    ),
    # --- cool-downs -----------------------------------------------------------------------------------------------
    Mutant(
        "A later, shorter cool-down replaces a longer one",
        "pool/_rules/allocator.py",
        "if until <= max(cooldown_scope.cooling.get(scope, 0.0), now):",
        "if until <= now:",
        tests_of(POOL, "test_later_end_of_two_cooldowns_holds"),
    ),
    Mutant(
        "A prolonged cool-down ends at its first deadline",
        "pool/_rules/wake_ups.py",
        "elif cooldown_scope.cooling.get(scope) == until:",
        "elif scope in cooldown_scope.cooling:",
        tests_of(POOL, "test_prolonged_cooldown_ends_at_its_new_end"),
    ),
    Mutant(
        "A cool-down that ends now is not ended now",
        "pool/_rules/allocator.py",
        "while self.due and self.due[0][0] <= now:",
        "while self.due and self.due[0][0] < now:",
        tests_of(POOL, "test_grant_comes_exactly_when_cooldown_ends"),
    ),
    Mutant(
        "The store does not bring its wake-up forward when an earlier cool-down end is set",
        "pool/_memory.py",
        "wake_at < self._wake.at",
        "wake_at > self._wake.at",
        tests_of(CALLERS, "test_waiter_wakes_at_an_earlier_end_announced_later"),
    ),
    Mutant(
        "The pool wakes its waiters when the last cool-down ends instead of the first",
        "pool/_rules/allocator.py",
        "return self.due[0][0] if self.waiting",
        "return max(self.due)[0] if self.waiting",
        tests_of(CALLERS, "test_waiter_wakes_at_an_earlier_end_announced_later"),
    ),
    Mutant(
        "A cool-down longer than the cap is not capped",
        "pool/_rules/allocator.py",
        "        seconds = min(seconds, MAX_COOL_DOWN)\n",
        "",
        tests_of(POOL, "test_huge_wait_is_capped_and_reported"),
    ),
    # --- quarantine -----------------------------------------------------------------------------------------------
    Mutant(
        "The allocator grants a free credential although it is quarantined",
        "pool/_rules/allocator.py",
        "                credential.quarantine is None\n                and not credential.removed\n",
        "                not credential.removed\n",
        tests_of(POOL, "test_free_credential_is_not_granted_after_quarantine"),
    ),
    Mutant(
        "A release hands a quarantined credential to the next waiter",
        "pool/_rules/records.py",
        "self.max_concurrent and self.quarantine is None and not self.removed",
        "self.max_concurrent and not self.removed",
        tests_of(POOL, "test_credential_quarantined_in_use_serves_no_waiter"),
    ),
    Mutant(
        "Waiters are not refused when the last usable credential is quarantined",
        "pool/_rules/allocator.py",
        "credential.is_proven = credential.success_is_noop = False\n        self._refuse_unservable()",
        "credential.is_proven = credential.success_is_noop = False",
        tests_of(POOL, "test_all_quarantined_refuses_waiters_and_new_requests"),
    ),
    # --- provider feedback ----------------------------------------------------------------------------------------
    Mutant(
        "One 401 quarantines a credential",
        "pool/_rules/feedback.py",
        "by_another = credential.auth_failures > 1 and",
        "by_another = credential.auth_failures > 0 and",
        tests_of(POOL, "test_refusals_of_two_requesters_quarantine"),
    ),
    Mutant(
        "A 401 cools the whole quota group instead of its credential",
        "pool/_rules/feedback.py",
        "self._allocator.cool(credential.cooldown_scopes[0], None, cool_down(verdict), AUTH_FAILED, now)",
        "self._allocator.cool(credential.group, None, cool_down(verdict), AUTH_FAILED, now)",
        tests_of(POOL, "test_refusal_cools_its_key_not_the_group"),
    ),
    Mutant(
        "A success does not reset the count of 401s",
        "pool/_rules/feedback.py",
        "            credential.is_proven = True\n            credential.auth_failures = 0\n",
        "            credential.is_proven = True\n",
        tests_of(POOL, "test_success_between_refusals_prevents_quarantine"),
    ),
    Mutant(
        "Overload answers to requests that were sent together each raise the back-off",
        "pool/_rules/feedback.py",
        "        if sent_at < since:",
        "        if sent_at < -inf:",
        tests_of(ANSWERS, "test_simultaneous_overloads_count_once"),
    ),
    Mutant(
        "The estimator ignores Retry-After",
        "limits/_rate_estimator.py",
        "return hint if hint is not None else delay(",
        "return delay(",
        tests_of(LEARNING, "test_wait_after_a_refusal_equals_the_hint"),
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
        "        self._hold -= 1.0\n        if self._hold > 0.0:",
        "        if self._hold < 0.0:",
        tests_of(SWEEP, "test_unknown_limit_is_reached_with_few_refusals"),
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
    # --- declared limits ------------------------------------------------------------------------------------------
    Mutant(
        "The sliding window is 59 seconds long",
        "limits/declaration.py",
        "WINDOW_SECONDS = 60.0",
        "WINDOW_SECONDS = 59.0",
        tests_of(ANSWERS, "test_window_admits_no_more_requests_than_declared"),
    ),
    Mutant(
        "A failed request gets its charge back",
        "pool/_rules/lease_end.py",
        "            if cooldown_scope.pace.end(charge, record, now):\n",
        "            if record.is_answered:\n"
        "                cooldown_scope.pace.correct(charge, record, 0, record.tokens, now)\n"
        "            if cooldown_scope.pace.end(charge, record, now):\n",
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
        "if self._tokens is not None and (next_at :=",
        "if tokens and self._tokens is not None and (next_at :=",
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
        "limits/_windows.py",
        "        if now >= self.ends_at:\n            self.total = 0.0\n",
        "        if now >= self.ends_at:\n",
        tests_of(LIMITS, "test_day_usage_resets_when_the_day_ends"),
    ),
    Mutant(
        "A correction of yesterday's usage changes today's counter",
        "limits/_limiter.py",
        "(more_requests > 0 or entries.day_ends_at == self._day.ends_at > now):",
        "more_requests:",
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
        "self.limiter.change(limits, self.day_ends_after, now)",
        "self.limiter = RateLimiter(limits, self.day_ends_after, now)",
        tests_of(LIMITS, "test_further_key_of_a_group_keeps_its_usage"),
    ),
    Mutant(
        "Settling for less does not make the freed tokens available to waiters",
        "limits/_limiter.py",
        'only the excess counts."""\n        self.full_until = 0.0\n',
        'only the excess counts."""\n',
        tests_of(LIMITS, "test_requests_freed_by_settle_serve_a_waiter"),
    ),
)
