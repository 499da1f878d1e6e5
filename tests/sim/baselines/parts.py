"""Instances that batch for themselves, of 100 rBlocks with the round numbers of PROFILE, and traces."""

from __future__ import annotations

from random import Random
from typing import Any

from distkv.config import ControlSettings
from distkv.sim.baselines.batching.instance import BatchingInstance, Host
from distkv.sim.baselines.batching.prompts import Prompts
from distkv.sim.baselines.batching.served import Served
from distkv.sim.outcome import Outcome
from distkv.sim.timed.agenda import Agenda
from distkv.sim.timed.engine.step_work import StepTimes
from distkv.sim.token_times import TokenTimes
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.profile import Profile
from tests.sim.timed.parts import PROFILE


class Bench:
    """Instances i0, i1, ... on one host. ended: what ended, in that order."""

    def __init__(
        self,
        instances: int = 1,
        of: Profile = PROFILE,
        num_blocks: int = 100,
        *,
        prompts: Prompts = "short",
        **settings: Any,
    ) -> None:
        self.agenda = Agenda()
        self.ended: list[Served] = []
        times, host, known = StepTimes(of), Host(), ControlSettings(**settings)
        self.instances = [
            BatchingInstance(
                f"i{index}",
                num_blocks,
                times,
                known,
                self.agenda,
                host,
                0.0,
                self.ended.append,
                prompts,
            )
            for index in range(instances)
        ]
        self._count = 0

    def submit(self, prompt_tokens: int, output_tokens: int, to: int = 0) -> Served:
        """A request comes now."""
        request = TraceRequest(self.agenda.now(), prompt_tokens, output_tokens)
        one = Served(Outcome(request, TokenTimes()), request.arrival_s, self._count, at=f"i{to}")
        self._count += 1
        self.instances[to].queue.expect(one)
        self.instances[to].submit(one)
        return one

    def run(self, until: float = float("inf")) -> None:
        """Until then, or the end; every rBlock is somebody's."""
        self.agenda.run(until)
        for instance in self.instances:
            instance.settle()
            instance.validate()


def loaded(count: int, per_s: float, seed: int = 0, most: int = 500) -> list[TraceRequest]:
    """Requests of up to so many tokens each way."""
    random = Random(seed)
    at_s, requests = 0.0, list[TraceRequest]()
    for _ in range(count):
        at_s += random.expovariate(per_s)
        requests.append(TraceRequest(at_s, random.randint(most // 10, most), random.randint(most // 10, most)))
    return requests
