"""Owners that answer a read with something else, or with half of it."""

from __future__ import annotations

import threading

import pytest

from distkv.errors import LinkClosed, MalformedMessage
from distkv.wire.messages.data import Blocks, Denied, Partials, ReadBlocks, Slots
from tests.wire.links.peers import DEADLINE_S, SLOT_BYTES, Pair, in_thread, open_pair, random_pool


@pytest.fixture(params=["unix", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Those whose reads the owner answers with frames."""
    return str(request.param)


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (Blocks(num_blocks=2), 2 * SLOT_BYTES - 1),
        (Blocks(num_blocks=2), 0),
        (Blocks(num_blocks=1), 2 * SLOT_BYTES),
        (Blocks(num_blocks=3), 3 * SLOT_BYTES),
        (Slots(), 16),
        (Partials(step_id=1, layer=1), 2 * SLOT_BYTES),
    ],
)
def test_another_answer_is_malformed_and_ends_the_link(pair: Pair, answer: Blocks, size: int) -> None:
    into = memoryview(bytearray(2 * SLOT_BYTES))
    read = pair.asking.read_blocks([0, 1], [into])
    pair.answering.send(answer, b"x" * size)
    with pytest.raises(MalformedMessage, match="expected 2 rBlocks"):
        read.wait(DEADLINE_S)
    assert into == bytes(len(into)), "nothing of it was taken"
    with pytest.raises(LinkClosed):
        pair.asking.read([0], [into[:SLOT_BYTES]], DEADLINE_S)


def test_half_an_answer(transport: str) -> None:
    """The owner ends while its blocks are on their way: more than the buffers between hold."""
    with random_pool(slot_bytes=2**20, num_slots=3) as pool, open_pair(transport, pool) as pair:
        into = memoryview(bytearray(3 * 2**20))
        read = pair.asking.read_blocks([0, 1, 2], [into])
        request, _body = pair.answering.recv(DEADLINE_S)
        assert isinstance(request, ReadBlocks)
        sending = threading.Event()

        def send() -> None:
            sending.set()
            with pytest.raises(LinkClosed):
                pair.answering.send(Blocks(num_blocks=3), bytes(3 * 2**20), bytes(64 * 2**20))

        with in_thread(send):
            assert sending.wait(DEADLINE_S)
            pair.answering.abort()
            with pytest.raises((LinkClosed, MalformedMessage)):
                read.wait(DEADLINE_S)


def test_a_refusal(pair: Pair) -> None:
    read = pair.asking.read_blocks([0], [memoryview(bytearray(SLOT_BYTES))])
    pair.answering.send(Denied(field="slots", expected="others", got="these"))
    with pytest.raises(LinkClosed, match="it refused: slots should be others"):
        read.wait(DEADLINE_S)
