"""Bugs of the pool: who gets which credential, and when."""

from __future__ import annotations

from . import Mutant, tests_of

POOL = "pool/test_allocator"
LIMITS = "limits/test_limits"
LEARNING = "limits/test_learning"
ANSWERS = "pool/conformance/test_limits"
CALLERS = "pool/conformance/test_pool"

MUTANTS = (
    # --- whose turn it is -----------------------------------------------------------------------------------------
    Mutant(
        "The last to ask is the first to be served",
        "pool/_rules/allocator.py",
        "        if front:\n            queue.move_to_end",
        "        if not front:\n            queue.move_to_end",
        tests_of(POOL, "test_a_newcomer_does_not_overtake_a_waiter"),
    ),
    Mutant(
        "Of two queues the one whose head asked later is served",
        "pool/_rules/allocator.py",
        "head.sequence < first.sequence:",
        "head.sequence > first.sequence:",
        tests_of(POOL, "test_among_waiters_of_different_scopes_the_first_to_ask_is_served"),
    ),
    Mutant(
        "One that the provider sent back asks behind all others",
        "pool/_rules/allocator.py",
        "self._enqueue(record, front)",
        "self._enqueue(record, False)",
        tests_of(POOL, "test_one_that_was_sent_back_asks_in_front"),
    ),
    Mutant(
        "Small requests of another scope starve a large one",
        "pool/_rules/allocator.py",
        "return not (record.tokens and self.waiting and self._has_older_claim(credential, record, now))",
        "return True",
        tests_of(LIMITS, "test_a_large_request_is_not_starved_by_small_ones_of_another_scope"),
    ),
    # --- who holds what -------------------------------------------------------------------------------------------
    Mutant(
        "A credential is lent once more often than it may be",
        "pool/_rules/records.py",
        "return len(self.leases) < self.max_concurrent and",
        "return len(self.leases) <= self.max_concurrent and",
        tests_of(POOL, "test_a_release_serves_exactly_the_first_waiter"),
    ),
    Mutant(
        "A credential that is fully lent is offered to whoever comes",
        "pool/_rules/allocator.py",
        "if credential.max_concurrent > len(credential.leases):",
        "if credential.max_concurrent >= len(credential.leases):",
        tests_of(POOL, "test_live_leases_never_exceed_max_concurrent"),
    ),
    Mutant(
        "A credential that comes back begins with fences that were given before",
        "pool/_rules/allocator.py",
        "self._fences[id_] = credential.fence",
        "self._fences[id_] = 0",
        tests_of(POOL, "test_fences_grow_also_when_a_credential_leaves_and_comes_back"),
    ),
    Mutant(
        "A release ends whichever lease of the credential is the newest",
        "pool/_rules/allocator.py",
        "del credential.leases[record.fence]",
        "credential.leases.popitem()",
        tests_of(POOL, "test_of_several_leases_of_a_credential_the_one_that_is_released_ends"),
    ),
    Mutant(
        "A late release frees the lease of the next holder",
        "pool/_rules/allocator.py",
        "if record.state != LIVE:\n            return False\n        credential = record.credential\n        assert",
        "if record.state == WAITING:\n            return False\n        credential = record.credential\n        assert",
        tests_of(POOL, "test_a_second_release_changes_nothing"),
    ),
    Mutant(
        "A lease that nobody picked up stays used",
        "pool/_rules/allocator.py",
        "        if record.state == LIVE:\n            self._correct(record, 0, 0, now)\n",
        "        if record.state == LIVE:\n",
        tests_of(LIMITS, "test_a_lease_that_was_never_picked_up_uses_nothing"),
    ),
    Mutant(
        "What was used can be settled twice",
        "pool/_rules/allocator.py",
        "if record.state != LIVE or record.settled:",
        "if record.state != LIVE:",
        tests_of(POOL, "test_settling_counts_once_and_only_while_the_lease_is_live"),
    ),
    Mutant(
        "A waiter is handed a credential that has cooled down on the way",
        "pool/_rules/allocator.py",
        "not credential.removed and credential.usable_at(record.scope) <= now:",
        "not credential.removed:",
        tests_of(POOL, "test_a_lease_that_became_worthless_on_the_way_is_not_handed_out"),
    ),
    # --- cool-downs -----------------------------------------------------------------------------------------------
    Mutant(
        "Of two cool-downs the one that was told last holds, also if it ends earlier",
        "pool/_rules/allocator.py",
        "if until <= max(before, now):",
        "if until <= now:",
        tests_of(POOL, "test_of_two_cool_downs_the_later_end_holds"),
    ),
    Mutant(
        "A prolonged cool-down ends at its first end",
        "pool/_rules/allocator.py",
        "elif domain.cooling.get(scope) == until:",
        "elif scope in domain.cooling:",
        tests_of(POOL, "test_a_prolonged_cool_down_ends_at_its_new_end_only"),
    ),
    Mutant(
        "A cool-down lasts an instant longer than it should",
        "pool/_rules/allocator.py",
        "while self._ends and self._ends[0][0] <= now:\n",
        "while self._ends and self._ends[0][0] < now:\n",
        tests_of(POOL, "test_no_grant_before_a_cool_down_ends_and_one_exactly_then"),
    ),
    Mutant(
        "A waiter sleeps on when an earlier end than the one it waits for is told",
        "pool/_memory.py",
        "wake_at < self._wake.at",
        "wake_at > self._wake.at",
        tests_of(CALLERS, "test_a_waiter_is_woken_by_an_earlier_end_than_the_one_that_was_known_first"),
    ),
    Mutant(
        "A waiter sleeps until the last of all cool-downs ends",
        "pool/_rules/allocator.py",
        "return self._ends[0][0] if self.waiting",
        "return max(self._ends)[0] if self.waiting",
        tests_of(CALLERS, "test_a_waiter_is_woken_by_an_earlier_end_than_the_one_that_was_known_first"),
    ),
    Mutant(
        "A wait that is longer than a day is believed",
        "pool/_rules/allocator.py",
        "        seconds = min(seconds, MOST_COOL_DOWN)\n",
        "",
        tests_of(POOL, "test_a_huge_wait_is_capped_and_the_cap_is_reported"),
    ),
    # --- quarantine -----------------------------------------------------------------------------------------------
    Mutant(
        "A quarantined credential is still given to whoever comes",
        "pool/_rules/allocator.py",
        "                credential.quarantine is None\n                and not credential.removed\n",
        "                not credential.removed\n",
        tests_of(POOL, "test_a_free_credential_is_not_granted_any_more_once_it_is_quarantined"),
    ),
    Mutant(
        "A quarantined credential goes to the next waiter when it is released",
        "pool/_rules/records.py",
        "self.max_concurrent and self.quarantine is None and not self.removed",
        "self.max_concurrent and not self.removed",
        tests_of(POOL, "test_a_credential_that_was_quarantined_in_use_goes_to_nobody_when_it_comes_back"),
    ),
    Mutant(
        "Those who wait for the last credential are not told that it is dead",
        "pool/_rules/allocator.py",
        "credential.is_proven = False\n        self._refuse_the_hopeless()",
        "credential.is_proven = False",
        tests_of(POOL, "test_when_all_are_quarantined_waiters_are_refused_and_so_is_who_comes"),
    ),
    # --- what answers mean ----------------------------------------------------------------------------------------
    Mutant(
        "One 401 is enough to quarantine a key",
        "pool/_rules/feedback.py",
        "by_another = credential.auth_failures > 1 and",
        "by_another = credential.auth_failures > 0 and",
        tests_of(POOL, "test_one_refusal_cools_and_a_second_from_another_item_quarantines"),
    ),
    Mutant(
        "One key's 401 cools its whole group",
        "pool/_rules/feedback.py",
        "self._pool.cool(credential.domains[0], None, cool_down(verdict), AUTH_FAILED, now)",
        "self._pool.cool(credential.group, None, cool_down(verdict), AUTH_FAILED, now)",
        tests_of(POOL, "test_one_refusal_cools_its_own_key_and_no_other_of_the_group"),
    ),
    Mutant(
        "A success between two 401s is forgotten",
        "pool/_rules/feedback.py",
        "            credential.is_proven = True\n            credential.auth_failures = 0\n",
        "            credential.is_proven = True\n",
        tests_of(POOL, "test_a_success_between_two_refusals_means_no_quarantine"),
    ),
    Mutant(
        "Overloads of requests that were sent together count one by one",
        "pool/_rules/feedback.py",
        "        if sent_at < since:",
        "        if sent_at < -inf:",
        tests_of(ANSWERS, "test_many_that_were_overloaded_together_wait_once"),
    ),
    Mutant(
        "Retry-After is read and not obeyed",
        "limits/_rate_estimator.py",
        "        wait = hint\n",
        "        wait = None\n",
        tests_of(LEARNING, "test_a_hint_is_obeyed_to_the_letter"),
    ),
    Mutant(
        "Every refusal of one episode doubles the wait",
        "limits/_rate_estimator.py",
        "if sent_at <= self._cut_at:",
        "if sent_at < -math.inf:",
        tests_of(LEARNING, "test_refusals_of_one_episode_do_not_double_the_wait_each"),
    ),
    Mutant(
        "An answer that was overtaken on its way overrules a newer one",
        "limits/_rate_estimator.py",
        "if sent_at < self._snapshot_at or not",
        "if not",
        tests_of(LEARNING, "test_an_older_answer_does_not_overrule_a_newer_one"),
    ),
    Mutant(
        "What is on its way is spent a second time",
        "limits/_rate_estimator.py",
        "others = max(0, self.in_flight - 1)",
        "others = 0",
        tests_of(LEARNING, "test_what_is_on_its_way_is_taken_off_what_a_header_says_is_left"),
    ),
    Mutant(
        "Keys of equal limits are taken for keys that share one",
        "pool/_rules/shared_limits.py",
        "TRIAL_REQUESTS = 12",
        "TRIAL_REQUESTS = 1",
        tests_of(LEARNING, "test_keys_of_equal_limits_that_start_together_are_not_taken_for_one"),
    ),
    Mutant(
        "Keys that share a limit are never found out",
        "pool/_rules/shared_limits.py",
        "known.coincidences[pair] = known.coincidences.get(pair, 0) + 1",
        "known.coincidences[pair] = 1",
        tests_of(LEARNING, "test_keys_that_secretly_share_a_limit_are_used_well_and_may_be_found_out"),
    ),
    # --- declared limits ------------------------------------------------------------------------------------------
    Mutant(
        "A minute has 59 seconds",
        "limits/_windows.py",
        "WINDOW_SECONDS = 60.0",
        "WINDOW_SECONDS = 59.0",
        tests_of(ANSWERS, "test_a_minute_holds_no_more_requests_than_declared"),
    ),
    Mutant(
        "A request that failed is given back",
        "pool/_rules/allocator.py",
        "            domain.pace.end(charge, record, now)\n",
        "            if record.is_answered:\n"
        "                domain.pace.correct(charge, record, 0, record.tokens, now)\n"
        "            domain.pace.end(charge, record, now)\n",
        tests_of(LIMITS, "test_a_failed_request_is_not_given_back"),
    ),
    Mutant(
        "What is used beyond a bucket's content is forgotten",
        "limits/_windows.py",
        "self._level = min(self.capacity, level - amount)",
        "self._level = max(0.0, min(self.capacity, level - amount))",
        tests_of(LIMITS, "test_a_bucket_in_debt_has_to_be_filled_first"),
    ),
    Mutant(
        "A bucket that nobody uses fills without end",
        "limits/_windows.py",
        "return level if level < self.capacity else self.capacity",
        "return level",
        tests_of(LIMITS, "test_a_bucket_that_nobody_uses_holds_no_more_than_it_can"),
    ),
    Mutant(
        "Those who do not say how many tokens they need get past a debt",
        "limits/_usage.py",
        "if self._tokens is not None and (then :=",
        "if tokens and self._tokens is not None and (then :=",
        tests_of(ANSWERS, "test_tokens_are_reserved_and_settled_and_overshoot_is_debt"),
    ),
    Mutant(
        "Tokens beyond what was reserved leave the window with the reservation",
        "limits/_windows.py",
        "            self.take(amount - known, now)\n",
        "            entry.amount += amount - known\n            self.total += amount - known\n",
        tests_of(LIMITS, "test_overshoot_counts_from_when_it_is_known_and_what_was_not_used_is_free_again"),
    ),
    Mutant(
        "A day that has ended goes on counting",
        "limits/_windows.py",
        "        if now >= self.ends_at:\n            self.total = 0.0\n",
        "        if now >= self.ends_at:\n",
        tests_of(LIMITS, "test_a_day_begins_anew_at_its_reset"),
    ),
    Mutant(
        "What was not used yesterday is given to today",
        "limits/_usage.py",
        "(more_requests > 0 or taken.day_ends_at == self._day.ends_at > now):",
        "more_requests:",
        tests_of(LIMITS, "test_what_was_not_used_yesterday_is_not_given_to_today"),
    ),
    Mutant(
        "Of two declarations about one group the laxer holds",
        "limits/declaration.py",
        "if other is None else min(one, other)",
        "if other is None else max(one, other)",
        tests_of(LIMITS, "test_the_strictest_of_two_declarations_holds"),
    ),
    Mutant(
        "A further key of a group renews its allowance",
        "limits/pace.py",
        "self.allowance.change(together, self.ends_after, now)",
        "self.allowance = Allowance(together, self.ends_after, now)",
        tests_of(LIMITS, "test_a_further_key_of_a_group_does_not_renew_its_allowance"),
    ),
    Mutant(
        "What is settled for less does not reach those who wait for it",
        "limits/_usage.py",
        'that which is more counts."""\n        self.full_until = 0.0\n',
        'that which is more counts."""\n',
        tests_of(LIMITS, "test_a_request_that_fits_once_another_is_settled_for_less_is_served_then"),
    ),
)
