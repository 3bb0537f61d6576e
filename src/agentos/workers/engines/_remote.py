"""What runs where an executor carries out an attempt: in a process of a pool, or on a node of a cluster.

Only its outcome comes back from there, and what goes there may be kept: engines hold arguments and results, copy
them to other nodes, and write them to disk. So an attempt brings a *reference* to its credential, which is read here,
and an outcome leaves without the secret, which need not be the one that the coordinator knows.
"""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any, NoReturn

from agentos.errors import CredentialError
from agentos.pool.credential import fingerprint
from agentos.pool.references import resolve
from agentos.providers import verdicts
from agentos.redaction.redactor import Redactor

from ..wire import SentAttempt, answer, described, ended

# One process may serve several runs, one after the other or at once.
MOST_WORKERS = 32
MOST_SECRETS = 1024


class RemoteAttempt(SentAttempt):
    """The attempt as a worker behind an executor sees it: its ids, its credential, and what it used. Nothing reaches it
    from the coordinator until it ends, so `should_stop` stays False."""

    __slots__ = ()

    @property
    def workflow_db(self) -> Path:
        self._refuse("workflow_db")

    def observe(self, response: Any) -> None:
        self.observed.append(verdicts.from_observed(response))

    def _load(self) -> Any:
        self._refuse("checkpoint")

    def _save(self, _obj: Any) -> None:
        self._refuse("checkpoint")

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(
            f"a worker behind an executor has no {what}: it belongs to the coordinator, which is out of reach from "
            "here; use threads, tasks or workers='processes' for it"
        )


def carry_out(pickled_func: bytes, message: bytes) -> bytes:
    """Never raises, whatever the worker does: what an engine raises is then always about the engine."""
    try:
        worker_func = _loaded(pickled_func)
    except BaseException as error:  # importing is running somebody's code
        return _unready(
            f"the worker cannot be loaded where the executor runs it ({type(error).__name__}: {error}): its module "
            "must be importable there"
        )
    try:
        told = pickle.loads(message)  # noqa: S301 - from our own coordinator
    except BaseException as error:
        unreadable = TypeError(f"the item cannot be read where the executor runs the worker: {error!r}")
        return pickle.dumps(("ended", (None, described(unreadable), None, [])))
    if told["reference"] is not None:
        try:
            told["credential"] = _secret(told["start"], told["reference"], told["credential_id"])
        except CredentialError as error:
            return _unready(f"where the executor runs the worker: {error}")
    attempt = RemoteAttempt(told)
    value, error_told = answer(worker_func, attempt)
    return _without_secret(value, error_told, attempt, told["fingerprint"])


def _unready(why: str) -> bytes:
    return pickle.dumps(("unready", why))


@functools.lru_cache(MOST_WORKERS)
def _loaded(pickled_func: bytes) -> Any:
    return pickle.loads(pickled_func)  # noqa: S301 - from our own coordinator


@functools.lru_cache(MOST_SECRETS)
def _secret(start: str, reference: str, credential_id: str) -> str:  # noqa: ARG001 - a resumed run reads it anew
    return resolve(reference, credential_id)


@functools.lru_cache(MOST_SECRETS)
def _redactor(secret: str) -> Redactor:
    return Redactor((secret,))


def _without_secret(value: Any, error: dict[str, Any] | None, attempt: RemoteAttempt, known_as: str | None) -> bytes:
    """The outcome, ready to travel. The coordinator takes the secrets it knows out of what it records, as it does for
    every worker; but engines keep what a failed attempt says, and a secret that is another one here is not known there
    at all."""
    secret = attempt.credential
    if secret is None:
        return ended(value, error, attempt)
    redactor = _redactor(secret)
    attempt.observed = [_redacted(verdict, redactor) for verdict in attempt.observed]
    if error is not None:
        return ended(None, _error_without_secret(error, redactor), attempt)
    outcome = ended(value, None, attempt)
    if fingerprint(secret) != known_as and redactor.data(outcome) != outcome:
        refused = ValueError(
            f"the worker's result holds its key, which is not the one that the coordinator knows as "
            f"{attempt.credential_id} and so could not be taken out of the record: return it without"
        )
        return ended(None, described(refused), attempt)
    return outcome


def _error_without_secret(error: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    original = error["original"]
    if original is not None and redactor.data(original) != original:
        original = None  # it is told by its text
    return {
        **error,
        "text": redactor.text(error["text"], short_too=True),
        "trace": redactor.text(error["trace"], short_too=True),
        "verdict": _redacted(error["verdict"], redactor),
        "original": original,
    }


def _redacted(verdict: verdicts.Verdict, redactor: Redactor) -> verdicts.Verdict:
    message = redactor.text(verdict.message, short_too=True)
    return verdict if message == verdict.message else verdict._replace(message=message)
