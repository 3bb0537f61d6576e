"""Plain text of commands: errors of an API are recognised, other text about limits and keys is not."""

# ruff: noqa: E501 - tables of lines, as programs print them
from __future__ import annotations

import pytest

from agentos.providers.verdicts import from_output, from_response

NOW = 1794772800.0  # Sunday, 2026-11-15 20:00:00 UTC
TRACE = 'Traceback (most recent call last):\n  File "/app/ask.py", line 7, in <module>\n    client.ask("hello")\n'

NOT_OF_AN_API = [
    "fatal: Authentication failed for 'https://github.com/acme/private.git/'",
    "We wrote docs on invalid api key errors\nError: build failed",
    "error: function is overloaded",
    "Overloaded operator + in C++ fails",
    "thread panicked: server busy",
    "error: disk quota exceeded",
    "Tests failed: test_rate_limit_exceeded in tests/test_client.py",
    "test rate_limited ... FAILED",
    "expected throttled",
    "Error code: 429 is now handled.",
    "the context window component was refactored; lint failed",
    # with words of the patterns
    "FAILED tests/test_client.py::test_too_many_requests - AssertionError: assert 200 == 429",
    "E   openai.RateLimitError: Error code: 429 - {'error': {'message': 'slow', 'code': 'rate_limit_exceeded'}}",
    "AssertionError: expected status 401, got 200",
    'AssertionError: expected {"error": {"type": "authentication_error", "message": "x"}}',
    "remote: HTTP Basic: Access denied\nfatal: Authentication failed for 'https://gitlab.example/x.git/'",
    "fatal: unable to access 'https://github.com/acme/x.git/': The requested URL returned error: 403",
    "paramiko.ssh_exception.AuthenticationException: Authentication failed.",
    "redis.exceptions.AuthenticationError: Authentication required.",
    "psql: error: FATAL: password authentication failed for user \"app\"",
    "docker: Error response from daemon: toomanyrequests: You have reached your pull rate limit.",
    "OSError: [Errno 122] Disk quota exceeded: '/home/me/out.bin'",
    "error[E0034]: multiple applicable items in scope: overloaded call is ambiguous",
    "src/limits.ts(3,1): error TS2394: This overload signature is not compatible with its implementation.",
    "CHANGELOG: the client is throttled when the rate limit is exceeded\nmake: *** [lint] Error 1",
    "README: what to do when you've hit your usage limit\nnpm ERR! code ELIFECYCLE",
    "ValueError: You have reached the character limit of this field",
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://registry.example/v2/",
    "warning: payment is overdue for invoice fixtures\nerror: 3 checks failed",
    "mail: the account has been suspended in the story; spell check failed",
    "not ok 17 - login required before checkout",
    "error: no capacity planning section found in report.md",
    "error: 429 problems (401 errors, 28 warnings)",
    "--- FAIL: TestThrottling (0.01s)\n    limit_test.go:12: rate limited too early",
    "fix(api): prompt is too long in the settings dialog\nhook declined",
]  # fmt: skip

OF_AN_API = [
    # tracebacks of SDKs
    (TRACE + "openai.RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached for gpt-5 in organization "
     "org-9 on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.', 'type': 'requests', "
     "'param': None, 'code': 'rate_limit_exceeded'}}", "rate_limited", 20),
    (TRACE + "openai.RateLimitError: Error code: 429 - {'error': {'message': 'You exceeded your current quota, please check "
     "your plan and billing details.', 'type': 'insufficient_quota', 'param': None, 'code': 'insufficient_quota'}}",
     "quota_exhausted", None),
    (TRACE + "openai.AuthenticationError: Error code: 401 - {'error': {'message': 'Incorrect API key provided: sk-***9.', "
     "'type': 'invalid_request_error', 'param': None, 'code': 'invalid_api_key'}}", "auth_failed", None),
    (TRACE + "openai.APIConnectionError: Connection error.", "transient", None),
    (TRACE + "anthropic.RateLimitError: Error code: 429 - {'type': 'error', 'error': {'type': 'rate_limit_error', 'message': "
     "'This request would exceed the limit'}}", "rate_limited", None),
    (TRACE + "anthropic.OverloadedError: Error code: 529 - {'type': 'error', 'error': {'type': 'overloaded_error', "
     "'message': 'Overloaded'}}\n\nsee the log", "overloaded", None),
    (TRACE + "anthropic.BadRequestError: Error code: 400 - {'type': 'error', 'error': {'type': 'invalid_request_error', "
     "'message': 'Your credit balance is too low to access the API.'}}", "quota_exhausted", None),
    (TRACE + "google.genai.errors.ClientError: 429 RESOURCE_EXHAUSTED. {'error': {'code': 429, 'message': 'You exceeded your "
     "current quota.', 'status': 'RESOURCE_EXHAUSTED', 'details': [{'@type': 'type.googleapis.com/google.rpc.QuotaFailure', "
     "'violations': [{'quotaId': 'GenerateRequestsPerMinutePerProject'}]}, {'@type': "
     "'type.googleapis.com/google.rpc.RetryInfo', 'retryDelay': '31s'}]}}", "rate_limited", 31),
    (TRACE + "google.api_core.exceptions.ResourceExhausted: 429 Resource has been exhausted (e.g. check quota).",
     "rate_limited", None),
    (TRACE + 'mistralai.client.errors.SDKError: API error occurred: Status 429. Body: {"object":"error","message":"Rate '
     'limit exceeded","type":"rate_limited","code":"1300"}', "rate_limited", None),
    (TRACE + "cohere.errors.TooManyRequestsError: headers: {'date': 'x'}, status_code: 429, body: {'message': 'trial key'}",
     "rate_limited", None),
    (TRACE + 'litellm.exceptions.RateLimitError: litellm.RateLimitError: AnthropicException - {"type":"error","error":'
     '{"type":"rate_limit_error","message":"slow"}}', "rate_limited", None),
    (TRACE + "botocore.errorfactory.ThrottlingException: An error occurred (ThrottlingException) when calling the Converse "
     "operation (reached max retries: 4): Too many requests, please wait.", "rate_limited", None),
    (TRACE + "httpx.HTTPStatusError: Client error '429 Too Many Requests' for url 'https://api.openai.com/v1/responses'",
     "rate_limited", None),
    (TRACE + "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://api.openai.com/v1/models",
     "auth_failed", None),
    (TRACE + "urllib.error.HTTPError: HTTP Error 429: Too Many Requests", "rate_limited", None),
    ("2026-11-15 20:00:00,123 - app - ERROR - Error code: 429 - {'error': {'code': 'rate_limit_exceeded', 'message': 'x'}}",
     "rate_limited", None),
    ("file:///app/node_modules/openai/error.mjs:59\n    return new RateLimitError(status, error);\n"
     "RateLimitError: 429 Rate limit reached for gpt-5\n    at APIError.generate", "rate_limited", None),
    ("AuthenticationError: 401 Incorrect API key provided: sk-***9.\n    at APIError.generate", "auth_failed", None),
    # curl and other commands
    ('  % Total  % Received\n{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}', "auth_failed", None),
    ('HTTP/2 429\nretry-after: 12\n\n{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}',
     "rate_limited", 12),
    ('{\n  "error": {\n    "code": 503,\n    "message": "The model is overloaded.",\n    "status": "UNAVAILABLE"\n  }\n}\n',
     "overloaded", None),
    ('response: {"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}\nmake: *** Error 1',
     "quota_exhausted", None),
    ("curl: (22) The requested URL returned error: 429", "rate_limited", None),
    ("curl: (28) Operation timed out after 30001 milliseconds", "transient", None),
    ("request failed: HTTP 429, retry after 7 seconds", "rate_limited", 7),
    ("upstream answered with status 503: server is busy", "overloaded", None),
    ("gh: API rate limit exceeded for user ID 7. (HTTP 403)", "rate_limited", None),
    # agents, with noise around
    ("npm warn deprecated x\n\x1b[31mYou've hit your session limit · resets 11pm (UTC)\x1b[0m\nbye", "quota_exhausted", None),
    ("working\n  ⎿ API Error: 529 Overloaded. Try again in a moment.\n$", "overloaded", None),
    ("reading files\nInvalid API key · Please run /login\nexit", "auth_failed", None),
    ("[2026-11-15T20:00:00] OpenAI Codex\n[2026-11-15T20:00:03] ERROR: You've hit your usage limit. Try again in 2 hours.\n",
     "quota_exhausted", 7200),
    ("2026-11-15T20:00:00.1Z ERROR codex_core::codex: exceeded retry limit, last status: 429 Too Many Requests\ntokens used",
     "rate_limited", None),
    ("stream error: unexpected status 401 Unauthorized: Missing bearer authentication; retrying 1/5", "auth_failed", None),
    ("Loaded cached credentials.\n✕ [API Error: You have exhausted your daily quota on this model.]\nPress r", "quota_exhausted", None),
    ("Attempt 1 failed with status 429. Retrying with backoff... GaxiosError: quota\nError when talking", "rate_limited", None),
    ("● Reading\n✗ Sorry, you've hit a rate limit. Please try again in 2 hours.\nTotal usage est: 1", "rate_limited", 7200),
    ('✗ Model call failed: {"message":"x","code":"user_weekly_rate_limited","error":{"code":"user_weekly_rate_limited"}}\nbye', "quota_exhausted", None),
    ("Execution failed: Error: Last error: CAPIError: 429 429 Too many requests", "rate_limited", None),
]  # fmt: skip


@pytest.mark.parametrize("provider", [None, "openai"])
@pytest.mark.parametrize("text", NOT_OF_AN_API)
def test_text_about_limits_is_no_api_error(text: str, provider: str | None) -> None:
    for exit_status in (1, None, 0):
        assert from_output(text, exit_status, provider=provider, now=NOW).kind is None


@pytest.mark.parametrize(("text", "kind", "retry_after"), OF_AN_API)
def test_api_error_is_found_in_output(text: str, kind: str, retry_after: float | None) -> None:
    noisy = f"starting\n3 tests passed\n{text}\n"
    for printed in (text, noisy):
        verdict = from_output(printed, 1, now=NOW)
        assert (verdict.kind, verdict.retry_after) == (kind, retry_after)


@pytest.mark.parametrize(
    "message",
    [
        "Your team doesn't have any credits yet",
        "Your newly created team doesn\u2019t have any credits yet. You can purchase those on https://console.x.ai.",
        "This account does not have enough credits",
        "The team has no credits",
        "A team without any credits cannot use this model",
    ],
)
@pytest.mark.parametrize("code", ["The caller does not have permission to execute the operation", "permission_denied"])
def test_team_without_credits_is_quota_not_auth(message: str, code: str) -> None:
    verdict = from_response(403, {}, {"code": code, "error": message}, provider="xai", now=NOW)
    assert (verdict.kind, verdict.window) == ("quota_exhausted", "credits")
