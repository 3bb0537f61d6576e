"""Verdicts of answers in the forms of each provider, with wordings and numbers that are not recorded ones."""

# ruff: noqa: E501 - tables of answers, one per line
from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.providers.verdicts import from_output, from_response

NOW = 1794772800.0  # Sunday, 2026-11-15 20:00:00 UTC, noon in California
TO_MIDNIGHT_UTC = 14_400.0
TO_MIDNIGHT_PACIFIC = 43_200.0
TO_DECEMBER = 1_310_400.0


def openai(message: str, code: str | None = None, kind: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    error: dict[str, Any] = {"type": kind, "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error, "request_id": "req_7"}


def google(message: str, status: str, code: int = 429, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def violated(*quotas: str, value: str = "50", model: str = "gemini-3-pro") -> dict[str, Any]:
    each = [{"quotaId": quota, "quotaValue": value, "quotaDimensions": {"model": model}} for quota in quotas]
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": each}


def reason(name: str, **metadata: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": name, "metadata": metadata}


def delay(text: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": text}


AMZN = "x-amzn-errortype"

# provider, status, headers, body, expected fields of the verdict
ANSWERS: list[tuple[str, int | None, dict[str, str], Any, dict[str, Any]]] = [
    # OpenAI and compatible providers
    ("openai", 429, {}, openai("Rate limit reached for o4-mini in organization org-9 on requests per min (RPM): Limit 10, "
     "Used 10, Requested 1. Please try again in 1m3.5s.", "rate_limit_exceeded", "requests"),
     {"kind": "rate_limited", "retry_after": 63.5, "window": "minute", "scope": "o4-mini"}),
    ("openai", 429, {}, openai("Rate limit reached for text-embedding-3-large in organization org-9 on tokens per min (TPM): "
     "Limit 1,000,000, Used 999,990, Requested 20. Please try again in 120ms.", "rate_limit_exceeded", "tokens"),
     {"kind": "rate_limited", "retry_after": 0.12, "window": "minute", "scope": "text-embedding-3-large"}),
    ("openai", 429, {}, openai("Request too large for gpt-5 in organization org-9 on tokens per min (TPM): Limit 10000, "
     "Requested 45210. The input or output tokens must be reduced in order to run successfully.", "rate_limit_exceeded",
     "tokens"), {"kind": "permanent", "retry_after": None}),
    ("openai", 429, {}, openai("Limit 8000, Used 0, Requested 9000. Please try again in 10s.", "rate_limit_exceeded"),
     {"kind": "permanent"}),
    ("openai", 429, {}, openai("x", "credit_balance_exhausted", "insufficient_quota"),
     {"kind": "quota_exhausted", "window": "credits", "cool_down": None}),
    ("openai", 429, {}, openai("x", "organization_spend_limit_exceeded", "insufficient_quota"),
     {"kind": "quota_exhausted", "window": "month", "cool_down": TO_DECEMBER}),
    ("openai", 429, {}, openai("Your account is not active, please check your billing details.", "billing_not_active"),
     {"kind": "quota_exhausted", "window": "credits"}),
    ("openai", 429, {}, openai("Your request rate ramped too fast.", "slow_down"), {"kind": "rate_limited"}),
    ("openai", 503, {}, openai("Slow down.", "slow_down"), {"kind": "overloaded", "window": "capacity"}),
    ("openai", 400, {}, openai("maximum context length is 8192 tokens", "context_length_exceeded"), {"kind": "permanent"}),
    ("openai", 404, {}, openai("The model does not exist", "model_not_found"), {"kind": "permanent"}),
    ("openai", 401, {}, openai("Your account has been deactivated", "account_deactivated"), {"kind": "auth_failed"}),
    ("openai", 200, {}, {"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "x"}},
     {"kind": "transient"}),
    ("openai", 200, {}, {"type": "error", "code": "rate_limit_exceeded", "message": "Try again in 250ms"},
     {"kind": "rate_limited", "retry_after": 0.25}),
    ("openai", 200, {}, {"type": "response.completed", "response": {"status": "completed", "error": None}}, {"kind": None}),
    # Azure
    ("azure", 429, {"RETRY-AFTER-MS": "2750", "retry-after": "3"}, openai("Too many", "RateLimitReached"),
     {"kind": "rate_limited", "retry_after": 2.75}),
    ("azure", 429, {}, openai("Requests to the Embeddings_Create Operation have exceeded call rate limit. Please retry "
     "after 7 seconds.", "429"), {"kind": "rate_limited", "retry_after": 7}),
    ("azure", 429, {}, openai("We are experiencing high demand right now.", "too_many_requests"), {"kind": "overloaded"}),
    ("azure", 401, {}, openai("Access denied due to invalid subscription key", "401"), {"kind": "auth_failed"}),
    ("azure", 429, {"x-ratelimit-remaining-requests": "-1", "x-ratelimit-limit-requests": "-1"}, openai("x", "429"),
     {"kind": "rate_limited", "remaining_requests": None, "limit_requests": None, "requests_period": None}),
    # Anthropic
    ("anthropic", 429, {"Retry-After": "11"}, anthropic("Number of requests has exceeded", "rate_limit_error"),
     {"kind": "rate_limited", "retry_after": 11}),
    ("anthropic", 429, {"retry-after": "4"}, anthropic("ramp", "rate_limit_error", "ramp_limit_exceeded"),
     {"kind": "rate_limited", "retry_after": 4}),
    ("anthropic", 400, {}, anthropic("You have reached your specified API usage limits. You will regain access on "
     "2026-12-01 at 00:00 UTC.", "invalid_request_error"), {"kind": "quota_exhausted", "cool_down": TO_DECEMBER}),
    ("anthropic", 400, {}, anthropic("max_tokens: must be positive", "invalid_request_error"), {"kind": "permanent"}),
    ("anthropic", 402, {}, anthropic("check billing", "billing_error"), {"kind": "quota_exhausted", "window": "credits"}),
    ("anthropic", 401, {}, anthropic("invalid x-api-key", "authentication_error"), {"kind": "auth_failed"}),
    ("anthropic", 413, {}, anthropic("Request exceeds", "request_too_large"), {"kind": "permanent"}),
    ("anthropic", 504, {}, anthropic("late", "timeout_error"), {"kind": "transient"}),
    ("anthropic", 200, {}, anthropic("Number of tokens", "rate_limit_error"), {"kind": "rate_limited"}),
    ("anthropic", 200, {}, anthropic("Internal", "api_error"), {"kind": "transient"}),
    ("anthropic", 429, {"anthropic-ratelimit-unified-status": "allowed_warning", "retry-after": "9"},
     anthropic("slow", "rate_limit_error"), {"kind": "rate_limited", "retry_after": 9}),
    ("anthropic", 429, {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": "1794776400",
      "anthropic-ratelimit-unified-5h-status": "rejected", "anthropic-ratelimit-unified-5h-reset": "1794776400",
      "anthropic-ratelimit-unified-7d-status": "rejected", "anthropic-ratelimit-unified-7d-reset": "1794859200"},
     anthropic("x", "rate_limit_error"), {"kind": "quota_exhausted", "window": "plan", "retry_after": 86_400}),
    # Google
    ("gemini", 429, {}, [google("x", "RESOURCE_EXHAUSTED", 429, violated("GenerateRequestsPerMinutePerProjectPerModel"),
     delay("41s"))], {"kind": "rate_limited", "retry_after": 41, "window": "minute", "scope": "gemini-3-pro"}),
    ("gemini", 429, {}, google("x", "RESOURCE_EXHAUSTED", 429, violated("InputTokensPerDay-PaidTier"), delay("3s")),
     {"kind": "quota_exhausted", "retry_after": 3, "cool_down": TO_MIDNIGHT_PACIFIC, "window": "day"}),
    ("gemini", 429, {}, google("check your plan and billing details", "RESOURCE_EXHAUSTED", 429,
     violated("GenerateContentInputTokensPerModelPerMinute-FreeTier")), {"kind": "rate_limited", "window": "minute"}),
    ("gemini", 429, {}, google("x", "RESOURCE_EXHAUSTED", 429, violated("RequestsPerMinute-FreeTier", value="0")),
     {"kind": "quota_exhausted", "window": "plan", "cool_down": 86_400}),
    ("gemini", 429, {}, google("x", "RESOURCE_EXHAUSTED", 429, reason("QUOTA_EXHAUSTED", model="gemini-3-flash"),
     delay("11h3m")), {"kind": "quota_exhausted", "retry_after": 39_780, "window": "day", "scope": "gemini-3-flash"}),
    ("gemini", 429, {}, google("x", "RESOURCE_EXHAUSTED", 429, reason("INSUFFICIENT_G1_CREDITS_BALANCE")),
     {"kind": "quota_exhausted", "window": "credits"}),
    ("gemini", 503, {}, google("high demand", "UNAVAILABLE", 503), {"kind": "overloaded"}),
    ("gemini", 403, {}, google("The caller does not have permission", "PERMISSION_DENIED", 403), {"kind": "auth_failed"}),
    ("gemini", 403, {}, google("Your API key was reported as leaked.", "PERMISSION_DENIED", 403), {"kind": "auth_failed"}),
    ("gemini", 400, {}, google("API key expired. Please renew the API key.", "INVALID_ARGUMENT", 400),
     {"kind": "auth_failed"}),
    ("gemini", 400, {}, google("Unable to process input image", "INVALID_ARGUMENT", 400), {"kind": "permanent"}),
    ("gemini", 504, {}, google("Deadline expired", "DEADLINE_EXCEEDED", 504), {"kind": "transient"}),
    ("gemini", 402, {}, google("Prepay balance is empty", "RESOURCE_EXHAUSTED", 402),
     {"kind": "quota_exhausted", "window": "credits"}),
    ("vertex-ai", 429, {}, google("Resource exhausted, please try again later.", "RESOURCE_EXHAUSTED"),
     {"kind": "rate_limited"}),
    ("vertex-ai", 429, {}, google("Quota exceeded for aiplatform.googleapis.com/online_prediction_requests_per_day.",
     "RESOURCE_EXHAUSTED"), {"kind": "quota_exhausted", "window": "day", "cool_down": TO_MIDNIGHT_PACIFIC}),
    # Bedrock
    ("bedrock", 400, {AMZN: "ServiceQuotaExceededException"}, {"message": "over"}, {"kind": "quota_exhausted"}),
    ("bedrock", 429, {AMZN: "ModelNotReadyException:http://internal/x"}, {"message": "not ready"}, {"kind": "transient"}),
    ("bedrock", 429, {"X-Amzn-ErrorType": "ThrottlingException:http://internal.amazon.com/x/"}, b'{"message":"Too many"}',
     {"kind": "rate_limited", "window": "minute"}),
    ("bedrock", 429, {AMZN: "ThrottlingException", "x-amz-retry-after": "900"}, {"message": "Too many requests per day"},
     {"kind": "quota_exhausted", "window": "day", "cool_down": TO_MIDNIGHT_UTC}),
    ("bedrock", 403, {AMZN: "UnrecognizedClientException"}, {"message": "invalid"}, {"kind": "auth_failed"}),
    ("bedrock", 403, {AMZN: "InvalidSignatureException"}, {"message": "x"}, {"kind": "auth_failed"}),
    ("bedrock", 400, {AMZN: "ValidationException"}, {"message": "x"}, {"kind": "permanent"}),
    ("bedrock", 408, {AMZN: "ModelTimeoutException"}, {"message": "x"}, {"kind": "transient"}),
    ("bedrock", 424, {AMZN: "ModelErrorException"}, {"message": "x"}, {"kind": "transient"}),
    ("bedrock", 200, {}, {"Error": {"Code": "modelStreamErrorException", "Message": "x"}}, {"kind": "transient"}),
    ("bedrock", 200, {}, {"Error": {"Code": "serviceUnavailableException", "Message": "x"}}, {"kind": "overloaded"}),
    # Mistral, Groq, Cohere
    ("mistral", 429, {}, {"object": "error", "message": "x", "type": "service_tier_capacity_exceeded", "code": "3505"},
     {"kind": "overloaded"}),
    ("mistral", 429, {}, '{"object":"error","message":"Requests rate limit exceeded","type":"rate_limited","code":"1300"}',
     {"kind": "rate_limited"}),
    ("mistral", 200, {"x-ratelimit-limit-req-minute": "60", "x-ratelimit-remaining-req-minute": "9"}, {"id": "x"},
     {"kind": None, "remaining_requests": 9, "limit_requests": 60, "requests_period": 60}),
    ("groq", 429, {"retry-after": "2"}, openai("Rate limit reached for model `qwen/qwen3-32b` in organization `org_1` service "
     "tier `on_demand` on requests per minute (RPM): Limit 60, Used 60, Requested 1. Please try again in 1.2s.",
     "rate_limit_exceeded", "requests"),
     {"kind": "rate_limited", "retry_after": 2, "window": "minute", "scope": "qwen/qwen3-32b"}),
    ("groq", 498, {}, openai("Flex tier capacity exceeded", "capacity_exceeded"), {"kind": "overloaded"}),
    ("groq", 413, {}, openai("x", "rate_limit_exceeded", "tokens"), {"kind": "permanent"}),
    ("groq", 498, {}, None, {"kind": "overloaded"}),
    ("cohere", 498, {}, {"message": "blocked token"}, {"kind": "permanent"}),
    ("groq", 200, {"x-ratelimit-limit-requests": "14400", "x-ratelimit-remaining-requests": "14370",
      "x-ratelimit-reset-requests": "2m59.56s", "x-ratelimit-limit-tokens": "18000",
      "x-ratelimit-remaining-tokens": "17997", "x-ratelimit-reset-tokens": "7.66s"}, None,
     {"kind": None, "limit_requests": 14_400, "requests_period": 86_400, "reset_requests": 179.56, "tokens_period": 60}),
    ("cohere", 429, {}, {"message": "You are using a Trial key, which is limited to 10 API calls / minute."},
     {"kind": "rate_limited", "window": "minute"}),
    ("cohere", 402, {}, {"message": "Please add or update your payment method"},
     {"kind": "quota_exhausted", "window": "credits"}),
    # OpenRouter
    ("openrouter", 429, {}, {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-day-high-balance.",
     "metadata": {"headers": {"X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "0",
                              "X-RateLimit-Reset": "1794787200000"}}}},
     {"kind": "quota_exhausted", "window": "day", "retry_after": 14_400, "limit_requests": 1000, "requests_period": 86_400}),
    ("openrouter", 403, {}, {"error": {"code": 403, "message": "Key limit exceeded (total limit).",
     "metadata": {"limit_source": "openrouter_key_limit"}}}, {"kind": "quota_exhausted"}),
    ("openrouter", 403, {}, {"error": {"code": 403, "message": "Budget", "metadata": {
     "limit_source": "openrouter_guardrail_budget", "resets_at": "2026-12-01T00:00:00Z"}}},
     {"kind": "quota_exhausted", "retry_after": TO_DECEMBER, "window": "month"}),
    ("openrouter", 402, {"retry-after": "2"}, {"error": {"code": 402, "message": "x", "metadata": {
     "error_type": "payment_required"}}}, {"kind": "rate_limited", "retry_after": 2}),
    ("openrouter", 502, {}, {"error": {"code": 502, "message": "x", "metadata": {"error_type": "provider_unavailable"}}},
     {"kind": "transient"}),
    ("openrouter", 503, {}, {"error": {"code": 503, "message": "x", "metadata": {"error_type": "provider_overloaded"}}},
     {"kind": "overloaded"}),
    ("openrouter", 200, {}, {"error": {"code": 502, "message": "Provider returned error"}, "choices": []},
     {"kind": "transient"}),
    ("openrouter", 200, {}, b'data: {"id":"gen"}\n\ndata: {"error":{"code":503,"message":"Overloaded"},"choices":[]}\n\n',
     {"kind": "overloaded"}),
    # DeepSeek, xAI, Together, Fireworks
    ("deepseek", 402, {}, openai("Insufficient Balance", "invalid_request_error"),
     {"kind": "quota_exhausted", "window": "credits"}),
    ("deepseek", 429, {}, openai("You have too many concurrent requests"),
     {"kind": "rate_limited", "window": "concurrency"}),
    ("xai", 400, {}, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***Q."},
     {"kind": "auth_failed"}),
    ("xai", 429, {}, {"code": "Some resource has been exhausted", "error": "Your team has used all available credits."},
     {"kind": "quota_exhausted", "window": "credits"}),
    ("xai", 429, {}, {"code": "Some resource has been exhausted", "error": "Too many requests for team."},
     {"kind": "rate_limited"}),
    ("xai", 403, {}, {"code": "permission-denied", "error": "This model is not available to you"}, {"kind": "permanent"}),
    ("together", 200, {"X-RateLimit-Limit": "25", "X-RateLimit-Remaining": "20", "X-RateLimit-Reset": "1"}, {},
     {"kind": None, "limit_requests": 25, "requests_period": 1, "remaining_requests": 20}),
    ("together", 503, {}, openai("The server is overloaded or not ready yet."), {"kind": "overloaded"}),
    ("fireworks", 412, {}, openai("Account acme is suspended, possibly due to reaching the monthly spending limit."),
     {"kind": "quota_exhausted"}),
    ("fireworks", 412, {}, openai("Account acme is suspended"), {"kind": "auth_failed"}),
    # GitHub, Copilot, Codex
    ("github", 403, {"x-ratelimit-remaining": "0", "x-ratelimit-limit": "60", "x-ratelimit-reset": "1794775000",
      "x-ratelimit-resource": "core"}, {"message": "API rate limit exceeded for 1.2.3.4."},
     {"kind": "rate_limited", "retry_after": 2200, "window": "hour", "requests_period": 3600}),
    ("github", 429, {}, {"message": "You have exceeded a secondary rate limit"}, {"kind": "rate_limited", "cool_down": 60}),
    ("github-copilot", 429, {}, {"error": {"code": "user_weekly_rate_limited:pro_plus", "message": "x"}},
     {"kind": "quota_exhausted", "window": "plan"}),
    ("github-copilot", 429, {"retry-after": "40"}, {"error": {"code": "user_model_rate_limited", "message": "x"}},
     {"kind": "rate_limited", "retry_after": 40}),
    ("github-copilot", 402, {"x-quota-snapshot-premium_interactions": "ent=300&ov=0.0&rem=0.0&rst=2026-12-01T00%3A00%3A00Z"},
     {"error": {"code": "overage_limit_reached", "message": "x"}},
     {"kind": "quota_exhausted", "retry_after": TO_DECEMBER, "window": "month"}),
    ("github", 429, {}, openai("Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 4711 seconds before "
     "retrying.", "RateLimitReached"), {"kind": "rate_limited", "retry_after": 4711, "window": "day"}),
    ("codex", 429, {}, {"error": {"type": "usage_limit_reached", "plan_type": "plus", "resets_at": 1794780000}},
     {"kind": "quota_exhausted", "retry_after": 7200, "window": "plan"}),
    ("codex", 429, {"x-codex-primary-used-percent": "100.0", "x-codex-primary-reset-at": "1794776400",
      "x-codex-secondary-used-percent": "40", "x-codex-secondary-reset-at": "1795000000"},
     {"error": {"type": "usage_limit_reached"}}, {"kind": "quota_exhausted", "retry_after": 3600, "window": "plan"}),
    # gateways, and answers that are not of a provider
    ("", 502, {}, "<html><head><title>502 Bad Gateway</title></head><body><h1>nginx</h1></body></html>",
     {"kind": "transient", "message": "HTTP 502: 502 Bad Gateway nginx"}),
    ("", 429, {}, "<!DOCTYPE html><html><title>Access denied | You are being rate limited</title></html>",
     {"kind": "rate_limited"}),
    ("", 403, {}, "<html><title>Attention Required! | Cloudflare</title></html>", {"kind": "permanent"}),
    ("", 503, {}, b"", {"kind": "overloaded", "message": "HTTP 503"}),
    ("", 429, {}, None, {"kind": "rate_limited", "message": "HTTP 429", "retry_after": None}),
    ("", 429, {"retry-after": "NaN"}, {"retry_after": float("nan")}, {"kind": "rate_limited", "retry_after": None}),
    ("", 429, {"retry-after": "9" * 400}, {"error": {"retry_after": 10**400}}, {"retry_after": None}),
    ("", 429, {}, [[], "x", {"error": {"message": "try again in 5 minutes"}}], {"retry_after": 300}),
    ("", 429, {}, {"detail": {"message": "wait", "retry_after": "1.5"}}, {"kind": "rate_limited", "retry_after": 1.5}),
    ("", 200, {}, "the error of rate limits", {"kind": None}),
    ("", 200, {}, {"error": None, "type": "message"}, {"kind": None}),
    ("", None, {}, {"type": "error", "error": {"type": "overloaded_error"}}, {"kind": "overloaded"}),
    ("", 200, {"x-ratelimit-limit-requests-day": "1000", "x-ratelimit-remaining-requests-day": "3",
      "x-ratelimit-limit-requests-minute": "30", "x-ratelimit-remaining-requests-minute": "29"}, None,
     {"remaining_requests": 3, "limit_requests": 1000, "requests_period": 86_400}),
    ("", 200, {"x-ratelimit-limit-images": "5", "x-ratelimit-remaining-images": "0"}, None,
     {"remaining_requests": None, "remaining_tokens": None}),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "status", "headers", "body", "expected"), ANSWERS)
def test_answer_of_known_family(
    provider: str, status: int | None, headers: dict[str, str], body: Any, expected: dict[str, Any]
) -> None:
    verdict = from_response(status, headers, body, provider=provider or None, now=NOW)
    fields = verdict._asdict()
    assert {name: fields[name] for name in expected} == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("form", [json.dumps, lambda body: json.dumps(body).encode(), lambda body: [body]])
@pytest.mark.parametrize(("provider", "status", "headers", "body", "expected"), ANSWERS[:40:3])
def test_body_gives_same_verdict_as_object_text_and_bytes(
    form: Any, provider: str, status: int | None, headers: dict[str, str], body: Any, expected: dict[str, Any]
) -> None:
    if isinstance(body, list):
        return
    upper_case = {name.upper(): value for name, value in headers.items()}
    verdict = from_response(status, headers, body, provider=provider, now=NOW)
    assert from_response(status, upper_case, form(body), provider=provider.upper(), now=NOW) == verdict
    assert verdict.kind == expected["kind"]


# --- commands -----------------------------------------------------------------------------------------------------

RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "done"}
REJECTED = {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 1794780000}}
TALK = {
    "type": "assistant",
    "message": {"content": [{"type": "text", "text": "You've hit your usage limit, says the log"}]},
}

OUTPUTS: list[tuple[str, str, int | None, dict[str, Any]]] = [
    # Claude Code
    ("claude", "You've hit your weekly limit · resets Nov 18, 9am (Europe/Berlin)", 1,
     {"kind": "quota_exhausted", "window": "plan", "retry_after": None, "cool_down": 216_000}),
    ("claude", "You've hit your limit · resets 11pm (UTC)", 1,
     {"kind": "quota_exhausted", "window": "plan", "cool_down": 10_800}),
    ("claude", "You\u2019ve hit your Opus limit · resets 7pm (America/New_York)", None,
     {"kind": "quota_exhausted", "cool_down": 14_400}),
    ("claude", "Claude AI usage limit reached|1794776400", 1, {"kind": "quota_exhausted", "retry_after": 3600}),
    ("claude", "5-hour limit reached ∙ resets 1am (UTC)", 1, {"kind": "quota_exhausted", "cool_down": 18_000}),
    ("claude", "Credit balance is too low", 1, {"kind": "quota_exhausted", "window": "credits"}),
    ("claude", "API Error: Request rejected (429) · this may be a temporary capacity issue", 1, {"kind": "rate_limited"}),
    ("claude", "API Error: Repeated 529 Overloaded errors", 1, {"kind": "overloaded"}),
    ("claude", 'API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', 1,
     {"kind": "overloaded"}),
    ("claude", 'noise\nAPI Error: 429 {"type":"error","error":{"type":"rate_limit_error","message":"slow"}}\nbye', 1,
     {"kind": "rate_limited"}),
    ("claude", "Invalid API key · Please run /login", 1, {"kind": "auth_failed"}),
    ("claude", "API Error: 401 OAuth token has expired. Please obtain a new token", 1, {"kind": "auth_failed"}),
    ("claude", "API Error: 500 Internal server error", 1, {"kind": "transient"}),
    ("claude", "API Error: Connection error.", 1, {"kind": "transient"}),
    ("claude", "\n".join(json.dumps(each) for each in (TALK, REJECTED)), 1,
     {"kind": "quota_exhausted", "retry_after": 7200, "window": "plan"}),
    ("claude", "\n".join(json.dumps(each) for each in (REJECTED, TALK, RESULT)), 0, {"kind": None}),
    ("claude", json.dumps(TALK), 1, {"kind": None}),
    ("claude", json.dumps({**RESULT, "is_error": True, "result": "You've hit your session limit · resets 9:30pm (UTC)"}), 1,
     {"kind": "quota_exhausted", "cool_down": 5400}),
    # Codex
    ("codex", "ERROR: You've hit your usage limit. Upgrade to Pro, or try again in 3 days 4 hours 5 minutes.", 1,
     {"kind": "quota_exhausted", "retry_after": 3 * 86_400 + 4 * 3600 + 300}),
    ("codex", "exceeded retry limit, last status: 429 Too Many Requests, request id: abc-1", 1,
     {"kind": "rate_limited", "retry_after": None}),
    ("codex", "Your workspace is out of credits. Ask your workspace owner to refill.", 1,
     {"kind": "quota_exhausted", "window": "credits"}),
    ("codex", '{"type":"turn.started"}\n{"type":"error","message":"Reconnecting... 1/5"}\n'
     '{"type":"turn.failed","error":{"message":"You\'ve hit your usage limit. Try again in 2 hours."}}', 1,
     {"kind": "quota_exhausted", "retry_after": 7200}),
    ("codex", '{"type":"error","message":"stream disconnected before completion"}\n{"type":"turn.completed","usage":{}}', 0,
     {"kind": None}),
    ("codex", "unexpected status 401 Unauthorized: Missing bearer authentication in header", 1, {"kind": "auth_failed"}),
    ("codex", "stream disconnected before completion: connection closed", 1, {"kind": "transient"}),
    # Gemini CLI
    ("gemini-cli", "[API Error: You have exhausted your daily quota on this model.]", 1,
     {"kind": "quota_exhausted", "window": "day", "cool_down": TO_MIDNIGHT_PACIFIC}),
    ("gemini-cli", '{\n "session_id": "x",\n "error": {\n  "type": "Error",\n  "message": "Too many", "code": 429\n }\n}', 173,
     {"kind": "rate_limited"}),
    ("gemini-cli", "", 173, {"kind": "rate_limited"}),
    ("gemini-cli", "", 41, {"kind": "auth_failed"}),
    ("", "", 41, {"kind": None}),
    ("gemini-cli", "bad arguments", 42, {"kind": None}),
    ("gemini-cli", "[API Error: " + json.dumps(google("x", "RESOURCE_EXHAUSTED", 429, violated("RequestsPerDay")), indent=1)
     + "]\nPossible quota limitations in place", 1, {"kind": "quota_exhausted", "window": "day"}),
    # Copilot
    ("copilot", "Sorry, you've hit a rate limit that restricts the number of requests. Please try again in 35 minutes.", 1,
     {"kind": "rate_limited", "retry_after": 2100}),
    ("copilot", 'Model call failed: {"error":{"message":"x","code":"user_model_rate_limited"}}', 1,
     {"kind": "rate_limited"}),
    # any command
    ("", "", 75, {"kind": "rate_limited", "retry_after": None}),
    ("", "please retry after 30 seconds", 75, {"kind": "rate_limited", "retry_after": 30}),
    ("", "You've hit your weekly limit", 75, {"kind": "quota_exhausted"}),
    ("", "I made the client wait for 5 minutes when the rate limit is hit.", 0, {"kind": None}),
    ("", "Traceback: KeyError: 'x'", 1, {"kind": None}),
    ("", "", 0, {"kind": None}),
    ("", "{{{{ not json", 1, {"kind": None}),
    ("", "FAILED test_rate_limit.py\nAssertionError: rate limit expected", 1, {"kind": None}),
    ("", "Error: rate limit exceeded, retry in 30s", 1, {"kind": "rate_limited", "retry_after": 30}),
    ("", "Quota exceeded for metric 'Gemini requests' and limit 'requests per day per user'", 1,
     {"kind": "quota_exhausted", "window": "day", "cool_down": TO_MIDNIGHT_PACIFIC}),
    ("", "thing at 10:30: limit switch reached the end", 1, {"kind": None}),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "text", "exit_status", "expected"), OUTPUTS)
def test_output_of_command(provider: str, text: str, exit_status: int | None, expected: dict[str, Any]) -> None:
    for printed in (text, text.encode()):
        fields = from_output(printed, exit_status, provider=provider or None, now=NOW)._asdict()
        assert {name: fields[name] for name in expected} == pytest.approx(expected)
