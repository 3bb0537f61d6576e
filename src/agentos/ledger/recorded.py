"""What a ledger records of a run, as its readers return it: items, attempts, usage, launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNFINISHED = "unfinished"
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """What requests have used, as the gateway of a run counted them."""

    requests: int  # that a provider has carried out; or may have, if their answer was cut or their launch killed
    input_tokens: int  # without those that were read from a prompt cache
    output_tokens: int
    cached_tokens: int  # input that was read from a prompt cache
    cost: float | None  # None: the price of a model is not known
    held_seconds: float  # requests waited for a credential
    refusals: int  # answers of providers that the client never saw


@dataclass(frozen=True, slots=True)
class RecordedItem:
    """One item as it is recorded."""

    id: str
    # "succeeded", "failed", "unfinished"; or "damaged", if the row does not match its checksum: then `error` says what
    # to do, and nothing else is set.
    outcome: str
    input: Any
    value: Any  # what the worker returned
    error: str | None  # of the outcome, or of the newest attempt of an unfinished item
    metadata: dict[str, Any]  # for a failure: verdict, error_type, traceback
    attempts: int  # in the launch of the newest one
    launch: int  # of the newest attempt
    duration: float | None  # seconds from its first start in that launch to its end
    ended_at: float | None  # epoch
    credential_id: str | None  # of the newest attempt
    tokens: int  # of all attempts, like `cost`
    cost: float
    usage: RequestUsage | None = None  # of all attempts; None: the run has no gateway
    credential_ids: tuple[str, ...] = ()  # that the requests of all attempts were sent with, in a run with a gateway


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt as it is recorded."""

    item_id: str
    launch: int
    n: int  # number of the attempt within the launch
    credential_id: str | None
    waited: float  # seconds, for the credential
    started_at: float  # epoch
    ended_at: float | None  # None: it is running, or was killed
    verdict: str | None  # "succeeded", "failed", "interrupted", "worker_died", or the verdict on the provider's answer
    requests: int
    tokens: int
    cost: float
    error: str | None
    usage: RequestUsage | None = None  # None: the run has no gateway
    credential_ids: tuple[str, ...] = ()  # that its requests were sent with, in a run with a gateway


@dataclass(frozen=True, slots=True)
class CredentialTotals:
    """The usage of one credential in a run. With a gateway the attempts are those that used it for some request."""

    credential_id: str
    attempts: int
    succeeded: int
    requests: int
    tokens: int
    cost: float | None  # None: the price of a model is not known
    waited: float  # seconds; with a gateway 0: requests wait for any credential
    refusals: int = 0  # answers of the provider that no item saw, in a run with a gateway


@dataclass(frozen=True, slots=True)
class Launch:
    """One start or resume of the run, by one process."""

    launch: int
    pid: int
    host: str
    started_at: float  # epoch
    ended_at: float | None  # None: it is running, or was killed
    stopped: str | None  # why it ended early
