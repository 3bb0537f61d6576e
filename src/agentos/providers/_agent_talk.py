"""Recognises what an agent writes about errors: sentences, and listings of code, tests, tables and search results.

An agent that was refused ends with the refusal. If it goes on to talk, errors above are what it talks about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Sentences after an error that make it a subject of conversation. One alone may be advice of the program.
_MIN_SENTENCES = 2
# Words of a sentence that explains a status. Programs state one in fewer.
_MANY_WORDS = 14
# Characters of a line that are looked at.
_MAX_LINE = 500

_FIRST_PERSON = re.compile(
    r"(?:^|[\s(\"'●])I(?:['\u2019](?:ve|ll|m|d))? [a-z]|^\W{0,4}(?:```|Done\b|All set\b|Summary\b)"
)
_SENTENCE = re.compile(r"^\W{0,4}[A-Z][\w'\u2019,;()-]*(?: [^\s]+){5,}[.!?:]$")
_ADVICE = re.compile(
    r"\b(?:error|fail|retry|retried|try|check|please|visit|see|refer|support|api key|quota"
    r"|to authenticate|be authenticated|environment variable|upgrade)",
    re.IGNORECASE,
)
_LISTING = re.compile(
    r"\s*(?:[|>#+]|//|@@|```|[-*] (?!Closing|The requested)|\d+\. |\d+ +[-+] |- {2,}|[-+](?:\S|$)"  # diffs, lists
    r"|[\w./-]+\.\w{1,5}:\d+[:\s](?!in )|\d+:\s|\./|\$ |E {3}"  # search results, prompts, pytest
    r"|(?:[0-9a-f]{7,40} )?(?:fix|feat|docs|test|chore|refactor|perf)(?:\([\w-]+\))?!?: |description: "
    r"|.{0,200}\"(?:GET|HEAD|POST|PUT|PATCH|DELETE) \S{1,300} HTTP/"  # access logs
    r"|(?:\"|')?[\w.-]+(?:\"|')?: ?[{\[\"']|(?:if|raise|return|throw|case|const|let|var|log|match|import|def)\b)"
    r"|.{0,200}(?:;|=>|\) \{|:=.*)$|.{0,200}\b(?:raise|throw|return|case) [\w&(]|.*(?:\bok|PASSED|PASS|✓).{0,20}$"
)
_QUOTED = re.compile(r"\s*(?:\*\*|\* |[\"\u201c`>|#]|\+ |- )")
_OUTCOME = re.compile(
    r"\b(?:error|failed|returned|responded|answered|indicate|exceeded|rejected|refused)\b", re.IGNORECASE
)


def end_of_talk(lines: Sequence[str]) -> int:
    """Return the number of lines up to the last one at which an agent talks about what is above; 0 if it does not."""
    sentences = 0
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at][:_MAX_LINE].rstrip()
        if _FIRST_PERSON.search(line):
            return at + 1
        if _SENTENCE.match(line) and not _ADVICE.search(line):
            sentences += 1
            if sentences >= _MIN_SENTENCES:
                return at + 1
    return 0


def is_listing(line: str) -> bool:
    """Return whether a line is part of a diff, a table, a list, code, test results or search results."""
    return _LISTING.match(line[:_MAX_LINE]) is not None


def is_quoted(line: str) -> bool:
    """Return whether a line is a quotation, or part of a table, a list or a diff."""
    return _QUOTED.match(line) is not None


def is_sentence(line: str) -> bool:
    """Return whether a line is a sentence that states no outcome of a request, or more than an outcome."""
    line = line[:_MAX_LINE].rstrip()
    return _SENTENCE.match(line) is not None and (_OUTCOME.search(line) is None or line.count(" ") >= _MANY_WORDS)
