"""What an instance says of itself is kept by everybody: each text of it has a limit. So has each list and map that a
port reads or a peer answers, for one message of millions would be decoded before it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import msgspec.inspect as mi
import pytest

from distkv.errors import InvalidParams, MalformedMessage
from distkv.types import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
)
from distkv.wire.codec import encode_envelope
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.inboxes import GMANAGER_PORT, RMANAGER_PORT
from distkv.wire.messages.common import DataEndpoint, Member
from distkv.wire.messages.data import Hello
from distkv.wire.messages.envelope import PeerAnswer, ToGManager, ToRManager
from distkv.wire.messages.to_gmanager import MAX_NAMES, BorrowQuery, Heartbeat, Join, Leave, Locate, RedispatchQuery
from distkv.wire.messages.to_rmanager import Creditors, JoinRefused, Redispatch, Refused, Renew, Submit

BOUNDED = (
    Member,
    DataEndpoint,
    Join,
    Leave,
    Heartbeat,
    BorrowQuery,
    Locate,
    RedispatchQuery,
    Redispatch,
    Creditors,
    JoinRefused,
    Refused,
    Renew,
    Hello,
)


def unbounded(info: mi.Type, path: str) -> Iterator[str]:
    """Where texts and maps without a limit are."""
    match info:
        case mi.StrType(max_length=None):
            yield path
        case mi.DictType(key_type=key, value_type=value, max_length=most):
            if most is None:
                yield path
            yield from unbounded(key, f"{path} key")
            yield from unbounded(value, f"{path} value")
        case mi.StructType(fields=fields):
            for field in fields:
                yield from unbounded(field.type, f"{path}.{field.name}")
        case mi.UnionType(types=types):
            for one in types:
                yield from unbounded(one, path)
        case mi.VarTupleType(item_type=item) | mi.Metadata(type=item):
            yield from unbounded(item, path)
        case mi.TupleType(item_types=items):
            for one in items:
                yield from unbounded(one, path)


def endless(info: mi.Type, path: str) -> Iterator[str]:
    """Where lists and maps without a limit are, in a message itself."""
    match info:
        case mi.VarTupleType(max_length=None) | mi.ListType(max_length=None) | mi.DictType(max_length=None):
            yield path
        case mi.StructType(fields=fields):
            for field in fields:
                yield from endless(field.type, f"{path}.{field.name}")
        case mi.UnionType(types=types):
            for one in types:
                yield from endless(one, path)
        case mi.Metadata(type=inner):
            yield from endless(inner, path)


@pytest.mark.parametrize("kind", get_args(ToGManager | ToRManager | PeerAnswer), ids=lambda kind: kind.__name__)
def test_every_list_that_a_port_reads_or_a_peer_answers_has_a_limit(kind: type[Any]) -> None:
    assert list(endless(mi.type_info(kind), kind.__name__)) == []


@pytest.mark.parametrize(
    ("field", "one", "most"),
    [
        ("stop", "x", MAX_STOP_STRINGS),
        ("stop_token_ids", 1, MAX_STOP_TOKEN_IDS),
        ("bad_words", "x", MAX_BAD_WORDS),
        ("allowed_token_ids", 1, MAX_ALLOWED_TOKEN_IDS),
    ],
)
def test_sampling_parameters_that_are_too_many_are_refused_before_they_are_decoded(
    field: str, one: object, most: int
) -> None:
    """Of what comes after the limit nothing is looked at: else the text would be what is wrong."""
    submit = {"type": "Submit", "request_id": "r", "prompt": "p"}

    def decode(many: list[object]) -> SamplingParams:
        params = {"max_tokens": 1, field: many}
        raw = msgspec.msgpack.encode({"id": "a", "sender": "a", "body": submit | {"params": params}})
        body = RMANAGER_PORT.decode(raw).body
        assert isinstance(body, Submit)
        return body.params

    assert getattr(decode([one] * most), field) == (one,) * most
    with pytest.raises(MalformedMessage, match=rf"length <= {most} - at `\$\.body\.params\.{field}`"):
        decode([None] * (most + 1))
    with pytest.raises(InvalidParams, match=f"{field}: expected .*to {most} "):
        SamplingParams(**{field: [one] * (most + 1)})  # type: ignore[arg-type]


def test_a_request_that_names_too_many_instances_is_refused_with_the_limit() -> None:
    envelopes, names = EnvelopeFactory("client"), tuple(f"i{number}" for number in range(MAX_NAMES + 1))
    good, bad = (encode_envelope(envelopes.wrap(Locate(request_id="r", exclude=some))) for some in (names[1:], names))
    assert GMANAGER_PORT.decode(good).body.exclude == names[1:]
    with pytest.raises(MalformedMessage, match=f"{MAX_NAMES}.*exclude"):
        GMANAGER_PORT.decode(bad)


@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.__name__)
def test_every_text_has_a_limit(kind: type[Any]) -> None:
    assert list(unbounded(mi.type_info(kind), kind.__name__)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"address": "tcp://" + "x" * 256},
        {"state": "s" * 33},
        {"data": {"address": "x" * 257}},
        {"data": {"address": "x", "host_key": "k" * 257}},
        {"data": {"address": "x", "transports": {"shm": {"path": "p" * 257}}}},
        {"data": {"address": "x", "transports": {"shm": {str(index): 1 for index in range(17)}}}},
        {"data": {"address": "x", "transports": {str(index): {} for index in range(17)}}},
    ],
)
def test_a_member_beyond_them_does_not_decode(change: dict[str, Any]) -> None:
    plain = {"instance_id": "a", "incarnation": 1, "address": "tcp://127.0.0.1:9"}
    assert msgspec.convert(plain, Member).address == plain["address"]
    with pytest.raises(msgspec.ValidationError, match="length <= "):
        msgspec.convert(plain | change, Member)
