"""A watch whose thread could not be started is one that has not begun."""

from __future__ import annotations

import threading

import pytest

from distkv.actors.worker.links.link_watch import LinkWatch
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
