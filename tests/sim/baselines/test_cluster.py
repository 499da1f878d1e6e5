"""Whole traces on instances that batch for themselves: nothing is lost, nothing is more than there is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkv.config import AdviceSettings
from distkv.sim.baselines.cluster import TOO_LARGE, BaselineCluster
from distkv.sim.baselines.migration import placement
from distkv.sim.baselines.staying import Staying
from distkv.sim.outcome import DEADLINE
from distkv.sim.run import UNFINISHED, simulate
from distkv.sim.trace import TraceRequest
from tests.sim.baselines.parts import loaded
from tests.sim.timed.parts import spec, trace
from tests.sim.timed.test_run import plain

REQUESTS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 1700), st.integers(1, 200)).map(lambda one: TraceRequest(*one)),
    min_size=1,
    max_size=25,
).map(lambda some: sorted(some, key=lambda one: one.arrival_s))


def test_messages_take_their_time() -> None:
    """As of the real processes: to be located, to be submitted, and tokens to come."""
    (outcome,) = simulate(
        trace((0.5, 101, 6)), spec(instances=2, policy="migrate", message_s=0.01, pipe_s=0.003)
    ).outcomes
    (real,) = simulate(trace((0.5, 101, 6)), spec(instances=2, policy="none", message_s=0.01, pipe_s=0.003)).outcomes
    assert list(outcome.times_s) == pytest.approx(list(real.times_s))


@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS, instances=st.integers(1, 4), deadline=st.sampled_from([None, 3.0]))
def test_every_request_ends_or_is_refused(requests: list[TraceRequest], instances: int, deadline: float | None) -> None:
    run = spec(instances=instances, policy="migrate", deadline_s=deadline, sample_s=0.2, most_s=1000.0)
    cluster = BaselineCluster(run, placement.Migrating)
    cluster.play(requests, lambda *now: None)
    assert [one.request for one in cluster.outcomes] == requests
    for one in cluster.outcomes:
        too_large = -(-one.request.num_tokens // 16) > 100
        assert (one.failed == TOO_LARGE) == too_large and one.failed in ("", TOO_LARGE, DEADLINE)
        assert len(one.times_s) == one.request.output_tokens or one.failed
        assert all(before < after for before, after in pairwise(one.times_s))
        assert deadline is None or not one.failed or all(at_s <= deadline for at_s in one.times_s)
    assert all(used <= 1 for sample in cluster.samples for used in sample.used)
    cluster.agenda.run(cluster.agenda.now() + 10.0)
    assert [one.free for one in cluster.instances] == [100] * instances
    assert not any(one.running or one.queue or one.coming or one.leaving for one in cluster.instances)


@pytest.mark.parametrize("dispatch", ["predicted", "least-loaded", "random"])
def test_it_is_the_same_each_time(dispatch: str) -> None:
    run = spec(policy="migrate", instances=3, seed=3, advice=AdviceSettings(dispatch=dispatch), message_s=2e-4)  # type: ignore[arg-type]
    first, second = (simulate(loaded(40, 8.0), run) for _ in range(2))
    assert plain(first) == plain(second)
    assert not any(one.failed for one in first.outcomes)


def test_dispatchers_differ() -> None:
    runs = [
        spec(policy="migrate", instances=3, seed=seed, advice=AdviceSettings(dispatch=dispatch))  # type: ignore[arg-type]
        for dispatch, seed in (("predicted", 0), ("least-loaded", 0), ("random", 0), ("random", 1))
    ]
    assert len({plain(simulate(loaded(40, 8.0), run)) for run in runs}) == 4


def test_who_is_short_of_memory_sends_requests_away() -> None:
    """Where they began is drawn: some instances have more of them than memory, and others room."""
    requests = loaded(80, 5.0, seed=2)
    run = spec(policy="migrate", instances=4, kv_tokens=4800, advice=AdviceSettings(dispatch="random"))
    moved, stayed = simulate(requests, run), play(requests, Staying, run)
    assert moved.counters.moved_blocks > 1000 and not stayed.counters.moved_blocks
    assert (moved.counters.preemptions, stayed.counters.preemptions) == (0, 7)
    assert max(one.first_s for one in moved.outcomes) < 0.5 < 3.0 < max(one.first_s for one in stayed.outcomes)


def play(requests: list[TraceRequest], place: Callable[[BaselineCluster], Staying], run: object) -> BaselineCluster:
    cluster = BaselineCluster(run, place)  # type: ignore[arg-type]
    cluster.play(requests, lambda *now: None)
    return cluster


def test_small_ones_make_way_for_a_large_one_that_waits() -> None:
    """Four of 20 rBlocks on two instances: 60 are free of each, and 75 wanted."""
    requests = [*trace(*((0.0, 300, 400) for _ in range(4))), TraceRequest(1.0, 1200, 2)]
    run = spec(policy="migrate")
    large, stayed = (found.outcomes[4] for found in (simulate(requests, run), play(requests, Staying, run)))
    assert large.first_s < 1.5 < 5.0 < stayed.first_s


def test_a_cluster_with_room_migrates_nobody() -> None:
    result = simulate(loaded(20, 2.0), spec(policy="migrate", kv_tokens=16_000))
    assert not result.counters.moved_blocks and not result.counters.preemptions


def test_what_no_instance_holds_is_refused() -> None:
    (outcome,) = simulate(trace((0.0, 1500, 101)), spec(policy="migrate")).outcomes
    assert outcome.is_refused and outcome.failed == TOO_LARGE


def test_a_simulation_may_end_before_its_requests() -> None:
    first, second = simulate(trace((0.0, 100, 1000), (50.0, 100, 10)), spec(policy="migrate", most_s=2.0)).outcomes
    assert first.failed == second.failed == UNFINISHED and 50 < len(first.times_s) < 101 and not second.times_s


def test_progress_is_told() -> None:
    told: list[tuple[float, int, int]] = []
    simulate(trace((0.0, 100, 10), (1.5, 100, 10)), spec(policy="migrate"), lambda *now: told.append(now))
    assert told == [(0.0, 0, 2), (1.0, 1, 2)]


@pytest.mark.parametrize(("instances", "per_s", "within"), [(1, 1.0, 0.01), (4, 4.0, 0.02), (1, 4.0, 0.1)])
def test_it_is_as_fast_as_the_state_machines_without_lending(instances: int, per_s: float, within: float) -> None:
    """Tokens each second with and without a queue. Where memory is short the state machines begin what they expect to
    grow later than vLLM would, and preempt nobody."""
    requests = loaded(100, per_s)
    run = spec(instances=instances, kv_tokens=8000, message_s=2e-4, checks=False)
    took_s = [
        max(one.request.arrival_s + one.times_s[-1] for one in outcomes)
        for outcomes in (
            play(requests, Staying, run).outcomes,
            simulate(requests, spec(**{name: getattr(run, name) for name in FIELDS}, policy="none")).outcomes,
        )
    ]
    assert took_s[0] == pytest.approx(took_s[1], rel=within)


FIELDS = ("instances", "kv_tokens", "message_s", "checks")
