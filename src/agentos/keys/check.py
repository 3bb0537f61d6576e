"""Checks credentials with one cheap call each.

The key is sent in a header only: not in the URL, not to another host by a redirect. It is not part of any message.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from agentos import __version__
from agentos.durations import format_duration
from agentos.errors import CredentialError
from agentos.pool.credential import Credential
from agentos.providers import verdicts
from agentos.providers.presets import base_url_of, preset_of
from agentos.redaction.redactor import Redactor
from agentos.reporters.format import shorten
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT, Verdict

from .keys_file import Keys

TIMEOUT_SECONDS = 10.0
THREADS = 8
# Bytes of a response that are read: the body of an error is shorter, and a list of models is not needed.
MAX_BODY = 64 * 1024
# Characters of a result.
MAX_RESULT = 200

_REFUSED = "refused"
NOT_CHECKED = "not checked: no free call known"
NO_KEY = "not checked: no key, only variables for commands"


class CheckResult(msgspec.Struct):
    id: str
    provider: str | None
    is_ok: bool | None  # None: the provider has no cheap call
    text: str


def check_all(keys: Keys) -> Iterable[CheckResult]:
    """Check all credentials in parallel; yield the results in their order."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="agentos-check") as threads:
        yield from threads.map(lambda credential: _check(credential, keys), keys.credentials)


def refusal_of(credential: Credential, keys: Keys) -> str | None:
    """Ask the provider of a credential; return what it answered if it refused the key, and None for any other answer,
    for none, and if it has no cheap call. Blocks for up to TIMEOUT_SECONDS."""
    result = _check(credential, keys)
    return result.text if result.is_ok is False and result.text.startswith(_REFUSED) else None


def _check(credential: Credential, keys: Keys) -> CheckResult:
    is_ok, text = _result_of(credential, keys)
    return CheckResult(credential.id, credential.provider, is_ok, shorten(text, MAX_RESULT))


def _result_of(credential: Credential, keys: Keys) -> tuple[bool | None, str]:
    preset = preset_of(credential.provider)
    if not credential.has_secret:
        return None, NO_KEY
    base_url = None if preset is None else keys.base_urls.get(preset.name) or base_url_of(preset, os.environ)
    if preset is None or preset.check is None or not (credential.sources.base_url or base_url):
        return None, NOT_CHECKED
    try:
        redactor = Redactor(credential.secrets)
        base_url = credential.base_url or base_url or ""
    except CredentialError as error:
        return False, f"cannot be read: {error}"
    if not base_url.startswith(("https://", "http://")):  # of the environment; urllib would also open a file
        return False, "no answer: its base URL does not start with https://"
    call = preset.check
    headers = {
        "Accept": "application/json",
        "User-Agent": f"agentos/{__version__}",  # some providers refuse urllib's default
        **call.headers,
        call.key_header: call.key_prefix + credential.secret,
        **credential.headers,
    }
    url = (base_url if call.root is None else base_url.partition(call.root)[0]) + call.path
    return _call(url, headers, redactor, preset.name)


def _call(url: str, headers: Mapping[str, str], redactor: Redactor, provider: str) -> tuple[bool, str]:
    try:
        request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - checked above to be http(s)
        status, answer_headers, body = _response(request)
    except urllib.error.URLError as error:
        reason = error.reason
        return False, f"no answer: {reason.strerror or reason if isinstance(reason, OSError) else 'not an address'}"
    except (OSError, http.client.HTTPException) as error:
        return False, f"no answer: {'timed out' if isinstance(error, TimeoutError) else type(error).__name__}"
    except ValueError:  # its message may contain the key
        return False, f"{_REFUSED}: the key has characters that HTTP does not allow"
    # Some providers repeat the key. Redact before anything is cut: a part of a key would not be recognised.
    text = redactor.text(body.decode("utf-8", "replace"), short_too=True)
    return _result(status, verdicts.from_response(status, answer_headers, text, provider=provider))


def _response(request: urllib.request.Request) -> tuple[int, dict[str, str], bytes]:
    try:
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as response:
            return response.status, dict(response.headers), response.read(MAX_BODY)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read(MAX_BODY)


def _result(status: int, verdict: Verdict) -> tuple[bool, str]:
    """Return whether the provider accepted the key, and a text about it."""
    if verdict.kind is None:
        if 200 <= status < 300:
            return True, "ok"
        return False, f"no answer from the API: HTTP {status}; check base_url"
    detail = f": {verdict.message}" if verdict.message else f": HTTP {status}"
    if verdict.kind in (RATE_LIMITED, QUOTA_EXHAUSTED):
        wait = verdict.cool_down if verdict.cool_down is not None else verdict.retry_after
        until = "" if wait is None else f", resets in {format_duration(wait)}"
        return False, f"limited{until}{detail if wait is None or verdict.kind == QUOTA_EXHAUSTED else ''}"
    if verdict.kind in (OVERLOADED, TRANSIENT):
        return False, f"no answer ({verdict.kind}){detail}"
    return False, f"{_REFUSED if verdict.kind == AUTH_FAILED else 'not accepted'}{detail}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would send the key to the host that the answer names."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)
