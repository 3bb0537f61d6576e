"""The messages between the members of a shared pool and its owner, and their encoding.

A member sends frames of numbered messages, the owner answers with frames of replies. Both are MessagePack arrays. The
transport delivers frames of one link in order, or breaks the link; after a break the member greets the owner again
(`Hello`) with everything that it holds and waits for, and repeats the messages that were not acknowledged. So every
message is idempotent, or is recognised by its number.

The owner validates each message by the types of this module. An invalid message is answered by `Rejected`, and affects
its sender only. New fields are added at the end with a default: members and owners of neighbouring versions understand
each other.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

# Number of this protocol. A member and an owner work together if their numbers differ by one at most.
PROTOCOL = 5
# Characters of an item id that other processes see: ids may be whole documents.
MAX_NAME = 80
# Characters of a message or reason that is sent to other processes.
MAX_TEXT = 2_000
# Bytes of one frame. A larger one is an error of its sender.
MAX_FRAME = 16 * 1024 * 1024
# Largest count of requests or tokens: beyond it a float cannot count in steps of one.
MAX_COUNT = 2**53
# Largest duration, or other figure of a provider.
MAX_SECONDS = 1e12

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
# Fences are microseconds since 1970 at first, and grow by one: far below this, so that they can go on to grow.
Fence: TypeAlias = Annotated[int, Meta(ge=0, le=2**60)]
Seconds: TypeAlias = Annotated[float, Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME)]
Identifier: TypeAlias = Annotated[str, Meta(max_length=1_000)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
# Input tokens, output tokens and cost: the fields of `Detail`.
DetailFields: TypeAlias = tuple[Count, Count, Annotated[float, Meta(ge=0, le=MAX_COUNT)]]


class _Message(Struct, array_like=True, gc=False):
    """A message or reply: an array that begins with the tag of its class."""


# --- what a member sends ----------------------------------------------------------------------------------------------


class Declaration(_Message, tag="declare"):
    """A credential that this member has, and what it declares about it. Never a secret."""

    id: Identifier
    group: Identifier
    provider: Identifier | None
    scopes: list[Identifier]
    limits: dict[str, Any]  # fields of `Limits`; unknown names are refused
    fingerprint: Name


class Drop(_Message, tag="drop"):
    """This member has a credential no longer."""

    id: Identifier


class Request(_Message, tag="request"):
    """A request for a lease. `lease` is its number, which the member chooses; numbers only grow."""

    lease: Number
    requester: Name | None
    requests: Count
    tokens: Count
    scope: Identifier | None
    prefer: Identifier | None
    waits_for_probe: bool = False
    wait: bool = True
    front: bool = False
    excluded: list[Identifier] = []  # credentials that it must not be granted
    later: list[Identifier] = []  # ... not now: the member asks again when it will use them
    for_provider: Identifier | None = None  # only credentials of this provider may serve it
    only: Identifier | None = None  # only this credential may serve it
    detail: DetailFields | None = None


class Confirm(_Message, tag="confirm"):
    """Ask whether a granted lease may still be handed to its waiter."""

    lease: Number


class Withdraw(_Message, tag="withdraw"):
    """The caller gave up."""

    lease: Number


class End(_Message, tag="end"):
    """A lease ends, with the provider's answer."""

    lease: Number
    verdict: list[Any] | None = None  # the fields of `Verdict`
    success: bool = False
    cool_seconds: Seconds | None = None  # the caller's word, from which no limit is learned
    address: Identifier | None = None  # of the provider, if it could not be reached; an older owner ignores it

    @property
    def has_news(self) -> bool:
        """Return whether it changes more than the lease."""
        return self.verdict is not None or self.cool_seconds is not None


class Observed(_Message, tag="observed"):
    """The verdict on an answer in the middle of a lease."""

    lease: Number
    verdict: list[Any]


class Settle(_Message, tag="settle"):
    """What a live lease really used. If it has ended meanwhile, what exceeds its reservation is debt."""

    lease: Number
    requests: Count | None
    tokens: Count | None
    credential: Identifier | None = None
    excess_requests: Count = 0
    excess_tokens: Count = 0
    detail: DetailFields | None = None
    excess_detail: DetailFields | None = None
    scope: Identifier | None = None


class UseMore(_Message, tag="more"):
    """Usage beyond the reservation of a live lease; debt, if it has ended meanwhile."""

    lease: Number
    requests: Count
    tokens: Count
    credential: Identifier | None = None
    detail: DetailFields | None = None
    scope: Identifier | None = None


class SetQuarantine(_Message, tag="quarantine"):
    """Take a credential out of use, or (None) put it back."""

    id: Identifier
    reason: Text | None


class Cool(_Message, tag="cool"):
    """Cool the group of a credential, in all scopes."""

    id: Identifier
    seconds: Seconds


class Clear(_Message, tag="clear"):
    """End the quarantine of a credential, and the cool-downs of itself, its group and its provider."""

    id: Identifier


class Heartbeat(_Message, tag="beat"):
    """The member lives and holds these leases."""

    leases: list[Number]


class Query(_Message, tag="query"):
    """Ask for a fact: `what` is a key of `queries.ANSWERS`. Needs no `Hello`."""

    number: Number
    what: Name
    arguments: list[Any] = []
    protocol: int = PROTOCOL  # of the process that asks


class Leave(_Message, tag="leave"):
    """The member ends; its leases end."""


class HeldLease(_Message):
    """A lease that a member holds when it greets the owner."""

    lease: Number
    credential: Identifier
    fence: Fence
    requests: Count
    tokens: Count
    scope: Identifier | None
    requester: Name | None
    for_provider: Identifier | None = None
    only: Identifier | None = None
    detail: DetailFields | None = None


class Usage(_Message):
    """What a member has used of one credential, some time ago."""

    credential: Identifier
    age: Seconds
    requests: Count
    tokens: Count
    detail: DetailFields | None = None


class Hello(_Message, tag="hello"):
    """The first message on a link: everything that this member has, holds and waits for."""

    protocol: int
    session: Name
    host: Identifier
    pid: int
    run: Identifier | None
    ttl: Annotated[float, Meta(gt=0, le=864_000)]
    declarations: list[Declaration]
    held: list[HeldLease]
    waiting: list[Request]
    seen: tuple[Name, Number] | None = None  # identity and highest position of the journal, as owners have told
    used: list[Usage] = []  # sent if the journal may have been lost
    seen_owner: Name = ""  # nonce of the owner that has told `seen`
    order: Name = ""  # in which it is granted credentials; empty: the least loaded first


Message: TypeAlias = (
    Declaration | Drop | Request | Confirm | Withdraw | End | Observed | Settle | UseMore | SetQuarantine | Cool
    | Clear | Heartbeat | Query | Leave | Hello
)  # fmt: skip


# --- what the owner sends ---------------------------------------------------------------------------------------------


class Welcome(_Message, tag="welcome"):
    """The answer to `Hello`."""

    protocol: int
    identity: str
    position: int
    pid: int
    host: str
    since: float  # epoch
    lost: list[int]  # leases of `Hello.held` that have ended meanwhile
    wants_usage: bool = False  # the journal has lost something: greet again with `used`
    nonce: str = ""  # identifies this owner in the history of the journal
    kept: int = 0  # if `wants_usage`: position up to which the journal holds what the member has seen


class Granted(_Message, tag="granted"):
    """A lease is live."""

    lease: int
    credential: str
    provider: str | None
    fence: int
    at: float  # the owner's clock
    requests: int
    tokens: int
    was_queued: bool = False  # it was waited for: others may wait, too


class Denied(_Message, tag="denied"):
    """A request that does not wait was not served."""

    lease: int


class Refused(_Message, tag="refused"):
    """No credential can serve a request unless a person changes the pool."""

    lease: int
    too_large: str | None


class Lost(_Message, tag="lost"):
    """A lease has ended without the member."""

    lease: int


class Event(_Message, tag="event"):
    """An event of the pool: the name of its class in `agentos.events`, and its fields."""

    name: str
    fields: list[Any]


class Answer(_Message, tag="answer"):
    """The answer to a `Query`."""

    number: int
    value: Any


class Rejected(_Message, tag="rejected"):
    """A message was invalid, or the owner could not carry it out. `number` is that of the message; 0: of a query."""

    number: int
    reason: str
    lease: int | None = None


class Dismissed(_Message, tag="dismissed"):
    """The owner does not serve this member: the reason is for people."""

    reason: str


class Expired(_Message, tag="expired"):
    """The session has ended because its member was silent: greet again."""


class Unavailable(_Message, tag="unavailable"):
    """The journal cannot be written: nothing is granted until an empty reason follows."""

    reason: str


Reply: TypeAlias = (
    Welcome | Granted | Denied | Refused | Lost | Event | Answer | Rejected | Dismissed | Expired | Unavailable
)  # fmt: skip


class ReplyFrame(Struct, array_like=True, gc=False):
    """Replies to one member. `heard`: number of the last message that was processed; `kept`: that the journal holds."""

    heard: int
    kept: int
    position: int
    replies: list[Reply]


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_messages = msgspec.msgpack.Decoder(list[tuple[Number, Message]]).decode
decode_frame = msgspec.msgpack.Decoder(list[tuple[Number, msgspec.Raw]]).decode  # of which some messages are invalid
decode_message = msgspec.msgpack.Decoder(Message).decode
decode_replies = msgspec.msgpack.Decoder(ReplyFrame).decode

InvalidMessage = msgspec.MsgspecError


def encode_alone(reply: Rejected | Dismissed | Unavailable) -> bytes:
    """Return a frame with one reply that acknowledges nothing. Its reason may hold a path, which may be no text."""
    reply.reason = plain_text(reply.reason, MAX_TEXT)
    return encode(ReplyFrame(0, 0, 0, [reply]))


def check(message: Message) -> None:
    """Raise `ValueError` if the owner would reject a message."""
    try:
        decode_message(encode(message))
    except (InvalidMessage, UnicodeEncodeError, OverflowError, TypeError) as error:
        raise ValueError(f"this cannot be shared with other processes: {error}") from None


def plain_text(text: str, length: int) -> str:
    """Return a text that every member can encode and display: at most `length` characters, lone surrogates escaped."""
    if len(text) > length:
        text = f"{text[: length - 1]}…"
    return text if is_text(text) else text.encode(errors="backslashreplace").decode()[:length]


def is_text(text: str) -> bool:
    """Return whether a text can be encoded: it has no lone surrogates, as paths and arguments may have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
