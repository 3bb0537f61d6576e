"""An owner in virtual time with a journal in memory, and clients that send it messages: the harness of its tests."""

from __future__ import annotations

from typing import Any, TypeVar

from agentos.limits.declaration import Calendar, Limits
from agentos.limits.reset_times import seconds_to_reset
from agentos.pool.shared import messages as wire
from agentos.pool.shared._owner.entries import (
    Entry,
    Snapshot,
    decode_entries,
    decode_snapshot,
    encode_entries,
    encode_snapshot,
)
from agentos.pool.shared._owner.owned_pool import Identity
from agentos.pool.shared._owner.owner import Owner
from agentos.pool.shared._owner.restore import restore, snapshot
from agentos.pool.shared.message_values import limits_fields
from agentos.verdict import Verdict

# 2026-11-16 12:00:00 UTC
START = 1_794_830_400.0
TTL = 30.0

R = TypeVar("R")


def ends(resets: str, at: float) -> float:
    return at + seconds_to_reset(resets, at)


def new_owner(now: float, ends: Calendar = ends) -> Owner:
    return Owner(Identity(7, "host", now), "journal", ends, lambda: 0.5, now)


def declaration(id_: str = "k0", *, group: str | None = None, fingerprint: str = "", **limits: Any) -> wire.Declaration:
    fields = limits_fields(Limits(**limits))
    return wire.Declaration(id_, group or f"g-{id_}", "p", [], fields, fingerprint or f"print-{id_}")


class OwnedPool:
    """One owner and its journal. Entries and frames pass through their encoding."""

    def __init__(self) -> None:
        self.now = START
        self.owner = new_owner(START)
        self.batches: list[tuple[float, list[Entry]]] = []
        self.saved: Snapshot | None = None
        self.clients: dict[Any, Client] = {}

    def client(self, name: str = "m", *declared: wire.Declaration, ttl: float = TTL, greets: bool = True) -> Client:
        client = Client(self, name, list(declared), ttl)
        if greets:
            client.greet()
        return client

    def commit(self, *, everything: bool = False) -> None:
        """Do what the owner's process does in each turn: commit what is due, then send the frames."""
        if self.owner.commit_by <= self.now or (everything and self.owner.commit_by < float("inf")):
            self.batches.append((self.now, decode_entries(encode_entries(self.owner.take_entries()))))
        self.send()

    def send(self) -> None:
        for connection, frame in self.owner.take_frames():
            client = self.clients.get(connection)
            if client is not None:
                client.take(wire.decode_replies(frame))

    def advance(self, seconds: float) -> None:
        """Let time pass as the owner's process does: from one due instant to the next."""
        end = self.now + seconds
        while (due := max(self.owner.next_at(), self.now)) <= end:
            self.now = due
            self.owner.advance(self.now)
            self.commit()
            if self.owner.next_at() <= due:
                break
        self.now = end
        self.owner.advance(end)
        self.commit()

    def save(self) -> None:
        """Replace all entries by a snapshot."""
        self.commit(everything=True)
        self.saved = self.copy()
        self.batches = []

    def copy(self) -> Snapshot:
        return decode_snapshot(encode_snapshot(snapshot(self.owner, self.now)))

    def restored(self, saved: Snapshot | None = None, batches: list[tuple[float, list[Entry]]] | None = None,
                 now: float | None = None, ends: Calendar = ends) -> Owner:  # fmt: skip
        """Return a new owner with the state of the journal, or of a part of it."""
        owner = new_owner(self.now if now is None else now, ends)
        if batches is None:
            saved, batches = self.saved, self.batches
        assert restore(owner, saved, batches, self.now if now is None else now), "an entry cannot be read"
        owner.position = self.owner.position
        return owner

    def take_over(self) -> None:
        """Kill the owner; another one takes over. Links break, and what was not committed is lost."""
        self.owner = self.restored()
        self.clients = {}


class Client:
    """A member that sends what a test tells it to. It has one link at a time."""

    def __init__(self, pool: OwnedPool, name: str, declared: list[wire.Declaration], ttl: float) -> None:
        self.pool = pool
        self.name = name
        self.declared = declared
        self.ttl = ttl
        self.links = 0
        self.numbers = 0
        self.leases = 0
        self.replies: list[wire.Reply] = []
        self.granted: dict[int, wire.Granted] = {}
        self.heard = self.kept = self.position = 0

    @property
    def connection(self) -> Any:
        return (self.name, self.links)

    def greet(self, *, held: list[wire.HeldLease] | None = None, waiting: list[wire.Request] | None = None,
              seen: tuple[str, int] | None = None, used: list[wire.Usage] | None = None,
              protocol: int = wire.PROTOCOL, seen_owner: str = "") -> None:  # fmt: skip
        """Greet the owner on a new link."""
        self.links += 1
        self.pool.clients[self.connection] = self
        self.send(
            wire.Hello(protocol, self.name, "host", 1, None, self.ttl, self.declared, held or [], waiting or [], seen,
                       used or [], seen_owner),
            number=self.numbers,
        )  # fmt: skip

    def send(self, *messages: wire.Message, number: int | None = None) -> None:
        """Send messages in one frame."""
        numbered = []
        for message in messages:
            if number is None:
                self.numbers += 1
            numbered.append((self.numbers if number is None else number, message))
        self.pool.owner.receive(self.connection, wire.encode(numbered), self.pool.now)
        self.pool.commit()

    def request(self, tokens: int = 0, *, requests: int = 1, **options: Any) -> int:
        """Request a lease; return its number."""
        self.leases += 1
        self.send(wire.Request(self.leases, "me", requests, tokens, options.pop("scope", None), None, **options))
        return self.leases

    def end(self, lease: int, verdict: Verdict | None = None, *, success: bool = False) -> None:
        self.granted.pop(lease, None)
        self.send(wire.End(lease, None if verdict is None else list(verdict), success))

    def take(self, frame: wire.ReplyFrame) -> None:
        self.heard, self.kept, self.position = frame.heard, frame.kept, frame.position
        for reply in frame.replies:
            self.replies.append(reply)
            if isinstance(reply, wire.Granted):
                self.granted[reply.lease] = reply
            elif isinstance(reply, wire.Lost):
                self.granted.pop(reply.lease, None)
            elif isinstance(reply, wire.Welcome):
                for lease in reply.lost:
                    self.granted.pop(lease, None)

    def of(self, kind: type[R]) -> list[R]:
        """Return the replies of a kind, and forget all replies."""
        replies, self.replies = self.replies, []
        return [reply for reply in replies if isinstance(reply, kind)]

    def held(self) -> list[wire.HeldLease]:
        return [
            wire.HeldLease(g.lease, g.credential, g.fence, g.requests, g.tokens, None, "me")
            for g in self.granted.values()
        ]
