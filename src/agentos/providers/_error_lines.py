"""Decides which lines that a command printed are errors of an API: any program may print words about limits and keys.

A false positive takes a working credential out of use, so a line has to look like the output of agents, SDKs or HTTP
clients. Lines have no terminal codes any more.
"""

from __future__ import annotations

import re

from agentos.verdict import AUTH_FAILED

from . import _agent_talk as agent_talk
from . import _http_lines as http_lines
from . import _phrases as phrases

_MAX_LINE = 4000
# Before a message, loggers and agents print times, levels and their names.
_START = (
    r"^\W*(?:\d[\d:.,TZ+/ -]{3,40}\W*)?"
    r"(?:(?:\[[^\]\n]{1,40}\]|(?:stream |fatal |last |api )?error\b|warn(?:ing)?\b|fatal\b|execution failed\b"
    r"|failed to authenticate[.:]|error when talking to gemini api(?: full report available at: \S{1,300})?+"
    r"|failed to get response from the ai model;? retried \d+ times(?: \([^)\n]{1,80}\))?+"
    r"|(?:[\w-]{1,30} ){0,2}(?:request|call|completion|generation|inference|query|prompt|chat|stream) failed(?=: )"
    r"|attempt \d+ failed(?: with status \d+)?+|(?:claude|codex|gemini|copilot)(?:[_:.-][\w:.-]{0,40}+)?+)\W*+){0,5}"
)
# Anything that ends with a colon, or with a level. Digits and marks are taken at once: a long row of them would be
# tried at each length otherwise.
_BEFORE = (
    r"^(?:[^:\n]{1,60}:){0,6}(?:[^\w\[]|\d|\[(?!AI_|Google))*+"
    r"(?:(?:[\w.-]+ (?:- )?){0,2}(?:error|warning|critical|fatal)\b(?:[^\w\[]|\[(?!AI_|Google))*+)?"
)

_LIMITS = (
    r"(?:session|weekly|daily|monthly|hourly|(?:5|five)[ -]hour|usage|rate|model|api|plan|opus|sonnet|haiku|claude"
    r"|codex|gemini|copilot|current|global|premium|request|token|organization|specified|spend\w*)"
)
_YOU = r"(?:sorry, )?you(?:.ve| have)? (?:hit|reached|exceeded|exhausted) (?:your|a|the)"
# Sentences of agents and providers, at the beginning of a message.
_SENTENCES = (
    rf"{_YOU} (?:{_LIMITS} ){{0,4}}(?:limits?|quota|capacity)\b"
    rf"|{_YOU} (?:[\w.-]+ ){{1,4}}limit\b.{{0,80}}\b(?:resets\b|try again (?:at|in)\b)"
    rf"|(?:{_LIMITS} (?:ai |code )?){{1,4}}limit reached\b"
    r"|you.re out of (?:extra )?usage|(?:your )?credit balance (?:is )?too low|server is temporarily limiting requests"
    r"|request rejected \(\d{3}\)|repeated \d{3} overloaded|not logged in\b.{0,10}run /login|please run /login"
    r"|this request would exceed (?:your|the)\b.{0,60}\b(?:limit|rate)\b|number of \w+ tokens has exceeded your"
    r"|invalid api key\W+(?:please run|fix external)|oauth (?:token|session) (?:has )?(?:been )?(?:expired|revoked)"
    r"|your (?:access|refresh) token (?:could not be refreshed|(?:has|was) (?:been )?(?:expired|revoked))"
    r"|your (?:workspace|organization|account|team) (?:is|has run) out of credits|exceeded retry limit, last status"
    r"|selected model is at capacity|quota exceeded\. check your plan|quota exceeded for (?:quota )?metric"
    r"|unexpected status \d{3} |stream disconnected before completion|we.re currently experiencing high demand"
    r"|your quota will reset after|model call failed:|incorrect api key provided|invalid x-api-key"
    r"|(?:api key not valid|api key expired)\. please|rate limit reached for \S+ in organization"
    r"|invalid (?:authentication credentials|bearer token)\b|no auth credentials found|missing authentication header"
    r"|your (?:api key|authentication token) (?:was|is|has)(?: been)? "
    r"(?:reported as leaked|not valid|invalid|expired|revoked|disabled|invalidated|suspended|deactivated)"
    r"|your api key does not have permission"
    r"|(?:your )?(?:prepayment )?credits are depleted|insufficient (?:account )?(?:balance|credits?|quota|funds)\b"
    r"|the (?:server|model|engine|service)(?: \S+)? is (?:currently |temporarily )?overloaded"
    r"|resource has been exhausted"
    r"|overloaded\W*$|(?<=error: )unauthori[sz]ed\W*$|the usage limit has been reached"
    r"|your account is not authorized:|country, region, or territory not supported"
    r"|authentication failed with provider at \S+|model stream ended without"
    r"|(?:api )?rate limit exceeded(?=\W*$|[.,:;(]| for )|too many requests\W*$"
)
# Marks that agents print before their own errors, in the first column. Test runners indent theirs, or add a duration.
_MARKS = "✘✗✖✕\u2a2f\u00d7"
_MARK = re.compile(rf"[{_MARKS}]\ufe0f? ?(?=[A-Z\d{{\[])")
_OF_TESTS = re.compile(r"\(\d+(?:\.\d+)? ?m?s\)\s*$|\D [\u203a>] |(?<!\d)\d+ problems?\b|\[(?:ERROR|WARNING)\]")
# What agents print between the mark and the message.
_LABEL = (
    r"(?:(?:API |last )?error|execution failed|model call failed|error from provider(?: \([^)\n]{1,60}\))?"
    r"|provider returned error|ran into this error|upstream error from [\w.-]+)"
)
_INTRODUCTION = re.compile(rf"(?:[{_MARKS}]\ufe0f? ?)?(?:\[?{_LABEL}: ){{0,3}}", re.IGNORECASE)
# A label that no other program prints. `Error: ` is one of every program.
_OWN_LABEL = re.compile(
    r"(?:Error: )?(?:\[?API Error: |Execution failed: |Model call failed: |Error from provider \("
    r"|Provider returned error: |Ran into this error: |Upstream error from [\w.-]+: )",
    re.IGNORECASE,
)
# The word "Error: " alone in red, as opencode prints it. Compilers colour "error" without the colon.
_RED_LABEL = re.compile(
    r"^(?:\x1b\[[\d;]*m)*\x1b\[(?:[\d;]*;)?(?:31|91)(?:;[\d;]*)?m(?:\x1b\[[\d;]*m)*E(?:rror|RROR): *\x1b\[[\d;]*m *",
    re.MULTILINE,
)
# The last line of a stack of JavaScript, after which Node prints the fields of the error.
_FRAME = re.compile(r"\s+at .{1,400} $|\s*\.\.\. \d+ lines matching cause stack trace \.\.\.$")
_NOTICE = re.compile(rf"{_START}(?:{_SENTENCES})", re.IGNORECASE)
# Statements about the user's account, key or limits, and about the provider's service, in the words of any provider
# (`phrases`). They begin with words of a few kinds. Other programs speak of a disk, a function, a password or a host,
# and compilers and tools of Unix write "error" in small letters.
_OF_ACCOUNT = (
    r"sorry|please|you|your|you.(?:ve|re)|we|our|the|this|that|an?|all|any|of|to|its|is|are|was|has|have|been|being|do|does"
    r"|did|not|must|be|currently|temporarily|reached|hit|exceeded|sending|making|max(?:imum)?|number"
    r"|admin(?:istrator)?|organi[sz]ation|org|enterprise|account|workspace|team|user|project|owner|plan|subscription"
    r"|free|paid|trial|prepaid|monthly|weekly|daily|included|premium|session|login|token|access|authentication|api|key|\w+_api_key|belongs|oauth"
    r"|requests?|model|openai|anthropic|claude|code|codex|copilot|gemini|google|qwen|openrouter|org-\S+"
)
_OF_SERVICE = r"the|our|this|that|(?:server|service|system|engine|model)s?|may|is|are|be|currently|temporarily|too"
_STATEMENT = re.compile(
    rf"(?!\W*(?-i:error|fatal|warning)\b){_START}(?=(?-i:[A-Z]))(?:(?:(?:{_OF_ACCOUNT})(?:['\u2019]s)?[\s,:]+){{0,8}}"
    rf"(?!authentication \w+ (?:for|to|on|by|with)\b)(?:{phrases.STATEMENTS})"
    rf"|(?:(?:{_OF_SERVICE}|\S+ is)\s+){{1,6}}(?:overloaded|busy)\b|no capacity available)",
    re.IGNORECASE,
)
# With a status before it: the messages of the SDKs for JavaScript.
_NUMBERED = re.compile(
    rf"{_START}[45]\d\d (?:\{{|{_SENTENCES}|(?:api )?rate limit|your |you |invalid |incorrect )"
    rf"|{_START}(?<=error: )[45]\d\d (?-i:[A-Z])(?!lient |erver |nauthori|orbidden)",
    re.IGNORECASE,
)
# What SDKs raise, as tracebacks and loggers print it.
_SDKS = (
    r"(?:openai|anthropic|groq|cohere|mistralai|litellm|together|replicate|xai_sdk|google\.(?:genai|api_core)|fireworks"
    r"|cerebras|huggingface_hub|pydantic_ai|langchain\w*)"
)
_RAISED = re.compile(
    _BEFORE + rf"(?:{_SDKS}\.(?:\w+\.)*(\w+): "
    r"|((?:RateLimit|Overloaded|APIStatus|APIConnection|APITimeout|CAPI|AI_\w{1,40})Error): "
    r"|(?:.{1,300}?\s)?((?:Terminal|Retryable)QuotaError|_?ApiError): "
    r"|.{0,80}?\[(AI_\w{1,40}Error|GoogleGenerativeAI Error)\]: |\[?API Error(?:: ?| ?\(?\d{3}\b)|API error occurred: "
    r"|(?:\w+: )?An error occurred \((\w+)\) when calling the (?:Converse|InvokeModel)\w* operation"
    r"|(?:uncaught )?(?:\(in promise\) )?(?:\w*Error: |Error code: )[45]\d\d\b"
    r"(?: -| \{| status code| incorrect api| invalid)|error: error code: [45]\d\d\s*$)",
    re.IGNORECASE,
)  # fmt: skip
_ENDS_IN_ERROR = re.compile(r"error\W{1,3}$", re.IGNORECASE)
_RPC = re.compile(r"\b(?:rpc error: code = |status ?= ?StatusCode\.|RpcError: .{0,40}StatusCode\.)(\w{1,40})")
# Tests and texts about errors, which are no errors themselves.
_ABOUT_ERRORS = re.compile(
    r"\b(?:expect(?:ed|s|ing)?|assert\w*|should|mock\w*|handle[ds]?|fixtures?|docs)\b|\btests?(?:_| |/|\b.*\bfailed\b)"
    r"|^\s*E  |^[+-] |^\s*(?:return|const|let|var) |\w = $",
    re.IGNORECASE,
)  # fmt: skip
_URL = re.compile(r"https?://\S+")


def is_about_errors(text: str) -> bool:
    """Return whether a text is part of a test, of code or of a description. Its addresses do not count."""
    return _ABOUT_ERRORS.search(_URL.sub("", text[:_MAX_LINE])) is not None


def with_marks(text: str) -> str:
    """Return a text in which red labels of errors are marks: their colour is what tells them from other labels."""
    return _RED_LABEL.sub("✘ ", text) if "\x1b[" in text else text


def is_marked(line: str) -> bool:
    """Return whether a line begins with the mark of an agent's error."""
    return _MARK.match(line) is not None and _OF_TESTS.search(line[:_MAX_LINE]) is None


def introduces(prefix: str) -> bool:
    """Return whether the text before an object says that the object is an error of an agent or an SDK."""
    return introduced_message(f"{prefix}{{") is not None or is_of_api(prefix)


def introduced_message(line: str) -> str | None:
    """Return the message of an agent's own error: whatever follows its mark or label; None if the line has neither."""
    if not (is_marked(line) or _OWN_LABEL.match(line)) or is_about_errors(_first_sentence(line)):
        return None
    introduction = _INTRODUCTION.match(line)
    assert introduction is not None  # it may be empty
    return line[introduction.end() :]


def _first_sentence(line: str) -> str:
    return line.partition(". ")[0]


def has_object(prefix: str, rest: str) -> bool:
    """Return whether the object after `prefix` is an error: of an SDK, of an agent, or after a stack of Node."""
    if introduces(prefix) or prefix.lower().endswith("error: "):
        return True
    return rest.strip() == "{" and is_frame(prefix)


def ends_in_error(prefix: str) -> bool:
    """Return whether a text ends in the word "error" and marks."""
    return _ENDS_IN_ERROR.search(prefix) is not None


def is_frame(prefix: str) -> bool:
    """Return whether a text is the end of a stack of JavaScript."""
    return _FRAME.match(prefix) is not None


def is_of_api(line: str) -> bool:
    """Return whether a line is a notice of a known agent, a message of a provider, or an exception of an SDK."""
    line = line[:_MAX_LINE]
    if agent_talk.is_quoted(line):
        return False
    if _NOTICE.match(line) is not None or _NUMBERED.match(line) is not None:
        return True
    raised = _RAISED.match(line)
    return (raised is not None and not is_about_errors(line[: raised.end()])) or _RPC.search(line) is not None


def error_class(line: str) -> str | None:
    """Return the class or code of an exception of an SDK; None if the line is none."""
    line = line[:_MAX_LINE]
    match = _RAISED.match(line) or _RPC.search(line)
    return None if match is None else next(filter(None, match.groups()), None)


def is_believed(line: str, kind: str, provider: str) -> bool:
    """Return whether a line that reads like `kind` is an error of an API."""
    line = line[:_MAX_LINE]
    if is_of_api(line) or _is_statement(line, kind, provider):
        return True
    return not is_about_errors(line) and http_lines.is_believed(line, kind, provider)


def _is_statement(line: str, kind: str, provider: str) -> bool:
    is_quoted = line.startswith("  ") or agent_talk.is_quoted(line)
    if is_quoted or _STATEMENT.match(line) is None or _OF_TESTS.search(line) is not None:
        return False
    if is_about_errors(_first_sentence(line)):
        return False
    return kind != AUTH_FAILED or not http_lines.names_other_host(line, provider)
