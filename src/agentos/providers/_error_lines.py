"""Decides which lines that a command printed are errors of an API: any program may print words about limits and keys.

A false positive takes a working credential out of use, so a line has to look like the output of agents, SDKs or HTTP
clients.
"""

from __future__ import annotations

import re

from agentos.verdict import OVERLOADED, RATE_LIMITED, TRANSIENT

_MAX_LINE = 4000
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Before a message, loggers and agents print times, levels and their names.
_START = (
    r"^\W*(?:\d[\d:.,TZ+/ -]{3,40}\W*)?"
    r"(?:(?:\[[^\]\n]{1,40}\]|(?:stream |fatal |last )?error\b|warn(?:ing)?\b|fatal\b|execution failed\b"
    r"|(?:claude|codex|gemini|copilot)(?:[_:.-][\w:.-]{0,40}+)?+)\W*+){0,4}"
)
# Anything that ends with a colon, or with a level.
_BEFORE = r"^(?:[^:\n]{1,60}:){0,6}[\W\d]*(?:(?:[\w.-]+ (?:- )?){0,2}(?:error|warning|critical|fatal)\b\W*)?"

_LIMITS = (
    r"(?:session|weekly|daily|monthly|hourly|(?:5|five)-hour|usage|rate|model|api|plan|opus|sonnet|haiku|claude|codex"
    r"|gemini|copilot|current|global|premium|request|token|organization|specified|spend\w*)"
)
_YOU = r"(?:sorry, )?you(?:.ve| have)? (?:hit|reached|exceeded|exhausted) (?:your|a|the)"
# Sentences of agents and providers, at the beginning of a message.
_NOTICE = re.compile(
    _START + rf"(?:{_YOU} (?:{_LIMITS} ){{0,4}}(?:limits?|quota|capacity)\b"
    rf"|{_YOU} (?:[\w.-]+ ){{1,4}}limit\b.{{0,80}}\b(?:resets\b|try again (?:at|in)\b)"
    rf"|(?:{_LIMITS} (?:ai |code )?){{1,4}}limit reached\b"
    r"|you.re out of (?:extra )?usage|(?:your )?credit balance is too low|server is temporarily limiting requests"
    r"|request rejected \(\d{3}\)|repeated \d{3} overloaded|not logged in\b.{0,10}run /login|please run /login"
    r"|invalid api key\W+(?:please run|fix external)|oauth token (?:has )?(?:expired|revoked)"
    r"|your (?:workspace|organization|account|team) (?:is|has run) out of credits|exceeded retry limit, last status"
    r"|selected model is at capacity|quota exceeded\. check your plan|quota exceeded for (?:quota )?metric"
    r"|unexpected status \d{3} |stream disconnected before completion|we.re currently experiencing high demand"
    r"|your quota will reset after|model call failed:|incorrect api key provided|invalid x-api-key"
    r"|api key not valid\. please pass|rate limit reached for \S+ in organization"
    r"|(?:api )?rate limit exceeded(?=\W*$|[.,:;(]| for )|too many requests\W*$)",
    re.IGNORECASE,
)  # fmt: skip
# What SDKs raise, as tracebacks and loggers print it.
_SDKS = r"(?:openai|anthropic|groq|cohere|mistralai|litellm|together|replicate|xai_sdk|google\.(?:genai|api_core))"
_RAISED = re.compile(
    _BEFORE + rf"(?:{_SDKS}\.(?:\w+\.)*\w+: |(?:RateLimit|Overloaded|APIStatus|APIConnection|APITimeout|CAPI)Error: "
    r"|\[?API Error(?:: ?| ?\(?\d{3}\b)|API error occurred: "
    r"|(?:\w+: )?An error occurred \(\w+\) when calling the (?:Converse|InvokeModel)\w* operation"
    r"|(?:\w*Error: |Error code: )[45]\d\d\b(?: -| \{| status code| incorrect api| invalid))",
    re.IGNORECASE,
)  # fmt: skip
# What HTTP clients print, for any server.
_HTTP = re.compile(
    r"\bHTTP(?:/\d(?:\.\d)?)?(?: status| error| response)?(?: code)?\W{0,3}[45]\d\d\b"
    r"|\bstatus(?:[ _]?code)?\W{0,3}[45]\d\d\b|\b[45]\d\d (?:client|server) error\b"
    r"|\b(?:client|server) error '[45]\d\d "
    r"|\b429\W{1,3}too many requests\b|\b(?:529|503)\W{1,3}(?:site is )?overloaded\b"
    r"|\bcurl: \(\d+\)|\b(?:httpx2?|httpcore|requests|urllib3?|aiohttp)\.(?:\w+\.)*\w+: "
    r"|\b(?:Connection\w*|Timeout)Error: |\bE(?:CONNRESET|CONNREFUSED|TIMEDOUT|NOTFOUND|AI_AGAIN)\b"
    r"|\bsocket hang up\b|: fetch failed\b",
    re.IGNORECASE,
)
_ABOUT_API = re.compile(r"\bapi\b|\bapi[ _-]?key\b|\bbearer\b|\b(?:openai|anthropic|googleapis|x\.ai)\b", re.IGNORECASE)
# Tests and texts about errors, which are no errors themselves.
_ABOUT_ERRORS = re.compile(
    r"\b(?:expect(?:ed|s|ing)?|assert\w*|should|mock\w*|handle[ds]?|fixtures?|docs)\b|\btests?(?:_| |/|\b.*\bfailed\b)"
    r"|^\s*E  ",
    re.IGNORECASE,
)  # fmt: skip


def is_about_errors(line: str) -> bool:
    return _ABOUT_ERRORS.search(line[:_MAX_LINE]) is not None


def is_of_api(line: str) -> bool:
    """Return whether a line is a notice of a known agent, a message of a provider, or an exception of an SDK."""
    line = _COLOUR.sub("", line[:_MAX_LINE])
    return _NOTICE.match(line) is not None or (_RAISED.match(line) is not None and not is_about_errors(line))


def is_believed(line: str, kind: str) -> bool:
    """Return whether a line that reads like `kind` is an error of an API.

    A temporary refusal may come from any HTTP server. A refused key must mention an API: git prints such errors, too.
    """
    if is_of_api(line):
        return True
    if _HTTP.search(line) is None or is_about_errors(line):
        return False
    return kind in (RATE_LIMITED, OVERLOADED, TRANSIENT) or _ABOUT_API.search(line) is not None
