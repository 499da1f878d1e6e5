"""When an end of a link looks for bytes before it sleeps for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from distkv.wire.links.streams.byte_stream import LOOKS_S, ByteStream, Looks
from tests.wire.links.peers import DEADLINE_S

ASKS, ANSWERS = True, False


def looks_of(looks: Looks, waits: int, *, found: bool) -> list[int]:
    """In which of so many waits it looked."""
    looked = []
    for number in range(waits):
        if looks.wanted():
            looked.append(number)
            looks.looked(found=found)
    return looked


def test_who_asks_looks_every_time_as_long_as_it_finds_something() -> None:
    looks = Looks(always=ASKS)
    assert looks_of(looks, 5, found=True) == [0, 1, 2, 3, 4]
    looks.waited(10.0)
    assert looks.wanted(), "what comes late was asked for all the same"


def test_looks_in_vain_grow_rare() -> None:
    looks = Looks(always=ASKS)
    looked = looks_of(looks, 1000, found=False)
    assert looked[:5] == [0, 2, 5, 10, 19]
    pauses = [after - before - 1 for before, after in pairwise(looked)]
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 64] and set(pauses[7:]) == {64}


def test_one_that_finds_something_ends_the_pauses() -> None:
    looks = Looks(always=ASKS)
    looks_of(looks, 100, found=False)
    while not looks.wanted():
        pass
    looks.looked(found=True)
    assert looks_of(looks, 3, found=True) == [0, 1, 2]


def test_who_answers_looks_only_after_a_request_that_came_soon() -> None:
    looks = Looks(always=ANSWERS)
    assert not looks.wanted()
    looks.waited(LOOKS_S)
    assert looks.wanted()
    looks.waited(3 * LOOKS_S)
    assert not looks.wanted()


@pytest.fixture
def ends() -> Iterator[tuple[ByteStream, socket.socket]]:
    here, there = socket.socketpair()
    stream = ByteStream(here, "peer", awaits=True)
    with there:
        yield stream, there
        stream.end(abrupt=True)


def test_what_is_there_is_found_by_the_look(
    ends: tuple[ByteStream, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, there = ends
    ended: list[bool] = []
    monkeypatch.setattr(Looks, "looked", lambda _looks, *, found: ended.append(found))
    view = memoryview(bytearray(4))
    there.send(b"here")
    with stream.in_use():
        assert stream.receive([view], time.monotonic() + DEADLINE_S, DEADLINE_S) == 4
    assert view == b"here" and ended == [True]
