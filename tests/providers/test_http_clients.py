"""Refusals as programs print them that show a status and no body, by the provider and by other servers."""

# ruff: noqa: E501 - tables of lines, as programs print them
from __future__ import annotations

import email.message
import io
import urllib.error
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import yarl
from multidict import CIMultiDict, CIMultiDictProxy

from agentos.providers.verdicts import from_exception, from_output

NOW = 1794772800.0  # Sunday, 2026-11-15 20:00:00 UTC


def refusals(status: int, reason: str) -> list[str]:
    """Return a refusal in the forms of programs that print a status and no body."""
    host = "https://api.openai.com/v1/responses"
    return [
        f"curl: (22) The requested URL returned error: {status}",
        f"curl: (22) The requested URL returned error: {status} {reason}",
        f"  % Total    % Received % Xferd  Average Speed\n  0     0    0     0    0     0      0      0\ncurl: (22) The requested URL returned error: {status}",
        f"* The requested URL returned error: {status}\n* Closing connection",
        f"< HTTP/2 {status}\n< content-type: application/json",
        f"HTTP/1.1 {status} {reason}\nDate: Sun, 15 Nov 2026 20:00:00 GMT\nContent-Length: 0",
        f"HTTP {status} {reason}",
        f"HTTP {status}",
        f"error: HTTP {status}",
        f"http: warning: HTTP {status} {reason}",
        f"ERROR HTTP {status} {reason} for url {host}",
        f"[2026-11-15 20:00:00,123] ERROR root: HTTP {status}: {reason}",
        f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nurllib.error.HTTPError: HTTP Error {status}: {reason}',
        f"httpx.HTTPStatusError: Client error '{status} {reason}' for url '{host}'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/{status}",
        f"httpx.HTTPStatusError: Client error '{status} {reason}' for url 'http://127.0.0.1:4000/v1/chat/completions'",
        f"requests.exceptions.HTTPError: {status} Client Error: {reason} for url: {host}",
        f"aiohttp.client_exceptions.ClientResponseError: {status}, message='{reason}', url='{host}'",
        f"aiohttp.client_exceptions.ClientResponseError: {status}, message='{reason}', url=URL('{host}')",
        f"niquests.exceptions.HTTPError: {status} Client Error: {reason} for url: {host}",
        f"curl_cffi.requests.exceptions.HTTPError: HTTP Error {status}: {reason}",
        f"pycurl.error: (22, 'The requested URL returned error: {status}')",
        f"file:///app/ask.mjs:4\nif (!res.ok) throw new Error(`HTTP ${{res.status}}`);\n                   ^\n\nError: HTTP {status}\n    at file:///app/ask.mjs:4:20\n\nNode.js v20.11.0",
        f"Error: Request failed with status code {status}\n    at createError (/app/node_modules/axios/lib/core/createError.js:16:15)",
        f"AxiosError: Request failed with status code {status}\n  code: 'ERR_BAD_REQUEST',",
        f"Error: HTTP error! status: {status}\n    at main (/app/x.js:3:9)",
        f"Error: Response status: {status}",
        f"Error: {status} {reason}\n    at ask (/app/ask.js:9:11)",
        f"Error: fetch failed with {status}",
        f"HTTPError: Response code {status} ({reason})\n    at Request.<anonymous> (/app/node_modules/got/dist/source/as-promise/index.js:118:42)",
        f"HTTPError: Request failed with status code {status} {reason}: POST {host}",
        f"ResponseStatusCodeError: Response status code {status}: {reason}",
        f"error: Uncaught (in promise) Error: {status} {reason}\n    at file:///app/ask.ts:3:9",
        f"HTTP request sent, awaiting response... {status} {reason}\n2026-11-15 20:00:00 ERROR {status}: {reason}.",
        f"wget: server returned error: HTTP/1.1 {status} {reason}",
        f"2026/11/15 20:00:00 unexpected status: {status} {reason}\nexit status 1",
        f'2026/11/15 20:00:00 POST "{host}": {status} {reason}',
        f"panic: request failed: {status} {reason}",
        f"Error: HTTP status client error ({status} {reason}) for url ({host})",
        f"Error: {host}: status code {status}",
        f'Exception in thread "main" java.io.IOException: Server returned HTTP response code: {status} for URL: {host}',
        f"org.springframework.web.client.HttpClientErrorException: {status} {reason}: [no body]",
        f'Unhandled exception. System.Net.Http.HttpRequestException: Response status code does not indicate success: {status} ({reason}).',
        f"Invoke-RestMethod: Response status code does not indicate success: {status} ({reason}).",
        f"Invoke-WebRequest : The remote server returned an error: ({status}) {reason}.",
        f"ask.rb:4:in `open': {status} {reason} (OpenURI::HTTPError)",
        f"the server responded with status {status} (Faraday::ClientError)",
        f"PHP Fatal error:  Uncaught GuzzleHttp\\Exception\\ClientException: Client error: `POST {host}` resulted in a `{status} {reason}` response",
        f"{status} {reason} at ask.pl line 9.",
        f"request failed: HTTP {status}, giving up",
        f"upstream answered with status {status}",
        f"API returned {status}",
        f"the provider responded with {status}: {reason}",
        f"\x1b[31mERROR\x1b[0m \x1b[1mHTTP {status} {reason}\x1b[0m",
    ]  # fmt: skip


REFUSALS = {
    401: ("Unauthorized", {"auth_failed"}),
    403: ("Forbidden", {"auth_failed"}),
    402: ("Payment Required", {"quota_exhausted"}),
    429: ("Too Many Requests", {"rate_limited"}),
    503: ("Service Unavailable", {"overloaded"}),
}


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("form", range(len(refusals(401, ""))))
def test_http_client_refusal_is_understood(status: int, form: int) -> None:
    reason, accepted = REFUSALS[status]
    text = refusals(status, reason)[form]
    if status == 503:
        text = text.replace("Client error '", "Server error '").replace("Client Error", "Server Error")
    for printed in (text, f"starting\n{text}\n", f"asking the model\n\n{text}\nmake: *** [ask] Error 1"):
        verdict = from_output(printed, 22, provider="openai", now=NOW)
        assert verdict.kind in accepted, printed
    assert from_output(f"starting\n{text}\n", 0, now=NOW).kind is None


OTHER_SERVERS = [
    "fatal: unable to access 'https://github.com/acme/x.git/': The requested URL returned error: 403",
    "error: RPC failed; HTTP 403 curl 22 The requested URL returned error: 403",
    "npm error 401 Unauthorized - GET https://registry.npmjs.org/@acme%2fx - authentication token not provided",
    "npm ERR! 403 403 Forbidden - PUT https://registry.npmjs.org/x - You do not have permission to publish",
    "ERROR: HTTP error 403 while getting https://files.example.org/simple/x/x-1.0.tar.gz",
    "WARNING: 401 Error, Credentials not correct for https://packages.example.org/simple/x/",
    "docker: Error response from daemon: Head https://registry-1.docker.io/v2/acme/x/manifests/1: 401 Unauthorized",
    "Err:5 https://packages.example.org stable InRelease  401  Unauthorized",
    "E: Failed to fetch https://packages.example.org/dists/stable/InRelease  403  Forbidden",
    "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://intranet.example.org/wiki/page",
    "httpx.HTTPStatusError: Client error '401 Unauthorized' for url 'https://jira.example.org/rest/issue/7'",
    "Error: HTTP status client error (401 Unauthorized) for url (https://crates.example.org/x)",
    "java.io.IOException: Server returned HTTP response code: 403 for URL: https://cdn.example.org/a.zip",
    "Error: failed to fetch https://charts.example.org/index.yaml : 401 Unauthorized",
    # descriptions of errors
    "> HTTP 401 Unauthorized",
    "| 401 Unauthorized | the key is missing |",
    "# 403 Forbidden",
    "- HTTP 401: the session has ended",
    "// HTTP 403 is about the role",
    "The handler returns HTTP 401 if no token is sent.",
    "I changed the middleware: the server responded with 401 before the check.",
    "retry on HTTP 401 was removed from the client",
    "`401` and status 403 are mapped to the same page",
]  # fmt: skip


@pytest.mark.parametrize("line", OTHER_SERVERS)
def test_refusal_by_another_server_says_nothing_about_the_key(line: str) -> None:
    for text in (line, f"working\n{line}\nmake: *** Error 1"):
        assert from_output(text, 1, provider="openai", now=NOW).kind not in ("auth_failed", "quota_exhausted")


# --- exceptions of HTTP libraries, which name the host that refused --------------------------------------------------


def refused_by_httpx(url: str, status: int) -> BaseException:
    request = httpx.Request("GET", url)
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


def refused_by_requests(url: str, status: int) -> BaseException:
    response = requests.Response()
    response.status_code, response.url = status, url
    return requests.HTTPError("refused", response=response)


def refused_by_urllib(url: str, status: int) -> BaseException:
    return urllib.error.HTTPError(url, status, "refused", email.message.Message(), io.BytesIO())


def refused_by_aiohttp(url: str, status: int) -> BaseException:
    info = aiohttp.RequestInfo(yarl.URL(url), "GET", CIMultiDictProxy(CIMultiDict()), yarl.URL(url))
    return aiohttp.ClientResponseError(info, (), status=status)


LIBRARIES = [refused_by_httpx, refused_by_requests, refused_by_urllib, refused_by_aiohttp]


@pytest.mark.parametrize("make", LIBRARIES)
@pytest.mark.parametrize("status", [401, 402, 403])
def test_refusal_by_another_host_says_nothing_about_the_key(make: Any, status: int) -> None:
    for url in ("https://wiki.example.com/page", "https://intranet.example.org/v2/files/1"):
        assert from_exception(make(url, status), provider="openai", now=NOW).kind in (None, "permanent"), url
    assert from_exception(make("https://wiki.example.com/page", 429), provider="openai", now=NOW).kind == "rate_limited"


@pytest.mark.parametrize("make", LIBRARIES)
def test_refusal_by_the_provider_or_a_proxy_is_believed(make: Any) -> None:
    for url in (
        "https://api.openai.com/v1/responses",
        "http://127.0.0.1:4000/anything",
        "https://llm.example.com/v1/chat/completions",
        "https://openai.example.com/x",
    ):
        assert from_exception(make(url, 401), provider="openai", now=NOW).kind == "auth_failed", url
