"""Review one file with one key: `OPENAI_API_KEY=… python review.py FILE`. Choosing keys is the job of `agentos run`."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

BASE_URL = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
MODEL = os.environ.get("REVIEW_MODEL", "gpt-5-mini")
TRY_AGAIN_LATER = 75  # EX_TEMPFAIL of sysexits.h: a limit, not a failure


def main(path: str) -> int:
    question = f"Name the worst problem of this file in one sentence.\n\n{Path(path).read_text()}"
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}]}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{BASE_URL}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        # `agentos run` reads this output to distinguish a rate limit from an empty account.
        print(f"HTTP {error.code}: {error.read().decode(errors='replace')}", file=sys.stderr)
        if error.code != 429:
            return 1
        print(f"try again in {error.headers.get('Retry-After', '60')} s", file=sys.stderr)
        return TRY_AGAIN_LATER
    report_tokens(answer["usage"]["total_tokens"])
    print(answer["choices"][0]["message"]["content"])
    return 0


def report_tokens(count: int) -> None:
    """Report used tokens like `agentos report usage --tokens COUNT`, without starting another program."""
    if "AGENTOS_REPORT" in os.environ:
        with Path(os.environ["AGENTOS_REPORT"]).open("a") as file:
            file.write(json.dumps({"usage": {"tokens": count}}) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
