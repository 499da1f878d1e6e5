"""The trouble that tests can order from the in-process link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from distkv.errors import ConfigError, LinkClosed, LinkTimeout
from distkv.wire.links.transports.inproc import InprocLink, InprocListener
from distkv.wire.messages.data import Attend
from tests.wire.links.peers import DEADLINE_S, PEER, SLOT_BYTES, Pair, in_thread, open_pair, random_pool


@pytest.fixture
def pair() -> Iterator[Pair]:
    with open_pair("inproc") as pair:
        yield pair


@pytest.fixture
def link(pair: Pair) -> InprocLink:
    assert isinstance(pair.asking, InprocLink)
    return pair.asking


def test_fail(link: InprocLink) -> None:
    link.faults.fail("read", LinkClosed("b", "as ordered"), times=2)
    into = memoryview(bytearray(SLOT_BYTES))
    for _ in range(2):
        with pytest.raises(LinkClosed, match="as ordered"):
            link.read([0], [into], DEADLINE_S)
    link.read([0], [into], DEADLINE_S)


def test_corrupt_a_read(link: InprocLink, pair: Pair) -> None:
    link.faults.corrupt("read")
    into = memoryview(bytearray(SLOT_BYTES))
    link.read([0], [into], DEADLINE_S)
    assert sum(a != b for a, b in zip(into, pair.pool.view[:SLOT_BYTES], strict=True)) == 1
    link.read([0], [into], DEADLINE_S)
    assert into == pair.pool.view[:SLOT_BYTES]


@pytest.mark.parametrize("verb", ["send", "recv"])
def test_corrupt_a_frame(link: InprocLink, pair: Pair, verb: str) -> None:
    receiver = pair.answering
    assert isinstance(receiver, InprocLink)
    (link if verb == "send" else receiver).faults.corrupt(verb)  # type: ignore[arg-type]
    link.send(Attend(step_id=0, layer=0), b"abc")
    assert bytes(receiver.recv(DEADLINE_S)[1]) == b"acc"


@pytest.mark.parametrize("verb", ["recv", "read"])
def test_hold_until_timeout(link: InprocLink, verb: str) -> None:
    link.faults.hold(verb)  # type: ignore[arg-type]
    with pytest.raises(LinkTimeout):
        if verb == "recv":
            link.recv(0.01)
        else:
            link.read([0], [memoryview(bytearray(SLOT_BYTES))], 0.01)


def test_a_send_that_takes_too_long_ends_the_link(link: InprocLink) -> None:
    link.faults.hold("send")
    with pytest.raises(LinkTimeout):
        link.send(Attend(step_id=1, layer=0), b"q", timeout_s=0.01)
    with pytest.raises(LinkClosed):
        link.recv(0.01)


def test_hold_until_release(link: InprocLink) -> None:
    link.faults.hold("read")
    with in_thread(lambda: link.read([0], [memoryview(bytearray(SLOT_BYTES))], DEADLINE_S)):
        assert link.faults.wait_calls("read", 1, DEADLINE_S)
        link.faults.release("read")


def test_hold_until_abort(link: InprocLink) -> None:
    link.faults.hold("send")

    def send() -> None:
        with pytest.raises(LinkClosed):
            link.send(Attend(step_id=0, layer=0))

    with in_thread(send):
        assert link.faults.wait_calls("send", 1, DEADLINE_S)
        link.abort()


def test_delay(link: InprocLink) -> None:
    link.faults.delay("read", 0.05)
    with pytest.raises(LinkTimeout):
        link.read([0], [memoryview(bytearray(SLOT_BYTES))], 0.01)


def test_a_name_is_taken_once() -> None:
    with random_pool() as pool:
        listener = InprocListener("inproc://taken", PEER, pool)
        with pytest.raises(ConfigError, match="in use"):
            InprocListener("inproc://taken", PEER, pool)
        listener.close()
        InprocListener("inproc://taken", PEER, pool).close()


def test_a_read_is_overtaken(link: InprocLink, pair: Pair) -> None:
    link.faults.hold_next("read")
    late, soon = (memoryview(bytearray(SLOT_BYTES)) for _ in range(2))
    held, other = link.read_blocks([0], [late]), link.read_blocks([1], [soon])
    other.wait(DEADLINE_S)
    assert soon == pair.pool.view[SLOT_BYTES : 2 * SLOT_BYTES]
    assert not held.poll() and late == bytes(SLOT_BYTES)
    link.faults.release("read")
    held.wait(DEADLINE_S)
    assert late == pair.pool.view[:SLOT_BYTES]


def test_a_peer_that_ends_is_noticed_by_a_held_read(link: InprocLink, pair: Pair) -> None:
    link.faults.hold("read")
    read = link.read_blocks([0], [memoryview(bytearray(SLOT_BYTES))])

    def wait() -> None:
        with pytest.raises(LinkClosed, match="it ended"):
            read.wait(DEADLINE_S)

    with in_thread(wait):
        pair.answering.abort()
