"""Loads that are simulated one after the other on the same instances."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distkv.bench.pooling.consecutive import one_after_the_other, serial_s
from distkv.control.performance.model import PerformanceModel
from distkv.sim.outcome import Outcome
from distkv.sim.run import simulate
from distkv.sim.spec import SimSpec
from distkv.sim.token_times import TokenTimes
from distkv.sim.trace import TraceRequest
from tests.sim.timed.parts import PROFILE, trace

PARTS = trace((0.0, 100, 20), (0.5, 300, 30)), trace((0.0, 50, 10)), trace((0.25, 80, 5), (1.0, 60, 5))


def test_each_part_begins_after_a_pause_and_is_told_as_if_it_came_alone() -> None:
    played: list[TraceRequest] = []

    def play(requests: Sequence[TraceRequest]) -> list[Outcome]:
        played.extend(requests)
        return [Outcome(request, TokenTimes()) for request in requests]

    found = one_after_the_other(PARTS, 10.0, play)
    assert [one.arrival_s for one in played] == [0.0, 0.5, 10.5, 20.75, 21.5]
    assert [[outcome.request for outcome in part] for part in found] == [list(part) for part in PARTS]


def test_what_is_served_one_by_one_takes_longest() -> None:
    requests = [request for part in PARTS for request in part]
    model = PerformanceModel(PROFILE)
    (one,) = PARTS[1]
    assert serial_s(PARTS[1], PROFILE) == model.prefill_s(50) + 10 * model.step_s(1, 60)
    assert serial_s(requests, PROFILE) > serial_s(requests[1:], PROFILE) > serial_s([one], PROFILE)
    at_once = [msgspec.structs.replace(request, arrival_s=0.0) for request in requests]
    spec = SimSpec(instances=1, kv_tokens=1600, profile=PROFILE, policy="none")
    ended_s = max(outcome.times_s[-1] for outcome in simulate(at_once, spec).outcomes)
    assert ended_s < serial_s(requests, PROFILE)
