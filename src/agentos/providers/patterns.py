"""Pattern: a user's own way to read a verdict from the output of a command."""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from agentos.verdict import RATE_LIMITED, Verdict


class Pattern(NamedTuple):
    """An own way to read a command's output: what a match of `regex` means. A group `seconds` in it tells the wait."""

    regex: re.Pattern[str]
    verdict: str = RATE_LIMITED
    retry_after: float | None = None

    def read(self, text: str) -> Verdict | None:
        match = self.regex.search(text)
        if match is None:
            return None
        wait = self.retry_after
        told = match.groupdict().get("seconds")
        if told is not None:
            with contextlib.suppress(ValueError):
                wait = float(told)
        return Verdict(self.verdict, wait, message=match.group(0)[:300])
