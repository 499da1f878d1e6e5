"""Whole runs: the real state machines, engines and links that take time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from distkv.control.performance.model import PerformanceModel
from distkv.errors import ConfigError
from distkv.sim.outcome import DEADLINE
from distkv.sim.run import UNFINISHED, SimResult, simulate
from distkv.sim.spec import Fault, Kill, Restart, Slow
from distkv.sim.trace import TraceRequest
from tests.lanes import rest_is_slow
from tests.sim.timed.parts import PROFILE, profile, spec, trace

MODEL = PerformanceModel(PROFILE)
ROOT = Path(__file__).parents[3]


def loaded(count: int, per_s: float, seed: int = 0) -> list[TraceRequest]:
    """Requests of 100 to 900 tokens."""
    random = Random(seed)
    at_s, requests = 0.0, []
    for _ in range(count):
        at_s += random.expovariate(per_s)
        requests.append(TraceRequest(at_s, random.randint(50, 500), random.randint(50, 400)))
    return requests


def test_one_request_alone_takes_what_the_model_says() -> None:
    (outcome,) = simulate(trace((0.5, 101, 6)), spec(instances=1)).outcomes
    per_key_s = 1e-6 + 0.1 * 99e-6
    first_s = 0.030 + per_key_s * 51
    each_s = [0.020 + 1e-6 * context for context in range(102, 107)]
    expected = [first_s + sum(each_s[:count]) for count in range(6)]
    assert list(outcome.times_s) == pytest.approx(expected) and not outcome.failed
    assert outcome.first_s == pytest.approx(MODEL.prefill_s(101))
    assert outcome.per_token_s == pytest.approx(sum(each_s) / 5)


def test_messages_take_their_time() -> None:
    """To the gManager and back, to the instance, from the worker, and to the client; steps run ahead of all that."""
    request = trace((0.0, 101, 6))
    (outcome,) = simulate(request, spec(instances=1, message_s=0.01, pipe_s=0.003)).outcomes
    (at_once,) = simulate(request, spec(instances=1)).outcomes
    assert outcome.first_s == pytest.approx(at_once.first_s + 4 * 0.01 + 0.003)
    assert outcome.times_s[1] - outcome.times_s[0] == pytest.approx(at_once.times_s[1] - at_once.times_s[0])


def test_long_prompts_are_prefilled_in_chunks() -> None:
    run = spec(instances=1, settings={"max_num_batched_tokens": 256})
    (outcome,) = simulate(trace((0.0, 600, 2)), run).outcomes
    expected_s = MODEL.prefill_s(256) + MODEL.prefill_s(256, 256) + MODEL.prefill_s(88, 512)
    assert outcome.first_s == pytest.approx(expected_s)


def plain(result: SimResult) -> bytes:
    """All of it that can be compared."""
    times = [(list(one.times_s), one.failed) for one in result.outcomes]
    memory = [(one.at_s, list(one.own), list(one.lent), one.loans) for one in result.samples]
    return msgspec.json.encode((times, memory, result.counters, result.simulated_s))


@pytest.mark.parametrize("policy", ["none", "contract", "greedy", "even"])
def test_a_loaded_cluster_serves_all_and_the_same_each_time(policy: str) -> None:
    requests = loaded(20, 8.0)
    run = spec(policy=policy, seed=3, message_s=2e-4, checks=False)
    first, second = (simulate(requests, run) for _ in range(2))
    assert plain(first) == plain(second)
    assert all(len(one.times_s) == one.request.output_tokens for one in first.outcomes)
    assert not any(one.failed for one in first.outcomes)
    if policy == "none":
        assert first.remote_share == 0.0 and not any(one.loans for one in first.samples)


def test_what_no_instance_holds_is_served_by_two_or_refused() -> None:
    requests = trace((0.0, 2000, 20))
    (lent,) = simulate(requests, spec(policy="contract")).outcomes
    (refused,) = simulate(requests, spec(policy="none")).outcomes
    assert len(lent.times_s) == 20 and not lent.failed
    assert refused.is_refused and not refused.times_s


def test_what_lies_elsewhere_is_seen() -> None:
    result = simulate(trace((0.0, 2000, 100)), spec(policy="contract", sample_s=0.25))
    assert result.remote_share > 0.1 and result.counters.moved_blocks > 20
    creditor, debtor, blocks = max((loan for one in result.samples for loan in one.loans), key=lambda loan: loan[2])
    assert {creditor, debtor} == {0, 1} and blocks >= (2000 - 1600) // 16
    assert all(
        own + lent + free == 100
        for one in result.samples
        for own, lent, free in zip(one.own, one.lent, one.free, strict=True)
    )


def test_a_debtor_waits_and_its_creditor_is_slowed() -> None:
    """One request that spans both; then another one at the creditor."""
    result = simulate(trace((0.0, 2000, 200)), spec())
    (alone,) = result.outcomes
    assert result.counters.attend_wait_s > 0 and result.counters.serve_s > 0
    both = simulate(trace((0.0, 2000, 200), (2.0, 50, 100)), spec()).outcomes
    (small,) = simulate(trace((0.0, 50, 100)), spec(instances=1)).outcomes
    assert both[1].per_token_s > 1.02 * small.per_token_s
    assert both[0].per_token_s >= alone.per_token_s


def test_requests_of_an_instance_that_dies_go_elsewhere_or_are_lost() -> None:
    requests = loaded(12, 4.0)
    faults = (Kill(1.0, "i0"), Restart(3.0, "i0"))
    result = simulate(requests, spec(faults=faults, seed=1, instances=3))
    lost = [one for one in result.outcomes if one.failed]
    assert all(one.failed == "its instance was lost" and one.times_s for one in lost)
    assert 0 < len(lost) < 8
    dead = [one.at_s for one in result.samples if one.free[0] == one.own[0] == 0]
    assert dead and all(1.0 <= at_s < 3.5 for at_s in dead)


@pytest.mark.parametrize("seed", rest_is_slow(range(2)))
def test_every_invariant_holds_whatever_fails(seed: int) -> None:
    """Loans between three, of which one is killed, started again, and slow, again and again."""
    random = Random(seed)
    faults: list[Fault] = []
    for at_s in (1.0, 5.0, 9.0):
        victim, straggler = random.sample(["i0", "i1", "i2"], 2)
        faults += [Kill(at_s, victim), Restart(at_s + 1.5, victim), Slow(at_s, at_s + 1.0, straggler, 5.0)]
    requests = [*loaded(40, 4.0, seed), TraceRequest(4.0, 2500, 200), TraceRequest(8.0, 3000, 100)]
    requests.sort(key=lambda one: one.arrival_s)
    run = spec(instances=3, faults=tuple(faults), seed=seed, message_s=2e-4, deadline_s=60.0)
    result = simulate(requests, run)
    assert result.counters.moved_blocks > 0
    assert sum(not one.failed for one in result.outcomes) > 20
    assert {one.failed for one in result.outcomes if one.failed and not one.is_late} <= {"its instance was lost"}


def test_a_straggler_is_slow_while_it_is_one() -> None:
    request = trace((0.0, 100, 100))
    (usual,) = simulate(request, spec(instances=1)).outcomes
    (slowed,) = simulate(request, spec(instances=1, faults=(Slow(1.0, 1.5, "i0", 10.0),))).outcomes
    assert slowed.times_s[-1] - usual.times_s[-1] == pytest.approx(0.5 * 0.9, abs=0.2)


def test_clients_give_up_at_their_deadline() -> None:
    late, ended = simulate(trace((0.0, 100, 1000), (0.0, 100, 10)), spec(deadline_s=2.0)).outcomes
    assert late.failed == DEADLINE and 50 < len(late.times_s) < 1000 and late.times_s[-1] <= 2.0
    assert not ended.failed


def test_a_simulation_may_end_before_its_requests() -> None:
    first, second = simulate(trace((0.0, 100, 1000), (50.0, 100, 10)), spec(most_s=2.0)).outcomes
    assert first.failed == second.failed == UNFINISHED and first.times_s and not second.times_s


def test_what_was_published_is_kept_if_that_is_wanted() -> None:
    result = simulate(trace((0.0, 100, 10)), spec(keep_events=True))
    assert [event.name for at_s, _, event in result.events if at_s >= 0][:1] == ["accepted"]
    assert not simulate(trace((0.0, 100, 10)), spec()).events


def test_progress_is_told() -> None:
    told: list[tuple[float, int, int]] = []
    simulate(trace((0.0, 100, 10), (1.5, 100, 10)), spec(), lambda *now: told.append(now))
    assert told == [(0.0, 0, 2), (1.0, 1, 2)]


def test_bad_specs_are_refused_naming_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="instances"):
        spec(instances=0)
    with pytest.raises(ConfigError, match="8 tokens are less than one rBlock of 16"):
        spec(kv_tokens=8)
    with pytest.raises(ConfigError, match="there is no instance 'i7': they are i0 to i1"):
        spec(faults=(Kill(1.0, "i7"),))


def test_crowded_instances_are_slower() -> None:
    requests = trace((0.0, 100, 200), (1.0, 100, 50))
    for of in (PROFILE, profile(crowded_times=1.5)):
        outcomes = simulate(requests, spec(profile=of)).outcomes
        assert outcomes[1].per_token_s == pytest.approx(PerformanceModel(of).step_s(1, 126), rel=0.02)


ANYWHERE = """
from tests.sim.timed.test_run import loaded, plain
from tests.sim.timed.parts import spec
from distkv.sim.run import simulate
print(plain(simulate(loaded(20, 8.0), spec(policy="contract", seed=3, message_s=2e-4, checks=False))).decode())
"""


def test_another_process_gets_the_same() -> None:
    """The order of sets of names differs between processes."""
    environments = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    said = [
        subprocess.run(
            [sys.executable, "-c", ANYWHERE], capture_output=True, check=True, timeout=60, env=one, cwd=ROOT
        ).stdout
        for one in environments
    ]
    assert said[0] == said[1] != b""
