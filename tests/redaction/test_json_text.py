"""JSON is redacted string by string."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from agentos.items import codec
from agentos.redaction import json_text
from agentos.redaction.redactor import Redactor


def redact(text: str) -> str:
    return text.replace("12345678", "****")


def test_redact_json_masks_strings_and_keys_not_numbers() -> None:
    text = codec.encode({"key 12345678": ["a 12345678 b", 12345678, 1.5]}, "result")
    clean = json_text.redact_json(text, redact)
    assert codec.decode(clean) == {"key ****": ["a **** b", 12345678, 1.5]}


def test_redact_json_keeps_text_with_matching_number() -> None:
    assert json_text.redact_json('{"n":[12345678]}', redact) == '{"n":[12345678]}'


def test_redact_json_texts_returns_same_list_without_secrets() -> None:
    texts = ['"a"', None, "[1]"]
    assert json_text.redact_json_texts(texts, redact) is texts
    assert json_text.redact_json_texts([*texts, '"12345678"'], redact) == [*texts, '"****"']


@pytest.mark.parametrize("between", ["", "\x1b[31m", "\x1b]0;title\x07"])
@pytest.mark.parametrize("encode", [lambda value: codec.encode(value, "result"), json.dumps])
def test_redact_json_finds_escaped_secrets(encode: Callable[[Any], str], between: str) -> None:
    redactor = Redactor(['it\'s a "sécret"/\\'])
    for write in (str, shlex.quote, repr, ascii, json.dumps):
        value = {"key": ["so: " + between.join(write('it\'s a "sécret"/\\')), 1]}
        for clean in (
            json_text.redact_json(encode(value), redactor.text),
            json_text.redact_json_texts([None, encode(value)], redactor.text)[1],
        ):
            text = json.loads(clean or "")["key"][0]
            assert "****" in text
            assert "cret" not in text.replace(between or "-", "")
