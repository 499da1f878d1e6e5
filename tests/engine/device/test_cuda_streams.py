"""Which stream who gets; torch's are in the way of that only on a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from distkv.engine.device.cuda_streams import OWN, SHARED, CudaStreams

PLACE = torch.device("cuda", 0)
OF_TORCH = 32


class Stream:
    """torch gives out 32 of a priority in turn. waited_for: the streams that it comes after."""

    made = itertools.count()

    def __init__(self, place: torch.device, priority: int = 0) -> None:
        self.key = (priority, next(Stream.made) % OF_TORCH)
        self.waited_for: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited_for.append(other)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> CudaStreams:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: "the current one")
    return CudaStreams(PLACE)


def test_no_transfer_gets_a_stream_that_may_be_captured(streams: CudaStreams) -> None:
    """However many threads have asked for one."""
    own = {streams.own().key for _ in range(100)}  # type: ignore[attr-defined]
    shared = {streams.shared(urgent=urgent).key for urgent in (False, True) for _ in range(1000)}  # type: ignore[attr-defined]
    assert (len(own), len(shared)) == (OWN, 2 * SHARED)
    assert not own & shared and streams.aside.key not in own | shared  # type: ignore[attr-defined]


def test_urgent_ones_go_first(streams: CudaStreams) -> None:
    assert streams.shared(urgent=True).key[0] < streams.shared(urgent=False).key[0]  # type: ignore[attr-defined]


def test_what_was_given_to_the_current_stream_is_done_first(streams: CudaStreams) -> None:
    """It may have filled the tensors that are used next."""
    for stream in (streams.own(), streams.shared(urgent=True)):
        assert stream.waited_for == ["the current one"]  # type: ignore[attr-defined]
