"""The codec of recorded values: which values it encodes, how they are decoded, and which it refuses."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import math
import subprocess
import sys
import types
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.items import codec
from agentos.workflows.parallel import UnrecordableValue


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Review:
    name: str
    at: datetime.datetime
    colour: Colour


class Struct(msgspec.Struct):
    count: int


class Model(pydantic.BaseModel):
    count: int
    on: datetime.date


class Pair(NamedTuple):
    one: int
    two: str


class Text(str):
    pass


class Array:
    """An array like those of numpy."""

    def tolist(self) -> list[int]:
        return [1, 2]


NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (None, None),
        (True, True),
        (5, 5),
        (2**70, 2**70),
        (1.5, 1.5),
        ("text\0with\nall", "text\0with\nall"),
        ([1, [2]], [1, [2]]),
        ((1, 2), [1, 2]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        ({1: "one"}, {"1": "one"}),
        ({2, 1}, [1, 2]),
        (b"bytes", "Ynl0ZXM="),
        (NOON, "2026-11-16T12:00:00Z"),
        (datetime.date(2026, 11, 16), "2026-11-16"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        (Review("a", NOON, Colour.RED), {"name": "a", "at": "2026-11-16T12:00:00Z", "colour": "red"}),
        (Struct(3), {"count": 3}),
        (Model(count=3, on=datetime.date(2026, 1, 2)), {"count": 3, "on": "2026-01-02"}),
        ([Model(count=1, on=datetime.date(2026, 1, 2))], [{"count": 1, "on": "2026-01-02"}]),
        (Pair(1, "x"), [1, "x"]),
        (Path("a/b"), "a/b"),
        (Text("own"), "own"),
        (collections.deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (Array(), [1, 2]),
        ("no \udcff text", "no \udcff text"),
        ({"no \udcff": [1]}, {"no \udcff": [1]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_encode_accepts_plain_data_and_convertible_types(value: Any, recorded: Any) -> None:
    assert codec.decode(codec.encode(value, "result")) == recorded


def test_nan_and_infinity_are_encoded_as_null() -> None:
    assert codec.decode(codec.encode([math.nan, math.inf], "result")) == [None, None]


def recursive() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


class Raises:
    def model_dump(self, mode: str) -> Any:
        raise ValueError("not today")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), ["result", "of type object", "object cannot be encoded as JSON", "use plain data"]),
        ([1, {"deep": lambda: 1}], ["of type list", "function cannot be encoded as JSON"]),
        (recursive(), ["of type list", "recursion"]),
        ({(1, 2): 3}, ["of type dict"]),
        ([{1: "a", "1": "b"}], ["two keys of a dict have the same text"]),
        (Raises(), ["of type Raises", "not today"]),
    ],
    ids=["object", "function", "recursive", "tuple keys", "twin keys", "raises"],
)
def test_unrecordable_value_error_names_the_type(value: Any, words: list[str]) -> None:
    with pytest.raises(UnrecordableValue) as caught:
        codec.encode(value, "result")
    assert not [word for word in words if word not in str(caught.value)]
    assert caught.value.__cause__ is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_values_are_decoded_equal(value: Any) -> None:
    assert codec.decode(codec.encode(value, "result")) == value


def test_equal_values_encode_equally_in_every_process() -> None:
    program = "from agentos.items import codec; print(codec.encode({'b': {'x','y','z'}, 'a': 1}, 'input'))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert texts == {'{"a":1,"b":["x","y","z"]}\n'}


def test_only_long_inputs_have_a_digest() -> None:
    assert codec.encode_input("short", str) == ('"short"', None)
    _, digest = codec.encode_input("x" * 10_000, str)
    _, other_digest = codec.encode_input("x" * 9_999 + "y", str)
    assert digest is not None
    assert len(digest) == 16
    assert digest != other_digest


def test_digest_of_input_ignores_secrets() -> None:
    def digest(secret: str) -> bytes | None:
        return codec.encode_input("x" * 600 + secret, lambda text: text.replace(secret, "****"))[1]

    assert digest("12345678") == digest("another-and-longer-key") is not None
    assert codec.encode_input("x" * 480 + "k" * 30, lambda text: text.replace("k" * 30, "****"))[1] is None
