"""Planted bugs of runs and their ledger: retries and outcomes of items, resuming, and what is recorded."""

from __future__ import annotations

from . import Mutant, tests_of

RUN = "runs/test_scheduler"
DECISION = "ledger/test_resume_decision"
CRASHES = "acceptance/test_crashes"

MUTANTS = (
    # --- outcome of an attempt ------------------------------------------------------------------------------------
    Mutant(
        "An item gets one retry less than configured",
        "runs/_rules/scheduler.py",
        "return FAILED if item.failures > self.retries else Again(",
        "return FAILED if item.failures >= self.retries else Again(",
        tests_of(RUN, "test_transient_error_spends_a_retry"),
    ),
    Mutant(
        "Rotation to another credential spends a retry",
        "runs/_rules/scheduler.py",
        "if item.rotations <= FREE_ROTATIONS:",
        "if item.rotations < 1:",
        tests_of(RUN, "test_refusals_spend_retries_after_free_rotations"),
    ),
    Mutant(
        "The scheduler retries an item without end although it kills its worker process each time",
        "runs/_rules/scheduler.py",
        "            item.deaths += 1\n",
        "            item.deaths = 1\n",
        tests_of(RUN, "test_item_fails_after_three_worker_deaths"),
    ),
    Mutant(
        "An interrupted item counts as failed",
        "runs/_rules/scheduler.py",
        "        if kind == INTERRUPTED:\n            return UNFINISHED\n",
        "        if kind == INTERRUPTED:\n            return FAILED\n",
        tests_of("ledger/test_stopping", "test_interrupted_item_runs_again"),
    ),
    Mutant(
        "An item whose attempt fails while the run stops is dropped from the unfinished items",
        "runs/_rules/scheduler.py",
        "        if self.stopped is not None or decision is UNFINISHED:\n            return UNFINISHED\n",
        "        if self.stopped is not None or decision is UNFINISHED:\n"
        "            del self.unfinished[item.id]\n            return UNFINISHED\n",
        tests_of(RUN, "test_stopping_scheduler_leaves_failed_items_unfinished"),
    ),
    Mutant(
        "Paused items do not count towards the back-pressure on reading",
        "runs/_rules/scheduler.py",
        "or len(self._pausing) + blocked >= MAX_PAUSING:",
        "or blocked >= MAX_PAUSING:",
        tests_of(RUN, "test_room_is_zero_while_too_many_items_pause"),
    ),
    Mutant(
        "The wake-up flag is cleared after the signal, when the consumer may have armed it again",
        "wakeup.py",
        "            self.is_armed = False\n            self._signal()\n",
        "            self._signal()\n            self.is_armed = False\n",
        tests_of("test_wakeup", "test_wakeup_loses_no_work_in_any_interleaving"),
    ),
    Mutant(
        "The scheduler lets a refused item pause although another credential is usable",
        "runs/_rules/scheduler.py",
        "if advice is not None and advice.pause else AT_ONCE",
        "if advice is not None and advice.pause else Again(now)",
        tests_of("runs/test_item_states", "test_scheduler_makes_exactly_the_transitions_of_the_table"),
    ),
    Mutant(
        "The traceback of a worker's exception is formatted without a guard",
        "foreign_exceptions.py",
        "    except BaseException:\n        frames",
        "    except ArithmeticError:\n        frames",
        tests_of("runs/test_exception_properties", "test_hostile_exception_is_recorded_as_failed"),
    ),
    Mutant(
        "The driver reads an exception whose class replaces the lookup of attributes",
        "runs/_parts/outcome.py",
        "    if not foreign_exceptions.has_own_lookup(exc):\n",
        "    if exc is not None:\n",
        tests_of("runs/test_exception_properties", "test_hostile_exception_is_recorded_as_failed"),
    ),
    Mutant(
        "A task that is cancelled before its first step reports no end",
        "workers/tasks.py",
        "            task.add_done_callback(on_done)\n",
        "            pass\n",
        tests_of("workers/test_tasks", "test_run_ends_although_a_worker_disturbs_its_loop"),
    ),
    Mutant(
        "A worker that stops its event loop ends the thread of all tasks",
        "workers/tasks.py",
        "            while not self._is_closing and not self._loop.is_closed():\n",
        "            if not self._is_closing:\n",
        tests_of("workers/test_tasks", "test_run_ends_although_a_worker_disturbs_its_loop"),
    ),
    Mutant(
        "The screen passes control sequences of items on to the terminal",
        "terminal/screen.py",
        "data if out.terminal is None else safe_output(data)",
        "data",
        tests_of("acceptance/test_screen", "test_controls_of_items_are_escaped_on_a_terminal_only"),
    ),
    Mutant(
        "The capture of output drops the errors of a log",
        "output/capture.py",
        "        if not self._is_log_lost:\n",
        "        if self._is_log_lost:\n",
        tests_of("output/test_capture", "test_unwritable_log_is_reported_once_and_output_shown"),
    ),
    Mutant(
        "A launch that could not write its end to the ledger leaves no note",
        "ledger/record.py",
        "            if not is_ended:\n",
        "            if is_ended:\n",
        tests_of("cli/test_runs", "test_run_stopped_by_full_disk_is_not_shown_as_killed"),
    ),
    # --- resuming -------------------------------------------------------------------------------------------------
    Mutant(
        "Retrying failed items also runs succeeded ones again",
        "ledger/resume_filter.py",
        'outcome == "failed" and retry_failed',
        'outcome == "failed" or retry_failed',
        tests_of(DECISION, "test_unchanged_input_runs_if_unfinished_or_retried"),
    ),
    Mutant(
        "The resume filter skips an interrupted item",
        "ledger/resume_filter.py",
        "if outcome is None or (outcome",
        "if (outcome",
        tests_of(DECISION, "test_unchanged_input_runs_if_unfinished_or_retried"),
    ),
    Mutant(
        "The resume filter returns the recorded result of an old input for a changed short input",
        "ledger/resume_filter.py",
        "is_changed = input_hash != item.input_hash or (short_input is not None and short_input != input_text)",
        "is_changed = input_hash != item.input_hash",
        tests_of("ledger/test_resume", "test_changed_input_fails_and_record_stays"),
    ),
    Mutant(
        "The resume filter does not notice a changed long input",
        "ledger/resume_filter.py",
        "is_changed = input_hash != item.input_hash or (short_input",
        "is_changed = (short_input",
        tests_of("ledger/test_resume", "test_changed_long_input_fails"),
    ),
    Mutant(
        "The duplicate check of a large input ignores slots that two ids share",
        "items/duplicates.py",
        "            shared.add(slot)\n",
        "            pass\n",
        tests_of("items/test_duplicates", "test_find_duplicate_with_and_without_bitmap"),
    ),
    Mutant(
        "An id that a stream repeats within one launch runs twice",
        "ledger/resume_filter.py",
        "if launch == self._record.launch or self._is_repeated(number):",
        "if self._is_repeated(number):",
        tests_of("ledger/test_resume_streams", "test_repeated_id_in_stream_fails"),
    ),
    Mutant(
        "A recorded id that a stream repeats is counted twice",
        "ledger/resume_filter.py",
        "if launch == self._record.launch or self._is_repeated(number):",
        "if launch == self._record.launch:",
        tests_of("ledger/test_resume_streams", "test_recorded_id_repeated_much_later_fails"),
    ),
    # --- the ledger ------------------------------------------------------------------------------------------------
    Mutant(
        "The ledger overwrites a recorded success",
        "ledger/_batch.py",
        "WHERE (items.outcome IS NULL OR (items.outcome",
        "WHERE (items.outcome IS NOT NULL OR items.outcome IS NULL OR (items.outcome",
        tests_of("ledger/test_record", "test_recorded_success_is_never_overwritten"),
    ),
    Mutant(
        "The ledger overwrites a failure within the same launch",
        "ledger/_batch.py",
        "AND excluded.launch > items.launch))",
        "AND excluded.launch >= items.launch))",
        tests_of("ledger/test_record", "test_recorded_failure_is_overwritten_by_later_launch_only"),
    ),
    Mutant(
        "An older attempt overwrites the outcome of a newer one of the same launch",
        "ledger/_batch.py",
        "AND (excluded.launch, excluded.n) >= (items.launch, items.n)",
        "AND excluded.launch >= items.launch",
        tests_of("ledger/test_record", "test_older_attempt_overwrites_nothing"),
    ),
    Mutant(
        "An older attempt overwrites the checkpoint of a newer one",
        "ledger/_batch.py",
        "WHERE (excluded.launch, excluded.n) >= (checkpoints.launch, checkpoints.n)",
        "WHERE excluded.launch >= checkpoints.launch",
        tests_of("ledger/test_record", "test_older_attempt_overwrites_nothing"),
    ),
    Mutant(
        "The ledger accepts a checkpoint from a stale attempt",
        "ledger/record.py",
        "        if attempt.attempt != attempt.item.attempts:\n            raise",
        "        if attempt.attempt > attempt.item.attempts:\n            raise",
        tests_of("ledger/test_checkpoints", "test_stale_attempt_cannot_save"),
    ),
    Mutant(
        "An older launch keeps writing after a newer launch took over",
        "ledger/record.py",
        "(SELECT max(launch) FROM launches WHERE run = ?) = ?",
        "(SELECT max(launch) FROM launches WHERE run = ?) >= ?",
        tests_of("ledger/test_stopping", "test_launch_that_was_taken_over_cannot_write"),
    ),
    Mutant(
        "The run reports a result before the ledger has committed it",
        "ledger/record.py",
        "                batch.write(self._connection, self.redact)\n",
        "                self._on_recorded(batch.results, batch.size)\n"
        "                batch.write(self._connection, self.redact)\n"
        "                batch.results = []\n",
        tests_of("ledger/test_stopping", "test_full_disk_stops_the_run_and_next_launch_continues"),
    ),
    Mutant(
        "The ledger confirms a checkpoint before it is committed",
        "ledger/_batch.py",
        "        self.commit_events.append(committed)\n",
        "        committed.set()\n",
        tests_of("ledger/test_checkpoints", "test_checkpoint_without_ledger_raises_in_the_worker"),
    ),
    Mutant(
        "The ledger keeps writing to a file that was removed or replaced",
        "ledger/record.py",
        "            if not _is_same_file(path, stat):\n",
        "            if not stat:\n",
        tests_of("ledger/test_stopping", "test_replaced_ledger_stops_the_run"),
    ),
    Mutant(
        "The ledger opens a database that lost its last transactions",
        "ledger/ownership.py",
        "== ledger_id and committed > commits:",
        "== ledger_id and committed < commits:",
        tests_of(CRASHES, "test_damaged_wal_file_is_detected"),
    ),
    Mutant(
        "The reader of a ledger does not compare rows with their checksums",
        "ledger/_checksums.py",
        "== row[1] or not self._has_checksums",
        "== row[1] or self._has_checksums",
        tests_of("ledger/test_damage", "test_damaged_row_is_named_and_others_stay_readable"),
    ),
    Mutant(
        "A checksum does not cover the columns that all rows of a batch share",
        "ledger/_checksums.py",
        "        if head != self._head:\n            self._head, self._start",
        "        if not self._head:\n            self._head, self._start",
        tests_of("ledger/test_damage"),
    ),
    Mutant(
        "The resume filter reports a damaged input as a changed one",
        "ledger/resume_filter.py",
        "        if (decision is USE_RECORD and not self._retry_failed) or self._is_intact(connection, row):\n",
        "        if decision is not DAMAGED:\n",
        tests_of("ledger/test_damage", "test_damaged_input_is_not_reported_as_changed"),
    ),
    Mutant(
        "Two programs write to one ledger through two hard links",
        "ledger/_database.py",
        "    if stat.st_nlink > 1:\n",
        "    if stat.st_nlink < 1:\n",
        tests_of("ledger/test_ownership", "test_ledger_with_second_hard_link_is_refused"),
    ),
    Mutant(
        "The ledger stores an input without redacting it",
        "ledger/_batch.py",
        "    redacted = json_text.redact_json_texts(texts, redact)\n",
        "    redacted = texts\n",
        tests_of("ledger/test_record", "test_no_file_holds_a_secret_of_the_pool"),
    ),
)
