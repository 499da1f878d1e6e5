"""JSON in parts is the JSON of the whole."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from distkv.gateway.api import growing_json
from distkv.gateway.api.growing_json import (
    JsonArray,
    JsonResponse,
    JsonText,
    in_pieces,
    json_array,
    json_object,
    json_value,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


def parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        return json_object(**{name: parts(one) for name, one in value.items()})
    return json_array(map(parts, value)) if isinstance(value, list) else json_value(value)


@given(VALUES)
def test_values(value: Any) -> None:
    assert json.loads(b"".join(parts(value))) == value


@given(st.lists(st.lists(st.integers() | st.text(), max_size=3), max_size=5))
def test_an_array_that_grows(additions: list[list[Any]]) -> None:
    array = JsonArray()
    size_bytes = sum(array.extend(items) for items in additions)
    written = b"".join(array.parts())
    assert json.loads(written) == [item for items in additions for item in items]
    assert size_bytes == len(written) - 2
    assert b"".join(array.parts()) == b"[]"


@given(st.lists(st.text()))
def test_a_text_that_grows(additions: list[str]) -> None:
    text = JsonText()
    size_bytes = sum(map(text.extend, additions))
    written = "".join(additions)
    assert json.loads(b"".join(text.parts())) == written
    assert size_bytes == len(written.encode())
    assert bool(text) == bool(written)


def test_what_comes_by_little_takes_hardly_more_than_its_bytes() -> None:
    """Each part was an object of its own: a few bytes took fifty."""
    tracemalloc.start()
    array, text = JsonArray(), JsonText()
    size_bytes = sum(array.extend([number % 7]) + text.extend("ab") for number in range(100_000))
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size_bytes < held_bytes < 1.5 * size_bytes


async def test_a_response_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_json, "PART_BYTES", 10)
    value = {"a": list(range(20)), "b": "c"}
    pieces = await in_pieces(parts(value))
    assert max(map(len, pieces)) <= 13
    sent: list[Any] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    await JsonResponse(pieces)({}, receive, send)
    body = b"".join(message["body"] for message in sent[1:])
    assert json.loads(body) == value
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % len(body)
    assert [message["more_body"] for message in sent[1:]] == [True] * len(pieces) + [False]
