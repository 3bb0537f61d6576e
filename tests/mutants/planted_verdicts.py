"""Planted bugs of verdicts: refused keys, silent failures, and text that only talks about errors."""

from __future__ import annotations

from . import Mutant, tests_of

OUTPUTS = "providers/test_client_outputs"
HTTP = "providers/test_http_clients"
INTRODUCTIONS = "providers/test_error_introductions"
TALK = "providers/test_successful_transcripts"

MUTANTS = (
    Mutant(
        "The reader of HTTP clients believes only temporary refusals",
        "providers/_http_lines.py",
        "    return not (_OTHER_TOOL",
        "    return False and (_OTHER_TOOL",
        tests_of(HTTP, "test_http_client_refusal_is_understood"),
    ),
    Mutant(
        "A refusal by another host is blamed on the key",
        "providers/_http_lines.py",
        "        has_address = True\n",
        "        has_address = False\n",
        tests_of(HTTP, "test_refusal_by_another_server_says_nothing_about_the_key"),
    ),
    Mutant(
        "An exception about another host is blamed on the key",
        "providers/_sdk_objects.py",
        "if verdict.kind in (AUTH_FAILED, QUOTA_EXHAUSTED) and names_other_host",
        "if False and names_other_host",
        tests_of(HTTP, "test_refusal_by_another_host_says_nothing_about_the_key"),
    ),
    Mutant(
        "A 403 of Google without a reason is a fault of the request",
        "providers/_evidence.py",
        "is_key_refused_by_403=is_google",
        "is_key_refused_by_403=False",
        tests_of(OUTPUTS, "test_gemini_403_refuses_key_unless_it_names_another_reason"),
    ),
    Mutant(
        "Terminal codes hide the words of an error",
        "providers/_command_output.py",
        'plain_text = _TERMINAL_CODE.sub("", error_lines.with_marks(tail))',
        "plain_text = tail",
        tests_of(OUTPUTS, "test_recorded_output_gets_accepted_verdict"),
    ),
    Mutant(
        "A failure of aider counts as a success because it exits with 0",
        "providers/_silent_failures.py",
        "return cut or _of_aider(lines) or",
        "return cut or",
        tests_of(OUTPUTS, "test_recorded_output_gets_accepted_verdict"),
    ),
    Mutant(
        "An error of aider that it recovered from counts as its failure",
        "providers/_silent_failures.py",
        "    if not is_last or any(map(_AIDER_GOES_ON.match, block)) or agent_talk.end_of_talk(block):\n",
        "    if False:\n",
        tests_of(TALK, "test_successful_agent_gives_no_verdict"),
    ),
    Mutant(
        "A successful agent that prints an error in JSON counts as failed",
        "providers/_command_output.py",
        "return reader.verdict if is_only_events and",
        "return reader.verdict if",
        tests_of(TALK, "test_successful_agent_gives_no_verdict"),
    ),
    Mutant(
        "Errors that a failed agent talks about are blamed on its key",
        "providers/_command_output.py",
        "first = 0 if is_error else agent_talk.end_of_talk(self.other_lines)",
        "first = 0",
        tests_of(TALK, "test_failed_agent_is_seldom_misread"),
    ),
    Mutant(
        "A mark before a message does not make it an error",
        "providers/_error_lines.py",
        "if not (is_marked(line) or _OWN_LABEL.match(line))",
        "if not _OWN_LABEL.match(line)",
        tests_of(INTRODUCTIONS, "test_message_after_an_introduction_is_understood"),
    ),
    Mutant(
        "A red label of an agent is not told from other labels",
        "providers/_command_output.py",
        "error_lines.with_marks(tail)",
        "tail",
        tests_of(INTRODUCTIONS, "test_message_after_an_introduction_is_understood"),
    ),
    Mutant(
        "The name of a failed test is an error of the agent",
        "providers/_error_lines.py",
        "or _OF_TESTS.search(line) is not None:\n",
        "or False:\n",
        tests_of(INTRODUCTIONS, "test_line_of_another_program_takes_no_key_out_of_use"),
    ),
    Mutant(
        "A stack about another host is blamed on the key",
        "providers/_command_output.py",
        "                    self._forget()  # the class",
        "                    pass  # the class",
        tests_of(INTRODUCTIONS, "test_refusal_by_another_host_after_a_stack_does_not_count"),
    ),
    Mutant(
        "The user's patterns are not tried with exit status 0",
        "workers/command/_outcome.py",
        "    for pattern in command.patterns:\n",
        "    for pattern in command.patterns if status != 0 else ():\n",
        tests_of("workers/test_commands", "test_reported_limit_moves_the_item_to_another_key"),
    ),
    Mutant(
        "The end of Copilot's events makes its error a success",
        "providers/_command_output.py",
        'if has_own_limit or not (is_failure or event.get("exitCode")):',
        "if not is_failure:",
        tests_of(OUTPUTS, "test_variation_of_family_gets_accepted_verdict"),
    ),
    Mutant(
        "A run that its own limit of turns ended is blamed on a refusal that it recovered from",
        "providers/_command_output.py",
        "if has_own_limit or not (is_failure",
        "if not (is_failure",
        tests_of(OUTPUTS, "test_limit_of_turns_takes_back_an_absorbed_refusal"),
    ),
    Mutant(
        "A verdict from free text is taken for a known format",
        "providers/_command_output.py",
        "is_loose = not (is_error or error_lines.is_of_api(line))",
        "is_loose = False",
        tests_of(OUTPUTS, "test_verdict_tells_loose_text_from_known_formats"),
    ),
)
