"""What the simulator predicts of plays, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distkv.bench.harness.alternate import Samples
from distkv.bench.harness.report import Goal
from distkv.bench.pooling import predicted
from distkv.bench.pooling.predicted import (
    SPEEDS,
    Play,
    Predictor,
    beside_control,
    compared,
    goals,
    of_all_rounds,
)
from distkv.bench.pooling.summary import FIRST_HIGH, FIRST_ROUNDS, TOKENS, at
from distkv.sim.outcome import Unloaded
from distkv.sim.trace import TraceRequest
from tests.sim.timed.parts import PROFILE, trace

REQUESTS = trace((0.0, 100, 20), (0.1, 300, 30), (0.2, 50, 10))


def predictor(*, has_profile: bool = True) -> Predictor:
    return Predictor(PROFILE, 2, 1600, 60.0, has_profile=has_profile)


def test_what_control_takes_is_learned_from_requests_alone() -> None:
    one = predictor()
    alone = one.alone(REQUESTS)
    slower = Unloaded(alone.first_s, alone.first_s_per_token, alone.per_token_s + 0.005)
    one.learn(REQUESTS, slower)
    assert one.control_s == pytest.approx(0.005)
    assert one.alone(REQUESTS).per_token_s == pytest.approx(slower.per_token_s, rel=0.01)
    faster = predictor()
    faster.learn(REQUESTS, Unloaded(0.0, 0.0, 0.0))
    assert faster.control_s == 0.0 and faster.alone(REQUESTS) == alone


def test_prompts_of_an_idle_engine_say_nothing_of_others() -> None:
    one = predictor()
    alone = one.alone(REQUESTS)
    one.learn(REQUESTS, Unloaded(alone.first_s, 1.8 * alone.first_s_per_token, alone.per_token_s))
    assert one.alone(REQUESTS) == alone


def test_every_step_takes_longer_beside_control() -> None:
    longer = beside_control(PROFILE, 0.01)
    assert [point.seconds for point in longer.step] == pytest.approx([0.030, 0.040])
    assert [point.seconds for point in longer.prefill] == pytest.approx([0.030, 0.130])
    assert (longer.remote_step, longer.attention) == ((), PROFILE.attention)


@pytest.mark.slow
def test_plays_of_contenders_that_it_knows_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, speeds = 2, SPEEDS[::3]
    monkeypatch.setattr(predicted, "SEEDS", seeds)
    monkeypatch.setattr(predicted, "SPEEDS", speeds)
    plays = [Play(2.0, REQUESTS), Play(4.0, REQUESTS[:2]), Play(2.0, REQUESTS)]
    unloaded = Unloaded(0.1, 0.0, 0.05)
    found = predictor().samples(plays, ("off", "big", "contract", "vllm"), unloaded, {})
    cases = (TOKENS, FIRST_HIGH, FIRST_ROUNDS)
    assert found.keys() == {at(case, rate) for case in cases for rate in (2.0, 4.0)}
    assert all(by_name.keys() == {"off", "contract"} for by_name in found.values())
    assert [len(found[at(TOKENS, rate)]["off"]) for rate in (2.0, 4.0)] == [2, 1]
    rounds = found[at(FIRST_ROUNDS, 2.0)]["off"]
    assert len(rounds) == seeds + len(speeds)
    assert len({rounds[0], *rounds[seeds:]}) == 1 + len(speeds), "each by how long its steps take"
    assert found == predictor().samples(plays, ("off", "contract"), unloaded, {})
    without = predictor(has_profile=False).samples(plays[:1], ("off",), unloaded, {})
    assert without[at(FIRST_HIGH, 2.0)]["off"][0] > 0


@pytest.mark.slow
def test_instances_remember_what_they_served_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "SEEDS", 1)
    monkeypatch.setattr(predicted, "SPEEDS", ())
    # Long outputs that have ended keep memory for the growth of those that come: the last one waits for it.
    play = Play(1.0, [TraceRequest(0.05 * index, 64, 400) for index in range(24)])

    def firsts(plays: list[Play], earlier: dict[str, Sequence[TraceRequest]]) -> list[float]:
        found = predictor().samples(plays, ("off",), Unloaded(0.1, 0.0, 0.05), earlier)
        return found[at(FIRST_HIGH, 1.0)]["off"]

    alone, after_itself = firsts([play, play], {})
    (after_some,) = firsts([play], {"off": play.requests[:6]})
    assert min(after_itself, after_some) > 1.1 * alone
    assert firsts([play], {"contract": play.requests}) == [alone]


def samples(case: str, *by_rate: float, name: str = "off") -> Samples:
    return {at(case, rate): {name: [value]} for rate, value in enumerate(by_rate, 1) if value}


def test_first_tokens_of_all_rounds_count_together() -> None:
    # Of one play of forty the largest counts, of ten the fifth largest: what two requests wait decides less.
    plays = [[0.1] * 38 + [5.0, 9.0], *([[0.1] * 40] * 9)]
    assert of_all_rounds(FIRST_ROUNDS, {2.0: plays[:1], 3.0: plays, 4.0: [[]]}) == {
        at(FIRST_ROUNDS, 2.0): 9.0,
        at(FIRST_ROUNDS, 3.0): 0.1,
    }


def test_goals_are_met_where_all_rates_are_near_enough() -> None:
    rates = (1.0, 2.0, 3.0)
    measured = samples(TOKENS, 100.0, 100.0, 100.0) | samples(FIRST_ROUNDS, 1.0, 2.0, 4.0)
    predicted = samples(TOKENS, 114.0, 100.0, 90.0) | samples(FIRST_ROUNDS, 1.0, 2.0, 2.0)
    near, far = goals(measured, predicted, rates, ("off",))
    assert near.met is True and near.measured == "1.14 at 1/s, 1.00 at 2/s, 0.90 at 3/s"
    assert far.met is False and far.goal == "simulated time to first token of all rounds, p99 to measured, off"
    assert far.target == "within 25% at 3 rates"


def test_first_tokens_are_open_where_the_simulator_differs_from_itself_by_more() -> None:
    measured = samples(FIRST_ROUNDS, 4.0, 4.0, 4.0)

    def judged(*simulated: float) -> Goal:
        predicted = samples(FIRST_ROUNDS, 4.0, 4.0) | {at(FIRST_ROUNDS, 3.0): {"off": [*simulated]}}
        return goals(measured, predicted, (1.0, 2.0, 3.0), ("off",))[1]

    near, noise, bias = judged(2.0, 4.0, 8.0), judged(1.0, 2.0, 4.0), judged(1.9, 2.0, 2.1)
    assert (near.met, near.why) == (True, "")
    assert noise.met is None and noise.why.endswith("are 0.50 to 2.00 at 3/s times as long")
    assert (bias.met, bias.why) == (False, "")


def test_goals_are_open_where_too_little_was_played() -> None:
    measured = samples(TOKENS, 100.0, 100.0)
    few, none = goals(measured, samples(TOKENS, 101.0, 99.0), (1.0, 2.0), ("off",))
    assert (few.met, few.why) == (None, "fewer than 3 rates were played")
    assert (none.met, none.why) == (None, "there is nothing to compare with")


def test_both_are_told_with_their_ratio() -> None:
    told = compared(samples(TOKENS, 100.0, 0.0), samples(TOKENS, 110.0, 5.0))
    assert told == {"off, output tokens/s, 1/s": "100 measured, 110 simulated: 1.10"}
