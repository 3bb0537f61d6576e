"""CredentialMessages: what members declare about credentials, and what they do to them."""

from __future__ import annotations

from dataclasses import replace

from agentos.limits.declaration import AUTO, FIRST_USE, Limits, strictest
from agentos.verdict import RATE_LIMITED

from ..._rules.cooldown_scope import CooldownScope
from ..._rules.lease_states import WAITING
from .. import message_values as values
from .. import messages as wire
from . import entries as kinds
from .owned_pool import OwnedPool
from .session import Session

# Seconds after which a credential that no member has had is forgotten.
FORGET_AFTER = 30 * 86_400.0
# Seconds until the end of a day in an unknown time zone.
UNKNOWN_DAY_SECONDS = 1e9


class CredentialMessages(OwnedPool):
    """Handlers of the messages about credentials."""

    def _declare(self, session: Session, declaration: wire.Declaration, now: float) -> None:
        limits = values.limits_of(declaration.limits)
        self._check_zone(limits, now)
        known = self.allocator.credentials.get(declaration.id)
        if known is not None and session.limits.get(declaration.id) == limits and (
            (known.group.name, known.provider.name, known.scopes, self.fingerprints.get(declaration.id))
            == (declaration.group, declaration.provider, frozenset(declaration.scopes), declaration.fingerprint)
        ):  # fmt: skip
            return  # a greeting repeats it
        self.declare(
            session, declaration.id, declaration.group, declaration.provider, frozenset(declaration.scopes), limits,
            declaration.fingerprint, now,
        )  # fmt: skip
        what = (declaration.id, declaration.group, declaration.provider, declaration.scopes, declaration.limits)
        self._record((kinds.DECLARE, session.index, *what, declaration.fingerprint), now)

    def declare(self, session: Session, id_: str, group: str, provider: str | None, scopes: frozenset[str],
                limits: Limits, fingerprint: str, now: float) -> None:  # fmt: skip
        """Add a credential to the pool and to a session. Of several declarations the strictest figures hold."""
        session.limits[id_] = limits
        self._note_windows(limits)
        combined = self._strictest(id_)
        known = self.allocator.credentials.get(id_)
        if known is None:
            self.allocator.add(id_, group, provider, scopes, combined, now, self.ends_after)
        else:
            if (group, provider, scopes, combined) != (
                known.group.name, known.provider.name, known.scopes, known.limits,
            ):  # fmt: skip
                self.allocator.redeclare(id_, group, provider, scopes, combined, now, self.ends_after)
            if self.fingerprints.get(id_) != fingerprint:  # the quarantine was that of another secret
                self.allocator.restore(id_, now)
        self.fingerprints[id_] = fingerprint
        self.seen_at[id_] = now
        self._change_credentials(session, session.credential_ids | {id_}, now)

    def _note_windows(self, limits: Limits) -> None:
        """Record instants from now on if a window begins with its first use: in a replay in which that use comes later,
        the window would begin later, too."""
        self.needs_instants = self.needs_instants or any(window.resets == FIRST_USE for window in limits.windows)

    def _check_zone(self, limits: Limits, now: float) -> None:
        """Raise `ValueError` for a time zone that this process does not know."""
        for resets in sorted(limits.calendars()):
            if self.knows(resets, now):
                continue
            zone = resets.rpartition(" ")[2]
            raise ValueError(
                f"the pool's owner (process {self.identity.pid} on {self.identity.host}) does not know the time zone "
                f"{zone!r}: install the time zones there (pip install tzdata), or give day_resets in UTC"
            )

    def knows(self, resets: str, now: float) -> bool:
        """Return whether this process knows when a calendar window resets."""
        try:
            self._ends_after(resets, now)
        except ValueError:
            return False
        return True

    def ends_after(self, resets: str, now: float) -> float:
        """Return the end of a calendar window; but one in a zone that this process does not know never ends. It is in
        the journal if an owner knew the zone: rather no request than one too many, until such an owner takes over."""
        try:
            return self._ends_after(resets, now)
        except ValueError:
            return now + UNKNOWN_DAY_SECONDS

    def _drop(self, session: Session, drop: wire.Drop, now: float) -> None:
        self.drop(session, drop.id, now)
        self._record((kinds.DROP, session.index, drop.id), now)

    def drop(self, session: Session, id_: str, now: float) -> None:
        """Grant a session a credential no more. Its live leases stay valid."""
        if session.limits.pop(id_, None) is not None:
            self.keep_to_strictest(id_, now)
        self._change_credentials(session, session.credential_ids - {id_}, now)

    def _strictest(self, id_: str) -> Limits:
        """Combine what all sessions declare about a credential: no member has to expect that its limit is passed."""
        declared = [session.limits[id_] for session in self.sessions.values() if id_ in session.limits]
        combined = declared[0]
        for limits in declared[1:]:
            combined = strictest(combined, limits)
        numbers = [limits.max_concurrent for limits in declared if isinstance(limits.max_concurrent, int)]
        return replace(combined, max_concurrent=min(numbers, default=AUTO))

    def keep_to_strictest(self, id_: str, now: float) -> None:
        """Apply the declarations that are left; the last one stays in force if none is."""
        known = self.allocator.credentials.get(id_)
        if known is None or not any(id_ in session.limits for session in self.sessions.values()):
            return
        combined = self._strictest(id_)
        if combined != known.limits:
            self.allocator.redeclare(
                id_, str(known.group.name), known.provider.name, known.scopes, combined, now,
                self.ends_after,
            )  # fmt: skip

    def _change_credentials(self, session: Session, ids: frozenset[str], now: float) -> None:
        """Change what a session may use. Its waiting requests keep their places in the queues."""
        if ids == session.credential_ids:
            return
        session.credential_ids = ids
        session.request_classes = {}
        waiting = sorted((r for r in session.leases.values() if r.state == WAITING), key=lambda r: r.sequence)
        for record in waiting:
            self.allocator.lease_end.set_aside(record, now)
            record.join_class(session)
        if waiting:
            self.allocator.put_back(list(waiting), now)

    def _set_quarantine(self, _session: Session, message: wire.SetQuarantine, now: float) -> None:
        credential = self.allocator.credentials.get(message.id)
        if credential is None:
            return
        if message.reason is not None:
            was_quarantined = credential.quarantine is not None
            self.allocator.quarantine(message.id, message.reason, now)
            if was_quarantined:  # else the event is recorded
                self._record((kinds.QUARANTINE, message.id, message.reason), now, urgent=True)
        elif credential.quarantine is not None:
            self.allocator.restore(message.id, now)
            self._record((kinds.QUARANTINE, message.id, None), now, urgent=True)

    def _cool(self, _session: Session, cool: wire.Cool, now: float) -> None:
        credential = self.allocator.credentials.get(cool.id)
        if credential is not None:
            self.allocator.cool(credential.group, None, cool.seconds, RATE_LIMITED, now)

    def _clear(self, _session: Session, clear: wire.Clear, now: float) -> None:
        if clear.id in self.allocator.credentials:
            self.allocator.clear(clear.id, now)
            self._record((kinds.CLEAR, clear.id), now, urgent=True)

    def _forget_unused(self, now: float) -> None:
        """Remove credentials that no member has had for weeks."""
        for id_, seen_at in tuple(self.seen_at.items()):
            if seen_at + FORGET_AFTER < now and not any(id_ in s.credential_ids for s in self.sessions.values()):
                self.allocator.remove(id_, now)
                del self.seen_at[id_]
                self.fingerprints.pop(id_, None)

    def restore_credential(self, row: kinds.CredentialRow, limits: Limits, at: float) -> None:
        """Add a credential of a snapshot."""
        self._note_windows(limits)
        self.allocator.add(row.id, row.group, row.provider, frozenset(row.scopes), limits, at, self.ends_after)
        credential = self.allocator.credentials[row.id]
        credential.fence = max(credential.fence, row.fence)
        credential.quarantine, credential.is_proven = row.quarantine, row.is_proven
        credential.used_requests, credential.used_tokens = row.used_requests, row.used_tokens
        credential.auth_failures, credential.auth_failed_by = row.auth_failures, row.auth_failed_by
        credential.auth_failed_at = row.auth_failed_at
        self.fingerprints[row.id], self.seen_at[row.id] = row.fingerprint, row.seen_at

    def find_scope(self, kind: str, name: str | None) -> CooldownScope | None:
        """Return a cool-down scope by its kind and name."""
        if kind == self.store_scope.kind:
            return self.store_scope
        for credential in self.allocator.credentials.values():
            for cooldown_scope in credential.cooldown_scopes:
                if (cooldown_scope.kind, cooldown_scope.name) == (kind, name):
                    return cooldown_scope
        return None
