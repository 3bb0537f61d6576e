"""Finds status, headers and body in exceptions and responses of SDKs and HTTP libraries, by attributes they share.

Does no input: a body is used only if it has arrived already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from agentos.foreign_exceptions import attribute, text
from agentos.verdict import AUTH_FAILED, NO_VERDICT, QUOTA_EXHAUSTED, TRANSIENT, Verdict

from . import _bodies as bodies
from . import _evidence as evidence
from . import _phrases as phrases
from ._bodies import BodyFacts
from ._headers import Headers, lower
from ._http_lines import names_other_host

# Libraries whose connection errors are recognised by name. Those of others wrap an exception of Python.
_TRANSPORTS = frozenset(
    {
        "httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "urllib3", "urllib", "http", "socket", "ssl",
        "openai", "anthropic", "groq", "botocore", "boto3", "mistralai", "cohere", "google", "litellm", "together",
        "grpc", "websockets", "h11", "h2", "anyio",
    }
)  # fmt: skip
_CONNECTION_ERRORS = frozenset(
    {
        "APIConnectionError", "APITimeoutError", "NetworkError", "TimeoutException", "RemoteProtocolError",
        "ConnectError", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout", "ReadError", "WriteError",
        "ClientConnectionError", "ClientPayloadError", "ServerTimeoutError", "ServerDisconnectedError",
        "ConnectionError", "Timeout", "ChunkedEncodingError", "ProtocolError", "NewConnectionError", "MaxRetryError",
        "TimeoutError", "IncompleteRead", "BadStatusLine", "URLError", "gaierror", "HTTPClientError",
        "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError",
        "ConnectionClosed", "SSLEOFError", "SSLZeroReturnError", "ProxyError",
        "APIConnectionTimeoutError", "ServiceRequestError",
    }
)  # fmt: skip
# What litellm writes before the message of the provider.
_LITELLM_PREFIX = r"^(?:(?:litellm\.)?\w+(?:Error|Timeout): )*(?:\w*Exception(?: - |: ))?"
_MAX_TEXT = 100_000
_MAX_ADDRESS = 1000
# The two private attributes that are read. litellm documents its own; aiohttp has no other way to a body that arrived.
_LITELLM_HEADERS = "_hidden_params"
_AIOHTTP_BODY = "_body"


def of_exception(exc: BaseException, provider: str, now: float) -> Verdict:
    """Return the verdict of one exception, without its causes."""
    cls: Any = type(exc)
    if not exc.__dict__ and not _has_answer(cls):
        return _of_broken_connection(exc)
    response = attribute(exc, "response")
    status = _status(exc, response)
    headers = _headers(exc, response)
    original = attribute(exc, "llm_provider")
    if isinstance(original, str):
        return _of_litellm(exc, status, headers, provider or original.lower(), now)
    body, is_error = _body_of_exception(exc, response), status is not None and status >= 400
    codes = [code for name in ("error_code", "code", "type") if isinstance(code := attribute(exc, name), str) and code]
    rpc = _rpc_status(exc)
    if rpc is not None:
        codes.append(rpc[0])
        body = body or rpc[1]
    if not is_error and not (_is_of_sdk(exc, response) and (codes or _is_errors_body(body))):
        return _of_broken_connection(exc)
    facts = bodies.read(body, now, is_error=True) or BodyFacts()
    facts.codes.extend(code for code in codes if " " not in code and len(code) < 200 and not code.isdigit())
    _add_message(facts, exc)
    verdict = evidence.judge(status, headers, facts, provider, now)
    if verdict.kind in (AUTH_FAILED, QUOTA_EXHAUSTED) and names_other_host(_address(exc, response), provider):
        return NO_VERDICT  # another server refused: that says nothing about the key
    return verdict if verdict.kind is not None else _of_broken_connection(exc)


def _address(exc: BaseException, response: Any) -> str:
    """Return the address of the request that an exception of an HTTP library is about; "" if it has none."""
    holders = (attribute(exc, "request"), attribute(response, "request"), attribute(exc, "request_info"), response, exc)
    for holder in holders:
        for name in ("url", "real_url"):
            address = attribute(holder, name)
            if address is not None and not callable(address):
                return str(address)[:_MAX_ADDRESS]
    return ""


@lru_cache(maxsize=512)
def _has_answer(cls: type) -> bool:
    """Return whether exceptions of a class may hold an answer without instance attributes."""
    if cls.__module__ == "builtins":
        return False
    return any(hasattr(cls, name) for name in ("__getattr__", *_ANSWER_ATTRIBUTES))


_ANSWER_ATTRIBUTES = (
    "response", "status_code", "status", "code", "body", "details", "data", "headers", "llm_provider", "type",
)  # fmt: skip


def of_response(response: Any, provider: str, now: float) -> Verdict:
    """Return the verdict of an answer that raised nothing: a response, a parsed object, an event of a stream."""
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        if not isinstance(metadata, Mapping):
            return evidence.judge(None, {}, bodies.read(dict(response), now, is_error=False), provider, now)
        status = _status(None, response)
        is_error = status is not None and status >= 400
        facts = bodies.read(dict(response), now, is_error=is_error)
        return evidence.judge(status, _headers(None, response), facts, provider, now)
    if response is None or isinstance(response, str | bytes | int | float | list | tuple):
        return NO_VERDICT
    inner_responses = (attribute(response, name) for name in _INNER_RESPONSES)
    inner = next((each for each in inner_responses if each is not None), None)
    status = _status(response, inner)
    headers = _headers(response, inner)
    is_error = status is not None and status >= 400
    body = _arrived_body(inner) if inner is not None else None
    if body is None:
        body = _arrived_body(response)
    if body is None:
        body = _parsed_error(response)
    facts = bodies.read(body, now, is_error=is_error) if body is not None else None
    return evidence.judge(status, headers, facts, provider, now)


_INNER_RESPONSES = ("http_response", "response", "raw_response", "sdk_http_response")


# --- status, headers, body ----------------------------------------------------------------------------------------


def _status(thing: Any, response: Any) -> int | None:
    """Return the HTTP status; of an exception first, as the response of an error inside a stream has 200."""
    for holder in (thing, response):
        if holder is None:
            continue
        for name in ("status_code", "status", "code"):
            status = attribute(holder, name)
            if _is_status(status) and not isinstance(holder, SystemExit):
                return int(status)
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        status = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        return status if isinstance(status, int) and _is_status(status) else None
    return None


def _is_status(status: Any) -> bool:
    return isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599


def _headers(thing: Any, response: Any) -> Headers:
    candidates = [attribute(thing, "litellm_response_headers"), attribute(response, "headers")]
    candidates += [attribute(thing, "headers"), attribute(attribute(thing, "raw_response"), "headers")]
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        candidates.append(metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None)
    for candidate in candidates:
        if candidate is not None and hasattr(candidate, "items") and (lowered := lower(candidate)):
            return lowered
    return _headers_of_wrapper(thing)


def _headers_of_wrapper(thing: Any) -> Headers:
    """Return the headers that litellm and LangChain keep in a dict."""
    hidden = attribute(thing, _LITELLM_HEADERS) or attribute(thing, "response_metadata")
    if not isinstance(hidden, Mapping):
        return {}
    lowered = lower(hidden.get("additional_headers") or hidden.get("headers"))
    return {name.removeprefix("llm_provider-"): value for name, value in lowered.items()}


def _body_of_exception(exc: BaseException, response: Any) -> Any:
    if isinstance(response, Mapping):
        return dict(response)  # botocore
    for name in ("body", "details", "data"):
        body = attribute(exc, name)
        if isinstance(body, dict | list | str | bytes) and body:
            return body
    return _arrived_body(response if response is not None else attribute(exc, "raw_response"))


def _is_of_sdk(exc: BaseException, response: Any) -> bool:
    """Return whether an exception without a status is of an SDK: `code` and `details` of a user's own exception do not
    describe an answer."""
    root = type(exc).__module__.partition(".")[0]
    return root in _TRANSPORTS or hasattr(exc, "body") or isinstance(response, Mapping)


def _is_errors_body(body: Any) -> bool:
    body = bodies.unfold(body)
    return isinstance(body, dict) and any(key in body for key in ("error", "Error", "code", "type", "message"))


def _arrived_body(response: Any) -> Any:
    """Return the body of a response if it is in memory; None if reading it would be input from the network."""
    if response is None or attribute(attribute(response, "raw"), "closed") is False:
        return None  # `content` of requests reads all that is left
    # A stream: httpx raises from `content` until it was read; of aiohttp, `content` is the stream itself.
    names = ("content", _AIOHTTP_BODY) if hasattr(response, "read") else ("body", "content", "text")
    for name in names:
        body = attribute(response, name)
        if isinstance(body, bytes | str | dict):
            return body
    return None


def _parsed_error(thing: Any) -> Any:
    """Return the error in a parsed object: an `.error` that a gateway added, a failed response, an event; or None."""
    failed = attribute(thing, "response")
    error = attribute(thing, "error") or attribute(failed, "error")
    if isinstance(error, dict | str) and error:
        return {"error": error}
    source = error if error is not None else thing if attribute(thing, "type") == "error" else None
    if source is None:
        return None
    fields = {name: attribute(source, name) for name in ("code", "type", "status", "message", "metadata")}
    fields = {name: value for name, value in fields.items() if isinstance(value, str | int | dict)}
    return {"error": fields} if fields else None


def _rpc_status(exc: BaseException) -> tuple[str, str] | None:
    """Return the name of the status and the details of a gRPC error, which has methods instead of attributes."""
    if not any(cls.__name__ == "RpcError" for cls in type(exc).__mro__):
        return None
    try:
        code, details = exc.code(), exc.details()  # type: ignore[attr-defined]
        return str(code.name), str(details)[:_MAX_TEXT]
    except Exception:  # another class of this name
        return None


def _add_message(facts: BodyFacts, exc: BaseException) -> None:
    """Add the exception's message to facts without a text."""
    if not facts.texts:
        message = attribute(exc, "message")
        if isinstance(message, str) and message:
            facts.texts.append(message[:_MAX_TEXT])


def _of_litellm(exc: BaseException, status: int | None, headers: Headers, provider: str, now: float) -> Verdict:
    """Return the verdict of a litellm exception: it changes statuses and codes, but quotes the provider's answer."""
    body = attribute(exc, "body")
    message = attribute(exc, "message")
    answer = message if isinstance(message, str) else text(exc)
    answer = re.sub(_LITELLM_PREFIX, "", answer[:_MAX_TEXT])
    start = answer.find("{")
    quoted = bodies.unfold(answer)
    if not isinstance(quoted, dict) and start >= 0:
        quoted = bodies.first_object(answer[start:])
    content = body if isinstance(body, dict) and body else quoted or answer
    facts = bodies.read(content, now, is_error=True) or BodyFacts()
    if facts.status is not None:
        status = facts.status
    elif facts.codes and status is not None and status >= 500:
        status = next(filter(None, map(phrases.status_of_code, facts.codes)), status)
    return evidence.judge(status, headers, facts, provider, now)


# --- connections --------------------------------------------------------------------------------------------------


def _of_broken_connection(exc: BaseException) -> Verdict:
    cls: Any = type(exc)
    if isinstance(exc, ConnectionError | TimeoutError) or _is_connection_error(cls):
        return Verdict(TRANSIENT, message=evidence.one_line(text(exc)))
    return NO_VERDICT


@lru_cache(maxsize=512)
def _is_connection_error(cls: type) -> bool:
    return any(
        base.__name__ in _CONNECTION_ERRORS and base.__module__.partition(".")[0] in _TRANSPORTS
        for base in cls.__mro__
        if isinstance(base.__module__, str)
    )
