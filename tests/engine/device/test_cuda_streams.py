"""Which stream who gets; torch's are in the way of that only on a GPU."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager

import pytest
import torch

from distkv.engine.device.cuda_streams import OWN, QUEUES, SHARED, URGENT, CudaStreams

PLACE = torch.device("cuda", 0)
OF_TORCH = 32


class Stream:
    """torch gives out 32 of a priority in turn. waited_for: the streams that it comes after."""

    made = itertools.count()

    def __init__(self, place: torch.device, priority: int = 0) -> None:
        self.device = place
        self.key = (priority, next(Stream.made) % OF_TORCH)
        self.waited_for: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited_for.append(other)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> CudaStreams:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: "the current one")
    return CudaStreams(PLACE)


def key(context: AbstractContextManager[object]) -> tuple[int, int]:
    found: tuple[int, int] = context.stream.key  # type: ignore[attr-defined]
    return found


def test_no_transfer_gets_a_stream_that_may_be_captured(streams: CudaStreams) -> None:
    """However many threads have asked for one."""
    own = {key(streams.own()) for _ in range(100)}
    kept = [streams.shared(urgent=urgent) for urgent in (False, True) for _ in range(1000)]
    shared = {key(one) for one in kept}
    assert (len(own), len(shared)) == (OWN, SHARED + URGENT)
    assert not own & shared and streams.aside.key not in own | shared  # type: ignore[attr-defined]
    assert len(own | shared) + 1 <= QUEUES, "who waits for another GPU would hold up whoever has the same queue"


def test_nobody_shares_one_while_another_is_free(streams: CudaStreams) -> None:
    """Whatever threads came and went."""
    kept = [streams.shared(urgent=True) for _ in range(3)]
    for _ in range(5 * URGENT):
        streams.shared(urgent=True)
    kept += [streams.shared(urgent=True) for _ in range(URGENT - 3)]
    assert len({key(one) for one in kept}) == URGENT
    kept += [streams.shared(urgent=True) for _ in range(URGENT)]
    assert sorted(map(key, kept)) == sorted([key(one) for one in kept[:URGENT]] * 2), "then as few as can be"


def test_who_keeps_one_has_it_alone_until_the_end(streams: CudaStreams) -> None:
    """Who waits for mail on one would hold up who has the same, and two who wait for each other's would never end."""
    kept = [streams.shared(urgent=True) for _ in range(URGENT)]
    assert [streams.keep(one) for one in kept] == [True] * (URGENT - 1) + [False], "others must have one, too"
    assert streams.keep(kept[0]), "it has it"
    later = [streams.shared(urgent=True) for _ in range(3)]
    assert {key(one) for one in later} == {key(kept[-1])}
    assert not streams.keep(later[0])
    came_free = key(kept.pop(0))
    here = streams.shared(urgent=True)
    assert key(here) == came_free and streams.keep(here)


def test_urgent_ones_go_first(streams: CudaStreams) -> None:
    assert key(streams.shared(urgent=True))[0] < key(streams.shared(urgent=False))[0]


def test_what_was_given_to_the_current_stream_is_done_first(streams: CudaStreams) -> None:
    """It may have filled the tensors that are used next."""
    for context in (streams.own(), streams.shared(urgent=True)):
        assert context.stream.waited_for == ["the current one"]  # type: ignore[attr-defined]


def test_a_thread_that_computes_on_the_second_gpu_has_nothing_to_do_with_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread begins with the first one as its current device. torch restores the stream of that device afterwards,
    and CUDA makes a context there for it."""
    place, here, touched = torch.device("cuda", 1), [0], []

    def set_device(device: torch.device) -> None:
        here[0] = device.index
        touched.append(device.index)

    def set_stream(stream: Stream) -> None:
        set_device(stream.device)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: Stream(place or torch.device("cuda", here[0])))
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
    monkeypatch.setattr("torch.cuda._get_device_index", lambda *_, **__: here[0])
    context = CudaStreams(place).shared(urgent=True)
    for _ in range(2):
        with context:
            assert here == [1]
    assert set(touched) == {1}
