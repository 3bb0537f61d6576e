"""Bodies and streams of served requests, in the style of each provider."""

from __future__ import annotations

import json
from typing import Any

from .endpoints import Call

# Events that open a stream before its content.
_HANDSHAKE = {"responses": 2, "messages": 2}


def content(call: Call) -> dict[str, Any]:
    """Return the body of the answer to a served request."""
    return _CONTENTS[call.endpoint](call)


def events(call: Call, breaks_with: dict[str, Any] | None = None, breaks_after: int = 1) -> list[bytes]:
    """Return the answer as server-sent events. A broken stream ends with its error after `breaks_after` events of its
    content."""
    is_named = call.endpoint in ("messages", "responses")
    pieces = _STREAMS[call.endpoint](call)
    if breaks_with is not None:
        pieces = pieces[: handshake_events(call) + breaks_after]
        pieces.append(_stream_error(call, breaks_with, len(pieces)))
    lines = [(f"event: {piece['type']}\n" if is_named else "") + f"data: {json.dumps(piece)}\n\n" for piece in pieces]
    if call.endpoint == "chat" and breaks_with is None:
        lines.append("data: [DONE]\n\n")
    return [line.encode() for line in lines]


def handshake_events(call: Call) -> int:
    """Return the number of events before the content of a stream."""
    return _HANDSHAKE.get(call.endpoint, 0)


def _stream_error(call: Call, error: dict[str, Any], number: int) -> dict[str, Any]:
    if call.endpoint == "responses":
        failed = _responses(call, "failed", error["error"])
        return {"type": "response.failed", "sequence_number": number, "response": failed}
    return error


# --- OpenAI ----------------------------------------------------------------------------------------------------------


def _work(call: Call) -> dict[str, Any]:
    return {"status": 200, "echo": call.body.decode("utf-8", "replace")}


def _models(call: Call) -> dict[str, Any]:
    if call.style == "gemini":
        return {"models": [{"name": "models/sim-1", "displayName": "Sim 1"}]}
    if call.style == "anthropic":
        model = {"type": "model", "id": "sim-1", "display_name": "Sim 1", "created_at": "1970-01-01T00:00:00Z"}
        return {"data": [model], "has_more": False, "first_id": "sim-1", "last_id": "sim-1"}
    return {"object": "list", "data": [{"id": "sim-1", "object": "model", "created": 0, "owned_by": "simulator"}]}


def _file(call: Call) -> dict[str, Any]:
    return {"id": call.object_id, "object": "file", "type": "file", "bytes": len(call.body), "filename": "file"}


def _chat_usage(call: Call) -> dict[str, Any]:
    prompt, completion = call.prompt_tokens, call.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": call.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _embeddings(call: Call) -> dict[str, Any]:
    vector = {"object": "embedding", "index": 0, "embedding": [0.0, 0.5, 1.0]}
    usage = {"prompt_tokens": call.prompt_tokens, "total_tokens": call.prompt_tokens}
    return {"object": "list", "data": [vector], "model": call.model or "sim-1", "usage": usage}


def _chat(call: Call) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": call.text}, "finish_reason": "stop"}
    return {
        "id": "chatcmpl-sim",
        "object": "chat.completion",
        "created": 0,
        "model": call.model or "sim-1",
        "choices": [choice],
        "usage": _chat_usage(call),
    }


def _chat_stream(call: Call) -> list[dict[str, Any]]:
    head: dict[str, Any] = {
        "id": "chatcmpl-sim",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": call.model or "sim-1",
    }
    if call.has_usage:
        head["usage"] = None
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in _words(call))]
    pieces = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    pieces.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return [*pieces, {**head, "choices": [], "usage": _chat_usage(call)}] if call.has_usage else pieces


def _responses(call: Call, status: str = "completed", error: Any = None) -> dict[str, Any]:
    prompt, completion = call.prompt_tokens, call.completion_tokens
    usage = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": call.cached_tokens},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
    return {
        "id": call.object_id,
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": error,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": call.model or "sim-1",
        "output": [*_reasoning(call), _message(call)] if status == "completed" else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if status == "completed" else None,
    }


def _reasoning(call: Call) -> list[dict[str, Any]]:
    """Return the item that comes before the message if the request asks for encrypted reasoning."""
    if call.reasoning is None:
        return []
    return [{"id": "rs_sim", "type": "reasoning", "summary": [], "encrypted_content": call.reasoning}]


def _message(call: Call, status: str = "completed") -> dict[str, Any]:
    """Return the only item of a response."""
    text = {"type": "output_text", "text": call.text, "annotations": [], "logprobs": []}
    parts = [text] if status == "completed" else []
    return {"id": "msg_sim", "type": "message", "status": status, "role": "assistant", "content": parts}


def _responses_stream(call: Call) -> list[dict[str, Any]]:
    thoughts, item = _reasoning(call), _message(call)
    number = {"output_index": len(thoughts)}
    position = {"item_id": "msg_sim", **number, "content_index": 0}
    (part,) = item["content"]
    deltas = [
        {"type": "response.output_text.delta", **position, "delta": word, "logprobs": []} for word in _words(call)
    ]
    pieces: list[dict[str, Any]] = [
        {"type": "response.created", "response": _responses(call, "in_progress")},
        {"type": "response.in_progress", "response": _responses(call, "in_progress")},
        *(
            {"type": f"response.output_item.{end}", "output_index": 0, "item": thought}
            for thought in thoughts
            for end in ("added", "done")
        ),
        {"type": "response.output_item.added", **number, "item": _message(call, "in_progress")},
        {"type": "response.content_part.added", **position, "part": {**part, "text": ""}},
        *deltas,
        {"type": "response.output_text.done", **position, "text": call.text, "logprobs": []},
        {"type": "response.content_part.done", **position, "part": part},
        {"type": "response.output_item.done", **number, "item": item},
        {"type": "response.completed", "response": _responses(call)},
    ]
    return [{**piece, "sequence_number": number} for number, piece in enumerate(pieces)]


# --- Anthropic -------------------------------------------------------------------------------------------------------


def _messages(call: Call) -> dict[str, Any]:
    return {
        "id": "msg_sim",
        "type": "message",
        "role": "assistant",
        "model": call.model or "sim-1",
        "content": [{"type": "text", "text": call.text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": _messages_usage(call, call.completion_tokens),
    }


def _messages_usage(call: Call, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": call.prompt_tokens - call.cached_tokens - call.cache_write_tokens,
        "cache_creation_input_tokens": call.cache_write_tokens,
        "cache_read_input_tokens": call.cached_tokens,
        "output_tokens": output_tokens,
    }


def _count_tokens(call: Call) -> dict[str, Any]:
    return {"input_tokens": call.prompt_tokens}


def _messages_stream(call: Call) -> list[dict[str, Any]]:
    start = {**_messages(call), "content": [], "stop_reason": None, "usage": _messages_usage(call, 1)}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        for word in _words(call)
    ]
    return [
        {"type": "message_start", "message": start},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": call.completion_tokens},
        },
        {"type": "message_stop"},
    ]


# --- Gemini ----------------------------------------------------------------------------------------------------------


def _generate(call: Call) -> dict[str, Any]:
    prompt, completion = call.prompt_tokens, call.completion_tokens
    candidate = {"content": {"role": "model", "parts": [{"text": call.text}]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": prompt, "candidatesTokenCount": completion, "totalTokenCount": prompt + completion}
    if call.cached_tokens:
        usage["cachedContentTokenCount"] = call.cached_tokens
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": call.model or "sim-1"}


def _generate_stream(call: Call) -> list[dict[str, Any]]:
    """Each chunk states the usage so far; the last one has the reason of the end."""
    whole, words = _generate(call), _words(call)
    pieces = []
    for number, word in enumerate(words, 1):
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": word}]}, "index": 0}
        if number == len(words):
            candidate["finishReason"] = "STOP"
        completion = call.completion_tokens * number // len(words)
        usage = {**whole["usageMetadata"], "candidatesTokenCount": completion}
        usage["totalTokenCount"] = call.prompt_tokens + completion
        pieces.append({**whole, "candidates": [candidate], "usageMetadata": usage})
    return pieces


def _words(call: Call) -> list[str]:
    """Return the pieces of the text. Together they are the text, as the end of a Responses stream repeats it."""
    words = call.text.split(" ")
    return [*(word + " " for word in words[:-1]), words[-1]]


_CONTENTS = {
    "work": _work,
    "models": _models,
    "chat": _chat,
    "responses": _responses,
    "files": _file,
    "embeddings": _embeddings,
    "count_tokens": _count_tokens,
    "messages": _messages,
    "generate": _generate,
}
_STREAMS = {
    "chat": _chat_stream,
    "responses": _responses_stream,
    "messages": _messages_stream,
    "generate": _generate_stream,
}
