"""One test body for all transports: reads that are under way together."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from distkv.errors import LinkClosed, LinkTimeout, MalformedMessage
from distkv.wire.links.transports.inproc import InprocLink
from distkv.wire.links.transports.mapped_read import MappedRead
from distkv.wire.links.transports.one_sided.link import OneSidedLink
from tests.wire.links.peers import ATTACHED, DEADLINE_S, NUM_SLOTS, SLOT_BYTES, Pair, in_thread, serve


def targets(count: int, blocks: int = 1) -> list[memoryview]:
    return [memoryview(bytearray(blocks * SLOT_BYTES)) for _ in range(count)]


def block(pair: Pair, slot: int) -> memoryview:
    return pair.pool.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]


@pytest.mark.parametrize("order", [range(20), range(19, -1, -1)], ids=["as started", "the last one first"])
def test_many_reads_are_under_way(pair: Pair, order: range) -> None:
    into = targets(20, blocks=2)
    with pair.serving():
        reads = [pair.asking.read_blocks([number, 63 - number], [into[number]]) for number in range(20)]
        for number in order:
            reads[number].wait(DEADLINE_S)
            assert into[number] == bytes(block(pair, number)) + bytes(block(pair, 63 - number))


def test_a_read_is_polled_to_its_end(pair: Pair) -> None:
    into = targets(3)
    with pair.serving():
        reads = [pair.asking.read_blocks([slot], [view]) for slot, view in enumerate(into)]
        deadline = time.monotonic() + DEADLINE_S
        while not all([read.poll() for read in reads]):
            assert time.monotonic() < deadline
        assert all(read.poll() for read in reads), "it stays complete"
        reads[0].wait(0)
    assert [bytes(view) for view in into] == [bytes(block(pair, slot)) for slot in range(3)]


def test_a_read_that_is_refused_disturbs_no_other(pair: Pair) -> None:
    into = targets(2)
    with pair.serving():
        read = pair.asking.read_blocks([7], [into[0]])
        with pytest.raises(MalformedMessage, match="outside the pool"):
            pair.asking.read_blocks([NUM_SLOTS], [into[1]])
        read.wait(DEADLINE_S)
    assert into[0] == block(pair, 7)


def test_abort_ends_all_reads_and_nothing_is_written_after_it(pair: Pair) -> None:
    """The owner answers what it was asked; the memory was given back by then."""
    into = targets(8, blocks=4)
    reads = [pair.asking.read_blocks(range(4), [view]) for view in into]
    pair.asking.abort()
    for read in reads:
        with pytest.raises(LinkClosed, match="closed on this side"):
            read.wait(DEADLINE_S)
    for view in into:
        view[:] = b"\xa5" * len(view)
    serve(pair.answering, pair.pool)
    assert all(view == b"\xa5" * len(view) for view in into)
    for read in reads:
        with pytest.raises(LinkClosed):
            read.poll()


def test_abort_wakes_who_waits_for_a_read(pair: Pair, transport: str) -> None:
    if transport in ("shm", *ATTACHED):
        pytest.skip("a read without the peer waits for nothing")
    if isinstance(pair.asking, InprocLink):
        pair.asking.faults.hold("read")
    waiting = threading.Event()

    def wait() -> None:
        read = pair.asking.read_blocks([1], targets(1))
        waiting.set()
        with pytest.raises(LinkClosed):
            read.wait(DEADLINE_S)

    began = time.monotonic()
    with in_thread(wait):
        assert waiting.wait(DEADLINE_S)
        pair.asking.abort()
    assert time.monotonic() - began < DEADLINE_S / 2


def test_the_owner_ends_under_reads(pair: Pair, transport: str) -> None:
    reads = [pair.asking.read_blocks([slot], targets(1)) for slot in range(3)]
    pair.answering.abort()
    for read in reads:
        with pytest.raises(LinkClosed):
            read.wait(DEADLINE_S)


class Held:
    """What a caller has besides its destination."""


def test_a_read_that_takes_too_long_keeps_nothing_of_who_waited(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that a variable of its own frame has stays, with all frames that it passed, until garbage is looked
    for."""
    if isinstance(pair.asking, InprocLink):
        pytest.skip("it reads at once")
    monkeypatch.setattr(MappedRead, "poll", lambda _read: False)
    monkeypatch.setattr(OneSidedLink, "advance", lambda _link, _pending: False)

    def is_late(held: Held) -> bool:
        (into,) = targets(1, NUM_SLOTS)
        try:
            pair.asking.read_blocks(range(NUM_SLOTS), [into]).wait(-1.0)
        except LinkTimeout:
            return held is not None
        return False

    held = Held()
    kept = weakref.ref(held)
    gc.disable()
    try:
        assert is_late(held)
        del held
        assert kept() is None
    finally:
        gc.enable()
