"""Planted bugs of pools that several processes share: the rules, a process's member of the pool, and the stores."""

from __future__ import annotations

from . import Mutant, tests_of

RULES = "pool/replicas/test_shared_pool"
MEMBER = "pool/replicas/test_member"
LOGS = "pool/replicas/test_logs"

MUTANTS = (
    # --- the rules ------------------------------------------------------------------------------------------------
    Mutant(
        "A duplicate batch is applied twice",
        "pool/_replicas/shared_pool.py",
        "number <= session.batch:",
        "number < session.batch:",
        tests_of(RULES, "test_a_batch_that_comes_twice_counts_once"),
    ),
    Mutant(
        "An expired session's batch is applied if it is the first after the expiry",
        "pool/_replicas/shared_pool.py",
        "if at >= self._check_at:",
        "if at >= self._check_at and session_id not in self.sessions:",
        tests_of(RULES, "test_what_an_expired_session_says_does_not_count"),
    ),
    Mutant(
        "A batch does not extend the expiry of its session",
        "pool/_replicas/shared_pool.py",
        "session.expires_at = at + session.ttl",
        "session.expires_at = min(session.expires_at, at + session.ttl)",
        tests_of(RULES, "test_a_session_lives_as_long_as_it_speaks"),
    ),
    Mutant(
        "A session that reports a dead session is ended in its place",
        "pool/_replicas/shared_pool.py",
        "self._end(self.sessions[statement[1]], at)",
        "self._end(session, at)",
        tests_of(RULES, "test_a_session_that_is_said_to_be_gone_is_ended_and_no_other"),
    ),
    Mutant(
        "An offer to a silent session never lapses",
        "pool/_replicas/shared_pool.py",
        "owner.offers[record.id] = at + CLAIM_SECONDS",
        "owner.offers[record.id] = inf",
        tests_of(RULES, "test_an_offer_that_is_not_claimed_goes_to_the_next_and_its_asker_keeps_its_place"),
    ),
    Mutant(
        "The pool schedules no check for the lapse of an offer",
        "pool/_replicas/shared_pool.py",
        "                self._check_by(at + CLAIM_SECONDS)\n",
        "",
        tests_of(RULES, "test_an_offer_lapses_also_if_nothing_else_happens"),
    ),
    Mutant(
        "A session is granted credentials that only other sessions declared",
        "pool/_rules/records.py",
        "            if self.id not in request_class.credential_ids:\n                return False\n",
        "",
        tests_of(RULES, "test_a_session_is_only_given_what_it_has_declared"),
    ),
    Mutant(
        "A request whose offer lapsed loses its place in the queue",
        "pool/_rules/wait_queue.py",
        "        queue = self.by_class.pop(record.request_class, OrderedDict())\n",
        "        queue = self.by_class.pop(record.request_class, OrderedDict())\n"
        "        record.sequence = self._last_sequence = self._last_sequence + 1\n",
        tests_of(RULES, "test_an_offer_that_is_not_claimed_goes_to_the_next_and_its_asker_keeps_its_place"),
    ),
    Mutant(
        "Leases of one expired session are offered to another session that expires with it",
        "pool/_replicas/shared_pool.py",
        "        for session in gone:\n            self._leave_queues(session, at)\n",
        "",
        tests_of(RULES, "test_sessions_that_end_together_leave_nothing_to_each_other"),
    ),
    Mutant(
        "Statements after LEAVE in the same batch are applied",
        "pool/_replicas/shared_pool.py",
        "                if session_id in self.sessions:  # else it has just left\n"
        "                    self._take(session, statement, at)\n",
        "                self._take(session, statement, at)\n",
        tests_of(RULES, "test_what_is_said_after_leaving_does_not_count"),
    ),
    Mutant(
        "A store clock that steps back moves the pool's time back",
        "pool/_replicas/shared_pool.py",
        "if at > self.at:",
        "if at != self.at:",
        tests_of(RULES, "test_a_clock_that_steps_back_stands_still"),
    ),
    Mutant(
        "The pool grants leases while leases of a lost log may still be live",
        "pool/_rules/membership.py",
        "credential.cooldown_scopes = (*credential.cooldown_scopes, self._store)",
        "pass",
        tests_of(RULES, "test_nothing_is_granted_while_leases_may_have_been_forgotten"),
    ),
    Mutant(
        "Fencing tokens restart when the log was lost",
        "pool/_replicas/shared_pool.py",
        "pool.members.first_fence = int(at * 1e6)",
        "pool.members.first_fence = 0",
        tests_of(RULES, "test_fences_grow_where_an_older_log_was_lost"),
    ),
    Mutant(
        "Fencing tokens repeat when the end of the log was lost",
        "pool/_replicas/shared_pool.py",
        "            self.pool.members.raise_fences(int(at * 1e6))\n",
        "",
        tests_of(RULES, "test_fences_grow_where_the_end_of_a_log_was_lost"),
    ),
    Mutant(
        "A credential with a new secret keeps the quarantine of the old secret",
        "pool/_replicas/shared_pool.py",
        "if self.secret_fingerprints.get(id_) != fingerprint:",
        "if id_ not in self.secret_fingerprints:",
        tests_of(RULES, "test_another_secret_under_the_same_name_is_not_in_quarantine"),
    ),
    Mutant(
        "Unpickling a state from the store may import any class",
        "pool/_replicas/states.py",
        '            raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in a pool") from None\n',
        "            return super().find_class(module_name, global_name)\n",
        tests_of(RULES, "test_a_state_that_names_anything_else_is_refused"),
    ),
    # --- the member -----------------------------------------------------------------------------------------------
    Mutant(
        "A batch whose reply was lost is sent again under a new number",
        "pool/_replicas/member.py",
        "            return box.unconfirmed  # once more",
        "            box.statements = box.unheard()\n            return box.next_batch(self.session_id)  # once more",
        tests_of(MEMBER, "test_a_batch_whose_reply_was_lost_is_sent_again_and_counts_once"),
    ),
    Mutant(
        "A member keeps the leases of its lost session live",
        "pool/_replicas/member.py",
        "record.id not in self.handles.unclaimed:\n                self.handles.forget(record, ENDED)\n",
        "record.id not in self.handles.unclaimed:\n                pass\n",
        tests_of(MEMBER, "test_the_leases_of_a_session_that_has_expired_are_not_live_here_either"),
    ),
    Mutant(
        "Statements that did not arrive before the session expired are not sent again",
        "pool/_replicas/member.py",
        "unheard = self._box.unheard()",
        "unheard = self._box.statements",
        tests_of(MEMBER, "test_what_did_not_arrive_before_its_session_expired_is_said_again"),
    ),
    Mutant(
        "A member uses an offer without claiming it",
        "pool/_replicas/member.py",
        "if record.state == LIVE and not is_firm:",
        "if record.state == LIVE and record.owner is None:",
        tests_of(MEMBER, "test_what_others_leave_is_claimed_before_it_is_used"),
    ),
    Mutant(
        "A member that finds its log gone does not wait until old leases expire",
        "pool/_replicas/member.py",
        "                if hold > 0.0:\n",
        "                if hold > math.inf:\n",
        tests_of(MEMBER, "test_when_all_is_lost_nothing_is_granted_until_old_leases_have_run_out"),
    ),
    Mutant(
        "A member hands out a lease that has nearly expired in transit",
        "pool/_replicas/shared.py",
        "is_fresh = member.now() - member.spoke_at <= (1.0 - FRESH_SHARE) * member.ttl",
        "is_fresh = True",
        tests_of(MEMBER, "test_a_lease_that_took_long_to_arrive_is_checked_before_it_is_handed_out"),
    ),
    # --- the stores -----------------------------------------------------------------------------------------------
    Mutant(
        "The SQLite store does not notice a gap in its log",
        "pool/_replicas/sqlite.py",
        "is_whole = not found or found[0][2] == position + 1",
        "is_whole = True",
        tests_of(LOGS, "test_whoever_is_too_far_behind_is_told_so"),
    ),
    Mutant(
        "The SQLite store takes a recreated log for the old one",
        "pool/_replicas/sqlite.py",
        "if row is None or row[0] != epoch or self._ahead is None:",
        "if row is None or self._ahead is None:",
        tests_of(LOGS, "test_a_log_that_was_made_anew_is_not_taken_for_the_old_one"),
    ),
    Mutant(
        "The SQLite store writes to a database file that was replaced",
        "pool/_replicas/sqlite.py",
        "if self._db is not None and _inode(self._path) != self._inode:",
        "if self._db is not None and self._inode is None:",
        tests_of(LOGS, "test_a_file_that_was_replaced_is_not_written_on"),
    ),
    Mutant(
        "The SQLite store does not notice that its file was replaced by an older copy",
        "pool/_replicas/sqlite.py",
        "if self._was_replaced or last < position:",
        "if self._was_replaced:",
        tests_of(LOGS, "test_a_log_that_has_become_shorter_is_another_log"),
    ),
    Mutant(
        "The SQLite store's time follows the wall clock",
        "pool/_replicas/sqlite.py",
        "return self._monotonic() + self._ahead",
        "return self._wall()",
        tests_of(LOGS, "test_a_step_of_the_wall_clock_does_not_move_the_time_of_a_file"),
    ),
    Mutant(
        "The SQLite store resets a pool that a process of another version uses",
        "pool/_replicas/sqlite.py",
        "not is_another_boot and self._monotonic() + ahead <= alive_until:",
        "not is_another_boot and self._monotonic() + ahead < at:",
        tests_of(LOGS, "test_a_file_that_another_version_uses_is_refused_until_its_leases_have_run_out"),
    ),
    Mutant(
        "The Redis store does not notice a gap in its log",
        "pool/_replicas/lua/exchange.lua",
        "if position < base then return {known[1], at} end\n",
        "",
        tests_of(LOGS, "test_whoever_is_too_far_behind_is_told_so"),
    ),
    Mutant(
        "The Redis store takes the log of a flushed server for the old one",
        "pool/_replicas/lua/exchange.lua",
        "if known[1] ~= ARGV[1] then",
        "if not known[1] then",
        tests_of(LOGS, "test_a_log_that_was_made_anew_is_not_taken_for_the_old_one"),
    ),
    Mutant(
        "The Redis store saves a snapshot for another log than the one it was made from",
        "pool/_replicas/lua/keep.lua",
        "if known[1] ~= ARGV[1] or position <=",
        "if position <=",
        tests_of(LOGS, "test_a_state_is_not_kept_for_another_log"),
    ),
    Mutant(
        "A flushed Redis server does not mark older leases as possibly live",
        "pool/_replicas/lua/load.lua",
        "  if not known[1] then redis.call('HSET', KEYS[1], 'doubt', 0) end\n",
        "",
        tests_of(LOGS, "test_a_server_that_was_flushed_may_have_forgotten_leases"),
    ),
    Mutant(
        "The Redis store does not notice that its server was restarted",
        "pool/_replicas/lua/load.lua",
        "elseif ARGV[3] ~= '' and known[3] ~= ARGV[3] then",
        "elseif ARGV[3] == '' and known[3] ~= ARGV[3] then",
        tests_of(LOGS, "test_a_server_that_was_started_anew_may_have_forgotten_the_last_batches"),
    ),
)
