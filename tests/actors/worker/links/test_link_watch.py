"""A watch whose thread could not be started is one that has not begun; one whose calls fail goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from distkv.actors.worker.links.link_watch import LinkWatch
from distkv.wire.links.streams.frames import FrameSocket
from tests.threads import NO_THREAD, no_threads

DEADLINE_S = 20.0


def test_it_begins_once_there_are_threads_again() -> None:
    watch, called = LinkWatch(), threading.Event()
    with no_threads(), pytest.raises(RuntimeError, match=NO_THREAD):
        watch.later(0.0, called.set)
    watch.later(0.0, called.set)
    assert called.wait(DEADLINE_S)
    watch.close()


def test_it_ends_though_it_never_began() -> None:
    watch = LinkWatch()
    with no_threads(), pytest.raises(RuntimeError, match=NO_THREAD):
        watch.later(0.0, lambda: None)
    watch.close()
    watch.close()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a link."""
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_a_call_that_fails_keeps_no_other_from_being_made(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    watch, failed, called = LinkWatch(), threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise RuntimeError("it cannot be unmapped")

    frames = FrameSocket(near, "peer")
    with capture_logs() as lines:
        watch.on_end(frames, called.set)
        watch.later(0.0, fail)
        assert failed.wait(DEADLINE_S)
        far.close()
        assert called.wait(DEADLINE_S)
    watch.close()
    assert [(line["event"], line["problem"]) for line in lines] == [
        ("the end of a link was not followed", "it cannot be unmapped")
    ]


def test_what_is_to_be_watched_after_its_end_is_not_kept_open(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, _far = sockets
    watch, frames = LinkWatch(), FrameSocket(near, "peer")
    watch.close()
    watch.on_end(frames, lambda: None)
    frames.end(abrupt=True)
    assert near.fileno() == -1
