"""Pattern: a regular expression of the user that reads a verdict from the output of a command."""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from agentos.verdict import RATE_LIMITED, Verdict


class Pattern(NamedTuple):
    """The verdict of a command whose output matches `regex`. A group `seconds` in it is the wait."""

    regex: re.Pattern[str]
    verdict: str = RATE_LIMITED
    retry_after: float | None = None

    def read(self, text: str) -> Verdict | None:
        """Return the verdict if the text matches, else None."""
        match = self.regex.search(text)
        if match is None:
            return None
        wait = self.retry_after
        seconds = match.groupdict().get("seconds")
        if seconds is not None:
            with contextlib.suppress(ValueError):
                wait = float(seconds)
        return Verdict(self.verdict, wait, message=match.group(0)[:300], is_printed=True)
