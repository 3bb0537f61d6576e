"""Answer questions with two requests each through the async OpenAI client, with a lease for each request.

    agentos run --items questions.txt --key-env 'OPENAI_API_KEY*' examples.async_openai:answer
    python -m examples.async_openai questions.txt

Start either in the folder above this one; the first can be interrupted and resumed. `OPENAI_BASE_URL` selects another
server with the same protocol.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import openai

from agentos.workflows.parallel import Credential, CredentialCoordinator, ParallelCoordinator, current_item

MODEL = os.environ.get("ANSWER_MODEL", "gpt-5-mini")
MAX_TOKENS = 500


async def answer(question: str, _key: str) -> str:
    """Answer one question. The checkpoint saves the first request if a limit or Ctrl-C stops the second one."""
    item = current_item()
    draft = item.checkpoint.load()
    if draft is None:
        draft = await ask(question)
        await item.checkpoint.asave(draft)
    final = await ask(f"{question}\n\nImprove this answer: {draft}")
    print(final)
    return final


async def ask(text: str) -> str:
    """Send one request with a leased key and return the reply."""
    async with current_item().lease(tokens=MAX_TOKENS) as lease:
        raw = (
            await client()
            .with_options(api_key=lease.secret)
            .chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": text}], max_completion_tokens=MAX_TOKENS
            )
        )
        lease.observe(raw)  # passes the rate-limit headers to the pool
        reply = raw.parse()
        lease.settle(tokens=reply.usage.total_tokens)
    return reply.choices[0].message.content


@functools.cache
def client() -> openai.AsyncOpenAI:
    """Return one client for all keys. It does not retry: that would reuse the key that has just been refused."""
    return openai.AsyncOpenAI(api_key="chosen for each request", max_retries=0)


def main(path: str) -> int:
    names = sorted(name for name in os.environ if name.startswith("OPENAI_API_KEY"))
    pool = CredentialCoordinator([Credential(f"env:{name}", id=name.lower()) for name in names])
    stats, _ = ParallelCoordinator(8, pool).execute_parallel(Path(path).read_text().splitlines(), answer)
    return 0 if stats.success_count == stats.total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
