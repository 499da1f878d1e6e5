"""What reaches a recording of every message there is."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from distkv.control import commands as c
from distkv.control.recording import records
from distkv.control.recording.masking import Masking
from distkv.log.lines import PRIVATE_FIELDS
from distkv.token_ids import unpack
from distkv.types import SamplingParams
from distkv.wire.messages import from_worker as fw
from distkv.wire.messages import to_client as tc
from distkv.wire.messages import to_rmanager as tr
from distkv.wire.messages.envelope import PeerAnswer, PeerRequest, ToClient, ToGManager
from distkv.wire.messages.to_worker import Compile, Forget, Step
from tests.token_ids import packed
from tests.wire.golden.examples import ENVELOPES

BODIES = {name: envelope.body for name, envelope in ENVELOPES.items()}
MASKING = Masking(100_000, lambda route: b"hidden")


def private(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """What stands, at any depth, under a name of what users write or get, and is not nothing."""
    has_fields = isinstance(value, dict) and name != "logit_bias"
    if name in PRIVATE_FIELDS | {"checksums", "checksum"} and not has_fields:
        return [(name, value)] if _leaves(value) else []
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in private(inner, key)]
    if isinstance(value, list):
        return [found for inner in value for found in private(inner)]
    return []


def _leaves(value: Any) -> list[Any]:
    """Numbers and texts that could say something: ranks are 1."""
    if isinstance(value, dict):
        return [leaf for item in value.items() for leaf in _leaves(list(item))]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in _leaves(inner)]
    is_nothing = value in (0, 1, "0", None) or (isinstance(value, str) and not value.strip("A="))
    return [] if is_nothing else [value]


def happened(body: Any) -> list[records.Happened]:
    """The events that a message comes by."""
    found: list[records.Happened] = []
    if isinstance(body, tr.Submit):
        ids = unpack(body.prompt_token_ids or packed(1, 2, 3))
        found.append(c.Tokenized(body, ids, b"route", ((7, 8), (9,)), 3))
    elif isinstance(body, fw.StepResult | fw.Checksummed | fw.Pulled | fw.Linked | fw.Revoked):
        found.append(c.FromWorker(body))
    if isinstance(body, get_args(ToGManager)):
        found.append(c.GManagerRequested("i1", b"route", body))
    if isinstance(body, get_args(PeerRequest)):
        found.append(c.PeerRequested("i1", b"route", body))
    if isinstance(body, get_args(PeerAnswer)):
        found.append(c.PeerAnswered("i1", body))
    if isinstance(body, c.ByGManager):
        found.append(c.FromGManager(body))
    if isinstance(body, tr.Cancel | tr.KeepAlive):
        found.append(c.ClientRequested(b"route", body))
    return found


@pytest.mark.parametrize("name", BODIES)
def test_no_event_says_what_users_wrote_and_all_can_be_read_again(name: str) -> None:
    for event in happened(BODIES[name]):
        masked = MASKING.event(event, [])
        line = records.encoded(records.Decided(1.5, "i0", masked, records.encoded_commands(None)))
        again = records.decoded(line)
        assert isinstance(again, records.Decided)
        assert records.encoded(again) == line, "the same event"
        assert private(json.loads(line)) == []
        assert b"route" not in line.replace(b'"route"', b"")


@pytest.mark.parametrize("name", BODIES)
def test_no_command_says_what_users_wrote(name: str) -> None:
    body: Any = BODIES[name]
    commands: list[Any] = [c.TellGManager(body)] if isinstance(body, get_args(ToGManager)) else []
    if isinstance(body, get_args(ToClient) + get_args(PeerAnswer)) and not isinstance(body, tc.TokenChunks):
        commands.append(c.Answer(b"route", body))
    if isinstance(body, get_args(PeerRequest)):
        commands.append(c.TellPeer("i1", body))
    if type(body).__module__.endswith("to_worker") and not isinstance(body, Compile):
        commands.append(c.TellWorker(body))
    written = json.loads(bytes(records.encoded_commands(MASKING.commands(commands))))
    assert len(written) == len(commands) and private(written) == []


def test_every_message_with_private_fields_is_among_the_examples() -> None:
    assert {"Submit", "StepResult", "Step", "TokenChunk", "BlocksReady", "Pull", "Checksummed"} <= BODIES.keys()
    assert private(json.loads(bytes(records.encoded_commands([c.TellWorker(BODIES["Step"])]))))


def test_what_cannot_be_decided_without_ids_keeps_what_counts() -> None:
    """How many there are, and those that no model has."""
    params = SamplingParams(
        logit_bias={3: 1.0, 200_000: 2.0}, allowed_token_ids=(1, 300_000), stop="x", ignore_eos=True
    )
    event = MASKING.event(
        c.Tokenized(tr.Submit(request_id="r", prompt="abc", params=params), unpack(packed(5, 6)), b"x"), []
    )
    assert isinstance(event, records.Tokenized) and event.num_tokens == 2 and event.submit.prompt == ""
    kept = event.submit.params
    assert kept == SamplingParams(logit_bias={0: 0.0, 200_000: 0.0}, allowed_token_ids=(0, 300_000))


def test_a_chunk_of_text_alone_is_none() -> None:
    text, last = tc.TokenChunk(request_id="r", text="abc"), tc.TokenChunk(request_id="r", finish_reason="abort")
    assert MASKING.commands([c.Answer(b"a", text), c.Answer(b"a", last), c.TellWorker(Forget())]) == [
        c.Answer(b"hidden", last),
        c.TellWorker(Forget()),
    ]
    assert isinstance(BODIES["Step"], Step)
