"""An instance that batches by itself, by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from distkv.config import ControlSettings
from distkv.control.performance.model import PerformanceModel
from distkv.sim.baselines.batching import burst
from tests.sim.baselines.parts import Bench, loaded
from tests.sim.timed.parts import PROFILE, profile

MODEL = PerformanceModel(PROFILE)


def test_one_request_takes_what_the_model_says() -> None:
    bench = Bench()
    one = bench.submit(101, 6)
    bench.run()
    first_s = MODEL.prefill_s(101)
    each_s = [MODEL.step_s(1, context) for context in range(102, 107)]
    assert list(one.outcome.times_s) == pytest.approx([first_s + sum(each_s[:count]) for count in range(6)])
    assert bench.ended == [one] and bench.instances[0].free == 100


def test_long_prompts_are_computed_in_chunks() -> None:
    bench = Bench(max_num_batched_tokens=256)
    one = bench.submit(600, 2)
    bench.run()
    expected_s = MODEL.prefill_s(256) + MODEL.prefill_s(256, 256) + MODEL.prefill_s(88, 512)
    assert one.outcome.first_s == pytest.approx(expected_s)
    assert bench.instances[0].counters.steps == 4


def test_chunks_fill_steps_beside_decodes_by_vllm_s_rule() -> None:
    """One decodes; 255 of the 256 tokens of each step are the other's, whose prompt so takes three of them,
    each longer than distkv's own rule allows."""
    bench = Bench(prompts="filling", max_num_batched_tokens=256)
    first = bench.submit(100, 50)
    bench.run(until=0.5)
    second = bench.submit(700, 2)
    bench.run()
    begins_s = [at_s for at_s in first.outcome.times_s if at_s >= 0.5]
    assert second.outcome.times_s[0] == pytest.approx(begins_s[3] - 0.5)
    assert begins_s[1] - begins_s[0] > ControlSettings().mixed_step_ratio * (
        first.outcome.times_s[1] - first.outcome.times_s[0]
    )


def test_whole_prompts_go_first_where_they_are_computed_alone() -> None:
    """Three come while one decodes: two are one step, which the third would not fit whole; the one gets no token in
    either."""
    bench = Bench(prompts="alone", max_num_batched_tokens=1100)
    first = bench.submit(100, 50)
    bench.run(until=0.5)
    others = [bench.submit(tokens, 2) for tokens in (700, 300, 200)]
    bench.run()
    came_s = [one.outcome.request.arrival_s + one.outcome.first_s for one in others]
    assert came_s[0] == came_s[1] and came_s[2] - came_s[1] == pytest.approx(MODEL.prefill_s(200))
    last, next_ = next((a, b) for a, b in pairwise(first.outcome.times_s) if b > came_s[0])
    chunks_s = MODEL.base_s(0, 1000) + MODEL.chunk_attention_s(700, 0) + MODEL.chunk_attention_s(300, 0)
    assert came_s[0] - last == pytest.approx(chunks_s)
    contexts = 701 + 301 + 201 + first.outcome.times_s.index(next_) + 100
    assert next_ - came_s[2] == pytest.approx(MODEL.step_s(4, contexts))


def test_who_comes_meanwhile_is_in_the_next_step() -> None:
    bench = Bench()
    first = bench.submit(100, 50)
    bench.run(until=0.5)
    second = bench.submit(8, 2)
    bench.run()
    began_s, end_s = [at_s for at_s in first.outcome.times_s if at_s >= 0.5][:2]
    assert second.outcome.times_s[0] == pytest.approx(end_s - 0.5)
    chunk_s = 0.0208 + (1e-6 + 7 * 99e-9) * 4.5
    context = 101 + first.outcome.times_s.index(began_s)
    assert end_s - began_s == pytest.approx(chunk_s + MODEL.attention_s(context))


def test_a_request_begins_when_all_of_its_prompt_fits_and_some_more() -> None:
    """Of 100 rBlocks one stays free, unless there is nobody else."""
    bench = Bench()
    bench.submit(960, 2)
    too_large, small = bench.submit(625, 2), bench.submit(16, 2)
    bench.run(until=0.01)
    assert len(bench.instances[0].running) == 1, "who came later does not pass"
    bench.run()
    assert too_large.outcome.times_s[0] == small.outcome.times_s[0] > 0.1
    fits = Bench()
    fits.submit(960, 2)
    fits.submit(624, 2)
    fits.run(until=0.01)
    assert len(fits.instances[0].running) == 2


def test_one_alone_may_have_the_whole_pool() -> None:
    bench = Bench()
    one = bench.submit(1590, 11)
    bench.run()
    assert len(one.outcome.times_s) == 11


def test_the_latest_gives_way_and_is_computed_again() -> None:
    """Two of 48 rBlocks each grow until the pool is full."""
    bench = Bench()
    old, young = bench.submit(760, 100), bench.submit(760, 100)
    bench.run()
    instance = bench.instances[0]
    assert (old.lives, young.lives, instance.counters.preemptions) == (0, 1, 1)
    assert bench.ended == [old, young] and len(young.outcome.times_s) == 100
    pauses = [after - before for before, after in pairwise(young.outcome.times_s)]
    assert max(pauses) > 10 * min(pauses)
    # 50 rBlocks each: one more token is wanted of the older one.
    assert instance.counters.recomputed_tokens == 800
    assert instance.counters.generation_tokens == 200


def test_no_more_run_than_are_allowed_to() -> None:
    bench = Bench(max_num_seqs=2)
    requests = [bench.submit(16, 10) for _ in range(3)]
    bench.run(until=0.05)
    assert len(bench.instances[0].running) == 2
    bench.run()
    assert requests[2].outcome.first_s > requests[0].outcome.times_s[-1]


def test_who_is_dropped_frees_its_memory() -> None:
    bench = Bench()
    runs, waits = bench.submit(960, 500), bench.submit(960, 4)
    bench.run(until=1.0)
    runs.is_over = True
    bench.instances[0].drop(runs)
    bench.run()
    assert len(waits.outcome.times_s) == 4 and bench.ended == [waits]
    assert max(runs.outcome.times_s) <= 1.0


def test_who_waits_can_be_dropped() -> None:
    bench = Bench()
    bench.submit(960, 5)
    waits = bench.submit(960, 4)
    bench.run(until=0.05)
    bench.instances[0].drop(waits)
    bench.run()
    assert not waits.outcome.times_s and bench.instances[0].free == 100


def test_others_of_a_crowded_host_slow_it_down() -> None:
    crowded = profile(crowded_times=1.5)
    bench = Bench(2, of=crowded)
    one = bench.submit(100, 200)
    bench.run(until=1.0)
    bench.submit(100, 20, to=1)
    bench.run()
    each = [after - before for before, after in pairwise(one.outcome.times_s)]
    usual, slowed = each[5], max(each)
    assert slowed == pytest.approx(PerformanceModel(crowded).crowding(usual).times * usual, rel=0.01)
    assert each[-1] == pytest.approx(usual, rel=0.02) and 15 < sum(step > 1.2 * usual for step in each) < 40


def test_a_step_begins_later_beside_others() -> None:
    bench = Bench(2, of=profile(crowded_step_s=0.004))
    one = bench.submit(100, 200)
    bench.run(until=1.0)
    bench.submit(100, 20, to=1)
    bench.run()
    each = [after - before for before, after in pairwise(one.outcome.times_s)]
    assert max(each) == pytest.approx(each[5] + 0.004, rel=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_many_steps_at_once_are_those_one_by_one(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Every token at the same time, to the last bit, and the same preemptions."""
    played = []
    for most in (burst.MOST_STEPS, 1):
        monkeypatch.setattr(burst, "MOST_STEPS", most)
        bench = Bench(2)
        requests = []
        for number, request in enumerate(loaded(30, 4.0, seed)):
            bench.run(until=request.arrival_s)
            requests.append(bench.submit(request.prompt_tokens, request.output_tokens, to=number % 2))
        bench.run()
        assert all(len(one.outcome.times_s) == one.outcome.request.output_tokens for one in requests)
        played.append(
            (
                [list(one.outcome.times_s) for one in requests],
                [one.lives for one in requests],
                [one.counters for one in bench.instances],
            )
        )
    assert played[0] == played[1]
