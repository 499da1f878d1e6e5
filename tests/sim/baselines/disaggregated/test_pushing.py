"""Memory is taken before the prompt is computed. Of PROFILE an rBlock of 16 tokens has 160 kB, in ten layers, and links
read 1 GB/s."""

from __future__ import annotations

from functools import partial

import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.sim.baselines.cluster import BaselineCluster
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.disaggregated.pushing import Pushing
from tests.sim.baselines.disaggregated.parts import divided, quiet
from tests.sim.timed.parts import LINK, PROFILE, spec, trace

MODEL = PerformanceModel(PROFILE)


def pushed(prefills: int, **fields: object) -> BaselineCluster:
    return divided(Pushing, prefills, **fields)


def test_all_but_the_last_layer_travels_while_the_prompt_is_computed() -> None:
    cluster = pushed(1, message_s=0.001)
    cluster.play(trace((0.0, 100, 3)), quiet)
    (outcome,) = cluster.outcomes
    # To the instance that decodes, from there to the one that computes prompts, and the token to its client.
    first_s = 6 * 0.001 + MODEL.prefill_s(100)
    second_s = first_s + 7 * 160_000 / PROFILE.layers / 1e9 + LINK.round_trip_s + MODEL.step_s(1, 101)
    assert list(outcome.times_s) == pytest.approx([first_s, second_s, second_s + MODEL.step_s(1, 102)])
    prefilling, decoding = cluster.instances
    assert (prefilling.counters.generation_tokens, decoding.counters.generation_tokens) == (1, 2)
    assert decoding.counters.moved_blocks == 7
    assert prefilling.free == decoding.free == 100


def test_a_prompt_waits_for_memory_where_it_is_to_decode() -> None:
    """As long as there is none, who computes prompts is idle; a pull computes it meanwhile."""
    requests = trace((0.0, 960, 200), (0.0, 960, 10))
    firsts, memory = list[float](), list[float]()
    for place in (Pushing, Pulling):
        cluster = BaselineCluster(spec(policy="prefill-decode"), partial(place, 1))
        cluster.play(requests, quiet)
        placed = cluster.placement
        assert isinstance(placed, Pushing | Pulling)
        first, second = cluster.outcomes
        firsts.append(second.first_s)
        (passage,) = (passage for one, passage in placed.divided.passages.items() if one.outcome is second)
        assert passage.granted_s is not None and passage.here_s is not None and passage.computed_s is not None
        assert passage.granted_s >= first.times_s[-1]
        memory.append(passage.here_s - passage.granted_s)
    assert firsts[0] > firsts[1] + 1.0
    assert memory[0] > 10 * memory[1], "so long rBlocks are kept that nobody reads"


def test_a_request_of_one_token_leaves_nothing_where_it_was_to_decode() -> None:
    cluster = pushed(1)
    cluster.play(trace((0.0, 100, 1)), quiet)
    assert len(cluster.outcomes[0].times_s) == 1 and not cluster.outcomes[0].failed
    assert [one.free for one in cluster.instances] == [100, 100]
