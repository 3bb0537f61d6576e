"""One cheap call for each credential, to see whether its provider accepts it.

The key travels in a header and nowhere else: not in the address, not to another host by a redirect, not into a
message.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from agentos import __version__
from agentos.durations import format_duration
from agentos.errors import CredentialError
from agentos.pool.credential import Credential
from agentos.providers import verdicts
from agentos.providers.presets import CheckCall, base_url_of, preset_of
from agentos.redaction.redactor import Redactor
from agentos.reporters.format import shorten
from agentos.verdict import OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT, Verdict

from .keys_file import Keys

TIMEOUT_SECONDS = 10.0
THREADS = 8
# An error's body is short; a list of models is not needed.
MOST_OF_BODY = 64 * 1024

MOST_OF_ANSWER = 200

NOT_CHECKED = "no cheap call known"


class Checked(msgspec.Struct):
    id: str
    provider: str | None
    is_ok: bool | None  # None: there was nothing to ask
    told: str


def check_all(keys: Keys) -> Iterable[Checked]:
    """Asks for all at once, and tells in their order."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="agentos-check") as threads:
        yield from threads.map(lambda credential: _check(credential, keys), keys.credentials)


def _check(credential: Credential, keys: Keys) -> Checked:
    preset = preset_of(credential.provider)
    base_url = keys.base_urls.get(credential.provider or "") or (preset and base_url_of(preset, os.environ))
    if preset is None or preset.check is None or not base_url:
        return Checked(credential.id, credential.provider, None, NOT_CHECKED)
    if not base_url.startswith(("https://", "http://")):  # from the environment; urllib would open files, too
        return Checked(credential.id, credential.provider, False, "no answer: its base URL is not https://…")
    try:
        secret = credential.secret
    except CredentialError as error:
        return Checked(credential.id, credential.provider, False, f"cannot be read: {error}")
    is_ok, told = _ask(base_url, preset.check, secret, preset.name)
    return Checked(credential.id, credential.provider, is_ok, shorten(told, MOST_OF_ANSWER))


def _ask(base_url: str, call: CheckCall, secret: str, provider: str) -> tuple[bool, str]:
    headers = {
        **call.headers,
        call.key_header: call.key_prefix + secret,
        "Accept": "application/json",
        "User-Agent": f"agentos/{__version__}",  # some providers turn urllib's own name away
    }
    try:
        request = urllib.request.Request(base_url + call.path, headers=headers)  # noqa: S310 - it is http(s)
        status, told, body = _answer(request)
    except urllib.error.URLError as error:
        reason = error.reason
        return False, f"no answer: {reason.strerror or reason if isinstance(reason, OSError) else 'not an address'}"
    except (OSError, http.client.HTTPException) as error:
        return False, f"no answer: {'timed out' if isinstance(error, TimeoutError) else type(error).__name__}"
    except ValueError:  # its text may quote the key
        return False, "refused: a key with characters that no request can carry"
    # Some repeat the key. It is taken out first: of a message that was cut, the beginning of a key would stay.
    text = Redactor([secret]).text(body.decode("utf-8", "replace"), short_too=True)
    return _told(status, verdicts.from_response(status, told, text, provider=provider))


def _answer(request: urllib.request.Request) -> tuple[int, dict[str, str], bytes]:
    try:
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            return response.status, dict(response.headers), response.read(MOST_OF_BODY)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read(MOST_OF_BODY)


def _told(status: int, verdict: Verdict) -> tuple[bool, str]:
    if verdict.kind is None:
        if 200 <= status < 300:
            return True, "ok"
        return False, f"no answer: HTTP {status}, which is no API's; is base_url right?"
    said = f": {verdict.message}" if verdict.message else f": HTTP {status}"
    if verdict.kind in (RATE_LIMITED, QUOTA_EXHAUSTED):
        wait = verdict.cool_down if verdict.cool_down is not None else verdict.retry_after
        until = "" if wait is None else f", resets in {format_duration(wait)}"
        return False, f"limited{until}{said if wait is None or verdict.kind == QUOTA_EXHAUSTED else ''}"
    if verdict.kind in (OVERLOADED, TRANSIENT):
        return False, f"not answered ({verdict.kind}){said}"
    return False, f"refused{said}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib would take the key along, to whatever host the answer names."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)
