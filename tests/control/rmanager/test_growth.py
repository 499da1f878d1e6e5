"""What an event costs does not grow with the requests that wait, nor with the peers there are (calls are counted, not
time)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from distkv.bench.workloads.control_load import ControlLoad
from distkv.wire.messages.counters import Counters
from tests.control.parts import calls, make_member

SIZES = (10, 1_000, 10_000)
GROWTH = 2.0


def submit_and_cancel(load: ControlLoad) -> None:
    load.cancel(load.submit_behind())


def cancel_the_oldest(load: ControlLoad) -> None:
    load.cancel(load.waiting.pop(0))


def status(load: ControlLoad) -> None:
    load.rm.status(make_member("me"), Counters())


EVENTS: dict[str, Callable[[ControlLoad], None]] = {
    "step": ControlLoad.answer_step,
    "keep alive": ControlLoad.keep_alive,
    "heartbeat": ControlLoad.heartbeat,
    "submit and cancel": submit_and_cancel,
    "cancel the oldest": cancel_the_oldest,
    "status": status,
}


def grow(loads: list[ControlLoad]) -> None:
    """Each event at every size, the median of several so that a table that is copied once in a while does not count."""
    for name, event in EVENTS.items():
        counted = [sorted(calls(partial(event, load)) for _ in range(9))[4] for load in loads]
        assert counted[-1] <= GROWTH * counted[0], f"{name}: {counted} calls at {SIZES}"


@pytest.mark.parametrize("fits", [True, False], ids=["for the batch", "for memory"])
def test_with_waiting_requests(fits: bool) -> None:
    grow([ControlLoad(size, fits=fits) for size in SIZES])


def test_with_peers() -> None:
    grow([ControlLoad(10, members=size, fits=False) for size in SIZES])


def test_with_requests_that_end_and_begin_before_a_queue() -> None:
    """One in, one out, for a while: calls for each."""
    counted = []
    for size in SIZES:
        load = ControlLoad(size, max_tokens=4, fits=True)

        def serve(load: ControlLoad = load, size: int = size) -> None:
            for _ in range(8):
                load.answer_step()
                while load.rm.state.sequences.num_waiting < size:
                    load.submit_behind()

        counted.append(calls(serve))
        load.rm.state.sequences.validate()
    assert counted[-1] <= GROWTH * counted[0], f"{counted} calls at {SIZES}"
