"""Status, headers and body of what SDKs and HTTP libraries raise and return, found by the attributes they share.

Nothing here does I/O: a body is read only where it has arrived already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from agentos.verdict import NO_VERDICT, TRANSIENT, Verdict

from . import _bodies as bodies
from . import _evidence as rules
from . import _headers as headers
from . import _phrases as texts
from ._bodies import Said

# Libraries whose connection errors are known by name; those of others are known by the exceptions they wrap.
_TRANSPORTS = frozenset(
    {
        "httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "urllib3", "urllib", "http", "socket", "ssl",
        "openai", "anthropic", "groq", "botocore", "boto3", "mistralai", "cohere", "google", "litellm", "together",
        "grpc", "websockets", "h11", "h2", "anyio",
    }
)  # fmt: skip
_BROKEN = frozenset(
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
# What litellm writes before the provider's own words.
_LITELLM_PREFIX = r"^(?:(?:litellm\.)?\w+(?:Error|Timeout): )*(?:\w*Exception(?: - |: ))?"
_MOST_TEXT = 100_000
# The two private attributes that are read. litellm documents its own; aiohttp has no other way to a body that arrived.
_LITELLM_HEADERS = "_hidden_params"
_AIOHTTP_BODY = "_body"


def attribute(thing: Any, name: str) -> Any:
    """None also where reading it fails: some SDKs raise from a property, and that must not hide the real error."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def of_exception(exc: BaseException, provider: str, now: float) -> Verdict:
    """What one exception says, without its causes."""
    cls: Any = type(exc)
    if not exc.__dict__ and not _can_tell(cls):  # nobody has added anything to it
        return _of_broken_connection(exc)
    response = attribute(exc, "response")
    status = _status(exc, response)
    told = _headers(exc, response)
    original = attribute(exc, "llm_provider")
    if isinstance(original, str):
        return _of_litellm(exc, status, told, provider or original.lower(), now)
    body, is_error = _body_of_exception(exc, response), status is not None and status >= 400
    codes = [code for name in ("error_code", "code", "type") if isinstance(code := attribute(exc, name), str) and code]
    rpc = _rpc_status(exc)
    if rpc is not None:
        codes.append(rpc[0])
        body = body or rpc[1]
    if not is_error and not (_is_of_sdk(exc, response) and (codes or _is_errors_body(body))):
        return _of_broken_connection(exc)
    said = bodies.read(body, now, is_error=True) or Said()
    said.codes.extend(code for code in codes if " " not in code and len(code) < 200 and not code.isdigit())
    _add_own_words(said, exc)
    verdict = rules.judge(status, told, said, provider, now)
    return verdict if verdict.kind is not None else _of_broken_connection(exc)


@lru_cache(maxsize=512)
def _can_tell(cls: type) -> bool:
    """Whether exceptions of this class may say something without having anything of their own."""
    if cls.__module__ == "builtins":
        return False
    return any(hasattr(cls, name) for name in ("__getattr__", *_TELLING))


_TELLING = ("response", "status_code", "status", "code", "body", "details", "data", "headers", "llm_provider", "type")


def of_response(response: Any, provider: str, now: float) -> Verdict:
    """What an answer that raised nothing says: a library's response, an SDK's parsed object, an event of a stream."""
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        if not isinstance(metadata, Mapping):
            return rules.judge(None, {}, bodies.read(dict(response), now, is_error=False), provider, now)
        status = _status(None, response)
        is_error = status is not None and status >= 400
        said = bodies.read(dict(response), now, is_error=is_error)
        return rules.judge(status, _headers(None, response), said, provider, now)
    if response is None or isinstance(response, str | bytes | int | float | list | tuple):
        return NO_VERDICT
    inner = next((found for name in _INNER_RESPONSES if (found := attribute(response, name)) is not None), None)
    status = _status(response, inner)
    told = _headers(response, inner)
    is_error = status is not None and status >= 400
    body = _arrived_body(inner) if inner is not None else None
    if body is None:
        body = _arrived_body(response)
    if body is None:
        body = _parsed_error(response)
    said = bodies.read(body, now, is_error=is_error) if body is not None else None
    return rules.judge(status, told, said, provider, now)


_INNER_RESPONSES = ("http_response", "response", "raw_response", "sdk_http_response")


# --- where they keep it -------------------------------------------------------------------------------------------


def _status(thing: Any, response: Any) -> int | None:
    """The exception's own status first: the response of an error inside a stream is a 200."""
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


def _headers(thing: Any, response: Any) -> headers.Headers:
    candidates = [attribute(thing, "litellm_response_headers"), attribute(response, "headers")]
    candidates += [attribute(thing, "headers"), attribute(attribute(thing, "raw_response"), "headers")]
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        candidates.append(metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None)
    for found in candidates:
        if found is not None and hasattr(found, "items") and (told := headers.lower(found)):
            return told
    return _headers_of_wrapper(thing)


def _headers_of_wrapper(thing: Any) -> headers.Headers:
    """litellm and LangChain keep them in a dict of their own."""
    hidden = attribute(thing, _LITELLM_HEADERS) or attribute(thing, "response_metadata")
    if not isinstance(hidden, Mapping):
        return {}
    told = headers.lower(hidden.get("additional_headers") or hidden.get("headers"))
    return {name.removeprefix("llm_provider-"): value for name, value in told.items()}


def _body_of_exception(exc: BaseException, response: Any) -> Any:
    if isinstance(response, Mapping):
        return dict(response)  # botocore
    for name in ("body", "details", "data"):
        body = attribute(exc, name)
        if isinstance(body, dict | list | str | bytes) and body:
            return body
    return _arrived_body(response if response is not None else attribute(exc, "raw_response"))


def _is_of_sdk(exc: BaseException, response: Any) -> bool:
    """Without a status, a program's own `code` or `details` are about its own affairs."""
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
    """The error of an SDK's parsed object: an `.error` that a gateway added, a failed response, an event."""
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
    """gRPC's errors have methods where others have attributes."""
    if not any(cls.__name__ == "RpcError" for cls in type(exc).__mro__):
        return None
    try:
        code, details = exc.code(), exc.details()  # type: ignore[attr-defined]
        return str(code.name), str(details)[:_MOST_TEXT]
    except Exception:  # not that kind of RpcError
        return None


def _add_own_words(said: Said, exc: BaseException) -> None:
    if not said.texts:
        own = attribute(exc, "message")
        if isinstance(own, str) and own:
            said.texts.append(own[:_MOST_TEXT])


def _of_litellm(exc: BaseException, status: int | None, told: headers.Headers, provider: str, now: float) -> Verdict:
    """litellm changes statuses and codes, but passes the provider's own words on."""
    body = attribute(exc, "body")
    message = attribute(exc, "message")
    text = message if isinstance(message, str) else _text(exc)
    text = re.sub(_LITELLM_PREFIX, "", text[:_MOST_TEXT])
    start = text.find("{")
    found = bodies.unfold(text)
    if not isinstance(found, dict) and start >= 0:
        found = bodies.first_object(text[start:])
    said = bodies.read(body if isinstance(body, dict) and body else found or text, now, is_error=True) or Said()
    if said.status is not None:
        status = said.status
    elif said.codes and status is not None and status >= 500:
        status = next((own for code in said.codes if (own := texts.status_of_code(code))), status)
    return rules.judge(status, told, said, provider, now)


# --- connections --------------------------------------------------------------------------------------------------


def _of_broken_connection(exc: BaseException) -> Verdict:
    cls: Any = type(exc)
    if isinstance(exc, ConnectionError | TimeoutError) or _is_known_as_broken(cls):
        return Verdict(TRANSIENT, message=rules.one_line(_text(exc)))
    return NO_VERDICT


@lru_cache(maxsize=512)
def _is_known_as_broken(cls: type) -> bool:
    return any(
        base.__name__ in _BROKEN and base.__module__.partition(".")[0] in _TRANSPORTS
        for base in cls.__mro__
        if isinstance(base.__module__, str)
    )


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # an exception is somebody's code, too
        return type(exc).__name__
