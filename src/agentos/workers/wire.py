"""The wire format between a run and a worker in another process, and what the worker sees of its attempt there.

The attempt travels as a pickled dict, the outcome as a pickled `("ended", (value, error, usage, observed))`. The
transport (a pipe to a worker process, or the engine behind an executor) handles bytes only, and never has to import the
user's classes.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agentos import foreign_exceptions
from agentos.errors import WorkerError
from agentos.items.attempt import ClientToken
from agentos.items.context import CurrentItem, running_item
from agentos.pool.credential import NO_VALUES, Settings
from agentos.pool.lease import LeasedKey
from agentos.providers import verdicts
from agentos.redaction.mask import MASK

if TYPE_CHECKING:
    from agentos.items.attempt import Attempt
    from agentos.verdict import Verdict


class SentAttempt(CurrentItem):
    """The attempt as a worker in another process sees it. Subclasses add what depends on the transport."""

    __slots__ = ("_gateway_url", "_run_id", "credential", "is_lent", "observed", "payload")

    def __init__(self, message: dict[str, Any]) -> None:
        self.id = message["id"]
        self.attempt = message["attempt"]
        self._run_id = message["run_id"]
        self.credential_id = message["credential_id"]
        self.credential = _key_of(message)
        self._gateway_url: str | None = message["gateway_url"]
        self.payload = message["payload"]
        self.is_lent = False
        self.should_stop = False
        self.usage = None
        self.observed: list[Verdict] = []  # sent back together with the outcome

    @property
    def run_id(self) -> str:
        return str(self._run_id)

    @property
    def gateway_url(self) -> str | None:
        return self._gateway_url

    @property
    def client_token(self) -> str | None:
        return None if self._gateway_url is None else self.credential

    def lease(
        self, *, requests: int = 1, tokens: int = 0, scope: str | None = None, timeout: float | None = None
    ) -> SentLease:
        """Return the attempt's own lease. Raise `RuntimeError` if it is in use or there is none: this process has no
        pool that could grant a second one."""
        del requests, tokens, scope, timeout  # the run's process has granted the lease already
        if self._gateway_url is not None:
            raise RuntimeError(
                "a worker in another process has no lease in a run with a gateway: send requests to "
                "current_item().gateway_url with current_item().client_token as the key"
            )
        if self.credential is None or self.is_lent:
            raise RuntimeError(
                "a worker in another process has at most one credential, and it is in use or missing: use threads "
                "or async workers for more"
            )
        return SentLease(self)


class SentLease:
    """The attempt's own lease, lent to a `with` block of its worker. It ends with the attempt, in the run's process."""

    def __init__(self, attempt: SentAttempt) -> None:
        self._attempt = attempt

    @property
    def secret(self) -> str:
        return self._attempt.credential or ""

    @property
    def credential_id(self) -> str:
        return self._attempt.credential_id or ""

    @property
    def base_url(self) -> str | None:
        return None if self._attempt.credential is None else self._attempt.credential.base_url

    @property
    def headers(self) -> Mapping[str, str]:
        return NO_VALUES if self._attempt.credential is None else self._attempt.credential.headers

    def settle(self, *, requests: int | None = None, tokens: int | None = None) -> None:
        self._attempt.report_usage(requests=requests or 0, tokens=tokens or 0)

    def observe(self, response: Any) -> None:
        self._attempt.observe(response)

    def __enter__(self) -> SentLease:
        self._attempt.is_lent = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._attempt.is_lent = False

    async def __aenter__(self) -> SentLease:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__(*exc)

    def __repr__(self) -> str:
        return f"<Lease of {self.credential_id} {MASK}>"


# --- in the run's process -----------------------------------------------------------------------------------------


def attempt_message(attempt: Attempt, **more: Any) -> dict[str, Any]:
    """Return the fields that every attempt is sent with, and those of its transport (`more`)."""
    return {
        "id": attempt.id,
        "attempt": attempt.attempt,
        "run_id": attempt.run_id,
        "credential_id": attempt.credential_id,
        "credential": None,
        "gateway_url": attempt.gateway_url,
        "base_url": None,  # of the credential, like the headers
        "headers": {},
        "payload": attempt.item.payload,
        **more,
    }


def encode(message: dict[str, Any], dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """Pickle the message of an attempt. Raise `TypeError` if its item cannot be pickled."""
    try:
        return dumps(message)
    except Exception as error:
        raise TypeError(f"the item cannot be sent to a worker process: {error}") from error


def decode_outcome(attempt: Attempt, content: tuple[Any, Any, Any, list[Verdict]]) -> Any:
    """Return the worker's value, or raise its error as a `WorkerError`. Sets the attempt's usage and applies the
    verdicts that the worker has observed."""
    value, error, attempt.usage, observed = content
    for verdict in observed:
        attempt.observed(verdict)
    if error is None:
        return value
    raise WorkerError(
        error["text"],
        type_name=error["type_name"],
        trace=error["trace"],
        verdict=error["verdict"],
        original=_load_exception(error["original"]),
    )


def _load_exception(pickled: bytes | None) -> BaseException | None:
    """Return the worker's exception, or None: some exceptions can be pickled but not unpickled."""
    try:
        original = pickle.loads(pickled) if pickled is not None else None  # noqa: S301 - from a worker of this run
        return original if isinstance(original, BaseException) else None
    except BaseException:
        return None


# --- in the worker's process --------------------------------------------------------------------------------------


def _key_of(message: dict[str, Any]) -> LeasedKey | ClientToken | None:
    """Return the key as a worker sees it, or the client token of a run with a gateway; None without a credential. Its
    lease is in the run's process."""
    if message["credential"] is None:
        return None
    if message["gateway_url"] is not None:
        return ClientToken(message["credential"], message["gateway_url"])
    key = LeasedKey(message["credential"])
    key.credential_id = message["credential_id"]
    key.settings = Settings(message["base_url"], MappingProxyType(message["headers"]))
    return key


def run_worker(worker_func: Any, attempt: SentAttempt) -> tuple[Any, dict[str, Any] | None]:
    """Call the worker function. Return its value, or the description of its exception; never raises."""
    token = running_item.set(attempt)
    try:
        value = worker_func(attempt.payload, attempt.credential)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except BaseException as exc:  # also SystemExit: it fails this item and not the process
        return None, describe_exception(exc)
    finally:
        running_item.reset(token)
    return value, None


def encode_outcome(value: Any, error: dict[str, Any] | None, attempt: SentAttempt) -> bytes:
    """Pickle the outcome of an attempt. A value that cannot be pickled becomes a `TypeError`."""
    try:
        return pickle.dumps(("ended", (value, error, attempt.usage, attempt.observed)))
    except Exception as problem:
        kind = type(value).__name__
        refused = TypeError(f"the worker's result, a {kind}, cannot leave its process: return plain data ({problem})")
        return pickle.dumps(("ended", (None, describe_exception(refused), attempt.usage, attempt.observed)))


def describe_exception(exc: BaseException) -> dict[str, Any]:
    """Return type, text, traceback and verdict of an exception, and its pickle (`original`) if it can be pickled."""
    name = foreign_exceptions.type_name(exc)
    description: dict[str, Any] = {
        "type_name": name,
        "text": foreign_exceptions.text(exc) or name,
        "trace": foreign_exceptions.trace(exc),
        "verdict": verdicts.from_exception(exc),
        "original": None,
    }
    try:
        description["original"] = pickle.dumps(exc)
    except BaseException:  # pickling runs the user's code, which may raise anything
        return description
    return description
