"""Steps that are sent to a worker and timed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from distkv.bench.profiling.engine import WARM_UP, Engine, Took, decodes, means_of, medians_of
from distkv.wire.envelope_factory import EnvelopeFactory
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.from_worker import StepResult, WorkerReady
from distkv.wire.messages.to_worker import Step

READY = WorkerReady(
    pid=1, compat="c", data=DataEndpoint(address="a:1", slot_bytes=64, num_slots=64), block_tokens=16, num_slots=64,
    eos_token_ids=(), vocab_size=8, max_positions=64, serves="model m/1, dtype float32",
)  # fmt: skip


class Worker:
    """Answers every step; each waits a quarter of a second for partials, as it counts. most_ahead: steps that were not
    answered at once."""

    def __init__(self) -> None:
        self.sent = self.answered = self.most_ahead = 0
        self._factory = EnvelopeFactory("w")
        self._steps: asyncio.Queue[Step] = asyncio.Queue()

    def send(self, command: Step, cause: str) -> None:
        self.sent += 1
        self.most_ahead = max(self.most_ahead, self.sent - self.answered)
        self._steps.put_nowait(command)

    async def recv(self) -> Envelope[StepResult]:
        step = await self._steps.get()
        self.answered += 1
        counters = Counters(attend_wait_s=0.25 * self.answered)
        result = StepResult(step_id=step.step_id, results=(), compute_s=0.0, counters=counters)
        return cast(Envelope[StepResult], self._factory.wrap(result))


def timed(worker: Worker, most_steps: int) -> tuple[Took, ...]:
    async def run() -> tuple[Took, ...]:
        engine = Engine("w", cast(Any, worker), READY)
        receiving = asyncio.create_task(engine.receive())
        try:
            return await engine.time(decodes([16], 16, first_slot=0), lambda steps, _: steps + 1 >= most_steps)
        finally:
            receiving.cancel()

    return asyncio.run(run())


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_all_steps_but_the_first_count_and_one_is_always_sent_ahead(steps: int) -> None:
    worker = Worker()
    took = timed(worker, steps)
    assert len(took) == steps and worker.sent == worker.answered == steps + WARM_UP
    assert worker.most_ahead == 2
    assert [one.wait_s for one in took] == [0.25] * steps
    assert all(one.step_s > 0 for one in took) and [one.ended_s for one in took] == sorted(one.ended_s for one in took)


def test_means_and_medians() -> None:
    steps = [Took(1.0, 1.0, 0.5, 0.75), Took(2.0, 1.0, 0.0, 0.75), Took(6.0, 4.0, 1.0, 3.0)]
    means, medians = means_of(steps), medians_of(steps)
    assert (means.step_s, means.wait_s, means.own_s, means.compute_s) == (2.0, 0.5, 1.5, 1.5)
    assert (medians.step_s, medians.wait_s, medians.compute_s) == (1.0, 0.5, 0.75)
