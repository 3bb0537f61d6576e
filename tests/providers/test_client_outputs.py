"""Recorded outputs of agents and HTTP clients, and variations of each family: other versions, wordings, wrappers."""

# ruff: noqa: E501 - tables of lines, as programs print them
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentos.providers.verdicts import from_output, from_response
from agentos.verdict import AUTH_FAILED

NOW = 1794772800.0  # Sunday, 2026-11-15 20:00:00 UTC
DATA = Path(__file__).parents[1] / "data"
# Recorded with simulated providers, as people reported them, and of more programs with refusals of more providers.
FILES = ("client_outputs.jsonl", "reported_outputs.jsonl", "captured_outputs.jsonl")
ROWS = [json.loads(line) for name in FILES for line in (DATA / name).read_text().split("\n") if line]

# Labels that name what the simulated provider did, where the client prints something else.
DISPUTED = {
    # The text says only that the server is overloaded.
    ("copilot", "stream-limit"): "overloaded",
    ("llm", "stream-limit"): "overloaded",
    ("opencode", "stream-limit"): "overloaded",
    # The same output as for "stream-limit", which is labelled as a rate limit.
    ("gemini", "stream-error"): "rate_limited",
    ("gemini", "g-s-mid"): "rate_limited",
    # Codex prints nothing but "high demand" for a status of 500.
    ("codex-json", "o-500"): "overloaded",
}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['cli']} {row['situation']}" for row in ROWS])
@pytest.mark.parametrize("order", ["stdout first", "stderr first", "joined"])
def test_recorded_output_gets_accepted_verdict(row: dict[str, Any], order: str) -> None:
    pieces = [row["stdout"], row["stderr"]]
    text = ("" if order == "joined" else "\n").join(reversed(pieces) if order == "stderr first" else pieces)
    accepted = row["expected"]
    if (row["cli"], row["situation"]) in DISPUTED:
        accepted = [DISPUTED[row["cli"], row["situation"]]]
    for provider in (row["provider"], None):
        assert from_output(text, row["exit_status"], provider=provider, now=NOW).kind in accepted
        assert from_output(text.encode(), row["exit_status"], provider=provider, now=NOW).kind in accepted


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['cli']} {row['situation']}" for row in ROWS])
def test_cut_or_wrapped_output_never_blames_the_key_wrongly(row: dict[str, Any]) -> None:
    text = row["stdout"] + row["stderr"]
    variants = [text[len(text) // 3 :], text[: 2 * len(text) // 3], text[-300:], text.replace("\n", "\r\n")]
    variants += ["\n".join(f"[item 7] {line}" for line in text.splitlines()), f"\x1b[31m{text}\x1b[0m"]
    for variant in variants:
        if AUTH_FAILED not in row["expected"]:
            assert from_output(variant, row["exit_status"], provider=row["provider"], now=NOW).kind != AUTH_FAILED


CLAUDE = {
    "type": "result",
    "subtype": "success",
    "is_error": True,
    "num_turns": 1,
    "session_id": "s",
    "total_cost_usd": 0,
}
AIDER = (
    "Aider v0.{}\nMain model: {} with diff edit format\nGit repo: .git with 12 files\nRepo-map: using 1024 tokens\n\n"
)
COPILOT_ENDS = {
    "type": "result",
    "timestamp": "2026-11-15T20:00:00Z",
    "sessionId": "s",
    "exitCode": 1,
    "usage": {"premiumRequests": 0},
}


def copilot(message: str, kind: str, status: int | None = None) -> str:
    """Return the JSON lines of Copilot that end in an error."""
    error = {"errorType": kind, "message": message, **({} if status is None else {"statusCode": status})}
    events = [
        {"type": "session.start", "data": {"sessionId": "s", "version": 1}},
        {"type": "user.message", "data": {"content": "fix the 401 in the login test"}},
        {"type": "assistant.turn_start", "data": {"turnId": "0"}},
        {"type": "session.error", "data": error, "id": "e", "timestamp": "2026-11-15T20:00:00Z"},
        COPILOT_ENDS,
    ]
    return "\n".join(map(json.dumps, events))


def opencode(message: str, status: int, **more: Any) -> str:
    error = {"name": "APIError", "data": {"message": message, "statusCode": status, "isRetryable": False, **more}}
    return json.dumps({"type": "error", "timestamp": 1, "sessionID": "ses", "error": error})


def aider(error: str, advice: str = "", version: str = "86.1", model: str = "gpt-4o") -> str:
    """Return an output of aider that ends in an error, broken at 80 columns."""
    words, lines = error.split(" "), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 79:
            lines.append("")
        lines[-1] += word + " "
    return AIDER.format(version, model) + "\n".join(lines) + ("\n" + advice if advice else "") + "\n\n"


RATE = "The API provider has rate limited you. Try again later or check your quotas."
AUTH = "The API provider is not able to authenticate you. Check your API key."
DOWN = "The API provider's servers are down or overloaded."

# family, output, exit status, kinds that are right
VARIATIONS: list[tuple[str, str, int, set[str | None]]] = [
    # Claude Code, text
    ("claude", "API Error: Request rejected (429) · Number of request tokens has exceeded your per-minute rate limit (https://docs.claude.com/en/api/rate-limits)", 1, {"rate_limited"}),
    ("claude", "API Error: Request rejected (429) · This request would exceed your organization's rate limit of 40,000 input tokens per minute. For details, refer to: https://docs.anthropic.com/en/api/rate-limits", 1, {"rate_limited"}),
    ("claude", "API Error: 429 This request would exceed the rate limit for your organization", 1, {"rate_limited"}),
    ("claude", 'API Error: 401 {"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"},"request_id":"req_1"}', 1, {"auth_failed"}),
    ("claude", 'API Error (429 {"type":"error","error":{"type":"rate_limit_error","message":"slow"}}) · Retrying in 5 seconds… (attempt 4/10)', 1, {"rate_limited"}),
    ("claude", "API Error (Connection error.) · Retrying in 5 seconds… (attempt 4/10)", 1, {"transient", None}),
    ("claude", "Failed to authenticate. API Error: 401 Invalid bearer token", 1, {"auth_failed"}),
    ("claude", "Failed to authenticate. API Error: 403 Request not allowed", 1, {"auth_failed"}),
    ("claude", "Failed to authenticate: OAuth session expired. Please run /login", 1, {"auth_failed"}),
    ("claude", "API Error: 401 Invalid authentication credentials · Please run /login", 1, {"auth_failed"}),
    ("claude", "Error: 401 Invalid authentication credentials", 1, {"auth_failed"}),
    ("claude", "OAuth token has been revoked · Please run /login", 1, {"auth_failed"}),
    ("claude", "Invalid API key · Fix external API key", 1, {"auth_failed"}),
    ("claude", "Not logged in · Please run /login", 1, {"auth_failed"}),
    ("claude", "Your organization has been disabled · API Error: 403 organization disabled", 1, {"auth_failed", "permanent", None}),
    ("claude", "You've hit your weekly limit · resets Nov 19, 9am (UTC)", 1, {"quota_exhausted"}),
    ("claude", "You've hit your Sonnet limit · resets 3pm (Asia/Tokyo)", 0, {"quota_exhausted"}),
    ("claude", "You\u2019ve reached your session limit · resets 11:30pm (UTC)", 0, {"quota_exhausted"}),
    ("claude", "You're out of extra usage · resets 11pm (UTC)", 0, {"quota_exhausted"}),
    ("claude", "Credit balance too low · Add funds: https://platform.claude.com/settings/billing", 1, {"quota_exhausted"}),
    ("claude", "API Error: 402 Your account has insufficient credits", 1, {"quota_exhausted"}),
    ("claude", "API Error: 529 Overloaded", 1, {"overloaded"}),
    ("claude", "API Error: Repeated 529 Overloaded errors · check https://status.claude.com", 1, {"overloaded"}),
    ("claude", "API Error: Server is temporarily limiting requests (not your usage limit)", 1, {"overloaded"}),
    ("claude", "API Error: 503 upstream connect error or disconnect/reset before headers", 1, {"overloaded", "transient"}),
    ("claude", "API Error: 500 Internal server error. This is a server-side issue, usually temporary — try again in a moment.", 1, {"transient", None}),
    ("claude", "API Error: Unable to connect to API (ECONNREFUSED)", 1, {"transient", None}),
    ("claude", "API Error: 404 model: claude-nope", 1, {"permanent", None}),
    ("claude", "API Error: 400 prompt is too long: 212345 tokens > 200000 maximum", 1, {"permanent", None}),
    ("claude", "Prompt is too long", 1, {"permanent", None}),
    # Claude Code, JSON
    ("claude-json", json.dumps({**CLAUDE, "api_error_status": 429, "result": "API Error: Request rejected (429) · This request would exceed your account's rate limit."}), 1, {"rate_limited", "quota_exhausted"}),
    ("claude-json", json.dumps({**CLAUDE, "api_error_status": 429, "result": "Something new that a later version says"}), 1, {"rate_limited"}),
    ("claude-json", json.dumps({**CLAUDE, "api_error_status": 401, "result": "Your login is no longer good"}), 1, {"auth_failed"}),
    ("claude-json", json.dumps({**CLAUDE, "api_error_status": 529, "result": "Try later"}), 1, {"overloaded"}),
    ("claude-json", json.dumps({**CLAUDE, "api_error_status": 500, "result": "API Error: 500 Internal server error"}), 1, {"transient", None}),
    ("claude-json", json.dumps({**CLAUDE, "api_error_status": 402, "result": "API Error: 402 There is an issue with your billing or payment information."}, indent=2), 1, {"quota_exhausted"}),
    ("claude-json", json.dumps([{"type": "system", "subtype": "init"}, {**CLAUDE, "result": "You've hit your session limit · resets 9pm (UTC)"}]), 1, {"quota_exhausted"}),
    ("claude-json", json.dumps({**CLAUDE, "result": "You've hit your session limit · resets 9pm (UTC)"}), 0, {"quota_exhausted"}),
    ("claude-stream", json.dumps({"type": "assistant", "message": {"content": []}, "error": "authentication_failed"}) + "\n" + json.dumps({**CLAUDE, "result": "Failed to authenticate. API Error: 401 OAuth token has expired."}), 1, {"auth_failed"}),
    ("claude-stream", json.dumps({"type": "assistant", "message": {"content": []}, "error": "billing_error"}), 1, {"quota_exhausted"}),
    ("claude-stream", json.dumps({"type": "assistant", "message": {"content": []}, "error": "server_error"}), 1, {"transient", "overloaded", None}),
    ("claude-stream", json.dumps({"type": "user", "message": {"content": [{"type": "tool_result", "is_error": True, "content": "HTTP 401 Unauthorized"}]}}) + "\n" + json.dumps({**CLAUDE, "is_error": False, "result": "done"}), 0, {None}),
    # Codex
    ("codex", "ERROR: unexpected status 401 Unauthorized: Your authentication token has been invalidated. Please try signing in again., url: https://chatgpt.com/backend-api/codex/responses, cf-ray: 9", 1, {"auth_failed"}),
    ("codex", "ERROR: unexpected status 403 Forbidden: , url: https://api.openai.com/v1/responses", 1, {"auth_failed", "permanent"}),
    ("codex", "ERROR: unexpected status 402 Payment Required: Insufficient credits", 1, {"quota_exhausted"}),
    ("codex", "ERROR: exceeded retry limit, last status: 401 Unauthorized, request id: req_2", 1, {"auth_failed"}),
    ("codex", "ERROR: exceeded retry limit, last status: 503 Service Unavailable", 1, {"overloaded"}),
    ("codex", "ERROR: exceeded retry limit, last status: 500 Internal Server Error", 1, {"transient", None}),
    ("codex", "ERROR: You've hit your usage limit. To get more access now, send a request to your admin or try again at Nov 20th, 2026 9:00 AM.", 1, {"quota_exhausted"}),
    ("codex", "ERROR: You've hit your usage limit for gpt-5-codex. Switch to another model now, or try again in 4 hours 2 minutes.", 1, {"quota_exhausted"}),
    ("codex", "ERROR: Quota exceeded. Check your plan and billing details.", 1, {"quota_exhausted"}),
    ("codex", "ERROR: We're currently experiencing high demand, which may cause temporary errors.", 1, {"overloaded"}),
    ("codex", "ERROR: stream disconnected before completion: Rate limit reached for gpt-5 in organization org-9 on tokens per min (TPM): Limit 30000, Used 30000, Requested 20. Please try again in 1.2s.", 1, {"rate_limited"}),
    ("codex", "ERROR: stream disconnected before completion: error sending request for url (https://api.openai.com/v1/responses)", 1, {"transient", None}),
    ("codex", "2026-11-15T20:00:00.123456Z ERROR codex_api::endpoint::responses: error=http 401 Unauthorized: Some(\"{}\")\nERROR: unexpected status 401 Unauthorized: Missing bearer or basic authentication in header", 1, {"auth_failed"}),
    ("codex-json", '{"type":"thread.started","thread_id":"t"}\n{"type":"turn.started"}\n{"type":"error","message":"unexpected status 401 Unauthorized: Incorrect API key provided: sk-x"}\n{"type":"turn.failed","error":{"message":"unexpected status 401 Unauthorized: Incorrect API key provided: sk-x"}}', 1, {"auth_failed"}),
    ("codex-json", '{"type":"turn.failed","error":{"message":"{\\"error\\":{\\"type\\":\\"usage_limit_reached\\",\\"message\\":\\"The usage limit has been reached\\",\\"resets_at\\":1794776400}}"}}', 1, {"quota_exhausted"}),
    ("codex-json", '{"type":"turn.failed","error":{"message":"Selected model is at capacity. Please try a different model."}}', 1, {"overloaded"}),
    ("codex-json", '{"type":"turn.failed","error":{"message":"unexpected status 500 Internal Server Error: The server had an error"}}', 1, {"transient", None}),
    # Gemini CLI
    ("gemini", "Error when talking to Gemini API Full report available at: /tmp/gemini-client-error.json _ApiError: {\"error\":{\"code\":429,\"message\":\"Resource exhausted. Please try again later.\",\"status\":\"RESOURCE_EXHAUSTED\"}}\n    at throwErrorIfNotOK (file:///x.js:1:2) {\n  status: 429\n}", 1, {"rate_limited"}),
    ("gemini", "Error when talking to Gemini API TerminalQuotaError: You have exhausted your daily quota on this model.\n    at classifyGoogleError (file:///x.js:1:2)", 1, {"quota_exhausted"}),
    ("gemini", "TerminalQuotaError: You have exhausted your capacity on this model. Your quota will reset after 3h2m1s.\n    at x", 1, {"quota_exhausted"}),
    ("gemini", "RetryableQuotaError: Resource exhausted\nSuggested retry after 12s.\n  retryDelayMs: 12000,", 1, {"rate_limited"}),
    ("gemini", "_ApiError: {\"error\":{\"code\":403,\"message\":\"Permission denied: Consumer 'api_key:x' has been suspended.\",\"status\":\"PERMISSION_DENIED\"}}", 1, {"auth_failed"}),
    ("gemini", "_ApiError: {\"error\":{\"code\":403,\"message\":\"Generative Language API has not been used in project 7 before or it is disabled.\",\"status\":\"PERMISSION_DENIED\"}}", 1, {"auth_failed"}),
    ("gemini", "ApiError: {\"error\":{\"code\":400,\"message\":\"API key expired. Please renew the API key.\",\"status\":\"INVALID_ARGUMENT\",\"details\":[{\"@type\":\"type.googleapis.com/google.rpc.ErrorInfo\",\"reason\":\"API_KEY_INVALID\"}]}}", 1, {"auth_failed"}),
    ("gemini", "_ApiError: {\"error\":{\"code\":503,\"message\":\"This model is currently experiencing high demand. Spikes in demand are usually temporary.\",\"status\":\"UNAVAILABLE\"}}", 1, {"overloaded"}),
    ("gemini", "[API Error: API key not valid. Please pass a valid API key.]", 1, {"auth_failed"}),
    ("gemini", "[API Error: You exceeded your current quota, please check your plan and billing details.]\nPossible quota limitations in place or slow response times detected.", 0, {"quota_exhausted", "rate_limited"}),
    ("gemini", "Loaded cached credentials.\n[API Error: The model is overloaded. Please try again later.]", 0, {"overloaded"}),
    ("gemini", "Part of an answer\n[ERROR] Model stream ended without a finish reason.\n", 0, {"rate_limited", "overloaded"}),
    ("gemini-json", "Warning: 256-color support not detected.\n" + json.dumps({"session_id": "s", "response": "Half", "stats": {}, "error": {"type": "INVALID_STREAM", "message": "Model stream ended without a finish reason."}}, indent=2), 0, {"rate_limited", "overloaded"}),
    ("gemini-json", json.dumps({"session_id": "s", "error": {"type": "Error", "message": "API key not valid. Please pass a valid API key.", "code": 400}}, indent=2), 144, {"auth_failed"}),
    ("gemini-json", json.dumps({"session_id": "s", "error": {"type": "FatalAuthenticationError", "message": "Please set an Auth method", "code": 41}}), 41, {"auth_failed"}),
    ("gemini-stream", '{"type":"init","session_id":"s","model":"m"}\n{"type":"error","severity":"error","message":"Rate limit exceeded"}\n{"type":"result","status":"error","error":{"type":"Error","message":"[API Error: Resource has been exhausted (e.g. check quota).]"},"stats":{}}', 173, {"rate_limited"}),
    ("gemini-stream", '{"type":"init","session_id":"s"}\n{"type":"tool_result","tool_id":"t","status":"error","error":{"type":"web_fetch","message":"HTTP 429 Too Many Requests"}}\n{"type":"result","status":"success","stats":{}}', 0, {None}),
    ("gemini-stream", '{"type":"init","session_id":"s"}\n{"type":"tool_result","tool_id":"t","status":"error","error":{"type":"web_fetch","message":"HTTP 401 Unauthorized"}}', 1, {None}),
    # Copilot
    ("copilot", "Authentication failed with provider at https://models.example.com/v1 (HTTP 401).\n  Check your COPILOT_PROVIDER_API_KEY.\n\nChanges    +0 -0\nDuration   2s\n", 1, {"auth_failed"}),
    ("copilot", "Authentication failed with provider at http://localhost:4000/v1 (HTTP 403).\n", 1, {"auth_failed"}),
    ("copilot", "\n401 Incorrect API key provided: sk-x****. You can find your API key at https://platform.openai.com/account/api-keys.\n\n\nChanges    +0 -0\n", 1, {"auth_failed"}),
    ("copilot", "\n429 You exceeded your current quota, please check your plan and billing details.\n\n\nChanges    +0 -0\n", 1, {"quota_exhausted"}),
    ("copilot", "\n402 Insufficient Balance\n\n\nChanges    +0 -0\n", 1, {"quota_exhausted"}),
    ("copilot", "\n503 The server is currently overloaded with other requests.\n\n\nChanges    +0 -0\n", 1, {"overloaded"}),
    ("copilot", "Failed to get response from the AI model; retried 5 times (total retry wait time: 92.7 seconds) Last error: 503 The server is currently overloaded with other requests.", 1, {"overloaded"}),
    ("copilot", "Execution failed: Failed to get response from the AI model; retried 5 times (total retry wait time: 92.7 seconds) Last error: CAPIError: 429 Too Many Requests", 1, {"rate_limited"}),
    ("copilot", "Failed to get response from the AI model; retried 5 times (total retry wait time: 5.1 seconds) Last error: 402 Insufficient credits. Add more using https://openrouter.ai/settings/credits", 1, {"quota_exhausted"}),
    ("copilot", "✗ Sorry, you've exceeded your 5 hour session limits. Please retry after 2733 seconds.", 1, {"quota_exhausted", "rate_limited"}),
    ("copilot", "● Continuing autonomously\n✗ Sorry, you've hit a rate limit that restricts the number of Copilot model requests. Please try again in 2 hours.\nTotal usage est: 1 Premium request", 0, {"rate_limited"}),
    ("copilot-json", copilot("Sorry, you've hit a rate limit. Please try again in 12 minutes.", "rate_limit", 429), 1, {"rate_limited"}),
    ("copilot-json", copilot("429 Rate limit reached for gpt-5 in organization org-9", "query"), 1, {"rate_limited"}),
    ("copilot-json", copilot("Authentication failed with provider at http://127.0.0.1:8901/v1 (HTTP 401).", "authentication", 401), 1, {"auth_failed"}),
    ("copilot-json", copilot("no", "authentication"), 1, {"auth_failed"}),
    ("copilot-json", copilot("402 Insufficient credits. Add more using https://openrouter.ai/settings/credits", "query", 402), 1, {"quota_exhausted"}),
    ("copilot-json", copilot("You have no quota", "quota", 402), 1, {"quota_exhausted"}),
    ("copilot-json", copilot("The server is currently overloaded", "query", 503), 1, {"overloaded"}),
    ("copilot-json", copilot("The server had an error while processing your request", "query", 500), 1, {"transient", None}),
    ("copilot-json", copilot("prompt is too long", "context_limit", 400), 1, {"permanent", None}),
    ("copilot-json", copilot("Rate limit exceeded", "rate_limit", 429).replace('"exitCode": 1', '"exitCode": 0'), 0, {None}),
    ("copilot-json", '{"type":"tool.execution_complete","data":{"success":false,"error":{"message":"HTTP 401 Unauthorized"}}}\n{"type":"result","exitCode":0}', 0, {None}),
    # opencode
    ("opencode", "\x1b[0m\n> build · claude-opus-4\n\x1b[0m\n\x1b[91m\x1b[1mError: \x1b[0minvalid x-api-key\n", 1, {"auth_failed"}),
    ("opencode", "\x1b[0m\n> build · gpt-5\n\x1b[0m\n\x1b[91m\x1b[1mError: \x1b[0mIncorrect API key provided: sk-d***d.\n", 0, {"auth_failed"}),
    ("opencode", "\x1b[91m\x1b[1mError: \x1b[0mYou exceeded your current quota, please check your plan and billing details.\n", 1, {"quota_exhausted"}),
    ("opencode", "\x1b[91m\x1b[1mError: \x1b[0mThe server is currently overloaded with other requests. Sorry about that!\n", 1, {"overloaded"}),
    ("opencode", "\x1b[91m\x1b[1mError: \x1b[0mToo Many Requests\n", 1, {"rate_limited"}),
    ("opencode", "\x1b[91m\x1b[1mError: \x1b[0mUnauthorized: invalid api key\n", 1, {"auth_failed", None}),
    ("opencode", "\x1b[91m\x1b[1mError: \x1b[0mThe model `gpt-nope` does not exist or you do not have access to it.\n", 1, {"permanent", None}),
    ("opencode", 'Error: {"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}', 1, {"auth_failed"}),
    ("opencode-json", opencode("Rate limit reached", 429, responseHeaders={"retry-after": "7"}), 1, {"rate_limited"}),
    ("opencode-json", opencode("Incorrect API key provided", 401, responseBody='{"error":{"code":"invalid_api_key","message":"Incorrect API key provided"}}'), 1, {"auth_failed"}),
    ("opencode-json", opencode("Overloaded", 529), 1, {"overloaded"}),
    ("opencode-json", json.dumps({"type": "error", "error": {"name": "ProviderAuthError", "data": {"providerID": "openai", "message": "no"}}}), 1, {"auth_failed"}),
    # Qwen Code
    ("qwen", "[API Error: 429 Rate limit reached for gpt-5 in organization org-9 on tokens per min (TPM)]", 1, {"rate_limited"}),
    ("qwen", "[API Error: 402 Insufficient credits. Add more using https://openrouter.ai/settings/credits]", 1, {"quota_exhausted"}),
    ("qwen", "[API Error: 503 The server is currently overloaded with other requests.]", 1, {"overloaded"}),
    ("qwen", "[API Error: 429 You exceeded your current quota, please check your plan and billing details.]", 0, {"quota_exhausted"}),
    ("qwen", "[API Error: Connection error. (cause: fetch failed)]", 1, {"transient", None}),
    ("qwen", "[API Error: 404 The model `gpt-nope` does not exist or you do not have access to it.]", 1, {"permanent", None}),
    ("qwen", "[API Error: The server is currently overloaded]", 1, {"overloaded"}),
    # aider, which exits with 0
    ("aider", aider("litellm.AuthenticationError: AuthenticationError: OpenAIException - Incorrect API key provided: sk-dead****dead. You can find your API key at https://platform.openai.com/account/api-keys.", AUTH), 0, {"auth_failed"}),
    ("aider", aider("litellm.AuthenticationError: AnthropicException - {\"type\":\"error\",\"error\":{\"type\":\"authentication_error\",\"message\":\"invalid x-api-key\"}}", AUTH, "82.0", "anthropic/claude-sonnet-4"), 0, {"auth_failed"}),
    ("aider", aider("litellm.RateLimitError: AnthropicException - {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"This request would exceed the rate limit for your organization\"}}", RATE), 0, {"rate_limited"}),
    ("aider", aider("litellm.RateLimitError: RateLimitError: OpenAIException - You exceeded your current quota, please check your plan and billing details. For more information on this error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors.", RATE), 0, {"quota_exhausted"}),
    ("aider", aider("litellm.InternalServerError: AnthropicException - Overloaded. Handle with `litellm.InternalServerError`.", DOWN), 0, {"overloaded"}),
    ("aider", aider("litellm.InternalServerError: InternalServerError: OpenAIException - The server had an error while processing your request.", DOWN), 0, {"transient", None}),
    ("aider", aider("litellm.BadRequestError: OpenAIException - {\"error\":{\"message\":\"Insufficient Balance\",\"code\":\"invalid_request_error\"}}"), 0, {"quota_exhausted"}),
    ("aider", aider("litellm.APIError: APIError: OpenrouterException - {\"error\":{\"message\":\"Insufficient credits. Add more using https://openrouter.ai/settings/credits\",\"code\":402}}"), 0, {"quota_exhausted"}),
    ("aider", aider("litellm.NotFoundError: NotFoundError: OpenAIException - The model `gpt-nope` does not exist or you do not have access to it."), 0, {"permanent", None}),
    ("aider", aider("litellm.Timeout: APITimeoutError - Request timed out.", "The API provider timed out without returning a response. They may be down or overloaded."), 0, {"transient", None}),
    ("aider", aider("litellm.PermissionDeniedError: PermissionDeniedError: OpenAIException - Your API key is disabled."), 0, {"auth_failed"}),
    ("aider", aider("litellm.RateLimitError: RateLimitError: OpenAIException - Rate limit reached for gpt-5", RATE + "\nRetrying in 0.2 seconds...") + "I added the retry.\n\nTokens: 3.1k sent, 210 received. Cost: $0.01 message, $0.01 session.\nApplied edit to client.py\n", 0, {None}),
    # llm and SDKs for Python
    ("llm", "Error: Error code: 401 - {'error': {'message': 'Incorrect API key provided', 'type': 'invalid_request_error', 'param': None, 'code': 'invalid_api_key'}}", 1, {"auth_failed"}),
    ("llm", "Error: No key found - add one using 'llm keys set openai' or set the OPENAI_API_KEY environment variable", 1, {None, "auth_failed"}),
    ("llm", "Error: Error code: 429 - {'error': {'message': 'Rate limit reached for gpt-5 in organization org-9 on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s.', 'type': 'requests', 'param': None, 'code': 'rate_limit_exceeded'}}", 1, {"rate_limited", "quota_exhausted"}),
    ("llm", "Error: Error code: 403 - {'error': {'message': 'Project does not have access to model gpt-6', 'type': 'invalid_request_error', 'code': 'model_not_found'}}", 1, {"permanent", None}),
    ("llm", "Error: Connection error.", 1, {"transient", None}),
    ("sdk", "openai.AuthenticationError: Error code: 401", 1, {"auth_failed"}),
    ("sdk", "anthropic.AuthenticationError: Error code: 401 - {'type': 'error', 'error': {'type': 'authentication_error', 'message': 'invalid x-api-key'}}", 1, {"auth_failed"}),
    ("sdk", "anthropic.InternalServerError: Error code: 529 - {'type': 'error', 'error': {'type': 'overloaded_error', 'message': 'Overloaded'}}", 1, {"overloaded"}),
    ("sdk", "cohere.errors.UnauthorizedError: headers: {'date': 'x'}, status_code: 401, body: {'message': 'invalid api token'}", 1, {"auth_failed"}),
    ("sdk", "google.genai.errors.ClientError: 403 PERMISSION_DENIED. {'error': {'code': 403, 'message': 'Your API key was reported as leaked. Please use another API key.', 'status': 'PERMISSION_DENIED'}}", 1, {"auth_failed"}),
    ("sdk", "mistralai.models.sdkerror.SDKError: API error occurred: Status 401\n{\"detail\":\"Unauthorized\"}", 1, {"auth_failed"}),
    ("sdk", "groq.RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached for model `x` in organization `o` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Used 5000, Requested 1200. Please try again in 2s.', 'type': 'tokens', 'code': 'rate_limit_exceeded'}}", 1, {"rate_limited"}),
    ("sdk", "pydantic_ai.exceptions.ModelHTTPError: status_code: 401, model_name: gpt-5, body: {'message': 'Incorrect API key provided', 'code': 'invalid_api_key'}", 1, {"auth_failed"}),
    ("sdk", "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://router.huggingface.co/v1/chat/completions", 1, {"auth_failed"}),
    ("sdk", "botocore.errorfactory.AccessDeniedException: An error occurred (AccessDeniedException) when calling the InvokeModel operation: You don't have access to the model with the specified model ID.", 1, {"permanent", None}),
    ("sdk", "botocore.exceptions.ClientError: An error occurred (UnrecognizedClientException) when calling the Converse operation: The security token included in the request is invalid.", 1, {"auth_failed"}),
    ("sdk", "AuthenticationError: 401 Incorrect API key provided: sk-x. You can find your API key at https://platform.openai.com/account/api-keys.\n    at APIError.generate (/app/node_modules/openai/error.js:45:20) {\n  status: 401,", 1, {"auth_failed"}),
    ("sdk", "PermissionDeniedError: 403 Your request was blocked.\n    at APIError.generate", 1, {"auth_failed", "permanent", None}),
    ("sdk", "RateLimitError: 429 {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow\"}}\n    at APIError.generate", 1, {"rate_limited"}),
    ("sdk", "AI_APICallError: Too Many Requests\n    at file:///app/node_modules/@ai-sdk/provider-utils", 1, {"rate_limited"}),
    ("sdk", "AI_RetryError: Failed after 3 attempts. Last error: Incorrect API key provided: sk-x", 1, {"auth_failed"}),
    ("grpc", "rpc error: code = Unauthenticated desc = Incorrect API key provided", 1, {"auth_failed"}),
    ("grpc", "rpc error: code = ResourceExhausted desc = too many requests", 1, {"rate_limited"}),
    ("grpc", "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAUTHENTICATED\n\tdetails = \"no\"", 1, {"auth_failed"}),
    # bodies that HTTP clients print
    ("curl", '{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"},"request_id":"r"}', 0, {"auth_failed"}),
    ("curl", '{\n  "error": {\n    "message": "Incorrect API key provided",\n    "code": "invalid_api_key"\n  }\n}\n', 0, {"auth_failed"}),
    ("curl", '{"error":{"code":403,"message":"Method doesn\'t allow unregistered callers","status":"PERMISSION_DENIED"}}\ncurl: (22) The requested URL returned error: 403\n', 22, {"auth_failed"}),
    ("curl", '{"error":{"message":"The server is overloaded","type":"server_error","code":"server_is_overloaded"}}curl: (22) The requested URL returned error: 503\n', 22, {"overloaded"}),
    ("curl", 'HTTP/2 401\ncontent-type: application/json\n\n{"error":{"message":"no","code":"invalid_api_key"}}', 22, {"auth_failed"}),
    ("curl", "curl: (7) Failed to connect to api.openai.com port 443 after 2 ms: Connection refused", 7, {"transient", None}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "text", "exit_status", "accepted"),
    VARIATIONS,
    ids=[f"{at}: {each[0]}" for at, each in enumerate(VARIATIONS)],
)
def test_variation_of_family_gets_accepted_verdict(
    family: str, text: str, exit_status: int, accepted: set[str | None]
) -> None:
    for printed in (text, text + "\n", f"Warning: something else\n{text}"):
        assert from_output(printed, exit_status, now=NOW).kind in accepted, family


# --- three families of HTTP answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("The caller does not have permission", "auth_failed"),
        ("Permission denied on resource project 7.", "auth_failed"),
        ("Your project has been denied access. Please contact support.", "auth_failed"),
        ("Method doesn't allow unregistered callers (callers without established identity).", "auth_failed"),
        ("Requests to this API generativelanguage.googleapis.com method GenerateContent are blocked.", "auth_failed"),
        ("You do not have permission to access the File abc or it may not exist.", "permanent"),
        ("You do not have permission to access tuned model tunedModels/x.", "permanent"),
        ("User location is not supported for the API use.", "permanent"),
    ],
)
def test_gemini_403_refuses_key_unless_it_names_another_reason(message: str, kind: str) -> None:
    body = {"error": {"code": 403, "message": message, "status": "PERMISSION_DENIED"}}
    for form in (body, [body], json.dumps(body)):
        assert from_response(403, {}, form, provider="gemini", now=NOW).kind == kind
    assert from_output(json.dumps(body), 1, provider="gemini", now=NOW).kind == kind


@pytest.mark.parametrize(
    ("more", "wait"),
    [
        ({"resets_at": NOW + 3600}, 3600),
        ({"resets_at": int(NOW) + 86_400, "resets_in_seconds": 86_400}, 86_400),
        ({"resets_in_seconds": 90}, 90),
        ({"resets_at": None, "resets_in_seconds": None}, None),
        ({}, None),
    ],
)
def test_codex_usage_limit_waits_until_its_reset(more: dict[str, Any], wait: float | None) -> None:
    body = {
        "error": {
            "type": "usage_limit_reached",
            "message": "The usage limit has been reached",
            "plan_type": "plus",
            **more,
        }
    }
    verdict = from_response(429, {}, body, provider="openai", now=NOW)
    assert (verdict.kind, verdict.window, verdict.retry_after) == ("quota_exhausted", "plan", wait)
    printed = from_output(f"unexpected status 429 Too Many Requests: {json.dumps(body)}", 1, now=NOW)
    assert (printed.kind, printed.retry_after) == ("quota_exhausted", wait)


def test_copilot_events_give_kind_and_wait() -> None:
    verdict = from_output(
        copilot("Sorry, you've hit a rate limit. Please try again in 12 minutes.", "rate_limit", 429), 1, now=NOW
    )
    assert (verdict.kind, verdict.retry_after, verdict.is_loose) == ("rate_limited", 720, False)


# --- loose text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_loose"),
    [
        ("curl: (22) The requested URL returned error: 401", True),
        ("HTTP 401 Unauthorized", True),
        ("request failed: HTTP 429, retry after 3600 seconds", True),
        ("please retry after 30 seconds", True),
        ("You've hit your weekly limit · resets Nov 19, 9am (UTC)", False),
        ("openai.RateLimitError: Error code: 429 - {'error': {'code': 'rate_limit_exceeded', 'message': 'x'}}", False),
        ('{"error":{"code":"invalid_api_key","message":"x"}}', False),
        ("litellm.AuthenticationError: AuthenticationError: OpenAIException - no", False),
    ],
)
def test_verdict_tells_loose_text_from_known_formats(text: str, is_loose: bool) -> None:
    verdict = from_output(text, 75, now=NOW)
    assert verdict.kind is not None
    assert verdict.is_loose is is_loose


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"message": "Requests rate limit exceeded"}, "rate_limited"),
        ({"message": "API rate limit exceeded", "request_id": "r-1"}, "rate_limited"),
        ({"message": "I handled the 429: the rate limit was exceeded twice"}, None),
        ({"message": "Rate limit exceeded", "answer": "the text of the notice"}, None),
        ({"message": "Reviewed the code that waits when the rate limit is exceeded"}, None),
    ],
)
def test_body_that_is_a_message_alone_is_read(body: dict[str, str], kind: str | None) -> None:
    assert from_output(json.dumps(body), 0, now=NOW).kind == kind


def test_limit_of_turns_takes_back_an_absorbed_refusal() -> None:
    refused = {"type": "assistant", "message": {"content": []}, "error": "rate_limit"}
    ended = {**CLAUDE, "subtype": "error_max_turns", "errors": ["Reached maximum number of turns (3)"]}
    assert from_output("\n".join(map(json.dumps, (refused, ended))), 1, now=NOW).kind is None
