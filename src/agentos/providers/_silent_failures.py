"""Finds the failure that ended a command which exits with 0 all the same.

aider does so after every failure, Gemini CLI after an answer that was cut, other agents in some versions. A successful
agent may print anything about limits, so only the end of the output counts, and only in the form of a known agent.
"""

from __future__ import annotations

import re

from . import _agent_talk as agent_talk
from . import _bodies as bodies
from . import _error_lines as error_lines

# Lines at the end that can be a failure, and characters of an output that is nothing but a notice.
_MAX_LINES = 40
_MAX_NOTICE = 500
# Lines of one failure of aider, which breaks them at the width of the terminal.
_MAX_BLOCK = 30

# Lines that agents and HTTP clients print beside an answer or a failure.
_NOISE = re.compile(
    r"\s*$|\W*(?:warning|warn|info|note|debug)\b|ripgrep is not|loaded cached|data collection|yolo mode|keychain "
    r"|\[(?:startup|warn|info|debug)|reading additional input|> \w+ · \S+$|\(node:\d+\)|hook registry"
    r"|\s*% total|[\s\d:.%kMG-]+$|[─━-]{5,}$|https?://\S+$|(?:changes|duration|resume|total \w+)\b.{0,80}$",
    re.IGNORECASE,
)
# It follows the part of an answer that had arrived, in the same line.
_AIDER = re.compile(r"(?:^|\s{2}|(?<=[^\s`'\"(]))(litellm\.\w+(?:Error|Exception|Timeout): .*)")
_OF_AIDER = re.compile(r"^(?:Aider v\d|The API provider\b|Retrying in \d+(?:\.\d+)? seconds\.\.\.$)", re.MULTILINE)
# An address in a line of its own is that of a page about the error; in the message it has quotation marks behind it.
_AFTER_AIDER = re.compile(r"(?:The API provider\b|Warning: |https?://[^\s\"',]+$|\s*$)")
_AIDER_GOES_ON = re.compile(r"Tokens: |Applied edit|Commit [0-9a-f]{7}|Added |>|```")
_CUT = re.compile(r"\[ERROR\] Model stream (?:ended|completed) with")
_BRACKETS = re.compile(r"\W{0,3}\[API Error: ")
_ADVICE = re.compile(r"(?:possible quota|please wait|to (?:increase|request)|an unexpected|.{0,300}\]$)", re.IGNORECASE)
_ALONE = re.compile(
    r"\W*(?:(?:you.ve (?:hit|reached) your (?:[\w-]+ ){0,3}limits?|you.re out of (?:extra )?usage"
    r"|(?:claude (?:ai )?usage|(?:5|five)-hour) limit reached)\W*(?:$|[·∙•|] ?|resets |.{0,200}\btry again (?:at|in) )"
    r"|sorry, you.ve (?:hit|exceeded|reached) .{0,200}(?:try again|retry after) "
    r"|(?:failed to authenticate\. )?api error: (?:\d{3} |request rejected \(|repeated |server is temporarily)"
    r"|credit balance (?:is )?too low\b|(?:invalid api key|not logged in|oauth token has (?:expired|been revoked)) ·)",
    re.IGNORECASE,
)
# Words of an answer about such notices.
_ANSWER = re.compile(
    r"\b(?:I|we|now|means?|handled|retried|returns?|tests?|functions?|client|because|thrown|mapped|shown)\b|[`*#]"
)


# The fields of a body that is nothing but an error.
_BODY_FIELDS = frozenset(
    {"message", "detail", "code", "status", "type", "request_id", "requestId", "documentation_url"}
)


def lone_message(plain_text: str) -> str | None:
    """Return the message of a body that is nothing but a message, as `curl` prints it; None for any other output."""
    text = plain_text.strip()
    body = bodies.from_json(text) if text[:1] == "{" and len(text) <= _MAX_NOTICE else None
    if not isinstance(body, dict) or not body.keys() <= _BODY_FIELDS:
        return None
    message = body.get("message", body.get("detail"))
    return message if isinstance(message, str) else None


def is_message_of_error(answer: str) -> bool:
    """Return whether an answer is nothing but the error that Qwen Code reports in its place."""
    return _BRACKETS.match(answer) is not None and answer.rstrip().endswith("]")


def is_noise(line: str) -> bool:
    """Return whether a line says nothing about the outcome."""
    return _NOISE.match(line[:500]) is not None


def find(text: str) -> str | None:
    """Return the failure at the end of an output without terminal codes; None if it ends otherwise."""
    lines = [line.rstrip() for line in text.split("\n")]
    last_lines = [line for line in lines[-_MAX_LINES:] if not is_noise(line)]
    if not last_lines:
        return None
    cut = next((line for line in reversed(last_lines) if _CUT.match(line)), None)
    return cut or _of_aider(lines) or _at_end(last_lines) or _alone(lines)


def _of_aider(lines: list[str]) -> str | None:
    start = next((at for at in range(len(lines) - 1, -1, -1) if _AIDER.search(lines[at][:2000])), None)
    if start is None or len(lines) - start > _MAX_BLOCK or _OF_AIDER.search("\n".join(lines)) is None:
        return None
    match = _AIDER.search(lines[start][:2000])
    assert match is not None
    block = [match[1]]
    rest = iter(lines[start + 1 :])
    for line in rest:  # the rest of the message, up to the advice of aider or an empty line
        if _AFTER_AIDER.match(line):
            break
        block.append(line)
    is_last = all(_AFTER_AIDER.match(line) or is_noise(line) for line in rest)
    if not is_last or any(map(_AIDER_GOES_ON.match, block)) or agent_talk.end_of_talk(block):
        return None
    return "\n".join(block)


def _at_end(lines: list[str]) -> str | None:
    """Return a failure in the last lines, which are no noise, if nothing but advice follows."""
    if error_lines.is_marked(lines[-1]) and error_lines.is_of_api(lines[-1]):
        return lines[-1]
    for at in range(len(lines) - 1, max(len(lines) - 6, -1), -1):
        if _BRACKETS.match(lines[at]):
            return "\n".join(lines[at:])
        if not _ADVICE.match(lines[at]):
            return None
    return None


def _alone(lines: list[str]) -> str | None:
    """Return the output if it is nothing but a notice of an agent."""
    notice = "\n".join(line for line in lines if not is_noise(line)).strip("\n")
    if len(notice) > _MAX_NOTICE or not error_lines.is_of_api(notice.partition("\n")[0]):
        return None
    return notice if error_lines.is_marked(notice) or (_ALONE.match(notice) and not _ANSWER.search(notice)) else None
