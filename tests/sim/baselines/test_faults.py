"""Instances that batch for themselves die, come back and are slow; nothing is lost but what lay on who died."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from distkv.sim.baselines.cluster import LOST, NO_INSTANCE, BaselineCluster, Placement
from distkv.sim.baselines.disaggregated.pulling import Pulling
from distkv.sim.baselines.disaggregated.pushing import Pushing
from distkv.sim.baselines.migration.placement import Migrating
from distkv.sim.baselines.staying import Staying
from distkv.sim.run import simulate
from distkv.sim.spec import GMANAGER, Fault, Kill, Restart, Slow
from distkv.sim.trace import TraceRequest
from distkv.wire.messages.profile import LinkProfile
from tests.sim.baselines.parts import loaded
from tests.sim.timed.parts import spec, trace

Place = Callable[[BaselineCluster], Placement]
PLACES: dict[str, Place] = {
    "staying": Staying,
    "migrate": Migrating,
    "pulling": partial(Pulling, 2),
    "pushing": partial(Pushing, 2),
}


def played(place: Place, requests: list[TraceRequest], *faults: Fault, **fields: object) -> BaselineCluster:
    cluster = BaselineCluster(spec(policy="migrate", faults=faults, **fields), place)
    cluster.play(requests, lambda *now: None)
    for instance in cluster.instances:
        instance.settle()
        instance.validate()
    return cluster


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_dies_all_requests_end_and_all_memory_is_free(name: str, seed: int) -> None:
    """Small pools, so that much waits, migrates, is preempted or read when something dies."""
    random, faults = Random(seed), list[Fault]()
    for _ in range(12):
        at_s, who = random.uniform(0, 25), random.choice(["i0", "i1", "i2", "i3", GMANAGER])
        faults += [Kill(at_s, who), Restart(at_s + random.uniform(0.01, 3), who)]
    faults += [Slow(4.0, 9.0, "i1", 3.0)]
    links = {"host_link": LinkProfile(round_trip_s=1e-3, bytes_per_s=1e7, read_bytes_per_s=1e7)}
    requests = loaded(60, 3.0, seed)
    cluster = played(PLACES[name], requests, *faults, instances=4, message_s=0.002, pipe_s=0.001, seed=seed, **links)
    assert len(cluster.outcomes) == 60
    for one in cluster.outcomes:
        assert one.failed or len(one.times_s) == one.request.output_tokens
        assert one.failed in ("", LOST, NO_INSTANCE)
        assert list(one.times_s) == sorted(one.times_s)
    assert any(one.failed == LOST for one in cluster.outcomes)
    assert sum(not one.failed for one in cluster.outcomes) >= 10
    cluster.agenda.run(cluster.agenda.now() + 20.0)
    assert [one.free for one in cluster.instances] == [one.num_blocks for one in cluster.instances]


@pytest.mark.parametrize("name", ["staying", "migrate"])
def test_who_got_tokens_fails_and_who_waits_goes_elsewhere(name: str) -> None:
    requests = trace((0.0, 1500, 90), (0.0, 1500, 90), (0.1, 1500, 20), (0.1, 1500, 20))
    cluster = played(PLACES[name], requests, Kill(0.5, "i0"))
    assert sorted(one.failed for one in cluster.outcomes[:2]) == ["", LOST]
    assert not any(one.failed for one in cluster.outcomes[2:]), "both are served by the one that is left"
    dead, left = cluster.instances
    assert (dead.alive, dead.free, left.free) == (False, 100, 100)
    assert cluster.samples[-1].free[0] == 0, "who is dead has nothing"


def test_who_comes_when_nobody_is_there_fails_and_who_comes_later_is_served() -> None:
    faults = Kill(1.0, "i0"), Kill(1.0, "i1"), Restart(3.0, "i1")
    first, second = played(Migrating, trace((2.0, 100, 5), (4.0, 100, 5)), *faults).outcomes
    assert (first.failed, second.failed) == (NO_INSTANCE, "")


def test_a_slow_instance_takes_longer_while_it_is() -> None:
    slow, usual = (
        played(Staying, trace((0.0, 100, 400)), *faults, instances=1).outcomes[0]
        for faults in ([Slow(2.0, 4.0, "i0", 4.0)], [])
    )
    steps = [after - before for before, after in zip(slow.times_s, slow.times_s[1:], strict=False)]
    assert max(steps) == pytest.approx(4 * min(steps), rel=0.05)
    assert slow.times_s[-1] - usual.times_s[-1] == pytest.approx(2.0 * 3 / 4, rel=0.1)


def test_without_a_gmanager_nobody_migrates() -> None:
    requests = trace(*((0.1 * index, 200, 300) for index in range(16)))
    moved = [
        sum(one.counters.moved_blocks for one in played(Migrating, requests, *faults).instances)
        for faults in ([], [Kill(0.0, GMANAGER)])
    ]
    assert moved[0] > 0 == moved[1]


def test_a_request_goes_on_where_it_was_when_its_target_dies() -> None:
    """Its last rBlocks are on their way, and it stands still, when who is to have it dies."""
    cluster = BaselineCluster(spec(policy="migrate"), Migrating)
    seen = list[int]()

    def kill_target() -> None:
        migrating = cluster.placement
        assert isinstance(migrating, Migrating)
        for migration in migrating.migrations.values():
            if migration.one in migration.source.leaving:
                seen.append(migration.one.order)
                cluster.kill(migration.target.name)
                return
        cluster.agenda.after(0.0005, kill_target)

    cluster.agenda.after(0.0005, kill_target)
    cluster.play(trace(*((0.1 * index, 200, 300) for index in range(16))), lambda *now: None)
    (stopped,) = seen
    assert not cluster.outcomes[stopped].failed and len(cluster.outcomes[stopped].times_s) == 300


@pytest.mark.parametrize("dies", ["source", "target"])
def test_what_is_being_read_when_an_instance_dies(dies: str) -> None:
    """A read takes 1.12 s. Of a target that dies another one reads it; of a source it is computed again."""
    slow_link = LinkProfile(round_trip_s=1e-3, bytes_per_s=1e9, read_bytes_per_s=1e6)
    cluster = BaselineCluster(spec(policy="prefill-decode", instances=3, host_link=slow_link), partial(Pulling, 1))

    def kill() -> None:
        (reading,) = (one for one in cluster.instances if one.coming)
        (source,) = (one for one in cluster.instances if one.leaving)
        cluster.kill(source.name if dies == "source" else reading.name)

    cluster.agenda.at(0.5, kill)
    cluster.play(trace((0.0, 100, 5)), lambda *now: None)
    (outcome,) = cluster.outcomes
    assert not outcome.failed and len(outcome.times_s) == 5
    read = sum(one.counters.moved_blocks for one in cluster.instances)
    assert read == (0 if dies == "source" else 7)
    waited_s = outcome.times_s[1] - outcome.times_s[0]
    assert waited_s < 0.7 if dies == "source" else waited_s > 0.4 + 1.12


@pytest.mark.parametrize("dies", ["source", "target"])
@pytest.mark.parametrize("at_s", [0.0016, 0.012, 0.5], ids=["on its way", "computed", "travels"])
def test_what_is_being_pushed_when_an_instance_dies(dies: str, at_s: float) -> None:
    """A prompt that is on its way to its source, is computed there, or whose last layer travels, for 0.11 s: who
    got no token by then begins anew, and no rBlock stays taken where nobody died."""
    slow_link = LinkProfile(round_trip_s=1.0, bytes_per_s=1e9, read_bytes_per_s=1e6)
    cluster = BaselineCluster(
        spec(policy="prefill-decode", instances=4, host_link=slow_link, message_s=0.0004), partial(Pushing, 2)
    )
    seen = list[tuple[bool, bool]]()

    def kill() -> None:
        placed = cluster.placement
        assert isinstance(placed, Pushing)
        ((one, push),) = placed.pushes.items()
        seen.append((one in push.source.running, one in push.source.leaving))
        cluster.kill(push.source.name if dies == "source" else push.target.name)

    cluster.agenda.at(at_s, kill)
    cluster.play(trace((0.0, 100, 5)), lambda *now: None)
    (outcome,) = cluster.outcomes
    assert seen == [(at_s == 0.012, at_s == 0.5)]
    got_token = at_s == 0.5 or (at_s == 0.012 and dies == "target")  # the step under way ends
    assert outcome.failed == (LOST if got_token else "") and len(outcome.times_s) == (1 if got_token else 5)
    cluster.agenda.run(cluster.agenda.now() + 10.0)
    assert [one.free for one in cluster.instances] == [100] * 4
    assert isinstance(cluster.placement, Pushing) and not cluster.placement.pushes
    assert not any(one.coming or one.leaving for one in cluster.instances)


def test_nobody_is_there_to_compute_what_memory_was_taken_for() -> None:
    cluster = BaselineCluster(spec(policy="prefill-decode"), partial(Pushing, 1))
    cluster.agenda.at(0.0, lambda: cluster.kill("i0"))
    cluster.play(trace((0.1, 100, 5)), lambda *now: None)
    assert [one.failed for one in cluster.outcomes] == [NO_INSTANCE]
    assert cluster.instances[1].free == 100 and not cluster.instances[1].coming


@pytest.mark.parametrize("policy", ["migrate", "prefill-decode"])
def test_failures_at_random(policy: str) -> None:
    run = spec(policy=policy, instances=4, failures_per_hour=900, repair_s=2.0, checks=True)
    result = simulate(loaded(40, 2.0), run)
    failed = [one.failed for one in result.outcomes if one.failed]
    assert failed and set(failed) <= {LOST, NO_INSTANCE}
