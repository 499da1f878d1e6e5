"""Loads that are simulated one after the other on the same instances, for these remember how long outputs were, and
keep memory by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from distkv.control.performance.model import PerformanceModel
from distkv.sim.outcome import Outcome
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.profile import Profile


def one_after_the_other(
    parts: Sequence[Sequence[TraceRequest]],
    pause_s: float,
    play: Callable[[Sequence[TraceRequest]], Sequence[Outcome]],
) -> list[list[Outcome]]:
    """What came of each part, with the arrivals that it has alone. pause_s: from the last arrival of a part to the
    first of the next one; all of it has ended by then. play: simulates requests."""
    begins_s, requests = 0.0, list[TraceRequest]()
    for part in parts:
        requests += (arriving(one, begins_s + one.arrival_s) for one in part)
        begins_s = requests[-1].arrival_s + pause_s
    outcomes = iter(play(requests))
    return [
        [msgspec.structs.replace(one, request=request) for request, one in zip(part, outcomes, strict=False)]
        for part in parts
    ]


def arriving(request: TraceRequest, arrival_s: float) -> TraceRequest:
    """The same at another time."""
    return msgspec.structs.replace(request, arrival_s=arrival_s)


def serial_s(requests: Sequence[TraceRequest], profile: Profile) -> float:
    """Seconds in which one instance serves these one by one."""
    model = PerformanceModel(profile)
    return sum(
        model.prefill_s(one.prompt_tokens) + one.output_tokens * model.step_s(1, one.num_tokens) for one in requests
    )
