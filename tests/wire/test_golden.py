"""The bytes of every message: today's are known, yesterday's are understood, and the documents show them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec
import pytest

from distkv.errors import MalformedMessage
from distkv.wire.codec import decode_header
from distkv.wire.inboxes import CAPTURE
from tests.wire.golden import CURRENT, OLD, PAGE, SHOWN, encode_all, load, plain, shown_as
from tests.wire.golden.examples import ENVELOPES, HEADERS
from tests.wire.strategies import CONTROL_TYPES, DATA_TYPES

GOLDEN = load(CURRENT)
FORMER = load(OLD)
CENTRAL = {
    "Submit", "TokenChunk", "Heartbeat", "BorrowQuery", "TryMoveKvcache", "Granted", "BlocksReady", "Complete", "Renew",
    "Step", "StepResult", "Hello", "Attend",
}  # fmt: skip
# Fields of the former version that mean nothing any more: they are read over.
GONE = {
    "DataEndpoint": {"local", "pool_pid", "pool_fd"},
    "InstanceStatus": {"role"},
    "Member": {"role"},
}
# What carried many token ids or checksums as a list: they are packed now, and nothing else is read.
PACKED_SINCE = {
    "Submit/ids": "body.prompt",
    "Step": "body.seqs[0].tokens",
    "Pull": "body.checksums",
    "Checksummed": "body.checksums",
}
REMAKE = "is the change meant? then: python -m tests.wire.golden --write"


def decoded(name: str, encoded: bytes) -> msgspec.Struct:
    return decode_header(encoded) if name in HEADERS else CAPTURE.decode(encoded)


def body_of(message: Any) -> msgspec.Struct:
    return getattr(message, "body", message)


def structs_in(value: Any) -> Iterator[msgspec.Struct]:
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from structs_in(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from structs_in(item)


def defaults_of(kind: type[msgspec.Struct]) -> dict[str, object]:
    return {
        field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
        if not field.required
    }


def test_there_is_one_of_every_type() -> None:
    shown = {type(body_of(message)) for message in (ENVELOPES | HEADERS).values()}
    assert shown == {*CONTROL_TYPES, *DATA_TYPES}
    assert list(GOLDEN) == list(ENVELOPES | HEADERS), REMAKE


def test_every_field_has_a_value_that_is_not_its_default_somewhere() -> None:
    plain_ones: dict[type[msgspec.Struct], set[str]] = {}
    for struct in structs_in(tuple((ENVELOPES | HEADERS).values())):
        defaults = defaults_of(type(struct))
        same = {name for name, default in defaults.items() if getattr(struct, name) == default}
        plain_ones[type(struct)] = plain_ones.get(type(struct), set(defaults)) & same
    left = {kind.__name__: sorted(names) for kind, names in plain_ones.items() if names}
    assert not left, "give them a value in tests/wire/golden/examples.py"


@pytest.mark.parametrize("name", GOLDEN)
def test_todays_bytes_are_the_golden_ones(name: str) -> None:
    assert encode_all()[name].hex() == GOLDEN[name]["hex"], REMAKE


@pytest.mark.parametrize("name", GOLDEN)
def test_msgspec_and_plain_msgpack_read_them(name: str) -> None:
    encoded = bytes.fromhex(GOLDEN[name]["hex"])
    assert decoded(name, encoded) == (ENVELOPES | HEADERS)[name]
    assert plain(encoded) == GOLDEN[name]["plain"]
    written = msgpack.packb(msgpack.unpackb(encoded, strict_map_key=False))
    assert decoded(name, written) == (ENVELOPES | HEADERS)[name]


@pytest.mark.parametrize("name", [name for name in FORMER if name not in PACKED_SINCE])
def test_former_bytes_are_still_understood(name: str) -> None:
    encoded = bytes.fromhex(FORMER[name]["hex"])
    assert plain(encoded) == FORMER[name]["plain"]
    says_the_same(decoded(name, encoded), msgpack.unpackb(encoded), name)


@pytest.mark.parametrize("name", PACKED_SINCE)
def test_lists_of_what_is_packed_are_refused_by_name(name: str) -> None:
    with pytest.raises(MalformedMessage, match=re.escape(f"got `array` - at `$.{PACKED_SINCE[name]}`")):
        decoded(name, bytes.fromhex(FORMER[name]["hex"]))


def says_the_same(value: Any, sent: Any, path: str) -> None:
    """What was sent is there, and whatever was not has its default."""
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        if value.__struct_config__.array_like:
            sent = dict(zip(names, sent, strict=False))
        defaults = defaults_of(type(value))
        assert set(sent) <= {*names, *GONE.get(type(value).__name__, ()), "type"}, path
        for name in names:
            if name in sent:
                says_the_same(getattr(value, name), sent[name], f"{path}.{name}")
            else:
                assert getattr(value, name) == defaults[name], f"{path}.{name}"
    elif isinstance(value, tuple):
        assert len(value) == len(sent), path
        for index, (item, sent_item) in enumerate(zip(value, sent, strict=True)):
            says_the_same(item, sent_item, f"{path}[{index}]")
    else:
        assert value == sent, path


def test_the_page_shows_the_central_ones() -> None:
    blocks = list(SHOWN.finditer(PAGE.read_text(encoding="utf-8")))
    assert {block["name"] for block in blocks} == CENTRAL
    for block in blocks:
        golden = GOLDEN[block["name"]]
        assert block[0] == shown_as(block["name"], golden), REMAKE
        assert bytes.fromhex(block["hex"]).hex() == golden["hex"]
        assert json.loads(block["plain"]) == golden["plain"]
