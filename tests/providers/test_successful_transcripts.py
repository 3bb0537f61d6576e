"""Outputs of successful agents that discuss refused keys, limits and quotas give no verdict.

The transcripts are invented: reviews of retry code, logs, documentation, diffs, test results, search results, fixtures,
commit messages and output of tools, as each agent prints them.
"""

# ruff: noqa: E501 - tables of outputs
from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentos.providers.verdicts import from_output

DATA = Path(__file__).parents[1] / "data" / "successful_transcripts.jsonl"
TRANSCRIPTS = [json.loads(line) for line in DATA.read_text().split("\n") if line]
IDS = [f"{at}: {each['cli']} {each['topic']}" for at, each in enumerate(TRANSCRIPTS)]
# After a failure for another reason, text about limits may be misread. A bound for the share of transcripts.
MAX_MISREAD = 0.16
MAX_BLAMED_KEYS = 0.06

SHORT_ANSWERS = [
    "Your API key is invalid in the second example; change it.\n",
    "You've hit your rate limit because the semaphore is per request.\n",
    "You've reached your session limit in the simulator; add a reset.\n",
    '{"status":"ok","error":"429 Too Many Requests handled in retry.ts"}\n',
    '{"level":"error","msg":"rate limit exceeded","status":429,"error":{"code":"rate_limit_exceeded"}}\n{"level":"info","msg":"ok"}\n',
    "API Error: 429 is thrown by fetchPage when the quota is used up; the fix is in http.ts.\n",
    "Rate limit exceeded: the handler now returns 429.\n",
    "Error: rate limit exceeded for user 7 is now mapped to HTTP 429.\n",
    "HTTP 401 Unauthorized\n",
    "401 Unauthorized\n",
    "Too many requests\n",
    "curl: (22) The requested URL returned error: 401\n",
    "openai.RateLimitError: Error code: 429 - {'error': {'code': 'rate_limit_exceeded', 'message': 'x'}}\n",
    "Quota exceeded. Check your plan and billing details.\n",
    "The test prints:\n[API Error: 429 Rate limit]\nwhich is what we want.\n",
    "Aider v0.86.2\n\nThe log has\nlitellm.RateLimitError: RateLimitError: OpenAIException - Rate limit\nso I added a retry.\nTokens: 3k sent\n",
    "Invalid API key: that is the message users see.\n",
    "Credit balance handling: done.\n",
    "- 401: key invalid\n- 429: too many requests\n- 529: overloaded\n",
    "exit status 75 means rate limited; try again in 20 seconds\n",
    "Not logged in users get 401, logged in users without credits get 402.\n",
    "Selected model is at capacity is now shown as a banner.\n",
    "Overloaded\n",
    "The server is overloaded.\n",
    "429\n",
    "Too Many Requests (429)\n",
]


@pytest.mark.parametrize("text", SHORT_ANSWERS)
def test_short_answer_gives_no_verdict(text: str) -> None:
    assert from_output(text, 0).kind is None
    assert from_output(text.strip(), 0).kind is None


def test_there_are_enough_distinct_transcripts() -> None:
    assert len({each["text"] for each in TRANSCRIPTS}) >= 200
    assert len({each["cli"] for each in TRANSCRIPTS}) >= 12


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=IDS)
def test_successful_agent_gives_no_verdict(transcript: dict[str, str]) -> None:
    text = transcript["text"]
    for provider in (None, "openai", "gemini"):
        assert from_output(text, 0, provider=provider).kind is None
    lines = text.split("\n")
    for variant in (
        *("\n".join(lines[at:]) for at in range(1, len(lines), 3)),  # only the end of a long output is kept
        text + "Warning: something else\n",
        text.replace("\n", "\r\n"),
        "\n".join(f"\x1b[2m{line}\x1b[0m" for line in lines),
        text + text,
    ):
        assert from_output(variant, 0).kind is None, variant


def test_failed_agent_is_seldom_misread() -> None:
    kinds = [from_output(each["text"], 1).kind for each in TRANSCRIPTS]
    assert sum(kind is not None for kind in kinds) <= MAX_MISREAD * len(kinds)
    assert kinds.count("auth_failed") <= MAX_BLAMED_KEYS * len(kinds)
