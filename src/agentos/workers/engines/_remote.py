"""Run one attempt where an executor runs its tasks: in a process of a pool, or on a node of a cluster.

Only the outcome comes back from there. Engines may keep arguments and results, copy them to other nodes and write them
to disk. So an attempt brings a *reference* to its credential, which is resolved here, and an outcome leaves without the
secret, which may differ from the one that the run's process has.
"""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any, NoReturn

from agentos.errors import CredentialError
from agentos.pool.credential import Settings, Sources, fingerprint_of, read_settings
from agentos.pool.references import resolve
from agentos.providers import verdicts
from agentos.redaction.redactor import Redactor

from ..wire import SentAttempt, describe_exception, encode_outcome, run_worker

# Entries of the caches below. One process may serve several runs, one after the other or at once.
MAX_CACHED_WORKERS = 32
MAX_CACHED_SECRETS = 1024


class RemoteAttempt(SentAttempt):
    """The attempt as a worker behind an executor sees it: its ids, its credential, and what it used. Nothing reaches it
    from the run's process until it ends, so `should_stop` stays False."""

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

    def _refuse(self, name: str) -> NoReturn:
        raise RuntimeError(
            f"a worker behind an executor has no {name}: only the coordinator's machine has it; use threads, tasks "
            "or workers='processes'"
        )


def run_attempt(pickled_func: bytes, message: bytes) -> bytes:
    """Run an attempt and return its encoded outcome. Never raises: an exception from an engine is then always about the
    engine."""
    try:
        worker_func = _load_worker(pickled_func)
    except BaseException as error:  # unpickling imports the user's module, which may raise anything
        return _encode_unready(
            f"the worker cannot be loaded where the executor runs it ({type(error).__name__}: {error}): its module "
            "must be importable there"
        )
    try:
        fields = pickle.loads(message)  # noqa: S301 - from the run's process
    except BaseException as error:
        unreadable = TypeError(f"the item cannot be read where the executor runs the worker: {error!r}")
        return pickle.dumps(("ended", (None, describe_exception(unreadable), None, [])))
    try:
        secrets = _resolve_credential(fields)
    except CredentialError as error:
        return _encode_unready(f"where the executor runs the worker: {error}")
    attempt = RemoteAttempt(fields)
    value, error_description = run_worker(worker_func, attempt)
    return _encode_redacted(value, error_description, attempt, secrets, fields["fingerprint"])


def _encode_unready(reason: str) -> bytes:
    return pickle.dumps(("unready", reason))


@functools.lru_cache(MAX_CACHED_WORKERS)
def _load_worker(pickled_func: bytes) -> Any:
    return pickle.loads(pickled_func)  # noqa: S301 - from the run's process


def _resolve_credential(fields: dict[str, Any]) -> frozenset[str]:
    """Replace the references to the credential and its settings by their values. Return the secrets among them. Raise
    `CredentialError`."""
    launch, credential_id = fields["launch"], fields["credential_id"]
    if fields["reference"] is not None:
        fields["credential"] = _resolve_secret(launch, fields["reference"], credential_id)
    settings = _resolve_settings(launch, fields["base_url"], tuple(fields["headers"].items()), credential_id)
    fields["base_url"], fields["headers"] = settings.base_url, dict(settings.headers)
    return settings.secrets | ({fields["credential"]} - {None, ""})


@functools.lru_cache(MAX_CACHED_SECRETS)
def _resolve_settings(
    launch: str,  # noqa: ARG001 - a new launch reads it anew
    base_url: str | None,
    headers: tuple[tuple[str, str], ...],
    credential_id: str,
) -> Settings:
    return read_settings(Sources(base_url, dict(headers)), credential_id)


@functools.lru_cache(MAX_CACHED_SECRETS)
def _resolve_secret(launch: str, reference: str, credential_id: str) -> str:  # noqa: ARG001 - a new launch reads it anew
    return resolve(reference, credential_id)


@functools.lru_cache(MAX_CACHED_SECRETS)
def _redactor_of(secrets: frozenset[str]) -> Redactor:
    return Redactor(secrets)


def _encode_redacted(
    value: Any,
    error: dict[str, Any] | None,
    attempt: RemoteAttempt,
    secrets: frozenset[str],
    expected_fingerprint: str | None,
) -> bytes:
    """Return the encoded outcome without the attempt's secrets.

    The run's process takes the secrets that it knows out of what it records. That is not enough here: engines keep the
    texts of failed tasks, and a secret that differs from the run's own (another fingerprint) is unknown there.
    """
    if not secrets:
        return encode_outcome(value, error, attempt)
    redactor = _redactor_of(secrets)
    attempt.observed = [_redact_verdict(verdict, redactor) for verdict in attempt.observed]
    if error is not None:
        return encode_outcome(None, _redact_error(error, redactor), attempt)
    outcome = encode_outcome(value, None, attempt)
    if fingerprint_of(secrets) != expected_fingerprint and redactor.data(outcome) != outcome:
        refused = ValueError(
            f"the worker's result contains its key, which differs from the coordinator's {attempt.credential_id} and "
            "could not be redacted: return the result without it"
        )
        return encode_outcome(None, describe_exception(refused), attempt)
    return outcome


def _redact_error(error: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    original = error["original"]
    if original is not None and redactor.data(original) != original:
        original = None  # the redacted text stands for it
    return {
        **error,
        "text": redactor.text(error["text"], short_too=True),
        "trace": redactor.text(error["trace"], short_too=True),
        "verdict": _redact_verdict(error["verdict"], redactor),
        "original": original,
    }


def _redact_verdict(verdict: verdicts.Verdict, redactor: Redactor) -> verdicts.Verdict:
    message = redactor.text(verdict.message, short_too=True)
    return verdict if message == verdict.message else verdict._replace(message=message)
