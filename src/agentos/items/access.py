"""AttemptAccess: how the attempts of a run reach providers without holding a credential themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from agentos.verdict import Verdict


@dataclass(slots=True)
class AttemptUsage:
    """What the requests of one attempt have used so far, as counted on the way."""

    requests: int = 0  # that a provider has carried out or is carrying out
    input_tokens: int = 0  # without those read from a prompt cache
    output_tokens: int = 0
    cached_tokens: int = 0  # input read from a prompt cache
    cost: float | None = None  # None: no price is known for some of it
    held_seconds: float = 0.0  # requests waited for a credential
    refusals: int = 0  # answers of providers that the client never saw
    by_credential: dict[str, AttemptUsage] = field(default_factory=dict)  # the same, but for what was held

    def of(self, credential_id: str) -> AttemptUsage:
        """Return the part of one credential, to add to."""
        part = self.by_credential.get(credential_id)
        if part is None:
            part = self.by_credential[credential_id] = AttemptUsage()
        return part

    def copy(self) -> AttemptUsage:
        """Return a copy that does not change with this one."""
        return replace(self, by_credential={id_: replace(part) for id_, part in self.by_credential.items()})


class AttemptEnd(NamedTuple):
    """What is known of an attempt's requests when it ends."""

    usage: AttemptUsage
    verdict: Verdict | None  # why the last request of the attempt was refused, if its client was told so; else None


class RequestMeter(Protocol):
    """Watches what the requests of one attempt spend. Called from any thread; no call blocks."""

    def refusal(self, model: str | None, cost: float | None, /) -> str | None:
        """Return why the next request must not be sent; None if it may. `cost`: as expected; None: not known."""

    def record(self, on_durable: Callable[[], None], /) -> None:
        """Record the usage of the attempt, including requests under way, and call `on_durable` when no kill of this
        process can lose it. Called before a request is sent."""

    def spent(self, tokens: int, cost: float | None, /) -> None:
        """Count what a request has used. `cost`: None if it is not known."""


class AttemptAccess(Protocol):
    """Issues client tokens for attempts, and counts what their requests use. Called from any thread; no call blocks."""

    url: str  # http://127.0.0.1:PORT
    hold: float  # seconds that a request is held at most

    def open(self, run_id: str, item_id: str, attempt: int, meter: RequestMeter | None = None, /) -> str:
        """Return a client token that is valid until `close`. `meter`: may refuse its requests."""

    def close(self, token: str, /) -> AttemptEnd:
        """End a token: its requests under way are cancelled and settled. Idempotent."""

    def usage(self, token: str, /) -> AttemptUsage:
        """Return a copy of what was used so far. A request under way counts as it is estimated."""

    def stalled_seconds(self) -> float:
        """Return for how long requests have waited for a credential without any that was answered; 0 if none waits."""

    def environment(self, token: str, arguments: Sequence[str], folder: str, /) -> Mapping[str, str | None]:
        """Return the variables that a command needs to use the gateway (None: remove the variable). May write
        configuration files below `folder`, which belongs to the attempt and exists."""
