"""LocalAnswer: an answer of the gateway itself, in the format of the provider that the client expects."""

from __future__ import annotations

from agentos.providers.error_format import STATUSES, ErrorKind, error_body, error_headers
from agentos.verdict import Verdict


class LocalAnswer(Exception):
    """An error that the gateway answers instead of a provider."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, verdict: Verdict | None = None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body
        self.verdict = verdict  # for the client's attempt: why its request was refused


def error(shape: str, kind: ErrorKind, message: str, *, retry_after: float | None = None, is_final: bool = False,
          status: int | None = None, verdict: Verdict | None = None) -> LocalAnswer:  # fmt: skip
    """Return an error as a provider of this shape would send it. `is_final`: SDKs must not send the request again."""
    status = STATUSES[kind] if status is None else status
    headers = error_headers(shape, retry_after, is_final=is_final)
    return LocalAnswer(status, headers, error_body(shape, status, kind, message, retry_after), verdict)
