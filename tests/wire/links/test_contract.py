"""One test body for all transports: the promises of `TensorLink`."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time

import numpy as np
import pytest

from distkv.errors import LinkClosed, LinkTimeout, MalformedMessage
from distkv.wire.links import Part, serve_read
from distkv.wire.links.block_reads import MAX_PARTS
from distkv.wire.messages.data import Attend, Denied, Partials, ReadBlocks
from tests.wire.links.peers import DEADLINE_S, NUM_SLOTS, SLOT_BYTES, Pair, in_thread, open_pair, pool_for


def test_a_frame_is_header_and_buffers_back_to_back(pair: Pair) -> None:
    q = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    pair.asking.send(Attend(step_id=1, layer=2), q, b"", b"tail", np.zeros((0, 3)))
    header, body = pair.answering.recv(DEADLINE_S)
    assert header == Attend(step_id=1, layer=2)
    assert bytes(body) == q.tobytes() + b"tail"
    assert (np.frombuffer(body[: q.nbytes], dtype=np.float32).reshape(2, 3, 4) == q).all()
    pair.answering.send(Partials(step_id=1, layer=2, stale=(0,)))
    header, body = pair.asking.recv(DEADLINE_S)
    assert header == Partials(step_id=1, layer=2, stale=(0,)) and len(body) == 0


def test_bodies_are_aligned_and_writable(pair: Pair) -> None:
    pair.asking.send(Attend(step_id=1, layer=2), b"x" * 64)
    _header, body = pair.answering.recv(DEADLINE_S)
    assert np.frombuffer(body, dtype=np.uint8).ctypes.data % 16 == 0
    assert not body.readonly


def test_names(pair: Pair, transport: str) -> None:
    assert (pair.asking.peer, pair.answering.peer) == ("b", "a")
    assert pair.asking.transport == transport
    assert pair.asking.within_host == (transport != "tcp")


def test_a_big_body(pair: Pair) -> None:
    sent = np.random.default_rng(1).integers(0, 256, 64 * 2**20, dtype=np.uint8)
    with in_thread(lambda: pair.asking.send(Attend(step_id=0, layer=0), sent)):
        _header, body = pair.answering.recv(DEADLINE_S)
        assert np.array_equal(np.frombuffer(body, dtype=np.uint8), sent)


def test_more_buffers_than_one_system_call_takes(pair: Pair) -> None:
    pieces = [bytes([i % 256]) * 7 for i in range(5000)]
    pair.asking.send(Attend(step_id=0, layer=0), *pieces)
    assert bytes(pair.answering.recv(DEADLINE_S)[1]) == b"".join(pieces)


def test_many_frames_arrive_in_order(pair: Pair) -> None:
    sizes = [(i * 977) % 40_000 for i in range(500)]

    def send() -> None:
        for i, size in enumerate(sizes):
            pair.asking.send(Attend(step_id=i, layer=i % 3), bytes([i % 256]) * size)

    with in_thread(send):
        for i, size in enumerate(sizes):
            header, body = pair.answering.recv(DEADLINE_S)
            assert header == Attend(step_id=i, layer=i % 3)
            assert bytes(body) == bytes([i % 256]) * size


def test_concurrent_senders_never_mix_their_frames(pair: Pair) -> None:
    def send(mark: int) -> None:
        for _ in range(50):
            pair.asking.send(Attend(step_id=mark, layer=0), bytes([mark]) * 30_000)

    with in_thread(lambda: send(1)), in_thread(lambda: send(2)):
        for _ in range(100):
            header, body = pair.answering.recv(DEADLINE_S)
            assert isinstance(header, Attend)
            assert bytes(body) == bytes([header.step_id]) * 30_000


def test_a_timeout_leaves_the_link_usable(pair: Pair) -> None:
    with pytest.raises(LinkTimeout, match="link to b: no answer within"):
        pair.asking.recv(0.01)
    with pytest.raises(LinkTimeout):
        pair.asking.recv(0)
    pair.answering.send(Partials(step_id=1, layer=0), b"late")
    assert bytes(pair.asking.recv(DEADLINE_S)[1]) == b"late"


def test_who_waits_for_an_answer_looks_for_it_only_a_moment(pair: Pair) -> None:
    used_s = time.thread_time()
    with pytest.raises(LinkTimeout):
        pair.asking.recv(0.5)
    assert time.thread_time() - used_s < 0.1


@pytest.mark.parametrize(
    "slots",
    [[5], list(range(NUM_SLOTS)), [3, 1, 60, 7], [9, 10, 11, 4, 5, 63, 0], [2, 2, 2]],
    ids=["one", "all", "scattered", "runs", "repeated"],
)
@pytest.mark.parametrize("whole", [True, False], ids=["one view", "view per block"])
def test_read(pair: Pair, slots: list[int], whole: bool) -> None:
    target = memoryview(bytearray(len(slots) * SLOT_BYTES))
    into = [target] if whole else [target[i * SLOT_BYTES : (i + 1) * SLOT_BYTES] for i in range(len(slots))]
    with pair.serving():
        pair.asking.read(slots, into, DEADLINE_S)
    for i, slot in enumerate(slots):
        got = target[i * SLOT_BYTES : (i + 1) * SLOT_BYTES]
        assert got == pair.pool.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]


@pytest.mark.parametrize("slots", [[5], list(range(NUM_SLOTS)), [3, 1, 60, 7], [9, 10, 11, 4]])
def test_read_of_a_part_of_every_block(pair: Pair, slots: list[int]) -> None:
    part = 1024, 512
    target = memoryview(bytearray(len(slots) * part[1]))
    with pair.serving():
        pair.asking.read(slots, [target[:512], target[512:]], DEADLINE_S, part)
    starts = [slot * SLOT_BYTES + part[0] for slot in slots]
    assert target == b"".join(pair.pool.view[start : start + part[1]] for start in starts)


@pytest.mark.parametrize("part", [(-1, 2), (0, SLOT_BYTES + 1), (SLOT_BYTES, 1), (4, 0)])
def test_a_part_lies_inside_a_block(pair: Pair, part: Part) -> None:
    with pytest.raises(MalformedMessage, match=f"of a slot of {SLOT_BYTES} bytes"):
        pair.asking.read([0], [memoryview(bytearray(max(1, part[1])))], 1.0, part)


def test_the_serving_end_checks_parts_itself(pair: Pair) -> None:
    pair.asking.send(ReadBlocks(slots=(0,), first_byte=SLOT_BYTES, num_bytes=1))
    header, _body = pair.answering.recv(DEADLINE_S)
    assert isinstance(header, ReadBlocks)
    with pytest.raises(MalformedMessage, match="of a slot of 4096 bytes"):
        serve_read(pair.answering, header, pair.pool)
    with pytest.raises(LinkClosed, match="it refused: part should be within 4096 bytes"):
        pair.asking.recv(DEADLINE_S)


def test_only_links_that_map_a_pool_show_it(pair: Pair, transport: str) -> None:
    mapped = pair.asking.mapped
    assert (mapped is not None) == (transport in ("inproc", "shm"))
    assert mapped is None or (mapped.readonly and mapped == pair.pool.view)


def test_read_of_nothing(pair: Pair) -> None:
    with pair.serving():
        pair.asking.read([], [], DEADLINE_S)
        into = bytearray(SLOT_BYTES)
        pair.asking.read([0], [memoryview(into)], DEADLINE_S)
    assert into == pair.pool.view[:SLOT_BYTES], "the link is as usable as before"


def test_read_larger_than_one_piece(transport: str) -> None:
    with contextlib.closing(pool_for(transport, 300_000, 60)) as pool, open_pair(transport, pool) as pair:
        pool.view[:] = secrets.token_bytes(len(pool.view))
        slots = [*range(40, 60), *range(20)]
        target = memoryview(bytearray(len(slots) * pool.slot_bytes))
        cut = 3 * pool.slot_bytes
        with pair.serving():
            pair.asking.read(slots, [target[:cut], target[cut:]], DEADLINE_S)
        expected = bytes(pool.view[40 * pool.slot_bytes :]) + bytes(pool.view[: 20 * pool.slot_bytes])
        assert target == expected


def test_reads_and_frames_alternate(pair: Pair) -> None:
    target = memoryview(bytearray(SLOT_BYTES))
    with pair.serving():
        for slot in range(5):
            pair.asking.send(Attend(step_id=slot, layer=0), b"q" * slot)
            assert bytes(pair.asking.recv(DEADLINE_S)[1]) == b"q" * slot
            pair.asking.read([slot], [target], DEADLINE_S)
            assert target == pair.pool.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]


@pytest.mark.parametrize("slot", [-1, NUM_SLOTS])
def test_reads_stay_inside_the_pool(pair: Pair, slot: int) -> None:
    with pytest.raises(MalformedMessage, match=f"slot {slot} is outside the pool of {NUM_SLOTS} slots"):
        pair.asking.read([0, slot], [memoryview(bytearray(2 * SLOT_BYTES))], 1.0)


@pytest.mark.parametrize("sizes", [[SLOT_BYTES - 1], [2 * SLOT_BYTES], [SLOT_BYTES // 2] * 2])
def test_views_must_hold_whole_blocks(pair: Pair, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        pair.asking.read([0], [memoryview(bytearray(size)) for size in sizes], 1.0)


def test_the_serving_end_checks_slots_itself(pair: Pair) -> None:
    pair.asking.send(ReadBlocks(slots=(0, NUM_SLOTS)))
    header, _body = pair.answering.recv(DEADLINE_S)
    assert isinstance(header, ReadBlocks)
    with pytest.raises(MalformedMessage, match="outside the pool"):
        serve_read(pair.answering, header, pair.pool)
    with pytest.raises(LinkClosed, match="it refused: slots should be from 0 to 63"):
        pair.asking.recv(DEADLINE_S)


def test_parts_of_more_slots_than_an_answer_is_worth_are_denied(pair: Pair) -> None:
    pair.asking.send(ReadBlocks(slots=(0,) * (MAX_PARTS + 1), num_bytes=1))
    header, _body = pair.answering.recv(DEADLINE_S)
    assert isinstance(header, ReadBlocks)
    with pytest.raises(MalformedMessage, match=f"parts of at most {MAX_PARTS} at once"):
        serve_read(pair.answering, header, pair.pool)


def test_denied_ends_the_link(pair: Pair) -> None:
    pair.answering.send(Denied(field="span", expected="1", got="2"))
    with pytest.raises(LinkClosed, match="span should be 1, got 2"):
        pair.asking.recv(DEADLINE_S)
    with pytest.raises(LinkClosed):
        pair.asking.recv(DEADLINE_S)


def test_a_polite_close_lets_what_was_sent_arrive(pair: Pair) -> None:
    pair.answering.send(Partials(step_id=1, layer=0), b"last words")
    pair.answering.close()
    pair.answering.close()
    assert bytes(pair.asking.recv(DEADLINE_S)[1]) == b"last words"
    with pytest.raises(LinkClosed, match="link to b closed"):
        pair.asking.recv(DEADLINE_S)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_the_peer_ends(pair: Pair, end: str) -> None:
    getattr(pair.answering, end)()
    with pytest.raises(LinkClosed):
        pair.asking.recv(DEADLINE_S)
    with pytest.raises(LinkClosed):
        pair.asking.read([0], [memoryview(bytearray(SLOT_BYTES))], DEADLINE_S)
    with pytest.raises(LinkClosed):  # The first bytes may still go into a socket whose peer is gone.
        for _ in range(1000):
            pair.asking.send(Attend(step_id=0, layer=0), b"x" * 10_000)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_ending_wakes_those_who_wait_here(pair: Pair, end: str) -> None:
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        with pytest.raises(LinkClosed):
            pair.asking.recv(DEADLINE_S)

    began = time.monotonic()
    with in_thread(wait):
        assert waiting.wait(DEADLINE_S)
        getattr(pair.asking, end)()
    assert time.monotonic() - began < DEADLINE_S / 2


def test_nothing_works_after_the_end(pair: Pair) -> None:
    pair.asking.close()
    with pytest.raises(LinkClosed, match="closed on this side"):
        pair.asking.send(Attend(step_id=0, layer=0))
    with pytest.raises(LinkClosed, match="closed on this side"):
        pair.asking.recv(0)
    with pytest.raises(LinkClosed, match="closed on this side"):
        pair.asking.read([0], [memoryview(bytearray(SLOT_BYTES))], 1.0)


def test_links_of_one_listener_are_independent(pair: Pair, transport: str) -> None:
    from tests.wire.links.peers import connect_by

    accepted = []
    with in_thread(lambda: accepted.append(pair.listener.accept(DEADLINE_S))):
        other = connect_by(transport, pair.listener.endpoint)
    other.abort()
    accepted[0].abort()
    pair.listener.close()
    pair.asking.send(Attend(step_id=9, layer=0), b"still here")
    assert bytes(pair.answering.recv(DEADLINE_S)[1]) == b"still here"
