"""RedisJournal: the journal of a pool that several machines share, in four keys of a Redis or Valkey server.

`owner` is the lock, `meta` a hash with what identifies the journal and its state, `snapshot` the last snapshot with its
position, `journal` the list of the batches after it. Each batch begins with its position and instant.

A server can lose a key (eviction), the last changes (a restart, a fail-over) or everything. Every commit checks that
the keys fit together; an owner that finds them incomplete knows the content and writes them anew. An owner that loads
an incomplete journal, or one from a server that may have lost something, grants nothing until all leases that it does
not know of have expired (invariant 48).
"""

from __future__ import annotations

import secrets
import struct
from typing import Any, NamedTuple

import msgspec

from agentos.clock import wall_time

from .._owner.clocks import PoolClock
from .._owner.entries import FORMAT, JOIN, decode_entries, decode_snapshot
from ..transport import MAX_OWNERS, Deposed, JournalMissing, Loaded, OwnerStart, StoreLost, StoreRefused
from .server_client import PoolClient

# Milliseconds for which the lock of an owner lives without being renewed.
LOCK_MS = 5000
# Seconds after which the keys of an unused pool are removed.
UNUSED_SECONDS = 30 * 86_400
# Seconds without grants if leases may be live that nothing is known of: the default time to live of a lease.
UNKNOWN_TTL = 30.0
# A server that has run for more seconds than this holds no lease of a journal that it had before its start.
MIN_UPTIME = UNKNOWN_TTL
# Seconds since 1970 that no clock shows: later instants are garbage.
MAX_INSTANT = 1e11
_BATCH = struct.Struct(">Qd")


class Content(NamedTuple):
    """What the keys of a journal hold."""

    meta: dict[str, str]
    identity: str
    position: int
    snapshot: bytes | None
    batches: list[tuple[float, bytes]]
    server_time: float
    is_new: bool  # there is no key at all
    is_complete: bool  # the keys fit together

    def owners(self) -> list[OwnerStart]:
        """Return the owners that have written the journal; none if that is not known."""
        try:
            return msgspec.json.decode(self.meta.get("owners", "[]"), type=list[OwnerStart])
        except msgspec.MsgspecError:
            return []

    def pool_time(self) -> float:
        """Return the pool's clock. It continues by the wall clock or by the server's, whichever says that less time has
        passed: a step of one of them forgets no usage."""
        last_at = self.batches[-1][0] if self.batches else 0.0
        at, wall, server = (self.instant(name) for name in ("at", "wall", "server"))
        if at is None or wall is None or server is None:
            return max(last_at, wall_time())
        return max(last_at, at + max(0.0, min(wall_time() - wall, self.server_time - server)))

    def instant(self, name: str) -> float | None:
        """Return a field of `meta`; None if it is missing or no instant."""
        try:
            instant = float(self.meta[name])
        except (KeyError, ValueError):
            return None
        return instant if 0.0 <= instant < MAX_INSTANT else None

    def longest_ttl(self) -> float:
        """Return the longest time to live of a lease that the journal may have granted."""
        ttls = [UNKNOWN_TTL]
        try:
            if self.snapshot is not None:
                ttls += [session.ttl for session in decode_snapshot(self.snapshot).sessions]
            entries = [entry for _, batch in self.batches for entry in decode_entries(batch)]
            ttls += [float(entry[6]) for entry in entries if entry[0] == JOIN]
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
            pass  # the owner finds out, and holds as long as for an unknown journal
        return max(ttls[1:], default=UNKNOWN_TTL)


def read_content(client: PoolClient) -> Content:
    """Read all keys of a journal. Raises `StoreLost` and `StoreRefused`."""
    meta_fields, rows, snapshot_fields, time, found = client.run("read")
    meta = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in _pairs(meta_fields)}
    saved = {name.decode(errors="replace"): value for name, value in _pairs(snapshot_fields)}
    if _number(meta.get("format")) > FORMAT:
        raise StoreRefused(
            f"the pool was written by a newer version of agentos (format {meta['format']}, this program reads "
            f"{FORMAT}): upgrade agentos, or choose another pool (?pool=NAME)"
        )
    base = _number(saved.get("position", b"0"))
    snapshot = saved.get("state") if base > 0 else None
    batches: list[tuple[float, bytes]] = []
    for row in rows:
        if len(row) < _BATCH.size or _BATCH.unpack_from(row)[0] != base + len(batches) + 1:
            break
        batches.append((_BATCH.unpack_from(row)[1], row[_BATCH.size :]))
    position = base + len(batches)
    is_complete = (
        len(batches) == len(rows) and _number(meta.get("position")) == position and _number(meta.get("base")) == base
    )
    identity = meta.get("identity") or saved.get("identity", b"").decode(errors="replace")
    if not identity or (snapshot is None and not is_complete):  # what was before the batches is lost
        identity, position, batches = secrets.token_hex(8), 0, []
    server_time = int(time[0]) + int(time[1]) / 1e6
    return Content(meta, identity, position, snapshot, batches, server_time, not found, is_complete)


def _pairs(fields: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(fields[::2], fields[1::2], strict=True))


def _number(text: Any) -> int:
    """Return a count from a field; -1 if it is missing or no number."""
    try:
        return int(text)
    except (TypeError, ValueError):
        return -1


class RedisJournal:
    """The journal as its owner writes it. One thread uses it."""

    def __init__(self, client: PoolClient, token: str) -> None:
        self.clock = PoolClock(0.0)
        self._client = client
        self._token = token
        self._identity = ""
        self._position = 0
        self._owners: list[OwnerStart] = []  # the last owners
        self._hold_until = 0.0  # by the pool's clock
        self._run_id = ""  # the server's start; empty: it does not tell
        self._expire_at = 0.0

    def load(self) -> Loaded:
        """Read everything and become the writer."""
        content = read_content(self._client)
        now = content.pool_time()
        self.clock = PoolClock(now)
        self.note_server()
        hold_seconds = self._hold_seconds(content, now)
        self._hold_until = now + hold_seconds
        self._identity, self._position = content.identity, content.position
        earlier = [owner for owner in content.owners() if owner.nonce != self._token]
        self._owners = [*earlier, OwnerStart(self._token, content.position)][-MAX_OWNERS:]
        fields = self._meta_fields(now)
        if content.is_new:
            fields += ("position", 0, "base", 0)
        self._check(self._client.run("adopt", self._token, UNUSED_SECONDS, *fields))
        what = (content.identity, content.position, content.snapshot, content.batches)
        return Loaded(*what, now, hold_seconds, self._owners)

    def note_server(self) -> None:
        """Find out which start of the server this is, after each connection."""
        facts = self._client.info("server")
        self._run_id = "" if facts is None else str(facts.get("run_id", ""))

    def _hold_seconds(self, content: Content, now: float) -> float:
        """Return for how long nothing must be granted, because leases may be live that the journal does not show."""
        hold_until = content.instant("hold_until") if "hold_until" in content.meta else now
        left = UNKNOWN_TTL if hold_until is None else hold_until - now
        if content.is_new:
            is_sure = self._is_really_new()
        else:
            is_sure = content.is_complete and self._run_id != "" and content.meta.get("run_id") == self._run_id
        return max(0.0, left if is_sure else max(left, content.longest_ttl()))

    def _is_really_new(self) -> bool:
        """Return whether there never was a journal in this place, as far as leases of it could still be live."""
        server, stats, commands = (self._client.info(name) for name in ("server", "stats", "commandstats"))
        if server is None or stats is None or commands is None:
            return False
        was_flushed = any(f"cmdstat_{name}" in commands for name in ("flushall", "flushdb"))
        is_old = int(server.get("uptime_in_seconds", 0)) > MIN_UPTIME
        return is_old and not was_flushed and not int(stats.get("evicted_keys", 1))

    def commit(self, at: float, entries: bytes | None, messages: list[tuple[str, bytes]]) -> list[int]:
        """Append entries and publish messages; return the number of receivers of each. Raises `Deposed`,
        `JournalMissing` and `StoreLost`."""
        batch = b"" if entries is None else _BATCH.pack(self._position + 1, at) + entries
        flat = [part for message in messages for part in message]
        receivers: list[int] = self._write("commit", self._token, LOCK_MS, self._position, batch, *flat)
        if entries is not None:
            self._position += 1
        return receivers

    def renew(self, channel: str, message: bytes) -> None:
        """Renew the lock, and publish a message to the owner itself. Raises `Deposed` and `StoreLost`."""
        now = self.clock.now()
        expire = ""
        if now >= self._expire_at:
            self._expire_at, expire = now + UNUSED_SECONDS / 100, str(UNUSED_SECONDS)
        clocks = (repr(now), repr(wall_time()))
        self._check(
            self._client.run(
                "renew", self._token, LOCK_MS, self._position, *clocks, self._run_id, expire, channel, message
            )
        )

    def save(self, snapshot: bytes, position: int) -> None:
        """Replace the entries up to a position by a snapshot. Raises as `commit`."""
        self._write("save", self._token, position, UNUSED_SECONDS, self._identity, snapshot)

    def rewrite(self, at: float, snapshot: bytes, position: int) -> None:
        """Write all keys anew. Raises `Deposed` and `StoreLost`."""
        header = (self._token, position, UNUSED_SECONDS, self._identity)
        self._check(self._client.run("rewrite", *header, snapshot, LOCK_MS, *self._meta_fields(at)))
        self._position = position

    def _meta_fields(self, now: float) -> tuple[Any, ...]:
        return (
            "format", FORMAT, "identity", self._identity, "at", repr(now), "wall", repr(wall_time()),
            "run_id", self._run_id, "hold_until", repr(self._hold_until), "owners", msgspec.json.encode(self._owners),
        )  # fmt: skip

    def _write(self, script: str, *arguments: Any) -> Any:
        try:
            return self._check(self._client.run(script, *arguments))
        except StoreLost as error:
            if "WRONGTYPE" in str(error):  # another program has written to one of the keys
                raise JournalMissing from None
            raise

    def _check(self, reply: Any) -> Any:
        if reply == b"deposed":
            raise Deposed
        if reply == b"missing":
            raise JournalMissing
        return reply
