"""Recognises the codes and phrases of providers by their meaning. Patterns match families, because wordings change."""

from __future__ import annotations

import re
from functools import lru_cache

from agentos.durations import DURATION, parse_number, sum_amounts
from agentos.verdict import AUTH_FAILED, OVERLOADED, PERMANENT, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT

Meaning = tuple[str, str | None]  # a kind of verdict, and the window of the limit if it is named

# --- codes ---------------------------------------------------------------------------------------------------------

# The first match wins. Codes are converted to snake case before.
_STRONG_CODES: tuple[tuple[str, str, str | None], ...] = (
    (r"in_flight|concurren", RATE_LIMITED, "concurrency"),
    (r"context_length|context_window|string_above_max|(request|prompt|payload|content|input)_(entity_)?too_(large|long)",
     PERMANENT, None),
    (r"daily|per_day", QUOTA_EXHAUSTED, "day"),
    (r"weekly|usage_limit_reached|usage_not_included", QUOTA_EXHAUSTED, "plan"),
    (r"team_blocked|credits?_(exhausted|depleted|required)|credit_balance|insufficient_\w*(quota|balance|credit|fund)"
     r"|out_of_credit|billing|exceeded_current_quota|openrouter_credits|payment_(failed|overdue)|arrear",
     QUOTA_EXHAUSTED, "credits"),
    (r"spend(ing)?_(limit|cap)|monthly|usage_limit_exceeded", QUOTA_EXHAUSTED, "month"),
    (r"overage_limit|(guardrail|workspace|key|organization|project|user)_budget|budget_(limit_)?exceeded|key_limit"
     r"|quota_(exceeded|exhausted|limit_exceeded|reached)|exceeded_quota|(?<!rate_)limit_quota|^quota$",
     QUOTA_EXHAUSTED, None),
    (r"overload|capacity|server_busy|engine_busy|high_demand", OVERLOADED, "capacity"),
    (r"^invalid_stream$", RATE_LIMITED, None),  # Gemini CLI's answer was cut; it hides why
    (r"model_not_ready", TRANSIENT, None),  # Bedrock's 429 that is no throttling
    (r"rate_?limit(?!_error)|throttl|too_many_requests|slow_down|ramp_limit|agent_mode_limit|request_limit_exceeded",
     RATE_LIMITED, None),
    (r"provider_auth|invalid_(api_?)?key|(api|access)_key_(invalid|expired|not_found|revoked|disabled|\w*blocked)|authentication"
     r"|unauthori[sz]ed|unauthenticated|unrecognized_client|expired_token|token_(has_)?(expired|revoked|invalid)"
     r"|invalid_(auth|signature|client_token|access_key|credential|grant|security_token)|signature_does_not_match"
     r"|incomplete_signature|missing_auth|on_hold|account_(deactivated|suspended|disabled|inactive)|oauth_org"
     r"|consumer_(suspended|invalid)|service_disabled", AUTH_FAILED, None),
)  # fmt: skip
# Codes that mean no more than a status, for answers without one.
_CODE_STATUSES: tuple[tuple[str, int], ...] = (
    (r"rate_?limit|resource_exhausted", 429),
    (r"payment_required", 402),
    (r"permission|access_denied|forbidden|unsupported_country", 403),
    (r"not_found|does_not_exist", 404),
    (r"unavailable", 503),
    (r"timeout|timed_out|deadline", 504),
    (r"server_error|^internal|^api_error|model_(error|stream_error)|bad_gateway|^aborted", 500),
    (r"invalid_request|^invalid|validation|unsupported|content_(filter|policy)|failed_precondition|^bad_request", 400),
)


@lru_cache(maxsize=512)
def meaning_of_code(code: str) -> Meaning | None:
    """Return what a code means; None for a code that only repeats the status, or is unknown."""
    snake_code = _snake(code)
    if snake_code == "provider_unavailable":
        return TRANSIENT, None
    for pattern, kind, window in _STRONG_CODES:
        if re.search(pattern, snake_code):
            return kind, window
    return None


@lru_cache(maxsize=512)
def status_of_code(code: str) -> int | None:
    """Return the HTTP status that a code stands for; None if it is unknown."""
    snake_code = _snake(code)
    return next((status for pattern, status in _CODE_STATUSES if re.search(pattern, snake_code)), None)


def _snake(code: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", code.partition("://")[0]).lower().replace("-", "_").replace(":", "_")


# --- sentences ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_BUSY = (
    r"\boverload|high demand|\b(?:at|no|insufficient|out of|exceeded|tier|reached|lack of) (?:\w+ )?capacity\b"
    r"|capacity (?:is |has been |was )?(?:exceeded|exhausted|reached|constrain|limit)|peak load|heavy load"
    r"|temporarily limiting requests|not your usage limit"
    r"|(?:server|service|system|engine|model)s? (?:(?:is|are|currently|too|very) ){0,3}busy"
)
_MONEY = (
    r"credit balance|insufficient (?:account )?(?:balance|credit|fund|quota)"
    r"|(?:credits?|balance) (?:\w+ ){0,4}?(?:depleted|exhausted|used up|too low|run out|ran out)"
    # What is missing, was used, or does not suffice.
    r"|\b(?:(?:(?:run|ran) )?out of|no|zero|not enough|all (?:available|(?:of )?your)"
    r"|(?:used|used up|depleted|exhausted|exceeded) (?:(?:(?:all|of) )*your|(?:(?:all|of) )+(?:its|the|their)))"
    r" *(?:[\w-]+ ){0,2}?"
    r"(?:credits?\b(?! (?:was|were|will be|have been) )|balance\b(?! sheet)"
    r"|premium requests?\b|allowance\b|funds\b|payment method)"
    r"|\b(?:no|zero) (?:\w+ )?quota\b|\bout of (?:[\w-]+ ){0,2}quota\b"
    r"|(?:credits?|balance) (?:(?:is|are|has|have|been) ){1,2}"
    r"(?:insufficient|not enough|expired|empty|zero)|requires? (?:more|additional) credits|can only afford"
    r"|tokens? limit exceeded: \d+ > \d+"
    r"|spend(?:ing)? (?:limit|cap)|spend reached|purchase (?:more |additional )?credits"
    r"|billing (?:hard )?limit|payment (?:is )?required|regain access"
    r"|\b(?:arrears|(?:unpaid|overdue|past due)(?! \w+s\b))\b"
    r"|(?:budget|key) (?:limit )?(?:has been |was )?(?:exceeded|reached|exhausted)"
    r"|(?:account|billing|subscription) (?:is )?(?:not active|inactive)"
    r"|\bfree (?:tier|quota|trial)\b[^.\n]{0,40}? (?:exhausted|used up|ended|expired)|account is in good standing"
    r"|(?:add|buy) credits to (?:continue|your)"
    r"|(?:n.?t|not|without) (?:\w+ )?(?:have )?(?:any |enough |sufficient )credits?\b"
)
_CREDITS = r"credit|balance|payment|\bfunds?\b|unpaid|overdue|arrears|billing"
_LIMIT = (
    r"rate[ -]?limit|too many (?:requests|tokens|connections|concurrent)|throttl|abuse detection|requests? rate is too"
    r"|resource (?:has been )?exhausted|slow down"
)
# For texts without a status, which may only mention limits: matches statements that a limit was hit.
_LIMITED = (
    r"(?<!\w)rate[ _-]?limit(?:s|ed)? (?:was |has been |is |were )?(?:exceeded|reached|hit)"
    r"|\brate[ _-]limited\b|RateLimitError|(?<!\w)rate_limit_(?:error|exceeded)\b"
    r"|(?:hit|reached|exceed(?:s|ed|ing)?) (?:a|the|your|our) (?:[\w'-]+ ){0,2}?rate[ -]?limit"
    r"|would exceed (?:the|your) (?:[\w'-]+ ){1,4}?rate\b"
    r"|too many (?:requests|tokens)|(?<!_)throttl(?:ed|ing)(?!_)|weekly (?:usage |rate )?limit"
    r"|resource (?:has been )?exhausted|model stream ended without"  # Gemini CLI hides why
    r"|requests? too (?:quickly|fast|frequently|often)|per (?:second|minute) (?:limit )?(?:was |is )?exceeded"
    r"|concurrency limit (?:was |is )?(?:exceeded|reached)|reached (?:[\w-]+ )?max(?:imum)? (?:[\w-]+ ){0,2}?"
    r"(?:concurrency|[RT]P[MS])\b"
)
_KEY = (
    r"(?:api|access)[ _-]?(?:key|token)\b[^.\n]{0,60}?\b(?:invalid|not valid|expired|incorrect|revoked|disabled|leaked"
    r"|suspended|deactivated|not found|unknown|blocked)"
    r"|(?:invalid|incorrect|wrong|bad|expired|missing|revoked|unknown|no) "
    r"(?:x-)?(?:api|access|auth(?:entication|orization)?|bearer|security|oauth|subscription|virtual|proxy(?: server)?)"
    r"[ _-]?(?:key|token|credential|header)"
    r"|(?:invalid|bad|expired|missing) (?:authentication )?credentials"
    r"|(?<!proxy )authentication (?:fail|error|required)"
    r"|(?:security|oauth|access|refresh|auth) token (?:\w+ ){0,6}?(?:expired|invalid|revoked|could not be refreshed)"
    r"|\byour (?:[\w-]+ )?(?:session|token|login) (?:has |is |was )?(?:been )?(?:expired|invalid|revoked|ended)"
    r"|\btoken expired or incorrect|^(?:error: )?(?:invalid|expired) token\W*$"
    r"|unregistered callers|reported as leaked|api[ _-]?key (?:is )?(?:missing|required)\b"
    # Nothing was sent, or no person has logged in.
    r"|\bno (?:[\w-]+ ){0,2}?(?:api[ _-]?key|credentials\b(?! \w*(?:helper|server|store))"
    r"|auth(?:entication)? (?:information|method))"
    r"|did(?:n.t| not) provide an? api key|set an auth method"
    r"|(?:invalid|missing|bad) (?:bearer|authentication|api token)\b"
    r"|run /login|\b(?:not|n.t) (?:authenticated|(?:logged|signed) in)\b|must be (?:logged|signed) in|login required"
    r"|(?:sign|log) ?in (?:again|first)|(?:fail(?:ed|ure)|un?able|not able) to authenticate"
    r"|\b401 unauthorized|\berror: unauthori[sz]ed\W*$"
    # An administrator or the provider withdrew the access.
    r"|(?:account|organization) (?:\S+ )?(?:is |has been |was )?(?:suspended|deactivated|disabled|on hold)"
    r"|(?:disabled|suspended|deactivated) (?:organi[sz]ation|account|workspace)\b"
    r"|(?:organi[sz]ation|enterprise|admin(?:istrator)?|owner) has (?:disabled|blocked|revoked|suspended)\b"
    r"|disabled by (?:your|its|an?|the) (?:\w+ )?(?:organi[sz]ation|admin|owner)"
    r"|(?:n.t|not) have access to (?:claude(?: code)?|copilot|codex|gemini(?: cli)?)\W*(?:$|please|run)"
    r"|not (?:currently )?(?:allowed|supported) for this organi[sz]ation"
)
# What a 403 can be about instead of the key.
_RESOURCE = (
    r"\b(?:country|region|location|policy|policies|models?|files?|captcha|cloudflare)\b|territor|safety|moderat"
    r"|cached ?content|just a moment|\baiplatform\.|not accessible by"
)
_TOO_LARGE = (
    r"request (?:is )?too large|(?:prompt|input|request|message|payload) (?:is |are )?too (?:long|large|big)"
    r"|reduce (?:the length|your (?:message|prompt|input))|tokens must be reduced|maximum context length|context window"
)
_PLAN = (
    r"(?:hit|reached|exceeded) (?:your|the) (?!rate)(?:[\w-]+ ){0,3}?limits?\b(?! of)"
    r"|(?:usage|session|weekly|hour|opus|sonnet) (?:rate )?limit reached"
    r"|weekly (?:rate |usage )?limit|exhausted your|quota will reset|quota exceeded"
    r"|exceeded your (?:current |monthly |daily )?quota|out of (?:\w+ )?(?:usage|messages)\b"
    r"|usage limit has been reached|limit reached\|\d{10}"
    r"|quota (?:(?:is|has|was|been) ){0,2}(?:exhausted|used up|depleted|reached)"
    r"|\b(?:free|your) (?:[\w-]+ )?usage exceeded|exceeded your (?:[\w-]+ ){0,2}?usage\b"
)
# Statements about an account, its key or its limits.
STATEMENTS = f"(?:{_MONEY}|{_LIMITED}|{_KEY}|{_PLAN})"
_BROKEN = (
    r"connection (?:error|reset|refused|closed|aborted|timed out)|stream disconnected|timed out|ECONNRESET|ECONNREFUSED"
    r"|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|socket hang up|fetch failed|network error|internal server error|bad gateway"
)
_REASONS = (
    r"unauthori[sz]ed|forbidden|payment required|too many requests|service unavailable|internal server error"
    r"|bad gateway|gateway time-?out|(?:site is )?overloaded"
)
# The forms in which HTTP clients print a status, in any text.
_HTTP_STATUS = (
    r"\bHTTP(?:/\d(?:\.\d)?)?(?:[ _-](?:status|error|response|code))*[\s:=!(\"'\[]{1,4}([45]\d\d)\b"
    r"|\bstatus(?:[ _-]?code)?(?: of| was| is| (?:client|server) error| does not indicate success)?"
    r"[\s:=(\"'\[]{1,4}([45]\d\d)\b"
    r"|\b([45]\d\d) (?:client|server) error\b|\b(?:client|server) error:? ['\"(`]([45]\d\d)\b|\b([45]\d\d), message="
    rf"|(?<![\w.:/#-])([45]\d\d)[\s:(),'\"-]{{1,3}}(?:{_REASONS})\b"
    r"|<(?:title|h1)>\s*(429|5\d\d) (?-i:[A-Z])"  # no 401: the page may be of any server
    r"|\breturned (?:an )?error:? \(?([45]\d\d)\b|\bresponse code:? ([45]\d\d)\b"
    r"|\b(?:request|fetch|call|server|api|upstream|provider|endpoint)\b[^.\n]{0,40}?"
    r"\b(?:failed|returned|responded|answered|replied|rejected|error)(?: with)?(?: an?)?[\s:(]{1,3}"
    r"([45]\d\d)\b(?! \w+s\b)"
)
# Also in the forms of messages that are known to be errors.
_STATUS = _HTTP_STATUS + (
    r"|(?:\bAPI error|error(?: code)?|\brejected|\brepeated|\bcode)\"?:?\s*[(\[]?([45]\d\d)\b"
    r"|^\W*([45]\d\d) (?-i:[A-Z])|\b(?:failed|error): ([45]\d\d)\W*$"
)
_WINDOWS: tuple[tuple[str, str], ...] = (
    ("month", r"per[ _-]?month|/ ?month|\bmonthly\b|ByMonth|this month"),
    ("plan", r"\bweekly\b|per[ _-]?week|5[ -]hour|five[ -_]hour|session limit"),
    ("day", r"per[ _-]?day|/ ?day\b|\bdaily\b|\b[RT]PD\b|ByDay"),
    ("hour", r"per[ _-]?hour|\bhourly\b|/ ?hour\b"),
    ("minute", r"per[ _-]?min|/ ?min|\b(?:[RTQ]|IT|OT)PM\b|ByMinute"),
)
_ROOM = r"\blimit:? ?([\d,]+)\b.{0,80}?\brequested:? ?([\d,]+)"
_WAIT = (
    r"(?:again|retry|retrying|wait|resets?|available|retry[-_ ]after)[\s:=]*(?:in|after|for|another)?[\s:=]*"
    rf"(?:about |approximately |at least |up to |~ ?)?({DURATION})"
    r"|\bretry[-_ ]after\W{0,3}(\d+(?:\.\d+)?)(?![\d:/-])|\bretry(?:Delay|After)Ms\W{1,3}(\d+)"
)
_MODEL = (
    r"\bfor (?:model )?[`'\"]?([\w./:@-]+)[`'\"]? in organization|\bfor model [`'\"]([\w./:@-]+)[`'\"]"
    r"|, (?:base )?model: ([\w./:@-]*\w)"
)


def _is(pattern: str, text: str) -> bool:
    return bool(text) and _compiled(pattern).search(text) is not None


def is_busy(text: str) -> bool:
    return _is(_BUSY, text)


def is_limit(text: str) -> bool:
    return _is(_LIMIT, text)


def is_limited(text: str) -> bool:
    return _is(_LIMITED, text)


def is_about_google(text: str) -> bool:
    return _is(r"\bgemini\b|googleapis\.com", text)


def is_about_key(text: str) -> bool:
    return _is(_KEY, text)


def is_about_resource(text: str) -> bool:
    """Return whether a refusal is about a model, a place, a file or a policy, and not about the key."""
    return _is(_RESOURCE, text)


def is_forbidden(text: str) -> bool:
    """Return whether a request is not allowed from its place, or with the permissions of its key."""
    return _is(
        r"(?:country|region|territory|location) (?:is )?not supported|key does not have (?:the )?permissions?\b", text
    )


def is_broken(text: str) -> bool:
    return _is(_BROKEN, text)


def is_plan(text: str) -> bool:
    return _is(_PLAN, text)


def is_secondary(text: str) -> bool:
    """Return whether a text is about GitHub's secondary limits, which no header counts."""
    return _is(r"secondary rate limit|abuse detection", text)


def names_no_allowance(text: str) -> bool:
    return _is(r"\blimit: 0\b(?![.,]\d)", text)


def is_current_quota(text: str) -> bool:
    return _is(r"exceeded your (?:current )?quota|quota exceeded", text)


def money(text: str) -> Meaning | None:
    """Return a meaning for texts about credits, billing and spending limits; None for any other."""
    if not _is(_MONEY, text):
        return None
    if _is(_CREDITS, text):
        return QUOTA_EXHAUSTED, "credits"
    return QUOTA_EXHAUSTED, window(text)


def is_too_large(text: str) -> bool:
    """Return whether a request is larger than its limit: no wait makes it fit."""
    if _is(_TOO_LARGE, text):
        return True
    room = _compiled(_ROOM).search(text) if text else None
    if room is None:
        return False
    limit, requested = (parse_number(figure.replace(",", "")) for figure in room.groups())
    return limit is not None and requested is not None and requested > limit > 0


def window(text: str, *, longest: bool = False) -> str | None:
    """Return the first window that a text names, or the longest one; None if it names none."""
    if not text:
        return None
    positions: list[tuple[int, str]] = []
    for name, pattern in _WINDOWS:
        match = _compiled(pattern).search(text)
        if match is not None:
            if longest:
                return name
            positions.append((match.start(), name))
    return min(positions)[1] if positions else None


def wait(text: str) -> float | None:
    """Return the seconds to wait that a sentence names; None if it names none."""
    match = _compiled(_WAIT).search(text) if text else None
    if match is None:
        return None
    if match[3]:
        return int(match[3][:15]) / 1000
    return parse_number(match[2]) if match[2] else sum_amounts(match[1])


def status(text: str) -> int | None:
    """Return the HTTP status of an error that a text names; None if it names none."""
    return _first_number(_STATUS, text)


def http_status(text: str) -> int | None:
    """Return the status in a form in which HTTP clients print one; None if there is none."""
    return _first_number(_HTTP_STATUS, text)


def _first_number(pattern: str, text: str) -> int | None:
    match = _compiled(pattern).search(text) if text else None
    return int(next(number for number in match.groups() if number)) if match is not None else None


def model(text: str) -> str | None:
    """Return the model that a text names; None if it names none."""
    match = _compiled(_MODEL).search(text) if text else None
    return None if match is None else next(name for name in match.groups() if name).rstrip(".")
