"""Planted bugs of credentials with settings, and of what is read from requests and answers on their way."""

from __future__ import annotations

from . import Mutant, tests_of

SETTINGS = "pool/test_credential_settings"
WORKERS = "workers/test_credential_settings"
KEYS = "keys/test_settings"
USAGE = "providers/test_usage"
CHUNKS = "providers/test_usage_properties"
READING = "gateway/test_request_reading"

MUTANTS = (
    # --- settings of credentials --------------------------------------------------------------------------------------
    Mutant(
        "The value of a header that a reference names is not redacted",
        "pool/credential.py",
        "return self.__read_settings().secrets | ({self.secret}",
        "return frozenset() | ({self.secret}",
        tests_of(SETTINGS, "test_referenced_settings_are_redacted_like_keys"),
    ),
    Mutant(
        "The settings of credentials beyond the limit are not redacted",
        "workflows/parallel/credential_coordinator.py",
        "hidden |= credential.secrets if",
        "hidden |= {credential.secret} if",
        tests_of(SETTINGS, "test_unused_credentials_settings_are_redacted"),
    ),
    Mutant(
        "An executor is sent the values that references of headers name",
        "workers/engines/executor.py",
        "dict(key.headers if sources is None else sources.headers)",
        "dict(key.headers)",
        tests_of(WORKERS, "test_executor_is_sent_references_only"),
    ),
    Mutant(
        "The error of a worker behind an executor shows the value of a header",
        "workers/engines/_remote.py",
        "return settings.secrets | ({",
        "return frozenset() | ({",
        tests_of(WORKERS, "test_outcome_leaves_executor_without_values_of_headers"),
    ),
    Mutant(
        "An executor is sent a header that holds a secret in plain",
        "pool/_pool_credentials.py",
        "return None if any(map(self.hides_secret, texts)) else sources",
        "return sources",
        tests_of(WORKERS, "test_executor_refuses_secret_in_plain_header"),
    ),
    Mutant(
        "The command of a log-in inherits a key",
        "workers/command/_process.py",
        "environment.pop(variable, None)",
        "pass",
        tests_of(WORKERS, "test_log_in_hides_inherited_key"),
    ),
    Mutant(
        "An inherited variable outranks that of the credential",
        "workers/command/_process.py",
        "environment.update(attempt.credential.settings.command_env)",
        "environment = {**attempt.credential.settings.command_env, **environment}",
        tests_of(WORKERS, "test_command_gets_variables_beside_the_key"),
    ),
    Mutant(
        "The pool takes one key in two regions for one credential",
        "pool/credential.py",
        "if base_url is not None or headers or command_env:",
        "if False:",
        tests_of(SETTINGS, "test_same_key_in_two_regions_is_two_credentials"),
    ),
    Mutant(
        "A line end in a header's value begins another header",
        "pool/credential_settings.py",
        r'_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")',
        r'_HEADER_VALUE = re.compile(r"[\t\r\n -~\x80-\xff]*")',
        tests_of(SETTINGS, "test_wrong_setting_is_refused_without_its_value"),
    ),
    Mutant(
        "The keys file takes a plain value for a header that is a key",
        "keys/_settings.py",
        "if header.lower() in _SECRET_HEADERS and not is_reference(value):",
        "if False:",
        tests_of(KEYS, "test_error_has_line_and_no_value"),
    ),
    # --- usage --------------------------------------------------------------------------------------------------------
    Mutant(
        "Cached tokens of OpenAI are counted as input a second time",
        "providers/usage.py",
        "uncached = total_input - cached",
        "uncached = total_input",
        tests_of(USAGE, "test_usage_of_body"),
    ),
    Mutant(
        "Cache reads of Anthropic count against a limit",
        "providers/usage.py",
        'cached_tokens = 0 if shape == "anthropic" else usage.cached_tokens',
        "cached_tokens = usage.cached_tokens",
        tests_of(USAGE, "test_cache_reads_count_against_limits_except_of_anthropic"),
    ),
    Mutant(
        "Cache writes of Anthropic do not count as input",
        "providers/usage.py",
        "input_tokens=plain_input + cache_write,",
        "input_tokens=plain_input,",
        tests_of(USAGE, "test_usage_of_stream"),
    ),
    Mutant(
        "The output of an Anthropic stream replaces its input",
        "providers/usage.py",
        "self.usage = _usage_of(self._shape, answer, self.usage) or self.usage",
        "self.usage = _usage_of(self._shape, answer, None) or self.usage",
        tests_of(USAGE, "test_usage_of_stream"),
    ),
    Mutant(
        "Thoughts of Gemini are not output",
        "providers/usage.py",
        "return TokenUsage(total_input - cached, (output or 0) + (thoughts or 0), cached)",
        "return TokenUsage(total_input - cached, output or 0, cached)",
        tests_of(USAGE, "test_usage_of_body"),
    ),
    Mutant(
        "A chunk that begins inside an event is skipped like whole events",
        "providers/usage.py",
        'b"\\r\\n\\r\\n")) and self._reader.is_between_events:',
        'b"\\r\\n\\r\\n")):',
        tests_of(CHUNKS, "test_usage_is_read_for_all_chunks_and_line_ends"),
    ),
    Mutant(
        "A line feed after a carriage return in the next chunk ends a second line",
        "providers/_event_stream.py",
        'self._is_after_cr = chunk[-1:] == b"\\r"',
        "self._is_after_cr = False",
        tests_of(USAGE, "test_stream_byte_by_byte"),
    ),
    Mutant(
        "A line without end fills the memory",
        "providers/_event_stream.py",
        "if self._is_line_dropped or len(self._line) + len(part) > self._max_bytes:",
        "if False:",
        tests_of(USAGE, "test_line_without_end_takes_bounded_memory"),
    ),
    # --- the beginning of a stream ------------------------------------------------------------------------------------
    Mutant(
        "A null error of a Responses event counts as an error",
        "providers/usage.py",
        'if event.name == b"error" or answer.error or',
        'if event.name == b"error" or b\'"error"\' in event.data or',
        tests_of(USAGE, "test_handshake_is_neither_content_nor_error", "test_content_after_handshake"),
    ),
    Mutant(
        "A failed response is taken for content",
        "providers/usage.py",
        'answer.type in ("error", "response.failed")',
        'answer.type in ("error",)',
        tests_of(USAGE, "test_error_after_handshake"),
    ),
    Mutant(
        "An error after content counts as a refusal",
        "providers/usage.py",
        'if self.state != "handshake":\n            return self.state',
        'if self.state == "error":\n            return self.state\n        self.state = "handshake"',
        tests_of(USAGE, "test_content_after_handshake"),
    ),
    Mutant(
        "A stream of pings is held back without end",
        "providers/usage.py",
        "if self._size >= MAX_HANDSHAKE_BYTES:",
        "if False:",
        tests_of(USAGE, "test_endless_handshake_counts_as_content"),
    ),
    # --- requests -----------------------------------------------------------------------------------------------------
    Mutant(
        "An item of an earlier response is no object of its organization",
        "gateway/_request.py",
        'match["one"] or match["item"] or match["item_before"]',
        'match["one"] or b"unknown"',
        tests_of(READING, "test_objects_of_an_organisation_are_found"),
    ),
    Mutant(
        "Encrypted reasoning does not bind a request to its organization",
        "gateway/_owned_objects.py",
        "found.extend(encrypted_id(content) for content in request.facts.encrypted)",
        "pass",
        tests_of("gateway/test_owned_objects", "test_unknown_object_is_an_error_and_no_guess"),
    ),
)
