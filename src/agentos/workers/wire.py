"""An attempt that was sent to another process: what its worker sees there, and how its outcome comes back.

The attempt travels as a pickled dict, the outcome as a pickled `("ended", (value, error, usage, observed))`, so that
whoever carries the two never meets a foreign object: a worker process of our own (`_child`), or the engine behind an
executor (`_remote`).
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentos.errors import WorkerError
from agentos.items.context import CurrentItem, _current
from agentos.providers import verdicts
from agentos.redaction.mask import MASK

if TYPE_CHECKING:
    from agentos.items.attempt import Attempt
    from agentos.verdict import Verdict


class SentAttempt(CurrentItem):
    """The attempt as a worker in another process sees it, without what depends on how it got there."""

    __slots__ = ("_run_id", "credential", "is_lent", "observed", "payload")

    def __init__(self, message: dict[str, Any]) -> None:
        self.id = message["id"]
        self.attempt = message["attempt"]
        self._run_id = message["run_id"]
        self.credential_id = message["credential_id"]
        self.credential: str | None = message["credential"]
        self.payload = message["payload"]
        self.is_lent = False
        self.should_stop = False
        self.usage = None
        self.observed: list[Verdict] = []  # what comes back together with the outcome

    @property
    def run_id(self) -> str:
        return str(self._run_id)

    def lease(
        self, *, requests: int = 1, tokens: int = 0, scope: str | None = None, timeout: float | None = None
    ) -> SentLease:
        """Return the attempt's own lease. Raise `RuntimeError` if it is in use or there is none: this process has no
        pool that could grant a second one."""
        del requests, tokens, scope, timeout  # the run's process has granted the lease already
        if self.credential is None or self.is_lent:
            raise RuntimeError(
                "a worker in another process has only the one credential that it was given, and it is in use or there "
                "is none: use threads or async workers for more"
            )
        return SentLease(self)


class SentLease:
    """The attempt's own lease, lent to a block of its worker. It ends with the attempt, where the coordinator is."""

    def __init__(self, attempt: SentAttempt) -> None:
        self._attempt = attempt

    @property
    def secret(self) -> str:
        return self._attempt.credential or ""

    @property
    def credential_id(self) -> str:
        return self._attempt.credential_id or ""

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


# --- where the coordinator is -------------------------------------------------------------------------------------


def message_of(attempt: Attempt, **more: Any) -> dict[str, Any]:
    """What every attempt takes along."""
    return {
        "id": attempt.id,
        "attempt": attempt.attempt,
        "run_id": attempt.run_id,
        "credential_id": attempt.credential_id,
        "credential": None,
        "payload": attempt.item.payload,
        **more,
    }


def packed(message: dict[str, Any], dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    try:
        return dumps(message)
    except Exception as error:
        raise TypeError(f"the item cannot be sent to a worker process: {error}") from error


def outcome(attempt: Attempt, content: tuple[Any, Any, Any, list[Verdict]]) -> Any:
    """The worker's value; or raises what it raised, as far as that could travel."""
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
        original=_unpickled(error["original"]),
    )


def _unpickled(exception: bytes | None) -> BaseException | None:
    """Some exceptions can be pickled but not read back: those are told by their text alone."""
    try:
        original = pickle.loads(exception) if exception is not None else None  # noqa: S301 - from our own worker
    except Exception:
        return None
    return original if isinstance(original, BaseException) else None


# --- where the worker is ------------------------------------------------------------------------------------------


def answer(worker_func: Any, attempt: SentAttempt) -> tuple[Any, dict[str, Any] | None]:
    """The worker's value, or all that can be said of what it raised."""
    before = _current.set(attempt)
    try:
        value = worker_func(attempt.payload, attempt.credential)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except BaseException as exc:  # also SystemExit: one item's failure is its own
        return None, described(exc)
    finally:
        _current.reset(before)
    return value, None


def ended(value: Any, error: dict[str, Any] | None, attempt: SentAttempt) -> bytes:
    """The outcome, ready to travel. A value that cannot becomes an error that says so."""
    try:
        return pickle.dumps(("ended", (value, error, attempt.usage, attempt.observed)))
    except Exception as problem:
        kind = type(value).__name__
        refused = TypeError(f"the worker's result, a {kind}, cannot leave its process: return plain data ({problem})")
        return pickle.dumps(("ended", (None, described(refused), attempt.usage, attempt.observed)))


def described(exc: BaseException) -> dict[str, Any]:
    """All that can be said of an exception, and the exception itself (pickled apart) if it can travel."""
    name = type(exc).__name__
    try:
        text = str(exc) or name
    except Exception as error:  # an exception is somebody's code, too
        text = f"{name}, whose text failed: {type(error).__name__}"
    told: dict[str, Any] = {
        "type_name": name,
        "text": text,
        "trace": "".join(traceback.format_exception(exc)),
        "verdict": verdicts.from_exception(exc),
        "original": None,
    }
    try:
        told["original"] = pickle.dumps(exc)
    except Exception:  # there are as many ways not to be picklable as there are exceptions
        return told
    return told
