"""Confirms suspicions of a run about a key by the provider's own answer, before other runs are told.

What a command prints, or that it fails, rests a credential in its own run only. A quarantine reaches all runs and lasts
until a person acts, so it needs better evidence: the call of `agentos keys check`, made once for each suspected key.
"""

from __future__ import annotations

import contextlib
import threading
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from agentos.events import CredentialBenched, CredentialRested
from agentos.keys.keys_file import Keys
from agentos.pool.credential import Credential
from agentos.verdict import AUTH_FAILED
from agentos.workflows.parallel import CredentialCoordinator


class KeyConfirmation:
    """Called with the events of a run; asks providers from a thread of its own."""

    def __init__(self, pool: CredentialCoordinator | None, keys: Keys | None) -> None:
        self._pool = pool
        self._keys = keys
        self._credentials = {} if keys is None else {credential.id: credential for credential in keys.credentials}
        self._suspects: SimpleQueue[Credential | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, event: Any) -> None:
        """Note an event; the first suspicion against each key is checked."""
        is_suspicion = isinstance(event, CredentialBenched) or (
            isinstance(event, CredentialRested) and event.verdict == AUTH_FAILED
        )
        credential = self._credentials.pop(event.credential_id, None) if is_suspicion else None
        if credential is None:
            return
        self._suspects.put(credential)
        if self._thread is None:
            self._thread = threading.Thread(target=self._check_suspects, name="agentos-check", daemon=True)
            self._thread.start()

    def use(self, keys: Keys) -> None:
        """Use keys that were read again. Called from any thread."""
        self._keys = keys
        self._credentials = {credential.id: credential for credential in keys.credentials}

    def __enter__(self) -> KeyConfirmation:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._credentials = {}
        self._suspects.put(None)  # not joined: the run does not wait for a provider that does not answer

    def _check_suspects(self) -> None:
        from agentos.keys.check import refusal_of  # few runs need it

        assert self._pool is not None
        assert self._keys is not None
        while (credential := self._suspects.get()) is not None:
            refusal = refusal_of(credential, self._keys)
            if refusal is not None:
                with contextlib.suppress(LookupError):  # it was removed meanwhile
                    self._pool.quarantine(credential.id, f"the provider was asked, and {refusal}")
