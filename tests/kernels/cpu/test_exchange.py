"""The native calls of a debtor's and a creditor's layer, each with the other end of a socket in this test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest
import torch

from distkv.kernels import AttentionMetadata, BlockTable, Partial, empty_partial
from distkv.kernels.attention.merge import merge
from distkv.kernels.exchange import Asked, FrameStatus, MergeRun, ServeClock, Served, Serving
from tests.kernels.cpu.exchange_case import (
    BLOCK,
    BLOCKS,
    DEADLINE_S,
    DIM,
    HEADS,
    LAYERS,
    PARTIAL_BYTES,
    PARTIALS,
    POSITIONS,
    QUERIES,
    QUERY_BYTES,
    ROWS,
    Case,
    body,
    exchange,
    received,
    usable,
)

pytestmark = pytest.mark.skipif(not usable, reason="the native library is not built")


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_layer(case: Case, ends: tuple[socket.socket, socket.socket], layer: int) -> None:
    here, there = ends
    theirs = torch.randn(ROWS, HEADS, DIM), torch.randn(ROWS, HEADS)
    there.sendall(PARTIALS[layer] + body(*theirs))
    done = exchange(case, here)(layer, case.q)
    assert received(there, len(QUERIES[layer]) + QUERY_BYTES) == QUERIES[layer] + body(case.q)
    assert done.merged is not None
    local = case.partial(layer)
    assert all(torch.equal(*pair) for pair in zip(done.local, local, strict=True))
    assert torch.equal(done.merged, case.backend.merge([theirs, local])[0])
    torch.testing.assert_close(done.merged, merge([theirs, local])[0])
    (answer,) = done.answers
    assert answer.status is FrameStatus.OK
    times = answer.asked_s, answer.sent_s, done.sent_s, done.attended_s, answer.answered_s, done.collected_s
    assert list(times) == sorted(times) and done.merged_s >= done.collected_s


def rounded(partial: Partial) -> Partial:
    """As it arrives: out in bfloat16 and back."""
    return partial[0].bfloat16().float(), partial[1]


def frame_of(partial: Partial) -> bytes:
    """The body of one whose out travels as bfloat16."""
    return body(partial[0].bfloat16().view(torch.int16), partial[1])


def test_partials_that_travel_as_bfloat16(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    theirs = torch.randn(ROWS, HEADS, DIM), torch.randn(ROWS, HEADS)
    runs = [MergeRun(0, ROWS, ((1, 0), (0, 0)))]
    asked = Asked(here.fileno(), slice(0, ROWS), ROWS, QUERIES, PARTIALS, DEADLINE_S, torch.bfloat16)
    there.sendall(PARTIALS[0] + frame_of(theirs))
    done = case.exchanges.exchange(case.metadata, ROWS, runs, [asked])(0, case.q)
    (answer,) = done.answers
    assert done.merged is not None and answer.status is FrameStatus.OK
    assert all(torch.equal(*pair) for pair in zip(answer.partial, rounded(theirs), strict=True))
    assert torch.equal(done.merged, case.backend.merge([rounded(theirs), case.partial(0)])[0])
    here.setblocking(False)
    with pytest.raises(BlockingIOError):
        here.recv(1)


def test_served_partials_that_travel_as_bfloat16(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    """Rounded to the nearest, as torch does it, bit by bit; their lse is as it was."""
    here, there = ends
    creditor = Creditor(case, here, out_dtype=torch.bfloat16)
    assert creditor.serving.partial_bytes == ROWS * HEADS * (DIM * 2 + 4)
    for layer in range(LAYERS):
        there.sendall(QUERIES[layer] + body(case.q))
        expected = PARTIALS[layer] + frame_of(case.partial(layer))
        assert received(there, len(expected)) == expected
    creditor.join()
    assert creditor.served.status is FrameStatus.OK


def test_empty_partials_change_nothing(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.sendall(PARTIALS[0] + body(*empty_partial(ROWS, HEADS, DIM)))
    merged = exchange(case, here)(0, case.q).merged
    assert merged is not None
    torch.testing.assert_close(merged, case.partial(0)[0])


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"x" * 16, id="no longer than what all frames begin with"),
        pytest.param(PARTIALS[1], id="of another layer"),
        pytest.param(PARTIALS[0][:-1] + b"!" + bytes(PARTIAL_BYTES), id="different at the end of its header"),
    ],
)
def test_another_frame_is_handed_back(case: Case, ends: tuple[socket.socket, socket.socket], frame: bytes) -> None:
    here, there = ends
    there.sendall(frame)
    done = exchange(case, here)(0, case.q)
    (answer,) = done.answers
    assert (done.merged, answer.status) == (None, FrameStatus.OTHER)
    here.setblocking(False)
    rest = b""
    while len(answer.taken) + len(rest) < len(frame):
        rest += here.recv(len(frame))
    assert answer.taken + rest == frame
    assert torch.equal(done.local[0], case.partial(0)[0])


def test_a_creditor_that_ends_or_is_late(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.sendall(PARTIALS[0][:20])
    (answer,) = exchange(case, here, patience_s=0.01)(0, case.q).answers
    assert (answer.status, answer.taken) == (FrameStatus.LATE, PARTIALS[0][:20])
    there.close()
    (answer,) = exchange(case, here)(0, case.q).answers
    assert answer.status is FrameStatus.ENDED


def test_a_creditor_that_takes_queries_in_bits_is_late(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    """All of a batch waits with them: patience does not begin anew with each bit."""
    here, there = ends
    is_over, taken = threading.Event(), bytearray()

    def take() -> None:
        while not is_over.wait(0.005):
            taken.extend(there.recv(4096))

    beginning = b"q" * 2**21
    asked = Asked(here.fileno(), slice(0, ROWS), ROWS, [beginning], PARTIALS, 0.05)
    slow = threading.Thread(target=take)
    slow.start()
    done = case.exchanges.exchange(case.metadata, ROWS, [MergeRun(0, ROWS, ((1, 0), (0, 0)))], [asked])(0, case.q)
    is_over.set()
    slow.join(DEADLINE_S)
    there.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while part := there.recv(2**20):
            taken.extend(part)
    (answer,) = done.answers
    assert answer.status is FrameStatus.LATE and len(taken) < len(beginning)


def test_signals_are_not_taken_for_an_end(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    is_over = threading.Event()

    def disturb() -> None:
        received(there, len(QUERIES[0]))
        for _ in range(50):
            os.kill(os.getpid(), signal.SIGUSR1)
        there.sendall(PARTIALS[0] + body(*empty_partial(ROWS, HEADS, DIM)))
        is_over.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert exchange(case, here)(0, case.q).merged is not None
        assert is_over.wait(DEADLINE_S)
    finally:
        thread.join(DEADLINE_S)
        signal.signal(signal.SIGUSR1, before)


class Creditor:
    """Serves the layers of a plan in a thread."""

    def __init__(
        self,
        case: Case,
        here: socket.socket,
        got: bytes = b"",
        idle_s: float = DEADLINE_S,
        out_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.gate, self.clock = case.exchanges.gate(), case.exchanges.clock()
        self.serving: Serving = case.exchanges.serving(case.metadata, ROWS, self.gate, self.clock, out_dtype)
        assert self.serving.query_bytes == QUERY_BYTES
        assert self.serving.partial_bytes == PARTIAL_BYTES or out_dtype != torch.float32
        self.serving.begin(POSITIONS, QUERIES, PARTIALS)
        self.thread = threading.Thread(target=self._run, args=(here.fileno(), got, idle_s))
        self.thread.start()

    def _run(self, fd: int, got: bytes, idle_s: float) -> None:
        self.served = self.serving.run(fd, got, idle_s, DEADLINE_S)

    def join(self) -> None:
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def ask(case: Case, there: socket.socket, layer: int, sent: int = 0) -> None:
    """sent: bytes of the frame that are there already."""
    there.sendall((QUERIES[layer] + body(case.q))[sent:])
    expected = PARTIALS[layer] + body(*case.partial(layer))
    assert received(there, len(expected)) == expected


@pytest.mark.parametrize("there_already", [0, 10, len(QUERIES[0]), len(QUERIES[0]) + 50])
def test_all_layers_are_served(case: Case, ends: tuple[socket.socket, socket.socket], there_already: int) -> None:
    here, there = ends
    creditor = Creditor(case, here, (QUERIES[0] + body(case.q))[:there_already])
    ask(case, there, 0, there_already)
    ask(case, there, 1)
    creditor.join()
    served = creditor.served
    assert (served.status, served.next_layer, served.taken) == (FrameStatus.OK, LAYERS, b"")
    assert [layer for layer, _, _ in served.times] == [0, 1]
    assert 0 < creditor.clock.total_s() <= sum(end - start for _, start, end in served.times) + 1e-6


def test_what_is_no_query_of_the_next_layer_is_handed_back(
    case: Case, ends: tuple[socket.socket, socket.socket]
) -> None:
    here, there = ends
    creditor = Creditor(case, here)
    ask(case, there, 0)
    there.sendall(b"something of another kind")
    creditor.join()
    served = creditor.served
    assert (served.status, served.next_layer) == (FrameStatus.OTHER, 1)
    assert b"something of another kind".startswith(served.taken) and len(served.taken) >= 16


def test_a_peer_that_sends_nothing(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    creditor = Creditor(case, here, idle_s=0.01)
    creditor.join()
    assert (creditor.served.status, creditor.served.next_layer) == (FrameStatus.LATE, 0)
    there.close()
    creditor = Creditor(case, here)
    creditor.join()
    assert creditor.served.status is FrameStatus.ENDED


def test_nothing_is_read_behind_a_gate_that_is_shut(case: Case, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    creditor = Creditor(case, here)
    ask(case, there, 0)
    assert not creditor.gate.shut(), "it waits for queries"
    frame = QUERIES[1] + body(case.q)
    there.sendall(frame)
    creditor.join()
    assert (creditor.served.status, creditor.served.next_layer) == (FrameStatus.SHUT, 1)
    assert creditor.served.taken == frame


def test_what_is_shut_in_the_middle_of_a_read_waits_for_no_peer(
    case: Case, ends: tuple[socket.socket, socket.socket]
) -> None:
    """One that takes no partials, of which there are more than a socket holds."""
    here, there = ends
    rows, repeats = 2048, 1024
    length = repeats * BLOCKS * BLOCK
    q = torch.randn(rows, HEADS, DIM)
    table = BlockTable([0, 1, 2] * repeats, range(0, length, BLOCK), length, BLOCK)
    metadata = AttentionMetadata((range(rows),), (table,), torch.full((rows,), length))
    gate, clock = case.exchanges.gate(), case.exchanges.clock()
    serving: Serving = case.exchanges.serving(metadata, rows, gate, clock)
    serving.begin(metadata.positions, QUERIES, PARTIALS)
    served: list[Served] = []
    thread = threading.Thread(target=lambda: served.append(serving.run(here.fileno(), b"", DEADLINE_S, DEADLINE_S)))
    thread.start()
    frame = QUERIES[0] + body(q)
    there.sendall(frame)
    while not clock.total_s():
        time.sleep(0.001)
    assert gate.shut(), "it reads"
    thread.join(DEADLINE_S / 2)
    assert not thread.is_alive()
    assert (served[0].status, served[0].next_layer) == (FrameStatus.SHUT, 0)
    assert served[0].taken == frame, "it is served again where what is gone is told"
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
        there.recv(1)


def test_the_clock_counts_no_time_twice(case: Case) -> None:
    clock: ServeClock = case.exchanges.clock()
    assert clock.total_s() == 0
    clock.begin()
    clock.begin()
    clock.end()
    during = clock.total_s()
    clock.end()
    after = clock.total_s()
    assert 0 < during <= after == clock.total_s()
