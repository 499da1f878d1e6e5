"""Errors go from one process to another as they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from distkv import errors
from distkv.client.instances.events import ConnectionLost
from distkv.errors import (
    CheckpointError,
    ClusterUnreachable,
    ConfigError,
    DistKVError,
    FrameTooLarge,
    HandshakeRefused,
    InvalidParams,
    LinkClosed,
    LinkTimeout,
    MalformedMessage,
    NoInstanceReady,
    RequestFailed,
    RequestRefused,
    RequestUnknown,
    StartupFailed,
)

EACH = [
    ConfigError("port", "is taken", "use another"),
    InvalidParams("n", "a number", None),
    CheckpointError("a", "is empty"),
    MalformedMessage("is no map"),
    FrameTooLarge(9, 8),
    HandshakeRefused("name", "a", "b"),
    LinkClosed("a", "died"),
    LinkTimeout("a", 0.5),
    StartupFailed("a", "ended", "last words", 1),
    ClusterUnreachable("tcp://127.0.0.1:1", "no answer"),
    RequestUnknown("a", 2, 1),
    RequestRefused(9, 8),
    RequestFailed(True, "is full", 1.5, 8),
    NoInstanceReady("nobody"),
    ConnectionLost("died", rejected=True),
]


def kinds(of: type[DistKVError]) -> Iterator[type[DistKVError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("error", EACH, ids=lambda error: type(error).__name__)
def test_an_error_is_pickled_and_copied(error: DistKVError) -> None:
    """A pool of processes ended, or waited for ever, where a task raised one."""
    error.add_note("seen")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_none_is_left_out() -> None:
    own = {kind for kind in kinds(DistKVError) if kind.__module__ == errors.__name__ and "__init__" in vars(kind)}
    assert own <= set(map(type, EACH))
