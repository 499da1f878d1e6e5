"""Messages survive the wire, neighbouring versions understand each other, and bad bytes only ever raise WireError."""

from __future__ import annotations

import contextlib
import re
import struct
from array import array
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distkv.errors import FrameTooLarge, MalformedMessage, WireError
from distkv.types import MAX_INT, SamplingParams
from distkv.wire.codec import decode_header, encode_envelope, encode_header
from distkv.wire.inboxes import CAPTURE
from distkv.wire.messages.common import MAX_AMOUNT, Epoch
from distkv.wire.messages.data import Attend, Hello, Partials, ReadBlocks
from distkv.wire.messages.envelope import MAX_MESSAGE_ID, MAX_SENDER, Envelope
from distkv.wire.messages.to_client import ClusterState
from distkv.wire.messages.to_gmanager import Heartbeat, Locate
from distkv.wire.messages.to_rmanager import Granted, KeepAlive, Submit
from tests.examples import examples
from tests.token_ids import packed, prompt_fields
from tests.wire.strategies import CONTROL_TYPES, DATA_TYPES, any_envelope, any_header, envelopes, messages_of

decode_envelope = CAPTURE.decode
few = settings(max_examples=15, deadline=None)
many = settings(max_examples=examples(150), deadline=None)


def wrap(body: Any) -> Envelope:
    return Envelope(id="x-1", sender="x", body=body, cause="y-2")


@pytest.mark.parametrize("kind", CONTROL_TYPES, ids=lambda kind: kind.__name__)
@few
@given(data=st.data())
def test_control_messages_round_trip(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    envelope = data.draw(envelopes(messages_of(kind)))
    encoded = encode_envelope(envelope)
    assert decode_envelope(encoded) == envelope
    assert msgpack.unpackb(encoded, strict_map_key=False)["body"]["type"] == kind.__name__


@pytest.mark.parametrize("kind", DATA_TYPES, ids=lambda kind: kind.__name__)
@few
@given(data=st.data())
def test_headers_round_trip(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    header = data.draw(messages_of(kind))
    encoded = encode_header(header)
    assert decode_header(encoded) == header
    assert decode_header(memoryview(bytearray(encoded))) == header
    assert msgpack.unpackb(encoded)["type"] == kind.__name__


def test_plain_msgpack_reads_and_writes_it() -> None:
    submit = Submit(request_id="r", params=SamplingParams(max_tokens=3, stop="end"), **prompt_fields((1, 70000)))
    plain = msgpack.unpackb(encode_envelope(wrap(submit)))
    assert plain["id"] == "x-1" and plain["cause"] == "y-2"
    ids = plain["body"]["prompt_token_ids"]
    assert struct.unpack("<2i", ids) == tuple(np.frombuffer(ids, "<i4")) == tuple(array("i", ids)) == (1, 70000)
    assert plain["body"]["params"]["stop"] == ["end"]
    assert decode_envelope(msgpack.packb(plain)) == wrap(submit)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"prompt_token_ids": b"1234567"}, "prompt_token_ids: 7 bytes are no token ids of 4 bytes each"),
        ({"prompt_token_ids": b"1234", "prompt": "p"}, "it has both a prompt and prompt_token_ids"),
        ({"prompt_token_ids": [1, 2]}, "Expected `bytes | null`, got `array` - at `$.body.prompt_token_ids`"),
        ({"prompt": [1, 2]}, "Expected `str`, got `array` - at `$.body.prompt`"),
    ],
)
def test_a_prompt_that_is_none_is_refused_in_words(fields: dict[str, Any], problem: str) -> None:
    body = {"type": "Submit", "request_id": "r", "params": {}} | fields
    with pytest.raises(MalformedMessage, match=re.escape(problem)):
        decode_envelope(msgpack.packb({"id": "x", "sender": "y", "body": body}))


def test_token_ids_lie_where_they_came_in() -> None:
    """A prompt of megabytes is not copied on its way in, and what it came in stays as long as it does."""
    ids = packed(*(1, 70000) * 1000)
    frame = bytearray(encode_envelope(wrap(Submit(request_id="r", params=SamplingParams(), prompt_token_ids=ids))))
    found = decode_envelope(frame).body.prompt_token_ids
    assert found == ids
    frame[frame.index(ids)] = 2
    assert found[:4] == packed(2)
    with pytest.raises(BufferError):
        frame.clear()


def test_unknown_fields_are_ignored() -> None:
    plain = msgpack.unpackb(encode_envelope(wrap(KeepAlive())))
    plain["from_the_future"] = {"deep": [1, {"er": None}]}
    plain["body"]["also"] = 1
    assert decode_envelope(msgpack.packb(plain)) == wrap(KeepAlive())


def test_missing_newer_fields_take_their_defaults() -> None:
    plain = msgpack.unpackb(encode_envelope(wrap(KeepAlive())))
    del plain["cause"]
    assert decode_envelope(msgpack.packb(plain)).cause == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"body": {"type": "Nope"}}, r"Invalid value 'Nope' - at `\$\.body\.type`"),
        ({"body": {"type": "Cancel"}}, r"missing required field `request_id` - at `\$\.body`"),
        ({"body": {"type": "Cancel", "request_id": 5}}, r"Expected `str`, got `int` - at `\$\.body\.request_id`"),
        ({"body": {"type": "Cancel", "request_id": ""}}, r"length >= 1 - at `\$\.body\.request_id`"),
        ({"body": {"type": "HeartbeatAck", "seq": -1}}, r">= 0 - at `\$\.body\.seq`"),
        (
            {"body": {"type": "Submit", "request_id": "r", "prompt": "p", "params": {"temperature": -1.0}}},
            r"temperature: expected a number ≥ 0, got -1.0 - at `\$\.body\.params`",
        ),
        ({"id": None}, r"Expected `str`, got `None` - at `\$\.id`"),
    ],
)
def test_the_sentence_names_the_path(change: dict[str, Any], message: str) -> None:
    plain = msgpack.unpackb(encode_envelope(wrap(KeepAlive()))) | change
    with pytest.raises(MalformedMessage, match=message):
        decode_envelope(msgpack.packb(plain))


@pytest.mark.parametrize(("field", "most"), [("id", MAX_MESSAGE_ID), ("sender", MAX_SENDER), ("cause", MAX_MESSAGE_ID)])
def test_what_an_answer_or_a_log_line_repeats_of_an_envelope_is_short(field: str, most: int) -> None:
    plain = msgpack.unpackb(encode_envelope(wrap(KeepAlive())))
    assert getattr(decode_envelope(msgpack.packb(plain | {field: "x" * most})), field) == "x" * most
    with pytest.raises(MalformedMessage, match=rf"length <= {most} - at `\$\.{field}`"):
        decode_envelope(msgpack.packb(plain | {field: "x" * (most + 1)}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x82\xa2id\xa1x\xa1z" + b"\x91" * 100_000,
        b"\x81\xa2\xff\xfe\x01",
        encode_envelope(wrap(KeepAlive())) + b"\x00",
        encode_envelope(wrap(KeepAlive()))[:-1],
    ],
    ids=["empty", "reserved", "huge array", "huge map", "deep", "deep unknown", "not utf-8", "trailing", "truncated"],
)
def test_bad_bytes(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_envelope(data)


def test_nan_is_no_duration() -> None:
    plain = msgpack.unpackb(encode_envelope(wrap(KeepAlive())))
    epoch = [1, 1]
    plain["body"] = {"type": "Reclaim", "span": {"span_id": "s", "epoch": epoch}, "deadline_s": float("nan")}
    with pytest.raises(MalformedMessage, match="deadline_s"):
        decode_envelope(msgpack.packb(plain))


def test_no_slot_and_no_entry_is_negative() -> None:
    granted = Granted(span_id="s", epoch=Epoch(1, 1), slots=(0, -1), ttl_s=1.0)
    with pytest.raises(MalformedMessage, match=r">= 0 - at `\$\.body\.slots"):
        decode_envelope(encode_envelope(wrap(granted)))
    for header in (ReadBlocks(slots=(0, -1)), Partials(step_id=1, layer=0, stale=(-1,))):
        with pytest.raises(MalformedMessage, match=">= 0"):
            decode_header(encode_header(header))


def test_what_many_members_say_can_be_summed() -> None:
    """What no instance can have is refused; what its requests can add up to is not."""
    full = Heartbeat(instance_id="i", incarnation=1, seq=1, base=0, full=True)
    large = structs.replace(full, prefill_tokens=4096 * 2**22, waiting_blocks=4096 * 2**22, waiting=4096)
    for said in (large, Locate(request_id="r", num_tokens=2**22 + MAX_INT)):
        assert decode_envelope(encode_envelope(wrap(said))).body == said
    beat = {"type": "Heartbeat", "instance_id": "i", "incarnation": 1, "seq": 1, "base": 0, "full": True}
    member = {"instance_id": "i", "address": "tcp://x:1", "incarnation": 1}
    for body in (
        beat | {"lendable_blocks": 2**64 - 1},
        beat | {"debtors": [["i0", 2**31]]},
        {"type": "Join", "compat": "", "member": member | {"block_tokens": 2**64 - 1}},
    ):
        with pytest.raises(MalformedMessage, match=f"<= {MAX_AMOUNT}"):
            decode_envelope(msgpack.packb({"id": "x", "sender": "x", "body": body}))


def test_a_number_that_no_reader_takes_is_not_sent() -> None:
    with pytest.raises(MalformedMessage, match="ClusterState"):
        encode_envelope(wrap(ClusterState(lent_blocks=2**64)))


def test_too_large() -> None:
    data = encode_envelope(wrap(KeepAlive()))
    with pytest.raises(FrameTooLarge) as error:
        decode_envelope(data, limit_bytes=len(data) - 1)
    assert (error.value.size_bytes, error.value.limit_bytes) == (len(data), len(data) - 1)
    with pytest.raises(FrameTooLarge):
        decode_header(encode_header(Attend(step_id=1, layer=1)), limit_bytes=3)


@many
@given(st.binary(max_size=200))
def test_noise_only_raises_wire_errors(data: bytes) -> None:
    for decode in (decode_envelope, decode_header):
        with contextlib.suppress(WireError):
            decode(data)


@many
@given(any_envelope, st.data())
def test_damaged_envelopes_only_raise_wire_errors(envelope: Envelope, data: st.DataObject) -> None:
    damage_and_decode(encode_envelope(envelope), decode_envelope, data)


@many
@given(any_header, st.data())
def test_damaged_headers_only_raise_wire_errors(header: Hello, data: st.DataObject) -> None:
    damage_and_decode(encode_header(header), decode_header, data)


def damage_and_decode(encoded: bytes, decode: Any, data: st.DataObject) -> None:
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (bytes(damaged), bytes(damaged[:cut]), encoded[:cut]):
        with contextlib.suppress(WireError):
            decode(candidate)
    if cut < len(encoded):
        with pytest.raises(WireError):
            decode(encoded[:cut])
