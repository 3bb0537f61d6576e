"""Planted bugs of the pool: which request gets which credential, and when."""

from __future__ import annotations

from . import Mutant, tests_of

POOL = "pool/test_allocator"
LIMITS = "limits/test_limiter"
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
        "not record.is_plain and self.queue.has_older_token_claim(credential, record, now)",
        "False",
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
        "        self._allocator.correct(record, 0, 0, None, now)\n",
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
        "pool/_rules/credential_changes.py",
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
        "pool/_rules/credential_changes.py",
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
        "pool/_rules/credential_changes.py",
        "credential.is_proven = credential.is_healthy = False\n        self._refuse_unservable()",
        "credential.is_proven = credential.is_healthy = False",
        tests_of(POOL, "test_all_quarantined_refuses_waiters_and_new_requests"),
    ),
    # --- provider feedback ----------------------------------------------------------------------------------------
    Mutant(
        "One 401 quarantines a credential",
        "pool/_rules/records.py",
        "by_another = self.auth_failures > 0 and",
        "by_another = self.auth_failures >= 0 and",
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
)
