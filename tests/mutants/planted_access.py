"""Planted bugs of runs with a gateway: client tokens, returned items, counted usage, environments of commands."""

from __future__ import annotations

from . import Mutant, tests_of

ACCESS = "runs/test_access"
COMMANDS = "workers/test_access_commands"
USAGE = "ledger/test_request_usage"

MUTANTS = (
    Mutant(
        "The end of a run leaves the client tokens of running attempts open",
        "runs/_driver/shutdown.py",
        "            self._context.end_all_access()\n",
        "            pass\n",
        tests_of(ACCESS, "test_shutdown_closes_tokens_of_running_attempts"),
    ),
    Mutant(
        "The client token of an attempt that has ended stays valid",
        "runs/_driver/driver.py",
        "            self._context.end_access(attempt)\n",
        "            attempt.access_end = self._access.close(attempt.credential) if exc is None else None\n",
        tests_of(ACCESS, "test_each_attempt_has_its_own_token"),
    ),
    Mutant(
        "An abandoned thread can send further requests",
        "runs/_driver/timeouts.py",
        "            self._context.end_access(attempt)  # it can send no further request\n",
        "            pass\n",
        tests_of(ACCESS, "test_token_of_timed_out_thread_ends_with_its_item"),
    ),
    Mutant(
        "An honest 429 of the gateway spends a retry",
        "runs/_rules/scheduler.py",
        "            decision: Decision = Again(usable_at)\n",
        "            item.failures += 1\n"
        "            decision: Decision = FAILED if item.failures > self.retries else Again(usable_at)\n",
        tests_of(ACCESS, "test_honest_refusal_returns_item_until_that_instant"),
    ),
    Mutant(
        "A returned item starts before the instant that the gateway named",
        "runs/_driver/attempts.py",
        "    return None if hint is None else now + hint\n",
        "    return None if hint is None else now\n",
        tests_of(ACCESS, "test_honest_refusal_returns_item_until_that_instant"),
    ),
    Mutant(
        "The text of a command decides about keys although the command has none",
        "workers/command/_outcome.py",
        "        verdict = attempt.context.end_access(attempt).verdict or NO_VERDICT\n",
        "        pass\n",
        tests_of(COMMANDS, "test_exit_status_zero_is_a_success_without_a_refusal"),
    ),
    Mutant(
        "What a killed attempt has used is not recorded",
        "ledger/_batch.py",
        "        counted = attempt.request_usage\n",
        "        counted = attempt.request_usage if attempt.usage is None else None\n",
        tests_of(USAGE, "test_usage_of_killed_attempt_is_recorded"),
    ),
    Mutant(
        "A command in a run with a gateway gets no client token where it looks for its key",
        "workers/command/_process.py",
        "            environment[variable] = token\n",
        "            pass\n",
        tests_of(COMMANDS, "test_command_has_token_where_it_looks_for_a_key"),
    ),
    Mutant(
        "A command in a run with a gateway inherits variables that hold a key",
        "workers/command/command.py",
        "for name, value in os.environ.items() if not _holds_secret(name, value, redactor)}",
        "for name, value in os.environ.items()}",
        tests_of(COMMANDS, "test_command_has_token_where_it_looks_for_a_key"),
    ),
    Mutant(
        "The client token stands in the log of its command",
        "workers/command/_process.py",
        "            redactor = redactor.with_secret(attempt.client_token)\n",
        "            pass\n",
        tests_of(COMMANDS, "test_token_is_redacted_in_output_and_log"),
    ),
    Mutant(
        "Items start although no credential will be usable within the hold",
        "runs/_parts/admission.py",
        "(waiting.usable_in or 0.0) <= self.hold + TIMER_SECONDS",
        "(waiting.usable_in or 0.0) >= self.hold",
        tests_of(ACCESS, "test_item_starts_when_credential_is_usable_within_hold"),
    ),
)
