"""Blocks over stream sockets, by native calls and without: the same bytes, at the same places."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from distkv.errors import LinkTimeout
from distkv.wire.links.memory.runs import places_of
from distkv.wire.links.memory.slot_views import SlotViews
from distkv.wire.links.native import native
from distkv.wire.links.streams import byte_stream, socket_blocks
from distkv.wire.links.streams.byte_stream import ByteStream
from distkv.wire.links.streams.socket_blocks import ArrivingBlocks, can_check_arriving
from distkv.wire.links.transports import stream_reads
from tests.wire.links.peers import DEADLINE_S, NUM_SLOTS, SLOT_BYTES, in_thread, open_pair, random_pool

SIZE = 320
PLACES = [7, 3, 4, 5, 0, 12]


@pytest.fixture(params=["native", "without the library"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "native":
        for module in (byte_stream, socket_blocks):
            monkeypatch.setattr(module, "native", lambda _name: None)
    elif native("receive_blocks") is None:
        pytest.skip("the native library is not built, or of older sources")


@pytest.fixture
def ends() -> Iterator[tuple[ByteStream, socket.socket]]:
    """One that receives, and the socket at its other end."""
    here, there = socket.socketpair()
    stream = ByteStream(here, "peer")
    with there:
        yield stream, there
        stream.end(abrupt=True)


def content(num_blocks: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(num_blocks).bytes(num_blocks * size)


def arriving(memory: bytearray, *, checked: bool = False) -> ArrivingBlocks:
    places = places_of(SlotViews(memoryview(memory), SIZE, PLACES), SIZE)
    return ArrivingBlocks(places, slice(None), SIZE, checked=checked)


def receive(stream: ByteStream, blocks: ArrivingBlocks, timeout_s: float) -> bool:
    with stream.in_use():
        return stream.receive_blocks(blocks, time.monotonic() + timeout_s, timeout_s)


def placed(content: bytes) -> bytes:
    memory = bytearray(16 * SIZE)
    for index, place in enumerate(PLACES):
        memory[place * SIZE : (place + 1) * SIZE] = content[index * SIZE : (index + 1) * SIZE]
    return bytes(memory)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("cut", [1, SIZE - 1, SIZE, 2 * SIZE + 5, 6 * SIZE - 1])
def test_it_goes_on_where_it_stopped(ends: tuple[ByteStream, socket.socket], cut: int) -> None:
    stream, there = ends
    sent, memory = content(6), bytearray(16 * SIZE)
    blocks = arriving(memory)
    there.sendall(sent[:cut])
    with pytest.raises(LinkTimeout):
        receive(stream, blocks, 0.0)
    assert blocks.received == cut
    there.sendall(sent[cut:] + b"of the next frame")
    assert receive(stream, blocks, DEADLINE_S)
    assert memory == placed(sent)
    assert there.send(b"x") and stream.receive([memoryview(bytearray(18))], DEADLINE_S, DEADLINE_S) in (17, 18)


@pytest.mark.usefixtures("library")
def test_what_was_received_before_is_taken_first(ends: tuple[ByteStream, socket.socket]) -> None:
    stream, there = ends
    sent, memory = content(6), bytearray(16 * SIZE)
    blocks = arriving(memory)
    assert blocks.take(memoryview(sent)[: 2 * SIZE + 9]) == 2 * SIZE + 9
    there.sendall(sent[2 * SIZE + 9 :])
    assert receive(stream, blocks, DEADLINE_S) and memory == placed(sent)
    assert blocks.take(memoryview(b"of the next frame")) == 0


@pytest.mark.usefixtures("library")
def test_the_peer_ends_in_the_middle(ends: tuple[ByteStream, socket.socket]) -> None:
    stream, there = ends
    blocks = arriving(bytearray(16 * SIZE))
    there.sendall(content(6)[:-1])
    there.close()
    assert not receive(stream, blocks, DEADLINE_S)
    assert blocks.left_bytes == 1


@pytest.mark.skipif(not can_check_arriving(SIZE), reason="the native library is not built, or this CPU is too old")
def test_each_is_checked_once_whatever_it_came_in(ends: tuple[ByteStream, socket.socket]) -> None:
    stream, there = ends
    sent, memory = content(6), bytearray(16 * SIZE)
    blocks = arriving(memory, checked=True)
    taken = blocks.take(memoryview(sent)[: SIZE + 1])
    for end in (2 * SIZE, 4 * SIZE - 7, 6 * SIZE - 1):
        there.sendall(sent[taken:end])
        with pytest.raises(LinkTimeout):
            receive(stream, blocks, 0.0)
        taken = end
    there.sendall(sent[taken:])
    assert receive(stream, blocks, DEADLINE_S) and memory == placed(sent)
    found = blocks.checksums.tolist()
    assert found == [xxhash.xxh3_64_intdigest(sent[at : at + SIZE]) for at in range(0, len(sent), SIZE)]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("piece_slots", [8192, 700])
def test_more_blocks_than_go_by_one_call(transport: str, piece_slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the buffers between hold, too; in one answer, and in several."""
    monkeypatch.setattr(stream_reads, "_PIECE_SLOTS", piece_slots)
    num_slots = 2 * 5000
    with random_pool(num_slots=num_slots) as pool, open_pair(transport, pool) as pair, pair.serving():
        slots = np.random.default_rng(1).permutation(num_slots)[:5000].tolist()
        memory = bytearray(num_slots * SLOT_BYTES)
        into = SlotViews(memoryview(memory), SLOT_BYTES, slots[::-1])
        pair.asking.read(slots, into, DEADLINE_S)
        rows = np.frombuffer(memory, dtype=np.uint8).reshape(num_slots, -1)
        expected = np.frombuffer(pool.view, dtype=np.uint8).reshape(num_slots, -1)
        assert np.array_equal(rows[slots[::-1]], expected[slots])
        assert not np.delete(rows, slots, axis=0).any()
        del rows, expected


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_what_is_asked_for_ahead_fits_into_the_buffers_between(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small blocks their numbers alone are many; the owner takes none while it sends an answer."""
    monkeypatch.setattr(stream_reads, "SEND_TIMEOUT_S", 0.05)
    slot_bytes, num_slots = 64, 300_000
    with random_pool(slot_bytes, num_slots) as pool, open_pair(transport, pool) as pair:
        into = memoryview(bytearray(slot_bytes * num_slots))
        read = pair.asking.read_blocks(range(num_slots - 1, -1, -1), [into])
        with pair.serving():
            read.wait(DEADLINE_S)
        found, wanted = np.frombuffer(into, np.uint8), np.frombuffer(pool.view, np.uint8)
        assert np.array_equal(found.reshape(num_slots, -1)[::-1], wanted.reshape(num_slots, -1))
        del found, wanted


@pytest.mark.usefixtures("library")
def test_a_peer_that_takes_nothing_is_given_up(ends: tuple[ByteStream, socket.socket]) -> None:
    stream, _there = ends
    blocks = SlotViews(memoryview(bytes(2**24)), 2**12, range(2**12))
    with pytest.raises(LinkTimeout):
        sent = stream.send_blocks(b"head", blocks, 0.05)
        assert not sent, "without the library"
        stream.send(list(blocks), blocks.nbytes, 0.05)


@pytest.mark.usefixtures("library")
def test_a_peer_that_takes_bit_by_bit_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By TCP: within a host one call of the system may wait for each bit anew."""
    for least in "LEAST_BYTES_PER_S", "LEAST_BLOCK_BYTES_PER_S":
        monkeypatch.setattr(byte_stream, least, 1e9)
    is_over, size = threading.Event(), 2**24
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        stream = ByteStream(here, "peer")

        def take() -> None:
            while not is_over.wait(0.005):
                there.recv(2**14)

        slow = threading.Thread(target=take)
        slow.start()
        with there:
            try:
                with pytest.raises(LinkTimeout):
                    blocks = SlotViews(memoryview(bytes(size)), 2**12, range(size // 2**12))
                    sent = stream.send_blocks(b"head", blocks, 0.5)
                    assert not sent, "without the library"
                    stream.send(list(blocks), size, 0.5)
            finally:
                is_over.set()
                slow.join(DEADLINE_S)
                stream.end(abrupt=True)


def test_an_end_wakes_who_receives(ends: tuple[ByteStream, socket.socket]) -> None:
    stream, there = ends
    blocks = arriving(bytearray(16 * SIZE))
    there.sendall(b"x")
    waiting = threading.Event()

    def wait() -> None:
        with stream.in_use():
            waiting.set()
            assert not stream.receive_blocks(blocks, time.monotonic() + DEADLINE_S, DEADLINE_S)

    began = time.monotonic()
    with in_thread(wait):
        assert waiting.wait(DEADLINE_S)
        stream.end(abrupt=True)
    assert time.monotonic() - began < DEADLINE_S / 2


def test_a_destination_that_cannot_be_written_is_refused_before_anything_is_asked() -> None:
    with open_pair("tcp") as pair, pair.serving():
        into = memoryview(bytearray(SLOT_BYTES))
        with pytest.raises(ValueError, match="cannot be written"):
            pair.asking.read([0], [into.toreadonly()], DEADLINE_S)
        pair.asking.read([NUM_SLOTS - 1], [into], DEADLINE_S)
        assert into == pair.pool.view[-SLOT_BYTES:]
