"""Each refusal of a provider, as each agent prints it: the sentences of providers, in the forms of the clients."""

# ruff: noqa: E501 - tables of lines, as programs print them
from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.providers.verdicts import from_output

from .test_client_outputs import CLAUDE, DATA, NOW, aider, copilot, opencode

LINKS = " Visit https://platform.openai.com/account/rate-limits to learn more."
# situation: status (None inside a stream), sentence, kinds that are right
REFUSALS: dict[str, tuple[int | None, str, set[str | None]]] = {
    "400": (400, "Invalid 'messages': empty array.", {"permanent", None}),
    "401": (401, "Incorrect API key provided: sk-dead****dead. You can find your API key at https://platform.openai.com/account/api-keys.", {"auth_failed"}),
    "402": (402, "Insufficient credits. Add more using https://openrouter.ai/settings/credits", {"quota_exhausted"}),
    "403": (403, "Your account is not authorized: country, region, or territory not supported", {"auth_failed", "permanent"}),
    "404": (404, "The model `gpt-nope` does not exist or you do not have access to it.", {"permanent", None}),
    "429": (429, "Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, Requested 3000. Please try again in 3s." + LINKS, {"rate_limited"}),
    "day": (429, "Rate limit reached for gpt-5 in organization org-x on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s." + LINKS, {"rate_limited", "quota_exhausted"}),
    "credit": (429, "You exceeded your current quota, please check your plan and billing details. For more information on this error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors.", {"quota_exhausted"}),
    "usage": (429, "The usage limit has been reached", {"quota_exhausted", "rate_limited"}),
    "500": (500, "The server had an error while processing your request. Sorry about that!", {"transient", None}),
    "503": (503, "The server is currently overloaded with other requests. Sorry about that! You can retry your request, or contact us through our help center at help.openai.com if the error persists.", {"overloaded"}),
    "529": (529, "Overloaded", {"overloaded"}),
    "limit in a stream": (None, "Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM)", {"rate_limited"}),
    "error in a stream": (None, "The server is currently overloaded", {"overloaded"}),
    "short error in a stream": (None, "Overloaded", {"overloaded"}),
}  # fmt: skip
CLASSES = {
    None: "APIError", 400: "BadRequestError", 401: "AuthenticationError", 402: "APIError", 403: "PermissionDeniedError",
    404: "NotFoundError", 429: "RateLimitError", 500: "InternalServerError", 503: "ServiceUnavailableError",
    529: "InternalServerError",
}  # fmt: skip
STATISTICS = "\n\n\nChanges    +0 -0\nDuration   3s\nResume     copilot --resume=e7e85288\n"


def printed(status: int | None, message: str) -> list[tuple[str, int, str]]:
    """Return the client, its exit status and its output, for each form."""
    numbered = message if status is None else f"{status} {message}"
    body = {"error": {"message": message, "type": "x", "param": None, "code": None}}
    rust = f"unexpected status {numbered}, url: http://127.0.0.1:8901/v1/responses" if status else message
    red = f"\x1b[0m\n> build · gpt-5\n\x1b[0m\n\x1b[91m\x1b[1mError: \x1b[0m{message}\n"
    forms = [
        ("opencode", 1, red),
        ("opencode-json", 1, opencode(message, status or 200)),
        ("qwen", 1, f"[API Error: {numbered}]\n"),
        ("qwen", 0, f"[API Error: {numbered}]\n"),
        ("copilot", 1, f"\n{numbered}{STATISTICS}"),
        ("copilot", 1, f"\nFailed to get response from the AI model; retried 5 times (total retry wait time: 57.25 seconds) Last error: {numbered}{STATISTICS}"),
        ("copilot-json", 1, copilot(numbered, "query", status)),
        ("copilot-json", 1, copilot(numbered, "query")),
        ("aider", 0, aider(f"litellm.{CLASSES[status]}: {CLASSES[status]}: OpenAIException - {message}")),
        ("codex", 1, f"ERROR: Reconnecting... 5/5\nERROR: {rust}\n"),
        ("codex-json", 1, json.dumps({"type": "turn.failed", "error": {"message": rust}})),
        ("codex-json", 1, json.dumps({"type": "turn.failed", "error": {"message": message}})),
        ("claude", 1, f"API Error: {numbered}\n"),
        ("claude-json", 1, json.dumps({**CLAUDE, "api_error_status": status, "result": f"API Error: {numbered}"})),
        ("llm", 1, f"Error: Error code: {status} - {body}\n" if status else f"Error: {message}\n"),
        ("node", 1, f"APIError: {numbered}\n    at APIError.generate (file:///x.mjs:1:2) {{\n  status: {status},\n"),
    ]  # fmt: skip
    if status is not None:
        forms.append(("curl", 22, f"{json.dumps(body)}curl: (22) The requested URL returned error: {status}\n"))
    return forms


@pytest.mark.parametrize("situation", REFUSALS)
def test_refusal_is_understood_in_the_form_of_each_client(situation: str) -> None:
    status, message, accepted = REFUSALS[situation]
    for client, exit_status, text in printed(status, message):
        for output in (text, f"Warning: something else\n{text}", text.replace("\n", "\r\n")):
            kind = from_output(output, exit_status, provider="openai", now=NOW).kind
            assert kind in accepted, f"{client}: {output}"


WRITTEN = [json.loads(line) for line in (DATA / "written_outputs.jsonl").read_text().split("\n") if line]


@pytest.mark.parametrize("row", WRITTEN, ids=[f"{row['cli']} {number}" for number, row in enumerate(WRITTEN)])
def test_written_output_gets_accepted_verdict(row: dict[str, Any]) -> None:
    """Outputs in the forms of the clients that no rule was written for."""
    for output in (row["output"], row["output"].replace("\n", "\r\n")):
        for provider in (row["provider"], None):
            assert from_output(output, row["exit_status"], provider=provider, now=NOW).kind in row["accepted"]
