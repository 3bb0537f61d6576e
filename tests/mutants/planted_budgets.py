"""Planted bugs of budgets: what starts, what is refused, and what is forgotten."""

from __future__ import annotations

from . import Mutant, tests_of

RULE = "costs/test_budget"
RUNS = "runs/test_budgets"
ACCOUNTS = "gateway/test_request_accounts"

MUTANTS = (
    Mutant(
        "The cost that a worker reports does not count in windows",
        "runs/_parts/attempt_context.py",
        '            cost = float(attempt.usage["cost"])\n',
        "            cost = 0.0\n",
        tests_of(RUNS, "test_reported_cost_counts_in_windows"),
    ),
    Mutant(
        "The budget adds up fractions",
        "costs/budget.py",
        "        more = units(amount)\n",
        "        more = amount * 1e9 * (1 + 1e-15)\n",
        tests_of(RULE, "test_as_many_items_start_as_the_budget_pays"),
    ),
    Mutant(
        "A started item of a budget with an expected cost starts beyond it by rounding",
        "costs/budget.py",
        "        return self._ended_units // self._ended if self._ended else self._estimate\n",
        "        return -(-self._ended_units // self._ended) + 1 if self._ended else self._estimate\n",
        tests_of(RULE, "test_as_many_items_start_as_the_budget_pays"),
    ),
    Mutant(
        "The budget counts running items as if they spent nothing",
        "costs/budget.py",
        "        total = self._spent_units + self._reserved + self._expected_units()\n",
        "        total = self._spent_units + self._expected_units()\n",
        tests_of(RULE, "test_estimate_counts_until_an_item_has_ended"),
    ),
    Mutant(
        "The budget admits an item without its own expected cost",
        "costs/budget.py",
        "        return total <= self._limit_units and not self.is_reached\n",
        "        return total - self._expected_units() < self._limit_units\n",
        tests_of(RULE, "test_only_running_items_spend_beyond_the_budget"),
    ),
    Mutant(
        "The budget forgets what earlier launches have spent",
        "runs/_parts/run_parts.py",
        "    before = Spent() if run_record is None or run_record.launch == 1 else run_record.spent_before()\n",
        "    before = Spent()\n",
        tests_of(RUNS, "test_resume_counts_what_earlier_launches_spent"),
    ),
    Mutant(
        "What unfinished items have spent raises what the next one is expected to spend",
        "costs/budget.py",
        "        self._ended_units = units(ended_spent)\n",
        "        self._ended_units = self._spent_units if ended else 0\n",
        tests_of(RULE, "test_unfinished_items_of_earlier_launches_change_no_mean"),
    ),
    Mutant(
        "The budget of an item forgets what earlier launches have spent",
        "runs/_parts/spending.py",
        "{item: units(cost) for item, cost in before.by_item.items()}",
        "dict[str, int]()",
        tests_of(RUNS, "test_item_budget_counts_earlier_launches"),
    ),
    Mutant(
        "A hard budget is kept like a soft one",
        "runs/_parts/spending.py",
        "            if budget.is_hard and (self._money.is_reached or self._tokens.is_reached):\n",
        "            if False:\n",
        tests_of(RUNS, "test_hard_budget_leaves_refused_items_unfinished"),
    ),
    Mutant(
        "An item whose request a hard budget refused fails",
        "runs/_parts/outcome.py",
        "            return INTERRUPTED if original.is_of_run else PERMANENT, NO_VERDICT\n",
        "            return PERMANENT, NO_VERDICT\n",
        tests_of(RUNS, "test_hard_budget_leaves_refused_items_unfinished"),
    ),
    Mutant(
        "A refusal for the budget that its worker hides is a success",
        "runs/_parts/spending.py",
        "        if meter.refused is not None:\n",
        "        if meter.refused is not None and exc is not None:\n",
        tests_of(RUNS, "test_refusal_that_a_worker_hides_is_no_success"),
    ),
    Mutant(
        "A model without a price is free",
        "runs/_parts/spending.py",
        "            if cost is None and budget.has_money:\n",
        "            if cost is None and budget.has_money and model is None:\n",
        tests_of(RUNS, "test_unknown_price_stops_the_run_before_a_request"),
    ),
    Mutant(
        "An item that reports nothing is free",
        "runs/_parts/spending.py",
        "        if exc is None and self._is_unreported(attempt):\n",
        "        if False:\n",
        tests_of(RUNS, "test_success_without_a_report_stops_the_run"),
    ),
    Mutant(
        "An item goes on beyond its own budget",
        "runs/_parts/spending.py",
        "            if budget.item is not None and self._is_item_reached(item_id):\n",
        "            if False:\n",
        tests_of(RUNS, "test_item_budget_refuses_further_requests"),
    ),
    Mutant(
        "A retry starts beyond the budget",
        "runs/_driver/driver.py",
        "                if has_budget and not self._spending.admits_item():\n",
        "                if not scheduler.sent_back and scheduler.completed and not self._spending.admits_item():\n",
        tests_of(RUNS, "test_retry_starts_only_within_the_budget"),
    ),
    Mutant(
        "A request is sent before it is on record",
        "gateway/_request_account.py",
        "        await _recorded(client.meter)\n",
        "        client.meter.record(lambda: None)\n",
        tests_of(ACCOUNTS, "test_request_is_on_record_before_it_is_sent"),
    ),
    Mutant(
        "A request is sent although the budget was reached while it was recorded",
        "gateway/_request_account.py",
        "        await _recorded(client.meter)\n        try:\n            self.check()\n",
        "        self.check()\n        await _recorded(client.meter)\n        try:\n            pass\n",
        tests_of(ACCOUNTS, "test_budget_reached_while_recording_refuses_the_request"),
    ),
    Mutant(
        "A request is sent for an attempt whose record is closed",
        "gateway/_request_account.py",
        "            if not client.is_open:",
        "            if False:",
        tests_of(ACCOUNTS, "test_request_of_an_ended_attempt_is_not_sent"),
    ),
    Mutant(
        "The record of an attempt leaves out its requests under way",
        "gateway/client_tokens.py",
        "            for account in self.unsettled:\n",
        "            for account in ():\n",
        tests_of(ACCOUNTS, "test_request_is_on_record_before_it_is_sent"),
    ),
    Mutant(
        "A request that gets no answer is not counted",
        "gateway/_request_account.py",
        "            if self._is_counted or not self.is_open:\n",
        "            if self._is_counted or not self.is_open or self.reader is None:\n",
        tests_of(ACCOUNTS, "test_request_without_an_answer_counts_as_estimated"),
    ),
    Mutant(
        "A request is counted again when its attempt ends",
        "gateway/_request_account.py",
        "            self._is_counted = True\n",
        "            pass\n",
        tests_of(ACCOUNTS, "test_request_without_an_answer_counts_as_estimated"),
    ),
    Mutant(
        "A request that its provider refused counts as sent",
        "gateway/_exchange.py",
        "        self.state.stall.leased -= 1\n        self._account.withdraw()\n",
        "        self.state.stall.leased -= 1\n        self._account.count()\n",
        tests_of(ACCOUNTS, "test_refusal_of_a_provider_costs_nothing"),
    ),
    Mutant(
        "A request that the budget refuses waits for a credential before that",
        "gateway/_exchange.py",
        "        for _ in range(MAX_SENDS):\n            self._account.check()\n",
        "        for _ in range(MAX_SENDS):\n",
        tests_of(ACCOUNTS, "test_refused_request_does_not_wait_for_a_credential"),
    ),
    Mutant(
        "The price of a request leaves out the prompt cache",
        "costs/prices.py",
        "                counts = input_tokens + cached_tokens, output_tokens, cached_tokens, cache_write_tokens\n",
        "                counts = input_tokens, output_tokens, cached_tokens, cache_write_tokens\n",
        tests_of("costs/test_prices", "test_cost_is_that_of_the_package"),
    ),
    Mutant(
        "A price with tiers is taken for one without",
        "costs/prices.py",
        "    return price, inf if isclose(large, sample * TOKENS_PER_PRICE) else USUAL_TOKENS\n",
        "    return price, inf\n",
        tests_of("costs/test_prices", "test_cost_is_that_of_the_package"),
    ),
)
