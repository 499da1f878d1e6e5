"""What an event costs does not grow with the requests that wait, nor with the peers there are (calls are counted, not
time)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from distkv.bench.workloads.deciding.control_load import ControlLoad
from distkv.control.commands import FromWorker, TellWorker, Tokenized
from distkv.control.request.answer.output import NoText
from distkv.control.rmanager.state import RManagerSettings
from distkv.control.rmanager.state_machine import RManager
from distkv.types import SamplingParams
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.from_worker import SeqResult, StepResult
from distkv.wire.messages.to_rmanager import Submit
from distkv.wire.messages.to_worker import Step
from tests.control.parts import calls, make_member
from tests.token_ids import prompt_fields

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


@pytest.mark.parametrize(
    "fits", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["for the batch", "for memory"]
)
def test_with_waiting_requests(fits: bool) -> None:
    grow([ControlLoad(size, fits=fits) for size in SIZES])


def test_with_requests_that_a_drain_hands_back() -> None:
    """A part of them in each event: of 40,000, each took 70 ms."""
    loads = [ControlLoad(size, fits=True) for size in (1_000, 10_000)]
    counted = [calls(load.drain) for load in loads]
    counted += [calls(load.answer_step) for load in loads]
    assert counted[1] <= GROWTH * counted[0] and counted[3] <= GROWTH * counted[2], counted


def test_with_peers() -> None:
    grow([ControlLoad(10, members=size, fits=False) for size in SIZES])


def test_with_many_that_begin_and_end_with_one_step() -> None:
    """Calls for each, where a whole batch ends with a step and as many begin."""
    counted = []
    for size in (16, 64, 256):
        burst = Burst(size)
        burst.answer_step()
        while len(burst.steps[0].seqs) < size - 1:
            burst.answer_step()
        assert len(burst.rm.state.sequences) > 2 * size
        counted.append(calls(burst.answer_step) / size)
    assert counted[-1] <= 1.2 * counted[0], f"{counted} calls for each"


class Burst:
    """An rManager that gets four batches of requests of one token at once."""

    def __init__(self, size: int) -> None:
        self.steps: list[Step] = []
        settings = RManagerSettings(
            instance_id="me", incarnation=1, block_tokens=16, num_blocks=16 * size, vocab_size=1000,
            max_num_seqs=size, max_num_batched_tokens=16 * size,
        )  # fmt: skip
        self.rm = RManager(settings, NoText, Random(1))
        params = SamplingParams(max_tokens=1, temperature=0.0)
        for index in range(4 * size):
            submit = Submit(request_id=f"r{index}", params=params, **prompt_fields(tuple(range(8))))
            self.give(Tokenized(submit, array("i", range(8)), b"client"))

    def answer_step(self) -> None:
        step = self.steps.pop(0)
        results = [SeqResult(request_id=one.request_id, attempt=0, status="ok", token=1) for one in step.seqs]
        self.give(FromWorker(StepResult(step_id=step.step_id, results=tuple(results))))

    def give(self, event: Tokenized | FromWorker) -> None:
        commands = self.rm.handle(event, 1.0)
        self.steps += [one.body for one in commands if isinstance(one, TellWorker) and isinstance(one.body, Step)]


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
