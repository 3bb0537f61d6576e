"""FakeAccess: a gateway without a server. It issues client tokens, records every call, and answers as it is told."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from agentos.items.access import AttemptEnd, AttemptUsage, RequestMeter
from agentos.verdict import Verdict


class FakeAccess:
    """Implements `AttemptAccess`. `use` and `refuse` stand for what the requests of an attempt would cause."""

    def __init__(self, *, hold: float = 280.0, url: str = "http://127.0.0.1:9") -> None:
        self.url = url
        self.hold = hold
        self.stalled = 0.0  # seconds
        self.opened: list[tuple[str, str, int]] = []  # run, item, number of the attempt
        self.closed: Counter[str] = Counter()  # calls of `close` by token
        self.tokens: dict[str, tuple[str, int]] = {}  # all that were issued: item, number of the attempt
        self.on_open: Callable[[str, str, int], None] = lambda _token, _item_id, _attempt: None
        self.settings: dict[str, str | None] = {}
        self.folders: list[str] = []
        self._lock = threading.Lock()
        self._usage: dict[str, AttemptUsage] = {}
        self._verdicts: dict[str, Verdict | None] = {}
        self.meters: dict[str, RequestMeter | None] = {}

    @property
    def open_tokens(self) -> list[str]:
        return [token for token in self.tokens if not self.closed[token]]

    def token_of(self, item_id: str, attempt: int = 1) -> str:
        return next(token for token, of in self.tokens.items() if of == (item_id, attempt))

    def use(self, token: str, credential_id: str | None = None, **used: float) -> None:
        """Add to the usage of an attempt, and to that of a credential."""
        with self._lock:
            usage = self._usage[token]
            for part in (usage, usage.of(credential_id)) if credential_id is not None else (usage,):
                for name, amount in used.items():
                    setattr(part, name, (getattr(part, name) or 0) + amount)
        meter = self.meters[token]
        if meter is not None and "requests" in used:
            tokens = used.get("input_tokens", 0) + used.get("output_tokens", 0)
            meter.spent(int(tokens), used.get("cost"))

    def refuse(self, token: str, verdict: Verdict | None) -> None:
        """Set what the client was told about its last request."""
        self._verdicts[token] = verdict

    # --- AttemptAccess --------------------------------------------------------------------------------------------

    def open(self, run_id: str, item_id: str, attempt: int, meter: RequestMeter | None = None, /) -> str:
        token = "agentos-" + secrets.token_hex(16)
        with self._lock:
            self.opened.append((run_id, item_id, attempt))
            self.tokens[token] = item_id, attempt
            self._usage[token] = AttemptUsage()
            self.meters[token] = meter
        self.on_open(token, item_id, attempt)
        return token

    def close(self, token: str, /) -> AttemptEnd:
        with self._lock:
            self.closed[token] += 1
            return AttemptEnd(self._usage[token].copy(), self._verdicts.get(token))

    def usage(self, token: str, /) -> AttemptUsage:
        with self._lock:
            return self._usage[token].copy()

    def stalled_seconds(self) -> float:
        return self.stalled

    def environment(self, token: str, arguments: Sequence[str], folder: str, /) -> Mapping[str, str | None]:
        self.folders.append(folder)
        return {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": token, **self.settings}
