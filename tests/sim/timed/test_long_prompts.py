"""A long prompt beside few decodes: one pass over its keys takes longer than their step."""

from __future__ import annotations

import statistics
from itertools import pairwise

from distkv.sim.outcome import Outcome
from distkv.sim.profiles.built_in import built_in
from distkv.sim.run import simulate
from distkv.sim.spec import SimSpec
from distkv.sim.trace import TraceRequest

PROFILE = built_in("a100-llama2-7b")
LONG = 50_000
ARRIVES_S = 4.0
SPEC = SimSpec(instances=1, kv_tokens=2 * LONG, profile=PROFILE, policy="none", settings={"profile": PROFILE})


def between_s(outcome: Outcome, first_s: float, last_s: float) -> list[float]:
    """Between its tokens of that time."""
    times_s = [at_s for at_s in outcome.times_s if first_s <= outcome.request.arrival_s + at_s <= last_s]
    return [later - earlier for earlier, later in pairwise(times_s)]


def test_it_ends_soon_and_the_decodes_wait_no_longer_for_it_than_a_few_times_as_long_as_it_takes_alone() -> None:
    """In chunks of eight tokens it took 60 s, and the decodes waited 65 s for it."""
    decodes = [TraceRequest(0.0, 500, 3000)] * 2
    alone_s = simulate([TraceRequest(0.0, LONG, 2)], SPEC).outcomes[0].first_s
    *beside, long = simulate([*decodes, TraceRequest(ARRIVES_S, LONG, 2)], SPEC).outcomes
    assert long.first_s <= 2.5 * alone_s
    for one in beside:
        usual_s = statistics.fmean(between_s(one, ARRIVES_S / 2, ARRIVES_S))
        stretched_s = between_s(one, ARRIVES_S, ARRIVES_S + long.first_s)
        assert statistics.fmean(stretched_s) <= 2.0 * usual_s
        assert sum(stretched_s) - usual_s * len(stretched_s) <= 1.5 * alone_s
