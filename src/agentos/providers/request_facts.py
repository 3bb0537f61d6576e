"""Reads what the gateway must know of a request before it is sent: model, size, conversation, and owned objects.

An *owned object* (a file, a batch, a stored response, a cache, encrypted reasoning) exists in one organization only, so
that a request that names it must go to the credential that made it. Pure functions; none raises for bodies of any kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

# Bytes of text per token, on average. The caller corrects the estimate by what a model really counted.
BYTES_PER_TOKEN = 4
# Largest maximum of tokens that is believed.
MAX_TOKENS = 2**53
# Characters of a model, a session or an id; longer ones are ignored.
MAX_NAME = 1_000


class RequestFacts(NamedTuple):
    """What a request states."""

    model: str | None = None
    max_tokens: int | None = None  # of the answer
    is_stream: bool = False
    input_tokens: int = 0  # an estimate
    session: str | None = None  # of the conversation, which shares a prompt cache
    owned_objects: tuple[str, ...] = ()  # ids


NO_FACTS = RequestFacts()
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)


def read_request(path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
    """Return the facts of a request. `path` without the query; `headers` by names in lower case (or a mapping that
    ignores case); `body` not compressed."""
    request = _decode_request(body)
    model = _model_in_path(path) or _text(request.get("model"))
    texts = _Texts()
    texts.add_request(request)
    owned = [*_owned_in_path(path), *_owned_fields(request), *texts.owned]
    return RequestFacts(
        model,
        _max_tokens(request),
        request.get("stream") is True or path.endswith(":streamGenerateContent"),
        texts.tokens,
        session_of(headers, request),
        tuple(dict.fromkeys(owned)),
    )


def decode_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; empty for anything else."""
    try:
        decoded = msgspec.json.decode(body)
    except _UNREADABLE:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def estimate_input_tokens(request: Mapping[str, Any]) -> int:
    """Return the tokens of all text in a request (JSON): its bytes, divided by BYTES_PER_TOKEN."""
    texts = _Texts()
    texts.add_request(request)
    return texts.tokens


def session_of(headers: Mapping[str, str], request: Mapping[str, Any]) -> str | None:
    """Return the id of the conversation, as agents state it; None if the request states none."""
    metadata = request.get("metadata")
    candidates = [headers.get(name) for name in _SESSION_HEADERS]
    candidates += [request.get("prompt_cache_key"), metadata.get("user_id") if isinstance(metadata, dict) else None]
    return next((name for candidate in candidates if (name := _text(candidate)) is not None), None)


def created_objects(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of owned objects that an answer, or an event of its stream, states: later requests may name
    them."""
    texts = _Texts()
    texts.add(answer)
    response = _table(answer.get("response"))
    holders = [answer, response, _table(answer.get("item"))]
    for outputs in (answer.get("output"), response.get("output")):
        holders += [_table(item) for item in (outputs if isinstance(outputs, list) else ())]
    names = [holder.get(key) for holder in holders for key in _CREATED_KEYS]
    ids = [name for name in names if isinstance(name, str) and _CREATED.match(name) and len(name) <= MAX_NAME]
    return tuple(dict.fromkeys([*ids, *texts.encrypted]))


def encrypted_id(content: str) -> str:
    """Return a name for encrypted content, which is too long to be an id itself."""
    return "encrypted:" + hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "session_id")
_MODEL_IN_PATH = re.compile(r"/(?:models|deployments)/([^/:]+)(?:[/:]|$)")
_OWNED_IN_PATH = re.compile(
    r"/v1/(?:messages/batches|fine_tuning/jobs|responses|files|batches|conversations|vector_stores|containers|uploads"
    r"|assistants|threads|evals|videos|skills)/([^/]+)"
)
_OWNED_IN_GEMINI_PATH = re.compile(
    r"/v1(?:beta|alpha)?/((?:files|cachedContents|batches|operations|tunedModels|fileSearchStores)/[^/:]+)"
)
# Words that stand where an id would.
_NO_IDS = frozenset({"input_tokens", "compact", "runs", "content"})
# Fields of a request that name an owned object, or a list of them, beside those in its messages.
_OWNED_FIELDS = (
    "previous_response_id", "conversation", "cachedContent", "cached_content", "container", "input_file_id",
    "training_file", "validation_file", "file_id", "batch_id",
)  # fmt: skip
# The same inside messages and tools, with the beginnings of ids: other tools may have fields of these names.
_OWNED_KEYS = frozenset({"file_id", "file_ids", "vector_store_ids", "container_id", "container", "fileUri", "file_uri"})
_OWNED = re.compile(r"file[-_]|vs_|cntr_|container_|https?://[^?]*/files/")
# Keys with the data of tools, in which nothing belongs to the provider.
_TOOL_DATA = frozenset({"args", "arguments", "functionResponse", "function_response", "input_schema", "parameters"})
_TOOL_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
# Where an answer names what it created, and the beginnings of ids that later requests may name.
_CREATED_KEYS = ("id", "name", "output_file_id", "error_file_id")
_CREATED = re.compile(
    r"resp_|msg_|rs_|fc_|file[-_]|batch_|msgbatch_|conv_|vs_|cntr_|container_|upload_|asst_|thread_|ftjob-|eval_|video_"
    r"|skill_|(?:files|cachedContents|batches|operations|tunedModels|fileSearchStores)/"
)
_GEMINI_FILE = re.compile(r"/(files/[^/?]+)$")
# Keys of a request below which there is text for the model.
_PROMPTS = (
    "messages", "input", "instructions", "system", "prompt", "contents", "content", "requests", "systemInstruction",
    "system_instruction", "tools", "tool_config", "response_format", "text", "documents",
)  # fmt: skip
# Keys whose values the model does not read as text.
_NO_TEXT = frozenset(
    {
        "type", "role", "id", "tool_use_id", "call_id", "tool_call_id", "data", "image_url", "url", "file_data",
        "b64_json", "inlineData", "inline_data", "encrypted_content", "signature", "thoughtSignature",
        "thought_signature", "cache_control", "media_type", "mimeType", "mime_type", "status", "model", *_OWNED_KEYS,
    }
)  # fmt: skip


# Declarations of tools that name owned objects.
_OWNED_IN_TOOLS = re.compile(rb'"(?:file_ids|vector_store_ids|container)"')
# The fields of a request that are read; msgspec skips all others without building them.
_FIELDS = {
    *_PROMPTS, *_OWNED_FIELDS, "model", "stream", "max_completion_tokens", "max_output_tokens", "max_tokens",
    "generationConfig", "generation_config", "metadata", "prompt_cache_key",
}  # fmt: skip
_REQUEST = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Request",
        [("tools", msgspec.Raw, msgspec.Raw()), *((name, Any, None) for name in sorted(_FIELDS - {"tools"}))],
    )
)


def _decode_request(body: bytes) -> dict[str, Any]:
    """Return the fields of a request that are read, with its tools as JSON; empty for a body that is no request."""
    try:
        return msgspec.structs.asdict(_REQUEST.decode(body))
    except _UNREADABLE:
        return {}


class _Texts:
    """Walks through a request: measures its text, and collects owned objects."""

    def __init__(self) -> None:
        self._bytes = 0
        self.owned: list[str] = []
        self.encrypted: list[str] = []

    @property
    def tokens(self) -> int:
        return -(-self._bytes // BYTES_PER_TOKEN)

    def add_request(self, request: Mapping[str, Any]) -> None:
        for name in _PROMPTS:
            value = request.get(name)
            if isinstance(value, msgspec.Raw):
                self._add_tools(bytes(value))
            elif value is not None:
                self.add(value)

    def _add_tools(self, json: bytes) -> None:
        """Measure the declarations of tools by the length of their JSON: agents send some 50 KB of them each time."""
        end = self._bytes + len(json)
        if _OWNED_IN_TOOLS.search(json):
            with contextlib.suppress(*_UNREADABLE):
                self.add(msgspec.json.decode(json))
        self._bytes = end

    def add(self, value: Any, *, finds_objects: bool = True) -> None:
        stack = [value]
        while stack:
            value = stack.pop()
            if isinstance(value, str):
                self._bytes += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
            elif isinstance(value, list):
                stack.extend(value)
            elif isinstance(value, dict):
                self._add_fields(value, stack, finds_objects=finds_objects)

    def _add_fields(self, fields: dict[str, Any], stack: list[Any], *, finds_objects: bool) -> None:
        """Push the values that hold text on the stack."""
        type_ = fields.get("type")
        data_key = "input" if isinstance(type_, str) and type_ in _TOOL_CALLS else None
        for key, value in fields.items():
            if finds_objects and (key == data_key or key in _TOOL_DATA):
                self.add(value, finds_objects=False)
            elif key not in _NO_TEXT:
                self._bytes += len(key)  # names of tools' parameters are read, too
                stack.append(value)
            elif finds_objects:
                self._find_objects(key, value, type_)

    def _find_objects(self, key: str, value: Any, type_: Any) -> None:
        if key in _OWNED_KEYS:
            self.owned += [_short_id(id_) for id_ in _ids(value) if _OWNED.match(id_)]
            if isinstance(value, dict):  # a container with files
                self.owned += [id_ for id_ in _ids(value.get("file_ids")) if _OWNED.match(id_)]
        elif key == "encrypted_content" and isinstance(value, str) and value:
            self.encrypted.append(encrypted_id(value))
            self.owned.append(self.encrypted[-1])
        elif key == "id" and type_ == "item_reference":
            self.owned += _ids(value)


def _owned_fields(request: Mapping[str, Any]) -> list[str]:
    return [id_ for name in _OWNED_FIELDS for id_ in _ids(request.get(name))]


def _ids(value: Any) -> list[str]:
    """Return the ids in a field: of a text, a list of texts, or an object with an `id`."""
    if isinstance(value, dict):
        value = value.get("id")
    texts = [_text(each) for each in (value if isinstance(value, list) else [value])]
    return [text for text in texts if text is not None]


def _short_id(text: str) -> str:
    """Return the name of a file of Gemini from its address; any other id unchanged."""
    match = _GEMINI_FILE.search(text) if text.startswith("http") else None
    return match[1] if match else text


def _owned_in_path(path: str) -> list[str]:
    path = unquote(path)
    match = _OWNED_IN_PATH.search(path) or _OWNED_IN_GEMINI_PATH.search(path)
    return [match[1]] if match and match[1] not in _NO_IDS and len(match[1]) <= MAX_NAME else []


def _model_in_path(path: str) -> str | None:
    match = _MODEL_IN_PATH.search(path)
    return _text(unquote(match[1])) if match else None


def _max_tokens(request: Mapping[str, Any]) -> int | None:
    settings = request.get("generationConfig", request.get("generation_config"))
    settings = settings if isinstance(settings, dict) else {}
    values = [request.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens")]
    values += [settings.get(name) for name in ("maxOutputTokens", "max_output_tokens")]
    numbers = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return next((number for number in numbers if 0 <= number <= MAX_TOKENS), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME else None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
