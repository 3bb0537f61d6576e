"""Bugs of pools that several processes share: the rules, the member of such a pool, and its stores."""

from __future__ import annotations

from . import Mutant, tests_of

RULES = "pool/replicas/test_shared_pool"
MEMBER = "pool/replicas/test_member"
LOGS = "pool/replicas/test_logs"

MUTANTS = (
    # --- the rules ------------------------------------------------------------------------------------------------
    Mutant(
        "A batch that comes twice counts twice",
        "pool/_replicas/shared_pool.py",
        "number <= session.batch:",
        "number < session.batch:",
        tests_of(RULES, "test_a_batch_that_comes_twice_counts_once"),
    ),
    Mutant(
        "A session that has expired is heard if it speaks before anybody else",
        "pool/_replicas/shared_pool.py",
        "if at >= self._check_at:",
        "if at >= self._check_at and session_id not in self.sessions:",
        tests_of(RULES, "test_what_an_expired_session_says_does_not_count"),
    ),
    Mutant(
        "A session dies when its first time to live is over, however often it speaks",
        "pool/_replicas/shared_pool.py",
        "session.expires_at = at + session.ttl",
        "session.expires_at = min(session.expires_at, at + session.ttl)",
        tests_of(RULES, "test_a_session_lives_as_long_as_it_speaks"),
    ),
    Mutant(
        "Who says that another is gone is ended itself",
        "pool/_replicas/shared_pool.py",
        "self._end(self.sessions[statement[1]], at)",
        "self._end(session, at)",
        tests_of(RULES, "test_a_session_that_is_said_to_be_gone_is_ended_and_no_other"),
    ),
    Mutant(
        "What is left to a silent session stays with it for ever",
        "pool/_replicas/shared_pool.py",
        "owner.offers[record.id] = at + CLAIM_SECONDS",
        "owner.offers[record.id] = inf",
        tests_of(RULES, "test_an_offer_that_is_not_claimed_goes_to_the_next_and_its_asker_keeps_its_place"),
    ),
    Mutant(
        "Nobody is woken when an offer lapses",
        "pool/_replicas/shared_pool.py",
        "                self._check_by(at + CLAIM_SECONDS)\n",
        "",
        tests_of(RULES, "test_an_offer_lapses_also_if_nothing_else_happens"),
    ),
    Mutant(
        "A session gets credentials that only others have the keys for",
        "pool/_rules/records.py",
        "            if self.id not in want.ring:\n                return False\n",
        "",
        tests_of(RULES, "test_a_session_is_only_given_what_it_has_declared"),
    ),
    Mutant(
        "A session that was only slow has lost its place",
        "pool/_rules/allocator.py",
        "        for record in records:\n            if not self._is_hopeful(record):\n",
        "        for record in records:\n            record.sequence = self._next()\n"
        "            if not self._is_hopeful(record):\n",
        tests_of(RULES, "test_an_offer_that_is_not_claimed_goes_to_the_next_and_its_asker_keeps_its_place"),
    ),
    Mutant(
        "What one silent session leaves is offered to another one",
        "pool/_replicas/shared_pool.py",
        "        for session in gone:\n            self._leave_queues(session, at)\n",
        "",
        tests_of(RULES, "test_sessions_that_end_together_leave_nothing_to_each_other"),
    ),
    Mutant(
        "What is said after leaving still counts",
        "pool/_replicas/shared_pool.py",
        "                if session_id in self.sessions:  # else it has just left\n"
        "                    self._take(session, statement, at)\n",
        "                self._take(session, statement, at)\n",
        tests_of(RULES, "test_what_is_said_after_leaving_does_not_count"),
    ),
    Mutant(
        "A clock that steps back takes the pool along",
        "pool/_replicas/shared_pool.py",
        "if at > self.at:",
        "if at != self.at:",
        tests_of(RULES, "test_a_clock_that_steps_back_stands_still"),
    ),
    Mutant(
        "Credentials are granted while old leases may have been forgotten",
        "pool/_rules/allocator.py",
        "credential.domains = (*credential.domains, self.store)",
        "pass",
        tests_of(RULES, "test_nothing_is_granted_while_leases_may_have_been_forgotten"),
    ),
    Mutant(
        "Fences begin anew when the log was lost",
        "pool/_replicas/shared_pool.py",
        "pool.first_fence = int(at * 1e6)",
        "pool.first_fence = 0",
        tests_of(RULES, "test_fences_grow_where_an_older_log_was_lost"),
    ),
    Mutant(
        "Fences are given twice when the end of the log was lost",
        "pool/_replicas/shared_pool.py",
        "            self.pool.raise_fences(int(at * 1e6))\n",
        "",
        tests_of(RULES, "test_fences_grow_where_the_end_of_a_log_was_lost"),
    ),
    Mutant(
        "A new secret inherits the quarantine of the old one",
        "pool/_replicas/shared_pool.py",
        "if self.marks.get(id_) != mark:",
        "if id_ not in self.marks:",
        tests_of(RULES, "test_another_secret_under_the_same_name_is_not_in_quarantine"),
    ),
    Mutant(
        "A state from the store may make us run anything",
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
        "A process goes on using the leases of its lost session",
        "pool/_replicas/member.py",
        "record.id not in self.handles.unclaimed:\n                self.handles.forget(record, ENDED)\n",
        "record.id not in self.handles.unclaimed:\n                pass\n",
        tests_of(MEMBER, "test_the_leases_of_a_session_that_has_expired_are_not_live_here_either"),
    ),
    Mutant(
        "What did not arrive before its session expired is never said again",
        "pool/_replicas/member.py",
        "unheard = self._box.unheard()",
        "unheard = self._box.statements",
        tests_of(MEMBER, "test_what_did_not_arrive_before_its_session_expired_is_said_again"),
    ),
    Mutant(
        "An offer is used without having been claimed",
        "pool/_replicas/member.py",
        "if record.state == LIVE and not is_firm:",
        "if record.state == LIVE and record.owner is None:",
        tests_of(MEMBER, "test_what_others_leave_is_claimed_before_it_is_used"),
    ),
    Mutant(
        "A process that finds its log gone does not wait for old leases to run out",
        "pool/_replicas/member.py",
        "                if hold > 0.0:\n",
        "                if hold > math.inf:\n",
        tests_of(MEMBER, "test_when_all_is_lost_nothing_is_granted_until_old_leases_have_run_out"),
    ),
    Mutant(
        "A lease is handed out that has nearly run out on its way",
        "pool/_replicas/shared.py",
        "is_fresh = member.now() - member.spoke_at <= (1.0 - FRESH_SHARE) * member.ttl",
        "is_fresh = True",
        tests_of(MEMBER, "test_a_lease_that_took_long_to_arrive_is_checked_before_it_is_handed_out"),
    ),
    # --- the stores -----------------------------------------------------------------------------------------------
    Mutant(
        "A gap in the log of a file goes unnoticed",
        "pool/_replicas/sqlite.py",
        "is_whole = not found or found[0][2] == position + 1",
        "is_whole = True",
        tests_of(LOGS, "test_whoever_is_too_far_behind_is_told_so"),
    ),
    Mutant(
        "A log in a file that was made anew is taken for the old one",
        "pool/_replicas/sqlite.py",
        "if row is None or row[0] != epoch or self._ahead is None:",
        "if row is None or self._ahead is None:",
        tests_of(LOGS, "test_a_log_that_was_made_anew_is_not_taken_for_the_old_one"),
    ),
    Mutant(
        "A file that was replaced is written on where nobody sees it",
        "pool/_replicas/sqlite.py",
        "if self._db is not None and _inode(self._path) != self._inode:",
        "if self._db is not None and self._inode is None:",
        tests_of(LOGS, "test_a_file_that_was_replaced_is_not_written_on"),
    ),
    Mutant(
        "A file that was replaced by an older copy goes on as if nothing were missing",
        "pool/_replicas/sqlite.py",
        "if self._was_replaced or last < position:",
        "if self._was_replaced:",
        tests_of(LOGS, "test_a_log_that_has_become_shorter_is_another_log"),
    ),
    Mutant(
        "The time of a file follows the wall clock",
        "pool/_replicas/sqlite.py",
        "return self._monotonic() + self._ahead",
        "return self._wall()",
        tests_of(LOGS, "test_a_step_of_the_wall_clock_does_not_move_the_time_of_a_file"),
    ),
    Mutant(
        "A pool that another version uses is begun anew under its hands",
        "pool/_replicas/sqlite.py",
        "not is_another_boot and self._monotonic() + ahead <= alive_until:",
        "not is_another_boot and self._monotonic() + ahead < at:",
        tests_of(LOGS, "test_a_file_that_another_version_uses_is_refused_until_its_leases_have_run_out"),
    ),
    Mutant(
        "A gap in the log of a server goes unnoticed",
        "pool/_replicas/lua/exchange.lua",
        "if position < base then return {known[1], at} end\n",
        "",
        tests_of(LOGS, "test_whoever_is_too_far_behind_is_told_so"),
    ),
    Mutant(
        "A log on a server that was flushed is taken for the old one",
        "pool/_replicas/lua/exchange.lua",
        "if known[1] ~= ARGV[1] then",
        "if not known[1] then",
        tests_of(LOGS, "test_a_log_that_was_made_anew_is_not_taken_for_the_old_one"),
    ),
    Mutant(
        "A state is kept for a log that is not the one it was made from",
        "pool/_replicas/lua/keep.lua",
        "if known[1] ~= ARGV[1] or position <=",
        "if position <=",
        tests_of(LOGS, "test_a_state_is_not_kept_for_another_log"),
    ),
    Mutant(
        "A flushed server grants at once what others still hold",
        "pool/_replicas/lua/load.lua",
        "  if not known[1] then redis.call('HSET', KEYS[1], 'doubt', 0) end\n",
        "",
        tests_of(LOGS, "test_a_server_that_was_flushed_may_have_forgotten_leases"),
    ),
    Mutant(
        "That a server was started anew goes unnoticed",
        "pool/_replicas/lua/load.lua",
        "elseif ARGV[3] ~= '' and known[3] ~= ARGV[3] then",
        "elseif ARGV[3] == '' and known[3] ~= ARGV[3] then",
        tests_of(LOGS, "test_a_server_that_was_started_anew_may_have_forgotten_the_last_batches"),
    ),
)
