"""PoolSecrets: takes the secrets of a pool out of texts."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from agentos.redaction.recent_tokens import RecentTokens
from agentos.redaction.redactor import Redactor


class PoolSecrets:
    """All secrets that a pool has or had. Base of `PoolCredentials`."""

    def __init__(self, hidden_secrets: Iterable[str]) -> None:
        # Guards _redactor, and changes of _hidden_secrets and of the credentials, which other threads read without it.
        self._change_lock = threading.Lock()
        self._hidden_secrets = set(hidden_secrets)
        self._tokens: RecentTokens | None = None  # client tokens of attempts, in a run with a gateway
        self._redactor: Redactor | None = None  # of all secrets; made when first needed, because it takes milliseconds

    def redactor(self) -> Redactor:
        """Return a redactor of all secrets that the pool has or had. A credential that is added later needs a new
        one."""
        redactor = self._redactor
        if redactor is None:
            with self._change_lock:  # made once, from all secrets
                redactor = self._redactor = self._redactor or Redactor(self._hidden_secrets)
        return redactor

    def redact(self, text: str) -> str:
        """Take the pool's secrets out of a text for people."""
        text = self.redactor().text(text, short_too=True)
        return text if self._tokens is None else self._tokens.mask(text)

    def redact_value(self, text: str) -> str:
        """Take the pool's secrets out of a text for programs. A secret so short that it may stand there by chance is
        kept: replacing it would corrupt the text."""
        text = self.redactor().text(text)
        return text if self._tokens is None else self._tokens.mask(text)

    def hide_token(self, token: str) -> None:
        """Take a client token out of texts as well, from now on. Called by one thread at a time."""
        if self._tokens is None:
            self._tokens = RecentTokens()
        self._tokens.add(token)

    def hides_secret(self, text: str) -> bool:
        """Return whether `redact_value` would change a text."""
        return self.redact_value(text) != text
