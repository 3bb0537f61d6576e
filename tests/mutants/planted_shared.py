"""Planted bugs of pools that several processes share: owner, journal, members and transports."""

from __future__ import annotations

from . import Mutant, tests_of

OWNER = "pool/shared/test_owner"
RESTORE = "pool/shared/test_restore"
SESSION = "pool/shared/test_member_session"
JOURNAL = "pool/shared/test_sqlite_journal"
FRAMES = "pool/shared/test_frames"
LOCK = "pool/shared/test_owner_lock"
MISTAKES = "pool/conformance/test_mistakes"
SIMULATION = "simulation/test_simulation"

EQUAL = tests_of(RESTORE, "test_restored_owner_equals_living_one")
COMPLETE = tests_of(RESTORE, "test_journal_shows_all_that_members_know")
FAULTS = tests_of(SIMULATION, "test_faults_break_no_invariant")

MUTANTS = (
    # --- hostile members ------------------------------------------------------------------------------------------
    Mutant(
        "The time zone of a doubled credential in a greeting is not checked",
        "pool/shared/_owner/owner.py",
        "for declaration in hello.declarations:\n                self._check_zone(",
        "for declaration in {d.id: d for d in hello.declarations}.values():\n                self._check_zone(",
        tests_of(OWNER, "test_doubled_credential_of_greeting_is_checked_each_time"),
    ),
    Mutant(
        "A counted day in an unknown time zone makes the whole snapshot unreadable",
        "pool/shared/_owner/restore.py",
        "group.pace.restore_usage(usage, owner.ends_after, at)",
        "group.pace.restore_usage(usage, owner._ends_after, at)",
        tests_of(RESTORE, "test_counted_day_in_unknown_zone_is_restored"),
    ),
    Mutant(
        "The socket of an owner is named by a path that the note cannot hold",
        "pool/shared/_machine/machine_gate.py",
        " and is_text(beside):",
        ":",
        tests_of("pool/conformance/test_machine_faults", "test_path_that_is_no_text_is_used"),
    ),
    Mutant(
        "A missing value in the journal ends its owner with an exception",
        "pool/shared/_machine/journal_file.py",
        "    except msgspec.ValidationError as error:",
        "    except ZeroDivisionError as error:",
        tests_of(JOURNAL, "test_missing_value_is_damage"),
    ),
    Mutant(
        "An instant in the keys of a server that is no number of seconds sets the clock",
        "pool/shared/_server/redis_journal.py",
        "return instant if 0.0 <= instant < MAX_INSTANT else None",
        "return instant",
        tests_of("pool/shared/test_redis_journal", "test_garbage_instead_of_instants_stops_no_clock"),
    ),
    Mutant(
        "Two copies of the package whose rules differ by a comment are two versions",
        "pool/shared/messages.py",
        "PROTOCOL = 5\n",
        "from pathlib import Path\n\nPROTOCOL = (Path(__file__).parents[1] / '_rules/allocator.py').stat().st_size\n",
        tests_of(
            "pool/conformance/test_changed_comment", "test_member_with_changed_comment_in_rules_loses_nothing"
        ),
    ),
    # --- the end of a member --------------------------------------------------------------------------------------
    Mutant(
        "An owner that is killed with its last member has not noted that the member left",
        "pool/shared/_owner/owner.py",
        "        self.commit_by = 0.0\n        self._reply_to(connection, wire.Expired())",
        "        self._reply_to(connection, wire.Expired())",
        tests_of("pool/shared/test_owner", "test_end_of_session_is_committed_before_it_is_confirmed"),
    ),
    Mutant(
        "A process ends before the owner has noted that it leaves",
        "pool/shared/_member/member.py",
        "            _finish(link)\n",
        "",
        tests_of("pool/shared/test_member_session", "test_member_that_leaves_waits_for_the_answer"),
    ),
    Mutant(
        "The next owner waits for a member that was killed with the owner before",
        "pool/shared/_owner/owner_process.py",
        "        self._owner.end_absent(self._endpoint.has_ended, now)\n",
        "",
        tests_of("pool/shared/test_owner_process", "test_next_owner_serves_at_once_what_ended_process_held"),
    ),
    Mutant(
        "A member counts as dead because the file of the locks was removed and created again",
        "pool/shared/_machine/member_lock.py",
        "return file_id == _file_id(descriptor) and _try_lock(",
        "return _try_lock(",
        tests_of("pool/shared/test_member_lock", "test_lock_in_another_file_says_nothing"),
    ),
    Mutant(
        "A forked child keeps the lock of its parent",
        "pool/shared/_member/member.py",
        "        self.gate.abandon()\n",
        "",
        tests_of("pool/conformance/test_containers", "test_member_killed_with_owner_frees_lease_despite_child"),
    ),
    # --- the member -----------------------------------------------------------------------------------------------
    Mutant(
        "A newcomer announces that a store answers again whose loss was not announced",
        "pool/shared/_member/outage.py",
        "            if self._is_announced:",
        "            if True:",
        tests_of(SESSION, "test_loss_before_first_greeting_is_not_announced"),
    ),
    Mutant(
        "A caller that is interrupted while it receives leaves its request behind",
        "pool/lease.py",
        "    finally:  # timed out, refused or interrupted\n        if not has_lease:",
        "    finally:  # timed out, refused or interrupted\n        if handle.is_refused:",
        tests_of("pool/conformance/test_machine_owner", "test_interrupted_wait_leaks_nothing"),
    ),
    # --- the owner ------------------------------------------------------------------------------------------------
    Mutant(
        "The owner carries out a repeated message again",
        "pool/shared/_owner/owner.py",
        "if number <= session.heard:",
        "if number < session.heard:",
        tests_of(OWNER, "test_repeated_verdict_counts_once", "test_message_repeated_after_take_over_counts_once"),
    ),
    Mutant(
        "A message does not extend the life of its session",
        "pool/shared/_owner/owner.py",
        "            return\n        session.expires_at = now + session.ttl\n        if number",
        "            return\n        if number",
        tests_of(OWNER, "test_heartbeat_keeps_session"),
    ),
    Mutant(
        "A grant is not committed before its reply is sent",
        "pool/shared/_owner/owned_pool.py",
        "self._record(entry, now, urgent=True)",
        "self._record(entry, now)",
        tests_of(OWNER, "test_grant_is_committed_before_reply_is_taken"),
    ),
    Mutant(
        "A closed link does not end the session of its member",
        "pool/shared/_owner/owner.py",
        "            self._end_session(session, now)\n            self._collect(None, now)",
        "            pass",
        tests_of(OWNER, "test_closed_link_ends_leases_at_once"),
    ),
    Mutant(
        "A lost grant is not repeated on a greeting",
        "pool/shared/_owner/owner.py",
        "                self._confirm(session, wire.Confirm(request.lease), now)",
        "                pass",
        tests_of(OWNER, "test_lost_grant_is_repeated_on_greeting"),
    ),
    Mutant(
        "A lost grant is repeated although its credential was cooled",
        "pool/shared/_owner/owner.py",
        "                self._confirm(session, wire.Confirm(request.lease), now)",
        "                self._tell(session, granted(record))",
        tests_of(OWNER, "test_lost_grant_of_cooled_credential_waits_again"),
    ),
    Mutant(
        "A confirmed lease with another credential of the same fence has no entry",
        "pool/shared/_owner/lease_messages.py",
        "(record.credential_id, record.fence) != (credential_id, fence)",
        "record.fence != fence",
        tests_of(OWNER, "test_confirm_after_cool_down_waits_and_is_granted_again"),
    ),
    Mutant(
        "A member that has seen more of the journal is not noticed",
        "pool/shared/_owner/owner.py",
        "            return position, min(position, self.position)\n",
        "            return position, position\n",
        tests_of(OWNER, "test_member_that_has_seen_more_makes_owner_hold"),
    ),
    Mutant(
        "A member that has seen another continuation of the journal is not noticed",
        "pool/shared/_owner/owner.py",
        "min(position, self.ends.get(hello.seen_owner, 0))",
        "min(position, self.position)",
        tests_of(OWNER, "test_member_that_has_seen_another_continuation_makes_owner_hold"),
    ),
    Mutant(
        "An owner whose start was lost counts as having written the journal up to there",
        "pool/shared/_owner/owner.py",
        "end = min(end, start.position)",
        "end = start.position",
        tests_of(OWNER, "test_member_that_has_seen_another_continuation_makes_owner_hold"),
    ),
    Mutant(
        "The owners of a journal are not kept in the file",
        "pool/shared/_machine/sqlite_journal.py",
        "                self._write_owners(database)\n",
        "",
        tests_of(JOURNAL, "test_owners_of_the_journal_are_kept"),
    ),
    Mutant(
        "Debt is not counted in a day whose end is not known",
        "limits/_periods.py",
        " or self.ends_at > now + 2 * self.seconds",
        "",
        tests_of("pool/shared/test_owner_process", "test_day_in_zone_unknown_to_successor_does_not_end"),
    ),
    Mutant(
        "A member reports usage that the journal still holds",
        "pool/shared/_member/handles.py",
        " and position > kept",
        "",
        tests_of(SESSION, "test_loss_report_leaves_out_what_journal_holds"),
    ),
    Mutant(
        "A member of another journal is not noticed",
        "pool/shared/_owner/owner.py",
        "            return max(1, position), 0\n",
        "            pass\n",
        tests_of(OWNER, "test_member_that_has_seen_more_makes_owner_hold"),
    ),
    Mutant(
        "Fences are not raised after a loss",
        "pool/shared/_owner/owner.py",
        "        self.allocator.members.raise_fences(int(now * FENCES_PER_SECOND))\n",
        "",
        tests_of(OWNER, "test_member_that_has_seen_more_makes_owner_hold"),
    ),
    Mutant(
        "A lease of an expired session is restored although nothing was lost",
        "pool/shared/_owner/owner.py",
        "        return bool(self.store_scope.cooling)",
        "        return True",
        tests_of(OWNER, "test_lease_of_expired_session_is_not_restored_without_loss"),
    ),
    Mutant(
        "Usage that members report after a loss is not counted",
        "pool/shared/_owner/owner.py",
        "        self._count_used(hello, now)\n",
        "",
        tests_of(OWNER, "test_usage_reported_after_loss_counts"),
    ),
    Mutant(
        "Usage of a lost lease is counted for its credential, not for its limits",
        "pool/shared/_owner/lease_messages.py",
        "credential.group.pace.limiter.use(requests, tokens, at, now, scope, detail)",
        "pass",
        tests_of(OWNER, "test_usage_of_lost_lease_is_debt"),
    ),
    Mutant(
        "A lease that a heartbeat does not name is kept for ever",
        "pool/shared/_owner/owner.py",
        "record.id not in named and record.granted_at + session.ttl < now",
        "record.id not in named and record.granted_at + 1000.0 * session.ttl < now",
        tests_of(OWNER, "test_heartbeat_that_omits_old_lease_ends_it"),
    ),
    Mutant(
        "A lease whose grant is on the way is ended by a heartbeat",
        "pool/shared/_owner/owner.py",
        "record.id not in named and record.granted_at + session.ttl < now",
        "record.id not in named",
        tests_of(OWNER, "test_heartbeat_that_omits_old_lease_ends_it"),
    ),
    Mutant(
        "A member is not told that a heartbeat ended its lease",
        "pool/shared/_owner/owner.py",
        "                self._tell(session, wire.Lost(record.id))\n",
        "",
        tests_of(OWNER, "test_heartbeat_that_omits_old_lease_ends_it"),
    ),
    Mutant(
        "The greatest max_concurrent of several declarations holds",
        "pool/shared/_owner/credential_messages.py",
        "max_concurrent=min(numbers, default=AUTO)",
        "max_concurrent=max(numbers, default=AUTO)",
        tests_of(OWNER, "test_strictest_declaration_of_several_members_holds"),
    ),
    Mutant(
        "The declaration of a member that left stays in force",
        "pool/shared/_owner/owner.py",
        "        session.leases.clear()\n        for id_ in session.limits:",
        "        session.leases.clear()\n        for id_ in ():",
        tests_of(OWNER, "test_strictest_declaration_of_several_members_holds"),
    ),
    Mutant(
        "A dropped credential is still granted to its member",
        "pool/shared/_owner/credential_messages.py",
        "self._change_credentials(session, session.credential_ids - {id_}, now)",
        "pass",
        tests_of(OWNER, "test_dropped_credential_is_granted_no_more"),
    ),
    Mutant(
        "A new secret stays in the quarantine of the old one",
        "pool/shared/_owner/credential_messages.py",
        "if self.fingerprints.get(id_) != fingerprint:",
        "if False:",
        tests_of(OWNER, "test_new_secret_lifts_quarantine"),
    ),
    Mutant(
        "Requests of sessions that expire together are granted without an entry",
        "pool/shared/_owner/owner.py",
        "            for session in expired:  # first: none of them must be granted what another one gives back\n"
        "                self._withdraw_waiting(session, now)\n",
        "",
        tests_of(OWNER, "test_sessions_that_expire_together_grant_each_other_nothing"),
    ),
    Mutant(
        "A cool-down is committed later than its event is told",
        "pool/shared/_owner/owned_pool.py",
        "self._record((kinds.COOL, *event[:3], now + event.seconds, event.verdict), now, urgent=True)",
        "pass",
        EQUAL,
    ),
    # --- restoring ------------------------------------------------------------------------------------------------
    Mutant(
        "A snapshot leaves out live leases",
        "pool/shared/_owner/restore.py",
        "[_lease_row(record) for record in leases if record.state == LIVE]",
        "[]",
        EQUAL,
    ),
    Mutant(
        "A snapshot leaves out running cool-downs",
        "pool/shared/_owner/restore.py",
        "    for cooldown in saved.cooldowns:",
        "    for cooldown in ():",
        EQUAL,
    ),
    Mutant(
        "The usage in a snapshot is not restored",
        "pool/shared/_owner/restore.py",
        "            if group_row.rows is not None:",
        "            if False:",
        EQUAL,
    ),
    Mutant(
        "The end of a lease is not replayed",
        "pool/shared/_owner/restore.py",
        "        owner.allocator.lease_end.end(record, at)\n",
        "",
        EQUAL,
    ),
    Mutant(
        "A correction of usage is not replayed",
        "pool/shared/_owner/restore.py",
        "        owner.allocator.correct(record, requests, tokens, None if detail is None else Detail(*detail), at)\n",
        "        pass\n",
        EQUAL,
    ),
    Mutant(
        "A credential that is restored from quarantine stays in it after a take-over",
        "pool/shared/_owner/restore.py",
        "            owner.allocator.restore(id_, at)",
        "            pass",
        EQUAL,
    ),
    Mutant(
        "A restored lease counts as in flight for ever",
        "pool/shared/_owner/restore.py",
        "        owner.allocator.feedback.mark_answered(record)  # nothing is learned from it again",
        "        record.is_answered = True",
        FAULTS,
    ),
    Mutant(
        "The last message of a session is not restored",
        "pool/shared/_owner/restore.py",
        "        owner.by_index[index].heard = number",
        "        pass",
        (*EQUAL, *tests_of(OWNER, "test_message_repeated_after_take_over_counts_once")),
    ),
    Mutant(
        "Entries that cannot be read are left out without a word",
        "pool/shared/_owner/restore.py",
        "            except Exception:  # it is no entry, or it refers to one that was left out\n"
        "                is_complete = False",
        "            except Exception:\n                pass",
        tests_of(OWNER, "test_unreadable_entries_are_reported_and_others_count"),
    ),
    # --- a member -------------------------------------------------------------------------------------------------
    Mutant(
        "Messages that the journal does not hold are not repeated",
        "pool/shared/_member/member_messages.py",
        "self._hello()), *self._unkept]",
        "self._hello())]",
        tests_of(SESSION, "test_messages_are_repeated_until_journal_has_them"),
    ),
    Mutant(
        "Messages are forgotten when they are heard, before the journal has them",
        "pool/shared/_member/member_session.py",
        "unkept[0][0] <= frame.kept",
        "unkept[0][0] <= frame.heard",
        tests_of(SESSION, "test_messages_are_repeated_until_journal_has_them"),
    ),
    Mutant(
        "A member counts the life of its leases from the answer",
        "pool/shared/_member/member_messages.py",
        "        if self._timed_at > self._heard_at:\n            self._heard_at = self._timed_at\n",
        "        self._heard_at = self._now()\n",
        tests_of(SESSION, "test_leases_are_fresh_for_a_tenth_of_their_time"),
    ),
    Mutant(
        "A member without a link hands out leases",
        "pool/shared/_member/member_messages.py",
        "return self._link is not None and self._now()",
        "return self._now()",
        tests_of(SESSION, "test_leases_are_not_fresh_without_link"),
    ),
    Mutant(
        "A repeated grant replaces the lease that a caller has",
        "pool/shared/_member/member_session.py",
        "if handle is None or handle.state != WAITING:\n            return  # it was withdrawn",
        "if handle is None:\n            return  # it was withdrawn",
        tests_of(SESSION, "test_repeated_grant_is_ignored"),
    ),
    Mutant(
        "A lease that was lost before its delivery is not requested again",
        "pool/shared/_member/member_session.py",
        "            self.request_again(handle, handle.request())",
        "            self.forget(handle, ENDED)",
        tests_of(SESSION, "test_lease_lost_before_delivery_is_requested_again"),
    ),
    Mutant(
        "A silent owner is never replaced",
        "pool/shared/_member/member_messages.py",
        "return asked_at is not None and self._now() - asked_at >= SILENCE_SECONDS",
        "return False",
        tests_of(SESSION, "test_owner_without_answer_is_silent_after_a_while"),
    ),
    Mutant(
        "A member that is asked for its usage notices the loss again and again",
        "pool/shared/_member/member_session.py",
        "            self._seen_journal = \"\"  # the owner has noticed the loss, and need not notice it again\n",
        "",
        tests_of(SESSION, "test_loss_is_answered_by_usage_once"),
    ),
    Mutant(
        "Heartbeats name requests that wait as leases",
        "pool/shared/_member/member_messages.py",
        "wire.Heartbeat([handle.id for handle in self._handles.values() if handle.fence])",
        "wire.Heartbeat(list(self._handles))",
        tests_of(SESSION, "test_heartbeats_name_live_leases"),
    ),
    # --- the journal in a file --------------------------------------------------------------------------------------
    Mutant(
        "An owner that was replaced saves a snapshot",
        "pool/shared/_machine/sqlite_journal.py",
        "                self._check_epoch(database)\n                self._write_snapshot",
        "                self._write_snapshot",
        tests_of(JOURNAL, "test_replaced_owner_can_neither_commit_nor_save"),
    ),
    Mutant(
        "An owner that was replaced is not told that its commit was refused",
        "pool/shared/_machine/sqlite_journal.py",
        "            if self._database.execute(_APPEND, row).rowcount != 1:",
        "            if self._database.execute(_APPEND, row).rowcount > 1:",
        tests_of(JOURNAL, "test_replaced_owner_can_neither_commit_nor_save", "test_raised_epoch_stops_owner"),
    ),
    Mutant(
        "The pool's clock goes back behind the last commit",
        "pool/shared/_machine/journal_file.py",
        "    return max(last_at, wall_time())",
        "    return wall_time()",
        tests_of(JOURNAL, "test_pool_clock_never_goes_back"),
    ),
    # --- the machine ------------------------------------------------------------------------------------------------
    Mutant(
        "A lock on a removed file counts as the lock of the pool",
        "pool/shared/_machine/owner_lock.py",
        "        if is_current(descriptor, path):\n            return descriptor\n        os.close(descriptor)",
        "        return descriptor",
        tests_of(LOCK),
    ),
    Mutant(
        "A frame that is too large is read",
        "pool/shared/_machine/frames.py",
        "            if length > MAX_FRAME:",
        "            if length > 2**40:",
        tests_of(FRAMES),
    ),
    Mutant(
        "A first-use window begins in a replay when its usage was committed, a second later",
        "pool/shared/_owner/restore.py",
        "                    at = float(entry[2])\n",
        "                    pass\n",
        tests_of("pool/shared/test_restore", "test_first_use_window_begins_at_one_instant_in_replays"),
    ),
    Mutant(
        "A first-use window that has not begun and is not declared is forgotten by a snapshot",
        "limits/_usage_rows.py",
        "    end_kind = key[0]",
        "    if not counter.ends_at:\n        return []\n    end_kind = key[0]",
        tests_of("pool/shared/test_restore", "test_window_without_declaration_counts_on_after_a_snapshot"),
    ),
    Mutant(
        "An owner that takes over forgets that a first-use window has begun",
        "pool/shared/_owner/restore.py",
        "        if arrived and record.charge is not None:\n",
        "        if False:\n",
        tests_of(OWNER, "test_begun_window_ends_in_time_after_a_take_over"),
    ),
    # --- mistakes of the rules, and what outlives an owner --------------------------------------------------------
    Mutant(
        "A request that met a mistake of the rules is repeated by each greeting",
        "pool/shared/_owner/owner_process.py",
        'getattr(message, "lease", None)',
        "None",
        tests_of(MISTAKES, "test_request_that_meets_a_mistake_fails_alone"),
    ),
    Mutant(
        "A greeting that met a mistake of the rules is carried out again and again",
        "pool/shared/_owner/owner_process.py",
        "dismissed[message.session] = reason",
        "pass",
        tests_of(MISTAKES, "test_member_whose_greeting_meets_a_mistake_is_refused_alone"),
    ),
    Mutant(
        "The next owner forgets that a key was refused",
        "pool/shared/_owner/restore.py",
        "credential.count_refusal(None, at)",
        "pass",
        tests_of("pool/shared/test_refusals_across_runs", "test_refusals_of_two_runs_quarantine"),
    ),
    Mutant(
        "A journal without owner shows leases of processes that have ended",
        "pool/shared_state.py",
        "    owner.end_absent(gate.has_ended, loaded.now)\n",
        "",
        tests_of("pool/conformance/test_closing", "test_journal_without_owner_shows_leases_of_living_processes"),
    ),
)  # fmt: skip
