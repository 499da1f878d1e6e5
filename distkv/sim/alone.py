"""What requests of a trace take that are alone, in simulated time."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from distkv.sim.outcome import Outcome, Unloaded
from distkv.sim.run import simulate
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest


def alone(trace: Sequence[TraceRequest], spec: SimSpec) -> Unloaded:
    """What requests take that are alone: the shortest prompt, the middle one and the longest, each on an instance of
    its own that can hold it."""
    ordered = sorted((one for one in trace if one.output_tokens > 1), key=lambda one: one.prompt_tokens)
    ordered = ordered or [TraceRequest(0.0, one.prompt_tokens, 2) for one in trace[:1]]
    chosen = (ordered[0], ordered[len(ordered) // 2], ordered[-1])
    outcomes: list[Outcome] = []
    for one in chosen:
        room = max(spec.kv_tokens, one.num_tokens + 2 * spec.profile.block_tokens)
        own = replace(
            spec,
            instances=1,
            prefill_instances=None,
            kv_tokens=room,
            policy="none",
            faults=(),
            deadline_s=None,
            most_s=None,
            keep_events=False,
        )
        outcomes += simulate([TraceRequest(0.0, one.prompt_tokens, one.output_tokens)], own).outcomes
    return Unloaded.of(outcomes)
