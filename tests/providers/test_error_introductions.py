"""Errors that an agent introduces with a mark, a red label or a label of its own, in words of any provider; and
objects of errors as programs print them for people."""

# ruff: noqa: E501, RUF001 - tables of lines, as programs print them
from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.providers import _printed_objects as printed_objects
from agentos.providers.verdicts import from_output

NOW = 1794772800.0  # Sunday, 2026-11-15 20:00:00 UTC
QUOTA, KEY, RATE, BUSY = {"quota_exhausted"}, {"auth_failed"}, {"rate_limited"}, {"overloaded"}

# Whatever follows them is an error of the agent.
INTRODUCTIONS = [
    "\x1b[0m\n> build · kimi-k2\n\x1b[0m\n\x1b[91m\x1b[1mError: \x1b[0m{}\n",
    "\x1b[31;1mError: \x1b[0m{}\n",
    "✘ {}\n",
    "● Read src/a.py\n\n✖ {}\n",
    "✗ {}\n\nTotal usage est: 0\n",
    "✘ Execution failed: {}\n",
    "API Error: {}\n",
    "[API Error: {}]\n",
    "Error: Error from provider (Console): {}\n",
]
# Labels that every program prints: only statements about an account or a service count after them.
LABELS = ["{}\n", "Error: {}\n", "ERROR: {}\n", "❌ {}\n"]

STATEMENTS: list[tuple[str, set[str]]] = [
    ("You have no quota", QUOTA),
    ("No quota left for this model", QUOTA),
    ("You have no remaining premium requests", QUOTA),
    ("You have used all your premium requests for this month", QUOTA),
    ("You have exceeded your premium request allowance.", QUOTA),
    ("Quota exceeded. Upgrade to increase your limit: https://github.com/features/copilot/plans", QUOTA),
    ("Your credits are exhausted", QUOTA),
    ("You are out of credits.", QUOTA),
    ("Out of credits. Add more at https://example.com/billing", QUOTA),
    ("You've run out of credits.", QUOTA),
    ("Your account has run out of credits", QUOTA),
    ("Not enough credits to run this request", QUOTA),
    (
        "This request requires more credits, or fewer max_tokens. You requested up to 32000 tokens, but can only afford 0. To increase, visit https://openrouter.ai/settings/keys and create a key with a higher monthly limit",
        QUOTA,
    ),
    (
        "Insufficient credits. This account never purchased credits. Make sure your key is on the correct account or org, and if so, purchase more at https://openrouter.ai/settings/credits",
        QUOTA,
    ),
    ("Insufficient credits — top up your balance at https://example.com/credits", QUOTA),
    (
        "Your workspace has reached its monthly spending limit of $5. Manage your limits here: https://opencode.ai/workspace/wrk_1/billing",
        QUOTA,
    ),
    ("Free usage exceeded, add credits https://opencode.ai/zen", QUOTA),
    ("Free usage exceeded, subscribe to Go", QUOTA),
    ("Key limit exceeded (total limit). Manage it using https://openrouter.ai/settings/keys", QUOTA),
    ("No payment method. Add a payment method here: https://opencode.ai/workspace/wrk_1/billing", QUOTA),
    ("Weekly usage limit reached. Resets in 3 days.", QUOTA),
    ("Monthly usage limit reached. Resets in 12 days", QUOTA),
    ("5-hour usage limit reached. Resets in 2 hours", QUOTA),
    ("Monthly quota exhausted", QUOTA),
    ("Your monthly quota has been exhausted.", QUOTA),
    ("You have used up your free allowance", QUOTA),
    ("Subscription quota exceeded. You can continue using free models.", QUOTA),
    ("Insufficient balance. Manage your billing here: https://opencode.ai/workspace/wrk_1/billing", QUOTA),
    ("Insufficient Balance", QUOTA),
    ("Your account balance is insufficient, please recharge", QUOTA),
    ("Your balance is too low to make this request", QUOTA),
    ("Account balance is not enough", QUOTA),
    ("The team has no credits", QUOTA),
    ("A payment is required to use this model", QUOTA),
    ("You exceeded your current quota, please check your plan and billing details.", QUOTA),
    (
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.",
        QUOTA,
    ),
    ("Budget has been exceeded! Current cost: 10.2, Max budget: 10.0", QUOTA),
    ("Your trial credits have expired", QUOTA),
    ("Your prepaid credits are used up", QUOTA),
    ("You have depleted your monthly included credits. Subscribe to PRO", QUOTA),
    ("You have exceeded your monthly included credits for Inference Providers.", QUOTA),
    ("Sorry, you have exceeded your Copilot token usage. Please review our Terms of Service.", RATE | QUOTA),
    ("No authentication information found.", KEY),
    ("No credentials found for provider openai", KEY),
    ("No API key found for provider anthropic", KEY),
    ("Missing API key", KEY),
    ("API key is missing", KEY),
    (
        "OpenAI API key is missing. Pass it using the 'apiKey' parameter or the OPENAI_API_KEY environment variable.",
        KEY,
    ),
    (
        "Your organization has disabled Claude subscription access for Claude Code · Use an Anthropic API key instead, or ask your admin to enable access",
        KEY,
    ),
    ("Your administrator has disabled access to Claude Code", KEY),
    ("Your account does not have access to Claude Code. Please run /login.", KEY),
    ("Your organization does not have access to Claude. Please login again or contact your administrator.", KEY),
    ("OAuth authentication is currently not allowed for this organization.", KEY),
    ("This organization has been disabled.", KEY),
    (
        "Your ANTHROPIC_API_KEY belongs to a disabled organization · Unset the environment variable to use your subscription instead",
        KEY,
    ),
    ("You've hit your org's monthly spend limit · run /extra-usage to ask your admin to increase it", QUOTA),
    ("Your organization has been disabled.", KEY),
    ("Your account has been suspended.", KEY),
    ("Your account has been disabled by its administrator", KEY),
    ("Copilot has been disabled by your organization", KEY),
    ("Access to Copilot is disabled by your enterprise administrator", KEY),
    ("Token expired or incorrect", KEY),
    ("Authentication Fails, Your api key: ****dead is invalid", KEY),
    ("Your token has expired. Please sign in again.", KEY),
    ("Your session has expired. Please sign in again", KEY),
    (
        "Please set an Auth method in your /home/u/.gemini/settings.json or specify one of the following environment variables before running: GEMINI_API_KEY",
        KEY,
    ),
    ("Bad credentials", KEY),
    ("You didn't provide an API key.", KEY),
    ("You are not authenticated. Run `copilot login`", KEY),
    ("Not authenticated. Please log in first.", KEY),
    ("You must be logged in to use this command", KEY),
    ("Login required", KEY),
    ("Invalid API key provided", KEY),
    ("Invalid x-api-key", KEY),
    ("The API key you provided is invalid", KEY),
    ("Your API key has been revoked", KEY),
    ("API key expired. Please renew the API key.", KEY),
    ("API key not valid. Please pass a valid API key.", KEY),
    ("This API key has been disabled", KEY),
    ("Your access token is not valid any more", KEY),
    (
        "Your access token could not be refreshed because your refresh token was revoked. Please log out and sign in again.",
        KEY,
    ),
    ("Rate limit exceeded, please slow down", RATE),
    (
        "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model requests per day",
        RATE | QUOTA,
    ),
    ("Request was throttled. Expected available in 12 seconds.", RATE),
    ("Requests are being throttled", RATE),
    ("Too many requests, please wait before trying again.", RATE),
    ("You have been rate-limited.", RATE),
    ("You are sending requests too quickly. Please slow down.", RATE),
    ("Requests per minute limit exceeded", RATE),
    ("Maximum number of requests per minute exceeded", RATE),
    ("Concurrency limit exceeded for user, please retry later", RATE),
    ("Your account reached max organization concurrency: 3, please try again after 1 seconds", RATE),
    ("Your account org-1 request reached organization max RPM: 3, please try again after 1 seconds", RATE),
    ("Rate limited. Please try again in 20s", RATE),
    ("The service may be temporarily overloaded, please try again later", BUSY),
    ("The engine is currently overloaded, please try again later", BUSY),
    ("Service is too busy. We advise users to temporarily switch to alternative LLM API service providers.", BUSY),
    ("The model is busy, please try again", BUSY),
    ("No capacity available for model gemini-3-pro on the server", BUSY),
    ("Server busy, please try again later", BUSY),
    ("Our servers are currently overloaded. Please try again later.", BUSY),
    ("That model is currently overloaded with other requests.", BUSY),
]

INTRODUCED_ONLY: list[tuple[str, set[str]]] = [
    ("Token refresh failed: 401", KEY),
    ("Invalid token", KEY),
    ("Unauthorized", KEY),
    ("401 User not found.", KEY),
    ("429 Provider returned error", RATE),
    ("503 upstream connect error", BUSY | {"transient"}),
    ("Prompt tokens limit exceeded: 12345 > 567. To increase, visit https://openrouter.ai/settings/credits", QUOTA),
]


@pytest.mark.parametrize(("message", "accepted"), STATEMENTS + INTRODUCED_ONLY)
def test_message_after_an_introduction_is_understood(message: str, accepted: set[str]) -> None:
    for introduction in INTRODUCTIONS:
        assert from_output(introduction.format(message), 1, now=NOW).kind in accepted, introduction


@pytest.mark.parametrize(("message", "accepted"), STATEMENTS)
def test_statement_about_an_account_is_understood(message: str, accepted: set[str]) -> None:
    for label in LABELS:
        verdict = from_output(label.format(message), 1, now=NOW)
        assert verdict.kind in accepted, label


OTHER_PROGRAMS = [
    "✖ rejects an invalid API key (3.2ms)",
    "✖ Invalid API key is rejected (1.2 ms)\nℹ tests 3",
    "  ✗ Invalid API key",
    "✘ [ERROR] Authentication error [code: 10000]",
    "❌ Tests failed: rate limit exceeded",
    "× No solution found when resolving dependencies:",
    "✖ 3 problems (3 errors, 0 warnings)",
    "✗ Build failed in 3.1s",
    "✕ Login page › Unauthorized users are redirected",
    "\x1b[31mError: \x1b[39mCannot find module './auth'",
    "\x1b[1m\x1b[91merror\x1b[0m\x1b[1m: function is overloaded\x1b[0m",
    "\x1b[31mError: \x1b[0mENOENT: no such file or directory, open 'credentials.json'",
    "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n\n401 !== 200\n\n    at TestContext.<anonymous> (file:///app/auth.test.js:5:10) {\n  generatedMessage: true,\n  code: 'ERR_ASSERTION',\n  actual: 401,\n  expected: 200,\n  operator: 'strictEqual'\n}",
    "Error: Command failed: npm test\n    at genericNodeError (node:internal/errors:984:15) {\n  code: 1,\n  killed: false,\n  signal: null,\n  cmd: 'npm test'\n}",
    "AssertionError [ERR_ASSERTION]: body differs\n    at TestContext.<anonymous> (file:///app/a.test.js:5:10) {\n  actual: { error: { type: 'invalid_api_key' } },\n  expected: { error: { code: 'authentication_error' } }\n}",
    "error: You must be logged in to the server (Unauthorized)",
    "Error: No credentials helper configured for registry",
    "Error: Invalid token at line 3 column 7",
    "SyntaxError: Invalid or unexpected token",
    "You are not logged into any GitHub hosts. To log in, run: gh auth login",
    "Error: Your branch is behind 'origin/main' by 3 commits",
    "Error: The session file is invalid",
    "Error: No balance sheet found in report.xlsx",
    "Error: All credits to the original authors must be kept in NOTICE",
    "Error: No token bucket configured in nginx.conf",
    "Error: Access to the path '/etc/x' is denied.",
    "Error: The model field is required",
    "Error: Request body is too short",
    "Error: Model training diverged after 3 epochs",
    "Error: Usage: agent [options] <file>",
    "Error: Account balance test failed: expected 3, got 4",
    "✗ Fetch https://docs.example.org/limits (429)",
    "ERROR: Your requirements.txt is invalid",
    "Error: Project has no key in package.json",
    "remote: Your access token has expired\nfatal: Authentication failed for 'https://gitlab.example/x.git/'",
    "Error: response status is 401 for https://registry.npmjs.org/private",
    "❌ Overdue invoices are not marked in the report",
]


@pytest.mark.parametrize("text", OTHER_PROGRAMS)
def test_line_of_another_program_takes_no_key_out_of_use(text: str) -> None:
    for printed in (text, f"{text}\n", f"starting\n{text}\n"):
        for provider in (None, "openai"):
            assert from_output(printed, 1, provider=provider, now=NOW).kind in (None, "transient", "permanent")


# --- objects ------------------------------------------------------------------------------------------------------

FORMS: list[tuple[str, set[str | None]]] = [
    (
        "file:///app/node_modules/openai/error.mjs:59\n            return new RateLimitError(status, error, message, headers);\n                   ^\n\nRateLimitError: 429 You exceeded your current quota\n    at APIError.generate (file:///app/node_modules/openai/error.mjs:59:20)\n    at async main (file:///app/index.js:3:1) {\n  status: 429,\n  headers: Headers {\n    'content-type': 'application/json',\n    'retry-after': '20'\n  },\n  request_id: 'req_1',\n  error: {\n    message: 'You exceeded your current quota',\n    type: 'insufficient_quota',\n    param: null,\n    code: 'insufficient_quota'\n  },\n  code: 'insufficient_quota',\n  type: 'insufficient_quota'\n}\n\nNode.js v20.11.1\n",
        {"quota_exhausted"},
    ),
    (
        "file:///app/node_modules/openai/error.mjs:59\n            return new RateLimitError(status, error, message, headers);\n                   ^\n\nRateLimitError: 429 Rate limit reached for gpt-5\n    at APIError.generate (file:///app/node_modules/openai/error.mjs:59:20)\n    at async main (file:///app/index.js:3:1) {\n  status: 429,\n  headers: Headers {\n    'content-type': 'application/json',\n    'retry-after': '20'\n  },\n  request_id: 'req_1',\n  error: {\n    message: 'Rate limit reached for gpt-5',\n    type: 'requests',\n    param: null,\n    code: 'rate_limit_exceeded'\n  },\n  code: 'rate_limit_exceeded',\n  type: 'requests'\n}\n\nNode.js v20.11.1\n",
        {"rate_limited"},
    ),
    (
        "file:///app/node_modules/openai/error.mjs:59\n            return new AuthenticationError(status, error, message, headers);\n                   ^\n\nAuthenticationError: 401 Incorrect API key provided\n    at APIError.generate (file:///app/node_modules/openai/error.mjs:59:20)\n    at async main (file:///app/index.js:3:1) {\n  status: 401,\n  headers: Headers {\n    'content-type': 'application/json',\n    'retry-after': '20'\n  },\n  request_id: 'req_1',\n  error: {\n    message: 'Incorrect API key provided: sk-x',\n    type: 'invalid_request_error',\n    param: null,\n    code: 'invalid_api_key'\n  },\n  code: 'invalid_api_key',\n  type: 'invalid_request_error'\n}\n\nNode.js v20.11.1\n",
        {"auth_failed"},
    ),
    (
        "file:///app/node_modules/openai/error.mjs:59\n            return new BadRequestError(status, error, message, headers);\n                   ^\n\nBadRequestError: 400 {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"Your credit balance is too low to access the Anthropic API.\"}}\n    at APIError.generate (file:///app/node_modules/openai/error.mjs:59:20)\n    at async main (file:///app/index.js:3:1) {\n  status: 400,\n  headers: Headers {\n    'content-type': 'application/json',\n    'retry-after': '20'\n  },\n  request_id: 'req_1',\n  error: {\n    type: 'error',\n    error: {\n      type: 'invalid_request_error',\n      message: 'Your credit balance is too low to access the Anthropic API.'\n    }\n  }\n}\n\nNode.js v20.11.1\n",
        {"quota_exhausted"},
    ),
    (
        "file:///app/node_modules/openai/error.mjs:59\n            return new APIError(status, error, message, headers);\n                   ^\n\nAPIError: 402 Insufficient credits\n    at APIError.generate (file:///app/node_modules/openai/error.mjs:59:20)\n    at async main (file:///app/index.js:3:1) {\n  status: 402,\n  request_id: 'req_1',\n  error: { message: 'Insufficient credits', code: 402 },\n  code: 402,\n}\n\nNode.js v20.11.1\n",
        {"quota_exhausted"},
    ),
    (
        "file:///app/node_modules/openai/error.mjs:59\n            return new PermissionDeniedError(status, error, message, headers);\n                   ^\n\nPermissionDeniedError: 403 Your team has no credits\n    at APIError.generate (file:///app/node_modules/openai/error.mjs:59:20)\n    at async main (file:///app/index.js:3:1) {\n  status: 403,\n  headers: Headers {\n    'content-type': 'application/json',\n    'retry-after': '20'\n  },\n  request_id: 'req_1',\n  error: 'Your newly created team does not have any credits yet.',\n  code: 'permission-denied'\n}\n\nNode.js v20.11.1\n",
        {"quota_exhausted"},
    ),
    (
        "file:///app/node_modules/openai/error.mjs:59\n            return new InternalServerError(status, error, message, headers);\n                   ^\n\nInternalServerError: 529 {\"type\":\"error\"}\n    at APIError.generate (file:///app/node_modules/openai/error.mjs:59:20)\n    at async main (file:///app/index.js:3:1) {\n  status: 529,\n  error: { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }\n}\n\nNode.js v20.11.1\n",
        {"overloaded"},
    ),
    (
        "APICallError [AI_APICallError]: Too Many Requests\n    at postToApi (file:///app/node_modules/@ai-sdk/provider-utils/dist/index.mjs:1:2)\n    at process.processTicksAndRejections (node:internal/process/task_queues:95:5) {\n  cause: undefined,\n  url: 'https://api.openai.com/v1/chat/completions',\n  requestBodyValues: { model: 'gpt-5', messages: [ [Object] ] },\n  statusCode: 429,\n  responseHeaders: { 'retry-after': '7' },\n  responseBody: '{\"error\":{\"message\":\"You exceeded your current quota\",\"code\":\"insufficient_quota\"}}',\n  isRetryable: true,\n  data: { error: { message: 'You exceeded your current quota', code: 'insufficient_quota' } },\n  [Symbol(vercel.ai.error)]: true\n}\n",
        {"quota_exhausted"},
    ),
    (
        'APICallError [AI_APICallError]: Provider says no\n    at postToApi (file:///app/x.mjs:1:2) {\n  url: \'https://openrouter.ai/api/v1/chat/completions\',\n  statusCode: 402,\n  responseBody: \'{"error":{"message":"More credits please","code":402}}\',\n  isRetryable: false\n}\n',
        {"quota_exhausted"},
    ),
    (
        "2026-02-25 04:09:17.109 [error] Error [AI_APICallError]: This request requires more credits, or fewer max_tokens. You requested up to 64000 tokens, but can only afford 61586.\n    at eK.errorSchema (.next/server/chunks/_c22c3fb5._.js:43:6920)\n    at async eZ (.next/x.js:43:3522) {\n  cause: undefined,\n  url: 'https://openrouter.ai/api/v1/chat/completions',\n  requestBodyValues: [Object],\n  statusCode: 402,\n  isRetryable: false\n}",
        {"quota_exhausted"},
    ),
    (
        "Error: Something failed\n    at ask (file:///app/ask.js:3:9) {\n  [cause]: AuthenticationError: 401 Incorrect API key provided: sk-x\n      at APIError.generate (file:///x.mjs:1:2) {\n    status: 401,\n    error: { code: 'invalid_api_key' }\n  }\n}",
        {"auth_failed"},
    ),
    ("Uncaught (in promise) AuthenticationError: 401 Incorrect API key provided\n", {"auth_failed"}),
    (
        "LoadAPIKeyError [AI_LoadAPIKeyError]: OpenAI API key is missing. Pass it using the 'apiKey' parameter or the OPENAI_API_KEY environment variable.\n    at loadApiKey (file:///x:1:2) {\n  [Symbol(vercel.ai.error)]: true\n}\n",
        {"auth_failed"},
    ),
    (
        'ApiError: {"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}\n    at throwErrorIfNotOK (file:///x.mjs:1:2)\n    at async main (file:///app/i.js:1:1) {\n  status: 429\n}\n',
        {"rate_limited"},
    ),
    (
        'Error: GoogleGenerativeAIFetchError: [GoogleGenerativeAI Error]: Error fetching from https://generativelanguage.googleapis.com/v1beta/models/gemini-pro:generateContent: [400 Bad Request] API key not valid. Please pass a valid API key. [{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]\n',
        {"auth_failed"},
    ),
    (
        "OpenAIError: The OPENAI_API_KEY environment variable is missing or empty; either provide it, or instantiate the OpenAI client with an apiKey option, like new OpenAI({ apiKey: 'My API Key' }).\n    at new OpenAI (file:///x.mjs:1:2)\n",
        {"auth_failed", None},
    ),
    (
        'error: 401 Incorrect API key provided: sk-x\n      status: 401,\n   headers: Headers {},\n     error: {\n  message: "Incorrect API key provided",\n  code: "invalid_api_key",\n},\n      at generate (/app/node_modules/openai/error.mjs:41:20)\n',
        {"auth_failed"},
    ),
    (
        "openai.RateLimitError: Error code: 429 - {'error': {'message': \"You exceeded it's quota\", 'type': 'insufficient_quota', 'param': None,\n'code': 'insufficient_quota'}}",
        {"quota_exhausted"},
    ),
    (
        '✘ Model call failed: {"message":"Sorry, you have exceeded your Copilot token usage.","code":"rate_limited"} (Request ID: 1)',
        {"rate_limited"},
    ),
    ("✗ Model call failed: {'message': 'unauthorized', 'code': 'token_expired'}", {"auth_failed"}),
    (
        "Ran into this error: Authentication error: Authentication failed. Status: 401 Unauthorized. Response: User not found..\n",
        {"auth_failed"},
    ),
    (
        'Session ended with error: Request failed: Request failed with status: 429 Too Many Requests. Message: {"error":{"message":"slow"}}\n',
        {"rate_limited"},
    ),
    (
        'HTTP response error from OpenCode\'s API: status 402 Payment Required - "{\\"error\\":{\\"message\\":\\"Insufficient Balance\\"}}"',
        {"quota_exhausted"},
    ),
    (
        "/app/lib/openai.rb:12:in 'ask': the server responded with status 429 (Faraday::TooManyRequestsError)\n",
        {"rate_limited"},
    ),
    (
        '{"error"=>{"message"=>"Incorrect API key provided", "type"=>"invalid_request_error", "code"=>"invalid_api_key"}}',
        {"auth_failed", None},
    ),
    (
        "Error: Authentication token found but could not be validated.   Failed to fetch OAuth user login: bad\nYour token may still be valid.",
        {"auth_failed", None},
    ),
    (
        "Execution failed: Error: Session was not created with authentication info or custom provider",
        {"auth_failed", None},
    ),
    (
        "Reconnecting... 5/5\nERROR: Your access token could not be refreshed because your refresh token was already used. Please log out and sign in again.",
        {"auth_failed"},
    ),
    (
        "ERROR: Your workspace is out of credits. Ask your workspace owner to refill in order to continue.",
        {"quota_exhausted"},
    ),
    (
        "ERROR: You're out of Codex messages. Your rate limit resets on Apr 25, 2026, 12:54 AM. To continue using Codex, add credits or upgrade to Pro today.",
        {"quota_exhausted", "rate_limited"},
    ),
    (
        "You have exceeded your premium request allowance. We have automatically switched you to GPT-4.1",
        {"quota_exhausted"},
    ),
    (
        '✕ [API Error: {"error":{"message":"{\\n  \\"error\\": {\\n    \\"code\\": 429,\\n    \\"message\\": \\"Resource has been exhausted (e.g. check quota).\\",\\n    \\"status\\": \\n  \\"RESOURCE_EXHAUSTED\\"\\n  }\\n}\\n","code":429,"status":"Too Many Requests"}}]\n  Please wait and try again later. To increase your limits, request a quota increase through AI Studio, or switch to another /auth method\n',
        {"rate_limited"},
    ),
    (
        "Attempt 1 failed: You have exhausted your capacity on this model. Your quota will reset after 5s.. Retrying after 6173ms...\n",
        {"quota_exhausted", "rate_limited"},
    ),
    (
        "Please set an Auth method in your /home/u/.gemini/settings.json or specify one of the following environment variables before running: GEMINI_API_KEY, GOOGLE_GENAI_USE_VERTEXAI, GOOGLE_GENAI_USE_GCA\n",
        {"auth_failed"},
    ),
    (
        "Error authenticating: IneligibleTierError: Your current account is not eligible for Gemini Code Assist for individuals\n    at x (file:///a:1:2) {\n  ineligibleTiers: [ { reasonCode: 'UNSUPPORTED_LOCATION' } ]\n}",
        {"auth_failed", "permanent", None},
    ),
    (
        "Your account does not have access to Claude. Please login again or contact your administrator.\n",
        {"auth_failed"},
    ),
    (
        'API Error: 403 {"type":"error","error":{"type":"permission_error","message":"OAuth authentication is currently not allowed for this organization."}} · Please run /login',
        {"auth_failed"},
    ),
    (
        'API Error: 403 {"error":{"type":"forbidden","message":"Request not allowed"}} · Please run /login',
        {"auth_failed"},
    ),
    ("Claude usage limit reached. Your limit will reset at 3pm (America/Santiago).\n", {"quota_exhausted"}),
    ("You've hit your limit · resets 3pm\n", {"quota_exhausted"}),
    (
        'API Error: 400 {"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."}}',
        {"quota_exhausted"},
    ),
    (
        'API Error: 429 {"type":"error","error":{"type":"rate_limit_error","message":"Extra usage is required for long context requests."}}',
        {"quota_exhausted", "rate_limited"},
    ),
    (
        "API Error: Usage credits required for 1M context · run /extra-usage to enable\n",
        {"permanent", "quota_exhausted", None},
    ),
    ("Error: LLM error: 429 Too Many Requests\n", {"rate_limited"}),
    (
        "Error: Error code: 429 - {'type': 'error', 'error': {'type': 'rate_limit_error', 'message': 'Number of request tokens has exceeded your per-minute rate limit'}}",
        {"rate_limited"},
    ),
    (
        "Error: No key found - add one using 'llm keys set openai' or set the OPENAI_API_KEY environment variable",
        {"auth_failed", None},
    ),
    ("Error: You exceeded your current quota, please check your plan and billing details.\n", {"quota_exhausted"}),
    ("urllib.error.HTTPError: HTTP Error 402: Payment Required", {"quota_exhausted"}),
    (
        "anthropic.APIStatusError: {'type': 'error', 'error': {'details': None, 'type': 'overloaded_error', 'message': 'Overloaded'}, 'request_id': 'r'}",
        {"overloaded"},
    ),
    ("google.genai.errors.APIError: 429 None. {'error': {'code': 429, 'message': 'slow'}}", {"rate_limited"}),
    ("[API Error: 401 Incorrect API key provided. ]\n", {"auth_failed"}),
    ("[API Error: 429 Free allocated quota exceeded.]\n", {"quota_exhausted", "rate_limited"}),
    (
        "[API Error: 403 Access denied, please make sure your account is in good standing. For details, see: https://help.aliyun.com/zh/model-studio/error-code#overdue-payment]\n",
        {"quota_exhausted"},
    ),
    (
        "Qwen OAuth quota exceeded: Your free daily quota has been reached.\n\nTo continue using Qwen Code without waiting, upgrade to the Alibaba Cloud Coding Plan:\n  China: https://help.aliyun.com\n",
        {"quota_exhausted"},
    ),
    (
        "[API Error: Qwen API quota exceeded: Your Qwen API quota has been exhausted. Please wait for your quota to reset.]\n",
        {"quota_exhausted"},
    ),
]


@pytest.mark.parametrize(("text", "accepted"), FORMS)
def test_error_of_an_sdk_or_agent_is_understood(text: str, accepted: set[str | None]) -> None:
    for noise in ("", "Warning: something else\n", "● Reading\n\n"):
        assert from_output(noise + text, 1, now=NOW).kind in accepted


def test_wait_in_headers_after_a_stack_is_obeyed() -> None:
    text = FORMS[1][0]
    assert from_output(text, 1, now=NOW).retry_after == 20


def test_refusal_by_another_host_after_a_stack_does_not_count() -> None:
    text = (
        "AxiosError: Request failed with status code 401\n    at settle (file:///app/axios.js:19:12) {\n  config: { url: 'HOST/rest' },\n"
        "  status: 401,\n  response: { status: 401, data: { error: 'invalid_api_key' } }\n}\n"
    )
    assert from_output(text.replace("HOST", "https://jira.example.com"), 1, now=NOW).kind is None
    assert from_output(text.replace("HOST", "https://api.openai.com"), 1, now=NOW).kind == "auth_failed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": {"b": [1, "x"]}, "c": null}', {"a": {"b": [1, "x"]}, "c": None}),
        ("{'a': \"it's\", 'b': None, 'c': True, 'd': b'x'}", {"a": "it's", "b": None, "c": True, "d": "x"}),
        ("{ a: 'x' +\n    'y', b: undefined, c: [Function: f], d: [Object] }", {"a": "xy", "b": None, "c": ["f"], "d": ["Object"]}),
        ("{ h: Headers { 'retry-after': '20' }, [Symbol(x)]: true, e: <ref *1> { f: 1 } }", {"h": {"retry-after": "20"}, "e": {"f": 1}}),
        ('{"a"=>{:b=>"x"}}', {"a": {"b": "x"}}),
        ("{'a': 'Insufficient \n  Balance'}", {"a": "Insufficient Balance"}),
        ("{error: {message: 'cut', code: ", {"error": {"message": "cut", "code": None}}),
        ("{", {}),
        ("[1]", None),
    ],
)  # fmt: skip
def test_printed_object_is_read(text: str, expected: Any) -> None:
    value, end = printed_objects.read(f"..{text}", 2)
    assert value == expected
    assert 2 <= end <= len(text) + 2


def test_deep_or_long_object_is_read_without_an_error() -> None:
    for text in ("{a:" * 5000, "{'a': [" * 900 + "]}" * 900, json.dumps({"a": ["x" * 50] * 2000})):
        value, end = printed_objects.read(text, 0)
        assert isinstance(value, dict)
        assert end <= len(text)


def test_many_stacks_without_an_end_are_read_in_bounded_time() -> None:
    """Of 400 stacks, each of which seems to contain those below it, objects of twice the text's length are read."""
    reads: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        read = printed_objects.read
        patch.setattr(printed_objects, "read", lambda text, start: (reads.append(start), read(text, start))[1])
        from_output(("    at x (file:///a:1:2) {\n" + "  a: 'b', c: [1, 2], " * 25 + "\n") * 400, 1, now=NOW)
    assert 0 < len(reads) < 40
