"""Prompt cache of a simulated provider: beginnings of prompts that a group of keys has sent before."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# Tokens of a block: a prompt is cached in whole blocks from its beginning. Real providers have blocks of this order.
BLOCK_TOKENS = 64
# Seconds after its last use until a block is forgotten.
LIFE_SECONDS = 300.0
# Blocks in memory; all are forgotten when there are more.
MAX_BLOCKS = 200_000


class PromptCache:
    """Remembers prompts per owner: a key's group, and a model."""

    def __init__(self) -> None:
        self._expires_at: dict[tuple[str, str | None, bytes], float] = {}

    def use(self, group: str, model: str | None, prompts: tuple[Any, ...], now: float) -> tuple[int, int]:
        """Return the tokens of a prompt that are read from the cache, and those that are written to it."""
        text = json.dumps(prompts).encode()
        digest = hashlib.blake2b(digest_size=8)
        cached, write_tokens = 0, 0
        if len(self._expires_at) > MAX_BLOCKS:
            self._expires_at.clear()
        for end in range(BLOCK_TOKENS * 4, len(text) + 1, BLOCK_TOKENS * 4):
            digest.update(text[end - BLOCK_TOKENS * 4 : end])
            block = (group, model, digest.digest())
            if write_tokens == 0 and self._expires_at.get(block, now) > now:
                cached += BLOCK_TOKENS
            else:
                write_tokens += BLOCK_TOKENS
            self._expires_at[block] = now + LIFE_SECONDS
        return cached, write_tokens
