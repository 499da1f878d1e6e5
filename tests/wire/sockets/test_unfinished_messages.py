"""Who sends more of one message than a message may be is shut; who sends much, or waits to be read, is not."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from distkv.wire.sockets import reading_pace, unfinished_messages
from distkv.wire.sockets.unfinished_messages import HEADER_BYTES, ROUND_S, SLICES, UnfinishedMessages

MESSAGE_BYTES = 1000
LIMIT_BYTES = 2 * MESSAGE_BYTES


class Watched:
    """A connection that is looked at when a test says so. `take` is what ZeroMQ's thread does, `read` what we do."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.waits = False
        self.shut = 0
        self._near, self._far = near, far
        self._watch = UnfinishedMessages({far.fileno()}, MESSAGE_BYTES, lambda: not self.waits, self._note)
        self._watch.close()

    def send(self, size_bytes: int) -> None:
        self._near.sendall(bytes(size_bytes))

    def take(self, size_bytes: int) -> None:
        assert len(self._far.recv(size_bytes, socket.MSG_WAITALL)) == size_bytes

    def read(self, frames: int, size_bytes: int) -> None:
        self._watch.read(self._far.fileno(), frames, size_bytes)

    def look(self) -> int:
        """How often it was shut by now."""
        self._watch._look_at(self._far.fileno())
        return self.shut

    def _note(self, descriptor: int) -> None:
        assert descriptor == self._far.fileno()
        self.shut += 1


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(unfinished_messages, "INEXACT_BYTES", 0)
    monkeypatch.setattr(unfinished_messages, "LEAST_BYTES", 0)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        yield Watched(near, far)


async def test_what_is_more_than_a_message_and_was_not_read_is_too_much(watched: Watched) -> None:
    watched.send(LIMIT_BYTES)
    watched.take(LIMIT_BYTES)
    assert not watched.look()
    watched.send(1)
    watched.take(1)
    assert watched.look() == 1


async def test_what_is_read_does_not_count_however_much_it_is(watched: Watched) -> None:
    for _ in range(100):
        watched.send(LIMIT_BYTES)
        watched.take(LIMIT_BYTES)
        watched.read(frames=10, size_bytes=LIMIT_BYTES - 10 * HEADER_BYTES)
        assert not watched.look()


async def test_what_was_counted_for_headers_that_are_shorter_is_no_credit(watched: Watched) -> None:
    watched.send(LIMIT_BYTES)
    watched.take(LIMIT_BYTES)
    watched.read(frames=LIMIT_BYTES, size_bytes=0)
    assert not watched.look()
    watched.send(LIMIT_BYTES + 1)
    watched.take(LIMIT_BYTES + 1)
    assert watched.look() == 1


async def test_what_waits_for_a_process_that_stood_still_does_not_count(watched: Watched) -> None:
    """In the kernel, where ZeroMQ's thread stood still too, or in ZeroMQ."""
    watched.send(10 * LIMIT_BYTES)
    assert not watched.look()
    watched.take(10 * LIMIT_BYTES)
    watched.waits = True
    assert not watched.look()
    watched.waits = False
    assert watched.look() == 1


async def test_where_something_waits_one_that_sends_far_more_than_is_read_is_shut(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_pace, "LEAST_BEHIND_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(reading_pace, "QUOTA_MESSAGES", 10)
    monkeypatch.setattr(reading_pace, "MOST_UNREAD_FRAMES", 200)
    watched.waits = True
    watched.send(20 * LIMIT_BYTES)
    watched.take(20 * LIMIT_BYTES)
    assert not watched.look(), "nothing was read yet"
    watched.read(frames=10, size_bytes=LIMIT_BYTES)
    assert not watched.look(), "what is left is not so many as long as these"
    watched.read(frames=10, size_bytes=10)
    assert watched.look() == 1


async def test_of_all_that_begin_much_those_that_begin_most_are_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that the others may go on."""
    begun = {3: 5 * LIMIT_BYTES // 10, 4: 9 * LIMIT_BYTES // 10, 5: 8 * LIMIT_BYTES // 10, 6: 0}
    shut: list[int] = []
    monkeypatch.setattr(unfinished_messages, "INEXACT_BYTES", 0)
    monkeypatch.setattr(unfinished_messages, "LEAST_BYTES", 1)
    monkeypatch.setattr(unfinished_messages, "MOST_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(unfinished_messages, "received_bytes", begun.__getitem__)
    monkeypatch.setattr(unfinished_messages, "waiting_bytes", lambda _: 0)
    monkeypatch.setattr(unfinished_messages, "shut_down", lambda _, received: True)
    watch = UnfinishedMessages(begun, MESSAGE_BYTES, lambda: True, shut.append)
    for _ in range(len(begun) + 1):
        watch.close()
        watch._look()
    watch.close()
    assert shut == [4, 5]


async def test_a_round_takes_no_longer_when_connections_close_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes then would be looked at a round later than it should."""
    monkeypatch.setattr(unfinished_messages, "received_bytes", lambda descriptor: 0)
    connections = set(range(1000))
    watch = UnfinishedMessages(connections, MESSAGE_BYTES, lambda: True, lambda _: None)
    watch.close()
    watch._look()
    watch.close()
    connections.clear()
    pauses_s = 0.0
    while watch._to_look_at:
        watch._look()
        watch.close()
        pauses_s += watch._pause_s
    assert pauses_s <= ROUND_S


async def test_a_round_looks_at_every_connection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices, none of which is much longer than the others."""
    asked: list[int] = []
    monkeypatch.setattr(unfinished_messages, "received_bytes", lambda descriptor: asked.append(descriptor) or 0)
    watch = UnfinishedMessages(range(1000), MESSAGE_BYTES, lambda: True, lambda _: None)
    longest = 0
    while len(asked) < 1000:
        before = len(asked)
        watch._look()
        watch.close()
        longest = max(longest, len(asked) - before)
    assert sorted(asked) == list(range(1000))
    assert longest <= 1000 // SLICES + 1
