"""Bugs of runs and their ledger: what becomes of each item, and what is on record."""

from __future__ import annotations

from . import Mutant, tests_of

RUN = "runs/test_scheduler"
LEDGER = "ledger/test_ledger"
IDENTITY = "items/test_duplicates"
CRASHES = "acceptance/test_crashes"

MUTANTS = (
    # --- what becomes of an item ----------------------------------------------------------------------------------
    Mutant(
        "An item has one retry less than was asked for",
        "runs/_rules/scheduler.py",
        "return FAILED if item.failures > self.retries else Again(",
        "return FAILED if item.failures >= self.retries else Again(",
        tests_of(RUN, "test_a_transient_error_spends_the_retries"),
    ),
    Mutant(
        "Going on with another credential spends a retry",
        "runs/_rules/scheduler.py",
        "if item.rotations <= FREE_ROTATIONS:",
        "if item.rotations < 1:",
        tests_of(RUN, "test_rotating_spends_no_retry_until_it_has_happened_very_often"),
    ),
    Mutant(
        "An item may kill its worker process for ever",
        "runs/_rules/scheduler.py",
        "            item.deaths += 1\n",
        "            item.deaths = 1\n",
        tests_of(RUN, "test_three_deaths_of_its_worker_process_fail_an_item"),
    ),
    Mutant(
        "An item that was told to stop is taken for a failure",
        "runs/_rules/scheduler.py",
        "        if kind == INTERRUPTED:\n            return UNFINISHED\n",
        "        if kind == INTERRUPTED:\n            return FAILED\n",
        tests_of(LEDGER, "test_an_interrupted_item_is_no_failure_and_runs_again"),
    ),
    Mutant(
        "An item that pauses when the run is stopped vanishes",
        "runs/_rules/scheduler.py",
        "        if self.stopped is not None or decision is UNFINISHED:\n            return UNFINISHED\n",
        "        if self.stopped is not None or decision is UNFINISHED:\n"
        "            del self.unfinished[item.id]\n            return UNFINISHED\n",
        tests_of(RUN, "test_a_stopping_run_leaves_items_unfinished_instead_of_trying_again"),
    ),
    Mutant(
        "Items that pause do not hold up reading, however many",
        "runs/_rules/scheduler.py",
        "or len(self._pausing) + blocked >= MOST_PAUSING:",
        "or blocked >= MOST_PAUSING:",
        tests_of(RUN, "test_reading_stops_when_too_many_items_pause"),
    ),
    # --- which items run again ------------------------------------------------------------------------------------
    Mutant(
        "Trying failed items again runs the others again, too",
        "ledger/resume_filter.py",
        'outcome == "failed" and retry_failed',
        'outcome == "failed" or retry_failed',
        tests_of(IDENTITY, "test_only_what_has_no_outcome_runs_and_what_failed_if_asked"),
    ),
    Mutant(
        "An item that was interrupted counts as done",
        "ledger/resume_filter.py",
        "if outcome is None or (outcome",
        "if (outcome",
        tests_of(IDENTITY, "test_only_what_has_no_outcome_runs_and_what_failed_if_asked"),
    ),
    Mutant(
        "A changed input gets the recorded result of the old one",
        "ledger/resume_filter.py",
        "is_changed = input_hash != item.input_hash or (short_input is not None and short_input != given)",
        "is_changed = input_hash != item.input_hash",
        tests_of(LEDGER, "test_a_changed_input_is_reported_and_refused_and_the_record_stays"),
    ),
    Mutant(
        "A changed long input is not noticed",
        "ledger/resume_filter.py",
        "is_changed = input_hash != item.input_hash or (short_input",
        "is_changed = (short_input",
        tests_of(LEDGER, "test_a_changed_long_input_is_found_too"),
    ),
    Mutant(
        "An id that stands twice among very many is not found",
        "items/duplicates.py",
        "            shared.add(slot)\n",
        "            pass\n",
        tests_of(RUN, "test_a_duplicate_is_found_however_many_ids_there_are"),
    ),
    Mutant(
        "An id that comes again in a stream runs again",
        "ledger/resume_filter.py",
        "if launch == self._record.launch or self._has_seen(number):",
        "if self._has_seen(number):",
        tests_of(LEDGER, "test_a_repeated_id_in_a_stream_is_always_found"),
    ),
    Mutant(
        "An id that comes again and is on record is counted twice",
        "ledger/resume_filter.py",
        "if launch == self._record.launch or self._has_seen(number):",
        "if launch == self._record.launch:",
        tests_of(LEDGER, "test_a_recorded_id_that_comes_again_much_later_is_found"),
    ),
    # --- what is on record ----------------------------------------------------------------------------------------
    Mutant(
        "An outcome on record is written over",
        "ledger/_batch.py",
        "WHERE (items.outcome IS NULL OR (items.outcome",
        "WHERE (items.outcome IS NOT NULL OR items.outcome IS NULL OR (items.outcome",
        tests_of(LEDGER, "test_a_success_is_written_over_by_no_launch"),
    ),
    Mutant(
        "A failure is written over within the same launch",
        "ledger/_batch.py",
        "AND excluded.launch > items.launch))",
        "AND excluded.launch >= items.launch))",
        tests_of(LEDGER, "test_a_failed_outcome_is_written_over_by_a_later_launch_only"),
    ),
    Mutant(
        "An older attempt of the same launch writes over a newer one",
        "ledger/_batch.py",
        "AND (excluded.launch, excluded.n) >= (items.launch, items.n)",
        "AND excluded.launch >= items.launch",
        tests_of(LEDGER, "test_an_older_attempt_writes_over_nothing"),
    ),
    Mutant(
        "An older attempt saves over the checkpoint of a newer one",
        "ledger/_batch.py",
        "WHERE (excluded.launch, excluded.n) >= (checkpoints.launch, checkpoints.n)",
        "WHERE excluded.launch >= checkpoints.launch",
        tests_of(LEDGER, "test_an_older_attempt_writes_over_nothing"),
    ),
    Mutant(
        "A stale attempt is told that its checkpoint was saved",
        "ledger/record.py",
        "        if attempt.attempt != attempt.item.attempts:\n            raise",
        "        if attempt.attempt > attempt.item.attempts:\n            raise",
        tests_of(LEDGER, "test_a_stale_attempt_cannot_save"),
    ),
    Mutant(
        "An older launch goes on writing after a later one has begun",
        "ledger/record.py",
        "(SELECT max(launch) FROM launches WHERE run = ?) = ?",
        "(SELECT max(launch) FROM launches WHERE run = ?) >= ?",
        tests_of(LEDGER, "test_a_launch_that_was_taken_over_cannot_write"),
    ),
    Mutant(
        "A result is reported before it is on record",
        "ledger/record.py",
        "                batch.write(self._connection, self.redact)\n",
        "                self._on_recorded(batch.results, batch.size)\n"
        "                batch.write(self._connection, self.redact)\n"
        "                batch.results = []\n",
        tests_of(LEDGER, "test_a_full_disk_stops_the_run_and_the_next_launch_goes_on"),
    ),
    Mutant(
        "A checkpoint is said to be saved before it is on record",
        "ledger/_batch.py",
        "        self.savers.append(saver)\n",
        "        saver.set()\n",
        tests_of(LEDGER, "test_a_checkpoint_that_cannot_be_written_is_told_to_its_worker"),
    ),
    Mutant(
        "A ledger that was removed while in use is written on",
        "ledger/record.py",
        "            if not _is_still(path, stat):\n",
        "            if not stat:\n",
        tests_of(LEDGER, "test_a_ledger_that_is_replaced_while_in_use_stops_the_run"),
    ),
    Mutant(
        "A ledger that has lost its last transactions is gone on with",
        "ledger/ownership.py",
        "== ledger_id and seen > commits:",
        "== ledger_id and seen < commits:",
        tests_of(CRASHES, "test_a_damaged_wal_file_is_noticed"),
    ),
    Mutant(
        "An input keeps the secret that is in it",
        "ledger/_batch.py",
        "    cleaned = json_text.all_without_secrets(texts, redact)\n",
        "    cleaned = texts\n",
        tests_of(LEDGER, "test_no_secret_of_the_pool_is_in_any_file"),
    ),
)
