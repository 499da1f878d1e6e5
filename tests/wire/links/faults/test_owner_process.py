"""What becomes of reads when the owner's process is killed, stopped, or started again where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from distkv.errors import HandshakeRefused, LinkClosed, LinkError, LinkTimeout
from distkv.wire.links import BlockRead, Registrations, TensorLink
from tests.wire.links.faults.owner import DEADLINE_S, NUM_SLOTS, SLOT_BYTES, Owner, byte_of, running
from tests.wire.links.peers import AnyPool

SHORT_S = 0.3
READS = 16
MARK = 0xFE
"""No slot of the owner holds it."""


@pytest.fixture
def link(owner: Owner, registered: Registrations) -> Iterator[TensorLink]:
    link = owner.connect(registered)
    yield link
    link.abort()


def start_all(link: TensorLink, own: AnyPool) -> list[BlockRead]:
    """The whole pool, in several reads."""
    step = NUM_SLOTS // READS
    reads = []
    for first in range(0, NUM_SLOTS, step):
        slots = range(first, first + step)
        reads.append(link.read_blocks(slots, [own.view[first * SLOT_BYTES : (first + step) * SLOT_BYTES]]))
    return reads


def check_one(link: TensorLink, incarnation: int) -> None:
    into = memoryview(bytearray(2 * SLOT_BYTES))
    link.read([3, 9000], [into], DEADLINE_S)
    expected = (bytes([byte_of(incarnation, slot)]) * SLOT_BYTES for slot in (3, 9000))
    assert into == b"".join(expected)


def mark_and_check(own: AnyPool, owner: Owner, registered: Registrations) -> None:
    """The memory was given back: whatever the owner still sends, nothing is written there."""
    own.view[:] = bytes([MARK]) * len(own.view)
    other = owner.connect(registered)
    check_one(other, owner.incarnation)
    other.abort()
    assert bytes(own.view) == bytes([MARK]) * len(own.view)


def test_killed_under_reads(owner: Owner, link: TensorLink, own: AnyPool, took: Callable[[], None]) -> None:
    reads = start_all(link, own)
    reads[0].wait(DEADLINE_S)
    took()
    owner.kill()
    with pytest.raises(LinkClosed):
        for read in reads:
            read.wait(DEADLINE_S)
        check_one(link, owner.incarnation)
    with pytest.raises(LinkClosed):
        link.read([0], [own.view[:SLOT_BYTES]], DEADLINE_S)


def test_stopped_under_reads(
    owner: Owner, link: TensorLink, own: AnyPool, registered: Registrations, took: Callable[[], None]
) -> None:
    """Mapped memory is read all the same. Who needs the owner gives up at the own deadline."""
    took()
    owner.stop()
    reads = start_all(link, own)
    if link.transport in ("shm", "cuda_ipc"):
        for read in reads:
            read.wait(DEADLINE_S)
        assert [own.view[slot * SLOT_BYTES] for slot in (0, 700, 16_383)] == [byte_of(1, s) for s in (0, 700, 16_383)]
    else:
        ended: list[type[LinkError]] = []
        for read in reads:
            try:
                read.wait(SHORT_S)
            except LinkError as error:
                ended.append(type(error))
        # The first one is late; the link is dead then. One-sided reads may succeed.
        assert not ended or ended == [LinkTimeout, *[LinkClosed] * (len(ended) - 1)]
    link.abort()
    owner.go_on()
    mark_and_check(own, owner, registered)


def test_aborted_under_reads(
    owner: Owner, link: TensorLink, own: AnyPool, registered: Registrations, took: Callable[[], None]
) -> None:
    reads = start_all(link, own)
    took()
    link.abort()
    for read in reads:
        try:
            read.wait(DEADLINE_S)
        except LinkClosed as error:
            assert "closed on this side" in str(error)
    mark_and_check(own, owner, registered)


def test_started_again_at_the_same_address(
    owner: Owner, link: TensorLink, registered: Registrations, took: Callable[[], None]
) -> None:
    check_one(link, 1)
    took()
    owner.kill()
    with pytest.raises(LinkClosed, match=r"be reached|cannot reach"):
        owner.connect(registered)
    with running(owner.transport, owner.endpoint.address, incarnation=2) as again:
        with pytest.raises(LinkClosed):
            check_one(link, 1)
        link.abort()
        with pytest.raises(HandshakeRefused, match="incarnation"):
            again.connect(registered, incarnation=1)
        other = again.connect(registered)
        check_one(other, 2)
        other.abort()
