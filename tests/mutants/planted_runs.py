"""Planted bugs of runs and their ledger: retries and outcomes of items, resuming, and what is recorded."""

from __future__ import annotations

from . import Mutant, tests_of

RUN = "runs/test_scheduler"
LEDGER = "ledger/test_ledger"
IDENTITY = "items/test_duplicates"
CRASHES = "acceptance/test_crashes"

MUTANTS = (
    # --- outcome of an attempt ------------------------------------------------------------------------------------
    Mutant(
        "An item gets one retry less than configured",
        "runs/_rules/scheduler.py",
        "return FAILED if item.failures > self.retries else Again(",
        "return FAILED if item.failures >= self.retries else Again(",
        tests_of(RUN, "test_a_transient_error_spends_the_retries"),
    ),
    Mutant(
        "Rotation to another credential spends a retry",
        "runs/_rules/scheduler.py",
        "if item.rotations <= FREE_ROTATIONS:",
        "if item.rotations < 1:",
        tests_of(RUN, "test_rotating_spends_no_retry_until_it_has_happened_very_often"),
    ),
    Mutant(
        "The scheduler retries an item without end although it kills its worker process each time",
        "runs/_rules/scheduler.py",
        "            item.deaths += 1\n",
        "            item.deaths = 1\n",
        tests_of(RUN, "test_three_deaths_of_its_worker_process_fail_an_item"),
    ),
    Mutant(
        "An interrupted item counts as failed",
        "runs/_rules/scheduler.py",
        "        if kind == INTERRUPTED:\n            return UNFINISHED\n",
        "        if kind == INTERRUPTED:\n            return FAILED\n",
        tests_of(LEDGER, "test_an_interrupted_item_is_no_failure_and_runs_again"),
    ),
    Mutant(
        "An item whose attempt fails while the run stops is dropped from the unfinished items",
        "runs/_rules/scheduler.py",
        "        if self.stopped is not None or decision is UNFINISHED:\n            return UNFINISHED\n",
        "        if self.stopped is not None or decision is UNFINISHED:\n"
        "            del self.unfinished[item.id]\n            return UNFINISHED\n",
        tests_of(RUN, "test_a_stopping_run_leaves_items_unfinished_instead_of_trying_again"),
    ),
    Mutant(
        "Paused items do not count towards the back-pressure on reading",
        "runs/_rules/scheduler.py",
        "or len(self._pausing) + blocked >= MOST_PAUSING:",
        "or blocked >= MOST_PAUSING:",
        tests_of(RUN, "test_reading_stops_when_too_many_items_pause"),
    ),
    # --- resuming -------------------------------------------------------------------------------------------------
    Mutant(
        "Retrying failed items also runs succeeded ones again",
        "ledger/resume_filter.py",
        'outcome == "failed" and retry_failed',
        'outcome == "failed" or retry_failed',
        tests_of(IDENTITY, "test_only_what_has_no_outcome_runs_and_what_failed_if_asked"),
    ),
    Mutant(
        "The resume filter skips an interrupted item",
        "ledger/resume_filter.py",
        "if outcome is None or (outcome",
        "if (outcome",
        tests_of(IDENTITY, "test_only_what_has_no_outcome_runs_and_what_failed_if_asked"),
    ),
    Mutant(
        "The resume filter returns the recorded result of an old input for a changed short input",
        "ledger/resume_filter.py",
        "is_changed = input_hash != item.input_hash or (short_input is not None and short_input != given)",
        "is_changed = input_hash != item.input_hash",
        tests_of(LEDGER, "test_a_changed_input_is_reported_and_refused_and_the_record_stays"),
    ),
    Mutant(
        "The resume filter does not notice a changed long input",
        "ledger/resume_filter.py",
        "is_changed = input_hash != item.input_hash or (short_input",
        "is_changed = (short_input",
        tests_of(LEDGER, "test_a_changed_long_input_is_found_too"),
    ),
    Mutant(
        "The duplicate check of a large input ignores slots that two ids share",
        "items/duplicates.py",
        "            shared.add(slot)\n",
        "            pass\n",
        tests_of(RUN, "test_a_duplicate_is_found_however_many_ids_there_are"),
    ),
    Mutant(
        "An id that a stream repeats within one launch runs twice",
        "ledger/resume_filter.py",
        "if launch == self._record.launch or self._has_seen(number):",
        "if self._has_seen(number):",
        tests_of(LEDGER, "test_a_repeated_id_in_a_stream_is_always_found"),
    ),
    Mutant(
        "A recorded id that a stream repeats is counted twice",
        "ledger/resume_filter.py",
        "if launch == self._record.launch or self._has_seen(number):",
        "if launch == self._record.launch:",
        tests_of(LEDGER, "test_a_recorded_id_that_comes_again_much_later_is_found"),
    ),
    # --- the ledger ------------------------------------------------------------------------------------------------
    Mutant(
        "The ledger overwrites a recorded success",
        "ledger/_batch.py",
        "WHERE (items.outcome IS NULL OR (items.outcome",
        "WHERE (items.outcome IS NOT NULL OR items.outcome IS NULL OR (items.outcome",
        tests_of(LEDGER, "test_a_success_is_written_over_by_no_launch"),
    ),
    Mutant(
        "The ledger overwrites a failure within the same launch",
        "ledger/_batch.py",
        "AND excluded.launch > items.launch))",
        "AND excluded.launch >= items.launch))",
        tests_of(LEDGER, "test_a_failed_outcome_is_written_over_by_a_later_launch_only"),
    ),
    Mutant(
        "An older attempt overwrites the outcome of a newer one of the same launch",
        "ledger/_batch.py",
        "AND (excluded.launch, excluded.n) >= (items.launch, items.n)",
        "AND excluded.launch >= items.launch",
        tests_of(LEDGER, "test_an_older_attempt_writes_over_nothing"),
    ),
    Mutant(
        "An older attempt overwrites the checkpoint of a newer one",
        "ledger/_batch.py",
        "WHERE (excluded.launch, excluded.n) >= (checkpoints.launch, checkpoints.n)",
        "WHERE excluded.launch >= checkpoints.launch",
        tests_of(LEDGER, "test_an_older_attempt_writes_over_nothing"),
    ),
    Mutant(
        "The ledger accepts a checkpoint from a stale attempt",
        "ledger/record.py",
        "        if attempt.attempt != attempt.item.attempts:\n            raise",
        "        if attempt.attempt > attempt.item.attempts:\n            raise",
        tests_of(LEDGER, "test_a_stale_attempt_cannot_save"),
    ),
    Mutant(
        "An older launch keeps writing after a newer launch took over",
        "ledger/record.py",
        "(SELECT max(launch) FROM launches WHERE run = ?) = ?",
        "(SELECT max(launch) FROM launches WHERE run = ?) >= ?",
        tests_of(LEDGER, "test_a_launch_that_was_taken_over_cannot_write"),
    ),
    Mutant(
        "The run reports a result before the ledger has committed it",
        "ledger/record.py",
        "                batch.write(self._connection, self.redact)\n",
        "                self._on_recorded(batch.results, batch.size)\n"
        "                batch.write(self._connection, self.redact)\n"
        "                batch.results = []\n",
        tests_of(LEDGER, "test_a_full_disk_stops_the_run_and_the_next_launch_goes_on"),
    ),
    Mutant(
        "The ledger confirms a checkpoint before it is committed",
        "ledger/_batch.py",
        "        self.savers.append(saver)\n",
        "        saver.set()\n",
        tests_of(LEDGER, "test_a_checkpoint_that_cannot_be_written_is_told_to_its_worker"),
    ),
    Mutant(
        "The ledger keeps writing to a file that was removed or replaced",
        "ledger/record.py",
        "            if not _is_still(path, stat):\n",
        "            if not stat:\n",
        tests_of(LEDGER, "test_a_ledger_that_is_replaced_while_in_use_stops_the_run"),
    ),
    Mutant(
        "The ledger opens a database that lost its last transactions",
        "ledger/ownership.py",
        "== ledger_id and seen > commits:",
        "== ledger_id and seen < commits:",
        tests_of(CRASHES, "test_a_damaged_wal_file_is_noticed"),
    ),
    Mutant(
        "The ledger stores an input without redacting it",
        "ledger/_batch.py",
        "    cleaned = json_text.redact_json_texts(texts, redact)\n",
        "    cleaned = texts\n",
        tests_of(LEDGER, "test_no_secret_of_the_pool_is_in_any_file"),
    ),
)
