"""How long a request is held: until a credential is usable, but never longer than its client waits. Pure code."""

from __future__ import annotations

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


def hold_of(request: ClientRequest, hold: float) -> float:
    """Return the seconds that a request is held at most; `hold` is the limit for all requests."""
    if request.route.family == "gemini":
        hold = min(hold, GEMINI_HOLD)
    if request.route.shape == "openai-chat" and request.user_agent.lower().startswith(_SHORT_CHAT_CLIENTS):
        hold = min(hold, SHORT_CHAT_HOLD)
    timeout = request.stated_timeout
    if timeout is not None and timeout > 0:
        hold = min(hold, max(timeout - _MARGIN, timeout * 0.8))
    return hold
