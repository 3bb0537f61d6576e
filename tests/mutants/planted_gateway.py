"""Planted bugs of the gateway."""

from __future__ import annotations

from . import Mutant, tests_of

STREAMS = "gateway/test_streams"
REFUSALS = "gateway/test_refusals"
HOSTILE = "gateway/test_hostile_requests"
SECRETS = "gateway/test_secrets"
TOKENS = "gateway/test_client_tokens"
OBJECTS = "gateway/test_owned_objects"
ANSWERS = "gateway/test_hostile_answers"
PROPERTIES = "gateway/test_request_properties"
READING = "gateway/test_request_reading"
RESTRICTED = "pool/conformance/test_restricted_requests"

EXCHANGE = "gateway/_exchange.py"
SERVER = "gateway/_server.py"

MUTANTS = (
    Mutant(
        "A token that another program has made meanwhile is lost",
        "gateway/client_tokens.py",
        "            self._look()\n            yield",
        "            yield",
        tests_of("gateway/test_client_tokens", "test_tokens_that_are_made_at_once_all_work"),
    ),
    Mutant(
        "A damaged file of client tokens answers all clients of a running gateway with an error",
        "gateway/client_tokens.py",
        '                _log.error("%s. Until then its clients stay as they were", error)\n',
        "                raise error\n",
        tests_of("gateway/test_client_tokens", "test_damaged_file_ends_no_token_of_a_running_gateway"),
    ),
    Mutant(
        "The first token of a gateway makes a home directory that others can write to",
        "cli/commands/gateway.py",
        "    make_private(folder)\n",
        "",
        tests_of("gateway/test_command", "test_first_token_makes_a_private_home"),
    ),
    Mutant(
        "A key is blamed for the 401 of a path that only administrators may use",
        "gateway/_exchange.py",
        "is_about_path = verdict.kind == AUTH_FAILED and not",
        "is_about_path = False and not",
        tests_of("gateway/test_refusals", "test_client_cannot_spoil_a_key_with_an_administrators_path"),
    ),
    # --- hostile clients and providers --------------------------------------------------------------------------------
    Mutant(
        "A path that is spelled otherwise is passed on without an estimate of its tokens",
        "gateway/_routes.py",
        'return _REPEATED.sub("/", _PARAMETERS.sub("", unquote(path))).rstrip("/")',
        "return path",
        tests_of(PROPERTIES, "test_other_spelling_of_a_path_follows_the_same_rules"),
    ),
    Mutant(
        "Bodies that have not come completely fill the memory",
        "gateway/_body.py",
        "        self._check(self._size, self._state.buffered)\n",
        "        self._check(self._size, 0)\n",
        tests_of(HOSTILE, "test_bodies_under_way_count_in_the_memory_of_all"),
    ),
    Mutant(
        "A compressed bomb stops all requests while it is read",
        "gateway/_body.py",
        'if len(content) <= MAX_INLINE and "Content-Encoding" not in headers:',
        "if len(content) <= MAX_INLINE:",
        tests_of(HOSTILE, "test_long_or_compressed_body_is_read_on_a_thread"),
    ),
    Mutant(
        "A stored response goes to any key if its request is not valid JSON",
        "gateway/_request.py",
        "        named = _MODEL.search(plain)\n",
        "        return facts\n        named = _MODEL.search(plain)\n",
        tests_of(READING, "test_model_and_references_are_found_in_invalid_json"),
    ),
    Mutant(
        "An error of the gateway is written into an answer that has begun",
        SERVER,
        "if web_request.writer.output_size > 0:",
        "if web_request.writer.output_size < 0:",
        tests_of(ANSWERS, "test_bug_within_an_answer_cuts_it"),
    ),
    Mutant(
        "An id that is not UTF-8 ends the stream of an answer",
        "gateway/_owned_objects.py",
        'self.remember(found.decode("utf-8", "replace"), credential_id)',
        "self.remember(found.decode(), credential_id)",
        tests_of(PROPERTIES, "test_id_that_is_not_utf8_is_read"),
    ),
    Mutant(
        "The beginning of an error is passed on as all of it",
        EXCHANGE,
        "self.error_body, self.is_error_cut = body, not is_whole",
        "self.error_body, self.is_error_cut = body, False",
        tests_of(ANSWERS, "test_error_that_was_cut_is_passed_on_as_a_cut"),
    ),
    Mutant(
        "A secret in a header of a credential reaches the client if the provider repeats it",
        EXCHANGE,
        "Masks(credential.request_secrets)",
        "Masks([credential.secret])",
        tests_of(SECRETS, "test_secret_in_a_header_of_the_credential_is_masked"),
    ),
    Mutant(
        "Connections that send nothing are kept for ever, until no other client can connect",
        SERVER,
        "        self.head_since = self._now()  # also if nothing is ever sent\n",
        "",
        tests_of(HOSTILE, "test_slow_head_is_closed"),
    ),
    Mutant(
        "Long heads without an end fill the memory until their deadline",
        SERVER,
        "connection.head_bytes > MAX_SLOW_HEAD",
        "False",
        tests_of(HOSTILE, "test_long_head_without_end_is_closed_early"),
    ),
    Mutant(
        "A provider that cannot be reached is shown as a rate limit",
        "pool/_rules/lease_end.py",
        "RATE_LIMITED if address is None else UNREACHABLE + address",
        "RATE_LIMITED",
        tests_of(REFUSALS, "test_request_that_cannot_wait_learns_of_an_unreachable_provider"),
    ),
    Mutant(
        "Members of an older version get fields of an event that they do not accept",
        "pool/shared/message_values.py",
        "list(fields_for(event, protocol))",
        "list(event)",
        tests_of("pool/shared/test_owner", "test_announcement_has_the_fields_that_a_member_knows"),
    ),
    # --- sent once, settled once --------------------------------------------------------------------------------------
    Mutant(
        "A request is sent again although its answer was lost",
        EXCHANGE,
        "if request.is_idempotent and self._lost <= MAX_LOST:",
        "if self._lost <= MAX_LOST:",
        tests_of(REFUSALS, "test_request_whose_answer_was_lost_is_not_sent_again"),
    ),
    Mutant(
        "A connection is used again before the last body was sent",
        "gateway/_upstream_answer.py",
        "not self.is_over or transport.get_write_buffer_size():",
        "not self.is_over:",
        tests_of("gateway/test_upstream", "test_answer_before_the_end_of_the_body_closes_connection"),
    ),
    Mutant(
        "A request that fails after its lease does not end it",
        EXCHANGE,
        "            except BaseException:\n                self.finish()\n                raise\n        raise error",
        "            except BaseException:\n                raise\n        raise error",
        tests_of(REFUSALS, "test_request_whose_answer_was_lost_is_not_sent_again"),
    ),
    Mutant(
        "A client that leaves after the last event counts as cancelled",
        "gateway/_reader.py",
        "return self.is_over or (self._stream is not None and self._stream.is_complete)",
        "return self.is_over",
        tests_of(STREAMS, "test_client_that_leaves_after_last_event_has_not_cancelled"),
    ),
    Mutant(
        "A client that disconnects does not cancel its request",
        SERVER,
        "handler_cancellation=True",
        "handler_cancellation=False",
        tests_of(STREAMS, "test_disconnect_ends_upstream_request"),
    ),
    Mutant(
        "An unreachable provider is counted as used",
        EXCHANGE,
        "        self.state.pool.settle(handle, 0, 0)\n",
        "        self.state.pool.settle(handle, None, None)\n",
        tests_of(REFUSALS, "test_unreachable_provider_is_reported_when_the_hold_ends"),
    ),
    # --- streams ------------------------------------------------------------------------------------------------------
    Mutant(
        "A cut upstream is passed on as an end",
        "gateway/_relay.py",
        """\
    except AnswerLost:
        cut(web_request)
        raise ConnectionResetError("the provider's answer was cut") from None
    finally:
""",
        "    except AnswerLost:\n        relayed.send([], is_last=True)\n    finally:\n",
        tests_of(STREAMS, "test_cut_upstream_is_passed_on_as_a_cut"),
    ),
    Mutant(
        "A reset is the end of a body without a length",
        "gateway/_upstream_answer.py",
        "self.is_received = exc is None and ",
        "self.is_received = ",
        tests_of(STREAMS, "test_reset_of_a_body_without_length_is_a_cut"),
    ),
    Mutant(
        "Refusals inside a stream are passed on",
        EXCHANGE,
        "            if refusal is not None:",
        "            if refusal is None:",
        tests_of(STREAMS, "test_error_as_first_content_event_is_a_refusal"),
    ),
    Mutant(
        "Held-back events of a refused stream reach the client",
        EXCHANGE,
        "        self.first_parts.clear()\n\n    def _failed",
        "\n    def _failed",
        tests_of(STREAMS, "test_error_as_first_content_event_is_a_refusal"),
    ),
    Mutant(
        "Events that open a stream are held back for ever",
        EXCHANGE,
        "asyncio.timeout_at(deadline)",
        "asyncio.timeout_at(None)",
        tests_of(STREAMS, "test_handshake_is_passed_on_when_nothing_follows_it"),
    ),
    # --- holds and refusals -------------------------------------------------------------------------------------------
    Mutant(
        "A request waits although no credential will be usable in its hold",
        "gateway/_leasing.py",
        "return pool.clock.now() + waiting.usable_in <= deadline",
        "return True",
        tests_of(REFUSALS, "test_wait_beyond_the_hold_is_an_honest_refusal_at_once"),
    ),
    Mutant(
        "Errors that no other key would change are repeated",
        EXCHANGE,
        """\
        if verdict.kind in RETRY_ON_OTHER_KEY and not is_about_path:""",
        """\
        if verdict.kind and not is_about_path:""",
        tests_of(REFUSALS, "test_error_that_no_other_key_would_change_is_passed_on"),
    ),
    Mutant(
        "The verdict does not reach the pool",
        EXCHANGE,
        "pool.end(handle, verdict)",
        "pool.end(handle, None)",
        tests_of(REFUSALS, "test_verdict_reaches_the_pool"),
    ),
    Mutant(
        "A retry pays twice",
        SERVER,
        "exchange = self._state.joinable.join(exchange) or exchange",
        "pass",
        tests_of(REFUSALS, "test_retry_joins_request_under_way"),
    ),
    Mutant(
        "A retry of another client joins a request",
        "gateway/_joined_requests.py",
        "str(id(exchange.client)), ",
        "",
        tests_of(REFUSALS, "test_other_request_does_not_join"),
    ),
    Mutant(
        "A joinable request goes on for a minute after its client has left",
        "gateway/_joined_requests.py",
        "LINGER_SECONDS = 0.9",
        "LINGER_SECONDS = 60.0",
        tests_of(REFUSALS, "test_request_ends_if_no_retry_joins_it"),
    ),
    # --- what is passed on --------------------------------------------------------------------------------------------
    Mutant(
        "The connection stays open after a request in chunks that the gateway has answered itself",
        SERVER,
        'if "Transfer-Encoding" in web_request.headers or state',
        "if state",
        tests_of(HOSTILE, "test_refused_request_with_trailer_ends_its_connection"),
    ),
    Mutant(
        "The client's cookies and organisation are passed on",
        "gateway/_request.py",
        "return lower not in _REPLACED and",
        "return lower not in KEY_HEADERS and",
        tests_of(HOSTILE, "test_private_headers_of_the_client_are_not_sent_upstream"),
    ),
    Mutant(
        "Dot segments pass",
        "gateway/_routes.py",
        'if b"." in segments or b".." in segments or b"\\\\" in path',
        'if b"\\\\" in path',
        tests_of(HOSTILE, "test_hostile_request_is_refused"),
    ),
    Mutant(
        "Any Host is accepted",
        SERVER,
        "if hosts and hosts[0] != self._usual_host and not self._is_own_name(hosts[0]):",
        "if False:",
        tests_of(HOSTILE, "test_hostile_request_is_refused"),
    ),
    Mutant(
        "A request without a Host header makes an empty one usual",
        SERVER,
        "        if hosts:\n            self._usual_host = hosts[0]",
        '        self._usual_host = hosts[0] if hosts else ""',
        tests_of(HOSTILE, "test_empty_host_is_refused_after_a_request_without_one"),
    ),
    Mutant(
        "A connection whose head never ends is kept",
        SERVER,
        "if seconds >= HEAD_SECONDS or (",
        "if (",
        tests_of(HOSTILE, "test_slow_head_is_closed"),
    ),
    Mutant(
        "The cost of an attempt leaves requests without a price out",
        "gateway/_request_account.py",
        "is_known = cost is not None and not (total.cost is None and total.requests)",
        "is_known = True",
        tests_of(TOKENS, "test_usage_of_attempt_has_the_cost_of_its_requests"),
    ),
    Mutant(
        "A slow body is read without end",
        "gateway/_body.py",
        "asyncio.timeout_at(min(latest, loop.time() + BODY_SECONDS))",
        "asyncio.timeout_at(loop.time() + BODY_SECONDS)",
        tests_of(HOSTILE, "test_dripping_body_is_refused"),
    ),
    # --- secrets, tokens and objects ----------------------------------------------------------------------------------
    Mutant(
        "A key that is divided over two parts of an answer reaches the client",
        "gateway/_masking.py",
        "                self._kept[index] = chunk[start:]\n                return chunk[:start]",
        "                return chunk",
        tests_of(SECRETS, "test_no_byte_of_an_answer_has_the_key")
        + tests_of(PROPERTIES, "test_key_is_masked_for_every_division_into_parts"),
    ),
    Mutant(
        "An error of the provider shows the key",
        "gateway/_relay.py",
        "body = exchange.masked(exchange.error_body)",
        "body = exchange.error_body",
        tests_of(SECRETS, "test_no_byte_of_an_answer_has_the_key"),
    ),
    Mutant(
        "A bug is logged with its text",
        SERVER,
        '_log.error("%s in a request, raised at %s", type(failure).__name__, places)',
        '_log.error("%s in a request, raised at %s", repr(failure), places)',
        tests_of(SECRETS, "test_bug_in_the_gateway_logs_no_content"),
    ),
    Mutant(
        "A token works after its attempt has ended",
        "gateway/client_tokens.py",
        "client = self._attempts.pop(digest(token), None)",
        "client = self._attempts.get(digest(token), None)",
        tests_of(TOKENS, "test_ended_token_is_forgotten"),
    ),
    Mutant(
        "The file of named clients holds their tokens",
        "gateway/client_tokens.py",
        "self._write(digests | {name: digest(token)})",
        "self._write(digests | {name: token})",
        tests_of(TOKENS, "test_file_holds_hashes_for_its_owner_only"),
    ),
    Mutant(
        "An object of an unknown organisation goes to any key",
        EXCHANGE,
        "        if not owners and unknown is None and not lists_objects(request):",
        "        if not owners:",
        tests_of(OBJECTS, "test_unknown_object_is_an_error_and_no_guess"),
    ),
    Mutant(
        "Encrypted content is not remembered before its client has it",
        "gateway/_reader.py",
        "        self._objects.read(self._request.route, bytes(self._scan), self._credential_id)",
        "        pass",
        tests_of(OBJECTS, "test_encrypted_content_goes_to_its_key", "test_previous_response_goes_to_its_key"),
    ),
    # --- the pool -----------------------------------------------------------------------------------------------------
    Mutant(
        "A request gets a credential of another provider",
        "pool/_rules/records.py",
        "if provider is not None and self.provider.name != provider:",
        "if False:",
        tests_of(RESTRICTED, "test_request_gets_credentials_of_its_provider_only"),
    ),
    Mutant(
        "The owner of a shared pool forgets the provider of a request",
        "pool/shared/_member/handles.py",
        "self.waits, front, self.excluded, self.later, self.for_provider, self.only,",
        "self.waits, front, self.excluded, self.later, None, self.only,",
        tests_of(RESTRICTED, "test_request_gets_credentials_of_its_provider_only"),
    ),
    Mutant(
        "A request is refused because of its estimate",
        "gateway/_leasing.py",
        "            wanted.lower()\n            continue\n",
        '            raise error(wanted.shape, "too_large", "its estimate is above every limit") from None\n',
        tests_of("gateway/test_window_judge", "test_estimate_above_every_limit_refuses_no_request"),
    ),
    Mutant(
        "Input that a cut answer has stated is missing in the windows of its key",
        EXCHANGE,
        "if stated is not None and shape is not None:",
        "if stated is not None and is_complete and shape is not None:",
        tests_of(STREAMS, "test_disconnect_settles_what_the_stream_has_stated"),
    ),
    Mutant(
        "The output of a batch is unknown",
        "gateway/_owned_objects.py",
        'return _object_in_path(path) == path.rpartition("/")[2]',
        "return False",
        tests_of(OBJECTS, "test_output_of_a_batch_is_read_with_its_key"),
    ),
    Mutant(
        "A body in another transfer encoding than chunked is passed on without it",
        SERVER,
        'if encoding.lower() != "chunked":',
        "if False:",
        tests_of(HOSTILE, "test_hostile_request_is_refused"),
    ),
)
