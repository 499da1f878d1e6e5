"""Captured bytes come from anywhere: whatever they are, the answer is frames or a WireError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.errors import MalformedMessage, WireError
from distkv.wire.capture import frames
from distkv.wire.codec import encode_envelope
from distkv.wire.messages.envelope import Envelope
from tests.examples import examples
from tests.wire.strategies import any_envelope

many = settings(max_examples=examples(150), deadline=None)


@many
@given(st.lists(any_envelope, max_size=4))
def test_messages_one_after_the_other(envelopes: list[Envelope]) -> None:
    encoded = [encode_envelope(envelope) for envelope in envelopes]
    found = list(frames(b"".join(encoded)))
    assert [frame.message for frame in found] == envelopes
    assert [frame.at for frame in found] == [sum(map(len, encoded[:index])) for index in range(len(encoded))]


@many
@given(st.binary(max_size=200))
def test_noise_only_raises_wire_errors(data: bytes) -> None:
    with contextlib.suppress(WireError):
        list(frames(data))


@many
@given(any_envelope, st.data())
def test_damaged_captures_only_raise_wire_errors(envelope: Envelope, data: st.DataObject) -> None:
    damaged = bytearray(encode_envelope(envelope))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        list(frames(bytes(damaged)))


@pytest.mark.parametrize("key", [b"\x90", b"\x80", b"\xc4\x01a", b"\xc0"], ids=["array", "map", "bytes", "nil"])
def test_keys_that_are_no_texts(key: bytes) -> None:
    with pytest.raises(MalformedMessage):
        list(frames(b"\x81" + key + b"\x01"))
