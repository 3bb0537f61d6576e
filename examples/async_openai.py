"""Two requests for each question with the async OpenAI client, and a key leased for each request.

    agentos run --items questions.txt --key-env 'OPENAI_API_KEY*' examples.async_openai:answer
    python -m examples.async_openai questions.txt

Both are typed in the folder above this one; the first can be interrupted and resumed. `OPENAI_BASE_URL` names another
server that speaks the same protocol.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import openai

from agentos.workflows.parallel import Credential, CredentialCoordinator, ParallelCoordinator, current_item

MODEL = os.environ.get("ANSWER_MODEL", "gpt-5-mini")
MOST_TOKENS = 500


async def answer(question: str, _key: str) -> str:
    """The worker. A limit met by the second request, or Ctrl-C, does not cost the first one again."""
    item = current_item()
    draft = item.checkpoint.load()
    if draft is None:
        draft = await ask(question)
        await item.checkpoint.asave(draft)
    final = await ask(f"{question}\n\nImprove this answer: {draft}")
    print(final)
    return final


async def ask(text: str) -> str:
    async with current_item().lease(tokens=MOST_TOKENS) as lease:
        raw = (
            await client()
            .with_options(api_key=lease.secret)
            .chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": text}], max_completion_tokens=MOST_TOKENS
            )
        )
        lease.observe(raw)  # the rate-limit headers: what is left of the key's allowance
        reply = raw.parse()
        lease.settle(tokens=reply.usage.total_tokens)
    return reply.choices[0].message.content


@functools.cache
def client() -> openai.AsyncOpenAI:
    """One for all keys. Without retries of its own: they would go to the key that has just refused."""
    return openai.AsyncOpenAI(api_key="chosen for each request", max_retries=0)


def main(path: str) -> int:
    names = sorted(name for name in os.environ if name.startswith("OPENAI_API_KEY"))
    pool = CredentialCoordinator([Credential(f"env:{name}", id=name.lower()) for name in names])
    stats, _ = ParallelCoordinator(8, pool).execute_parallel(Path(path).read_text().splitlines(), answer)
    return 0 if stats.success_count == stats.total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
