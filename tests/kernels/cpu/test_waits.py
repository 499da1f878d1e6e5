"""When a debtor and a creditor look for what they wait for, and when they sleep."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
import torch

from distkv.kernels.exchange import FrameStatus
from tests.kernels.cpu.exchange_case import (
    DEADLINE_S,
    DIM,
    HEADS,
    LAYERS,
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


DUE_S, LATE_S = 0.01, 0.3
"""When something came the last times, and when it comes."""


def test_queries_are_looked_for_when_they_are_due_and_slept_for_when_they_are_late(
    case: Case, ends: tuple[socket.socket, socket.socket]
) -> None:
    assert late_queries(case, ends, is_busy=False) == (1, 1)


def test_a_creditor_that_computes_for_itself_looks_for_nothing(
    case: Case, ends: tuple[socket.socket, socket.socket]
) -> None:
    """Its thread may not have run for so long that it seems to rest, where much else runs; hardly each time."""
    assert (0, 0) in (late_queries(case, ends, is_busy=True) for _ in range(5))


def late_queries(case: Case, ends: tuple[socket.socket, socket.socket], *, is_busy: bool) -> tuple[int, int]:
    """Looks in vain so far, and waits that go without one, of a creditor that had queries late. is_busy: it computes
    for itself."""
    here, there = ends
    frames = [PARTIALS[layer] + body(*case.partial(layer)) for layer in range(LAYERS)]
    serving: Any = case.exchanges.serving(case.metadata, ROWS, case.exchanges.gate(), case.exchanges.clock())
    serving.begin(POSITIONS, QUERIES, PARTIALS)
    pauses = serving._call.pauses
    pauses.last_s = pauses.before_s = DUE_S
    is_over, took_s = threading.Event(), []

    def serve() -> None:
        began_s = time.thread_time()
        assert serving.run(here.fileno(), b"", DEADLINE_S, DEADLINE_S).status is FrameStatus.OK
        took_s.append(time.thread_time() - began_s)

    def compute() -> None:
        while not is_over.is_set():
            case.partial(0)

    threads = [threading.Thread(target=each) for each in (serve, *((compute,) if is_busy else ()))]
    time.sleep(0.2)  # what this test has computed itself is long ago
    for thread in threads:
        thread.start()
    for layer, frame in enumerate(frames):
        there.sendall(QUERIES[layer] + body(case.q))
        assert received(there, len(frame)) == frame
        time.sleep(LATE_S * (layer == 0))
    is_over.set()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert pauses.last_s > LATE_S / 2 and pauses.before_s == DUE_S
    assert took_s[0] < LATE_S / 3, "it looks for what does not come"
    return pauses.in_vain, pauses.waits_without


def test_an_answer_is_looked_for_when_it_is_due_and_slept_for_when_it_is_late(
    case: Case, ends: tuple[socket.socket, socket.socket]
) -> None:
    here, there = ends
    layers: Any = exchange(case, here)
    waits = layers._peers[0].waits
    frame = PARTIALS[1] + body(torch.randn(ROWS, HEADS, DIM), torch.randn(ROWS, HEADS))
    for due_s, later_s, found in [
        (DUE_S, LATE_S, (1, 1)),  # looked for in vain
        (DUE_S, LATE_S, (1, 0)),  # one goes without
        (DUE_S, LATE_S, (2, 2)),
        (0.0, LATE_S, (2, 2)),  # nothing came yet
        (LATE_S, 0.0, (2, 1)),
        (LATE_S, 0.0, (2, 0)),
        (LATE_S, 0.0, (0, 0)),  # earlier than it was due
    ]:
        waits.last_s = waits.before_s = due_s
        answer = threading.Timer(later_s, there.sendall, [frame])
        answer.start()
        began_s = time.thread_time()
        assert layers(1, case.q).merged is not None
        assert time.thread_time() - began_s < LATE_S / 3, "it looks for what does not come"
        answer.join(DEADLINE_S)
        assert (waits.in_vain, waits.waits_without) == found
        assert received(there, len(QUERIES[1]) + QUERY_BYTES)


@pytest.mark.parametrize("due_s", [0.01, 10.0])
def test_what_is_looked_for_is_not_waited_for_beyond_the_deadline(
    case: Case, ends: tuple[socket.socket, socket.socket], due_s: float
) -> None:
    here, _ = ends
    layers: Any = exchange(case, here, patience_s=0.2)
    waits = layers._peers[0].waits
    waits.last_s = waits.before_s = due_s
    began_s, computed_s = time.monotonic(), time.thread_time()
    (answer,) = layers(1, case.q).answers
    assert answer.status is FrameStatus.LATE
    assert 0.2 <= time.monotonic() - began_s < 5 and time.thread_time() - computed_s < 0.1
    assert waits.last_s == due_s, "nothing came"
