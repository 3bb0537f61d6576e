"""How long a request is held: until a credential is usable, but never longer than its client waits; and how a client
is told of a longer wait. Pure code."""

from __future__ import annotations

from collections.abc import Mapping

from ._request import ClientRequest

# Seconds that a request is held if nothing else is said: clients wait 300 s and more for the first byte.
DEFAULT_HOLD = 280.0
# For requests in the format of Gemini, whose command line waits for 60 s.
GEMINI_HOLD = 50.0
# For chat completions of clients that wait for 120 s.
SHORT_CHAT_HOLD = 110.0
_SHORT_CHAT_CLIENTS = ("qwencode", "qwen-code")
# Seconds before the end of a client's own patience at which it gets an answer.
_MARGIN = 10.0


# Seconds up to which Codex is left to wait by itself.
MAX_CODEX_WAIT = 60.0


def hold_of(request: ClientRequest, hold: float, *, is_patient: bool = False) -> float:
    """Return the seconds that a request is held at most; `hold` is the limit for all requests. `is_patient`: the client
    was started with settings that make it wait longer than it would by default."""
    if request.route.family == "gemini" and not is_patient:
        hold = min(hold, GEMINI_HOLD)
    if request.route.shape == "openai-chat" and request.user_agent.lower().startswith(_SHORT_CHAT_CLIENTS):
        hold = min(hold, SHORT_CHAT_HOLD)
    timeout = request.stated_timeout
    if timeout is not None and timeout > 0:
        hold = min(hold, max(timeout - _MARGIN, timeout * 0.8))
    return hold


def retry_headers(user_agent: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a refusal. Codex waits out any `Retry-After` in its process, for hours, and three times; it
    does not read milliseconds, and without a wait it ends at once. So a long wait is given in milliseconds to it: its
    item then waits in the queue and not on a worker."""
    wait = headers.get("retry-after")
    if wait is None or not user_agent.lower().startswith("codex") or float(wait) <= MAX_CODEX_WAIT:
        return dict(headers)
    rest = {name: value for name, value in headers.items() if name != "retry-after"}
    return rest | {"retry-after-ms": str(int(float(wait) * 1000))}
