"""Batcher: what the next step computes, under a budget, at most two steps ahead."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.control.blocks import SlotState
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import Instance
from distkv.control.schedule import scheduler as batching
from distkv.control.schedule.scheduler import MAX_IN_FLIGHT, STREAMING_SHARE
from distkv.types import SamplingParams
from distkv.wire.messages.to_worker import PromptLogprobs, Sampling, SeqStep, Step
from tests.control.parts import BLOCK, add_sequence, lend, make_instance, validate


def plan(instance: Instance) -> Step | None:
    return instance.batcher.plan(instance.running(), now=5.0)


def parts(step: Step | None) -> dict[str, tuple[int, int]]:
    return {} if step is None else {part.request_id: (part.start, part.end) for part in step.seqs}


def answer(instance: Instance, step: Step, token: int = 5) -> None:
    """What `Requests` does with a good result."""
    for name, part in instance.batcher.finished(step.step_id).planned.items():
        seq = part.seq
        if part.attempt == seq.attempt and name in instance.sequences:
            for number in range(part.start // BLOCK, part.end // BLOCK):
                seq.seal(seq.blocks[number])
            if part.sampled:
                seq.tokens.append(token)
                seq.pending -= 1
    instance.settle()


def test_oldest_first_within_the_budget() -> None:
    instance = make_instance(num_blocks=32, max_num_batched_tokens=16)
    add_sequence(instance, "new", 12, arrival=3.0)
    add_sequence(instance, "old", 12, arrival=1.0)
    step = plan(instance)
    assert list(parts(step).items()) == [("old", (0, 12)), ("new", (0, 4))]
    assert step is not None and [part.sample is not None for part in step.seqs] == [True, False]
    validate(instance)


def test_decodes_go_before_chunks_of_older_requests() -> None:
    instance = make_instance(num_blocks=32, max_num_batched_tokens=16)
    add_sequence(instance, "young", 4, arrival=9.0)
    assert parts(plan(instance)) == {"young": (0, 4)}
    add_sequence(instance, "old", 40, arrival=1.0)
    assert list(parts(plan(instance)).items()) == [("young", (4, 5)), ("old", (0, 15))]
    assert plan(instance) is None, "two are in flight"
    answer(instance, Step(step_id=1, seqs=()))
    assert list(parts(plan(instance)).items()) == [("young", (5, 6)), ("old", (15, 30))]


def test_no_more_sequences_than_allowed() -> None:
    instance = make_instance(num_blocks=32, max_num_seqs=2)
    for index in range(4):
        add_sequence(instance, f"r{index}", 4, arrival=float(index))
    assert set(parts(plan(instance))) == {"r0", "r1"}


def test_two_steps_ahead_the_second_leaves_out_the_token_it_does_not_know() -> None:
    instance = make_instance()
    seq = add_sequence(instance, num_tokens=6, max_tokens=3)
    first, second = plan(instance), plan(instance)
    assert first is not None and second is not None
    assert (first.seqs[0].tokens, second.seqs[0].tokens) == ((0, 1, 2, 3, 4, 5), ())
    assert parts(second) == {"r": (6, 7)}
    assert (instance.batcher.last_step_id, instance.batcher.last_done_id) == (2, 0)
    answer(instance, first, token=42)
    third = plan(instance)
    assert third is not None and third.seqs[0].tokens == () and parts(third) == {"r": (7, 8)}
    assert seq.tokens[-1] == 42 and seq.pending == 2
    assert not seq.can_grow
    answer(instance, second)
    answer(instance, third)
    assert plan(instance) is None
    assert seq.num_generated == 3 == len(seq.tokens) - 6


@given(st.integers(0, 2**16), st.integers(1, 30), st.integers(1, 9), st.integers(1, 20))
def test_every_position_is_computed_once_and_nothing_beyond_max_tokens(
    seed: int, length: int, max_tokens: int, budget: int
) -> None:
    random = Random(seed)
    instance = make_instance(num_blocks=32, max_num_batched_tokens=budget)
    seqs = [add_sequence(instance, f"r{i}", length + i, max_tokens=max_tokens, arrival=float(i)) for i in range(3)]
    computed: dict[str, list[int]] = {seq.request_id: [] for seq in seqs}
    flying: list[Step] = []
    for _ in range(400):
        step = plan(instance) if random.random() < 0.6 else None
        if step is not None:
            assert sum(part.end - part.start for part in step.seqs) <= budget
            flying.append(step)
            for part in step.seqs:
                computed[part.request_id].extend(range(part.start, part.end))
                check_places(instance.sequences[part.request_id], part)
            validate(instance)
        elif flying:
            answer(instance, flying.pop(0))
        elif not any(seq.todo for seq in seqs):
            break
        assert len(instance.batcher.in_flight) == len(flying) <= MAX_IN_FLIGHT
    for seq in seqs:
        assert seq.num_generated == max_tokens
        assert computed[seq.request_id] == list(range(seq.prompt_tokens + max_tokens - 1)), "the last one has no KV"
    assert instance.pool.num_free == 32 - sum(-(-(seq.length - 1) // BLOCK) for seq in seqs)


def check_places(seq: Sequence, part: SeqStep) -> None:
    covered = [run.first_block + i for run in part.local for i in range(run.num_blocks)]
    covered += [span.first_block + i for span in part.remote for i in range(span.num_blocks)]
    assert sorted(covered) == list(range(-(-part.end // BLOCK)))
    assert part.version == seq.version


def test_without_a_slot_a_sequence_stands_still_and_is_named() -> None:
    instance = make_instance(num_blocks=2)
    seq = add_sequence(instance, num_tokens=10)
    assert parts(plan(instance)) == {"r": (0, 8)}
    assert plan(instance) is None
    assert instance.batcher.stalled == [seq]
    assert instance.batcher.has_in_flight(seq)


def test_a_chunk_leaves_room_for_blocks_that_are_leaving() -> None:
    instance = make_instance(num_blocks=32)
    seq = add_sequence(instance, num_tokens=40)
    seq.spare = instance.pool.allocate(6, SlotState.LOCAL) or []
    lend(seq, "p", 8)
    step = plan(instance)
    assert parts(step) == {"r": (0, 6 // STREAMING_SHARE * BLOCK)}
    assert parts(plan(instance)) == {"r": (8, 16)}
    answer(instance, step)  # type: ignore[arg-type]
    assert parts(plan(instance)) == {"r": (16, 24)}
    answer(instance, Step(step_id=2, seqs=()))
    assert plan(instance) is None, "all its slots are full, and blocks 0 to 7 have not left"
    assert instance.batcher.stalled == [], "it waits for what is leaving, not for the pool"
    assert instance.pool.num_free == 26
    validate(instance)


def test_what_was_taken_back_is_done_again_in_a_new_life() -> None:
    instance = make_instance(max_num_batched_tokens=8)
    seq = add_sequence(instance, num_tokens=10, max_tokens=5)
    for _ in range(2):
        plan(instance)
    assert seq.pending == 1 and instance.batcher.has_in_flight(seq)
    version, attempt = seq.version, seq.attempt
    instance.batcher.take_back(seq)
    assert list(seq.todo) == [(0, 10)] and seq.pending == 0
    assert (seq.version, seq.attempt) == (version + 1, attempt + 1)
    assert not instance.batcher.has_in_flight(seq)
    for step_id in (1, 2):
        answer(instance, Step(step_id=step_id, seqs=()))
    assert len(seq.tokens) == 10, "what the lost life sampled does not count"
    step = plan(instance)
    assert parts(step) == {"r": (0, 8)} and step.seqs[0].attempt == attempt + 1  # type: ignore[union-attr]


def test_a_sequence_of_the_same_name_is_another_one() -> None:
    instance = make_instance()
    old = add_sequence(instance, num_tokens=6)
    plan(instance)
    new = add_sequence(instance, num_tokens=6)
    assert instance.batcher.has_in_flight(old) and not instance.batcher.has_in_flight(new)
    instance.batcher.take_back(new)
    assert list(new.todo) == [(0, 6)]


def test_only_running_sequences_with_something_to_do() -> None:
    instance = make_instance()
    seq = add_sequence(instance, num_tokens=6)
    seq.state = SeqState.WAITING
    assert instance.batcher.plan([seq], now=5.0) is None
    assert instance.batcher.last_step_id == instance.batcher.last_done_id == 0


def test_results_come_in_order() -> None:
    instance = make_instance()
    add_sequence(instance, num_tokens=6)
    plan(instance)
    plan(instance)
    assert instance.batcher.finished(2) is None and len(instance.batcher.in_flight) == 2
    for step_id in (1, 2):
        step = instance.batcher.finished(step_id)
        assert step is not None and step.step_id == step_id
    assert instance.batcher.finished(2) is None, "answered once"


def test_the_sampling_is_that_of_the_request() -> None:
    instance = make_instance()
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, max_tokens=4)
    add_sequence(instance, num_tokens=6, params=params)
    step = plan(instance)
    assert step is not None
    sample = step.seqs[0].sample
    assert sample is not None
    assert (sample.temperature, sample.top_k, sample.top_p, sample.seed) == (0.5, 3, 0.9, 1)


def test_penalties_need_a_history_and_prompt_logprobs_the_token_after_the_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "MAX_PROMPT_LOGPROBS", 4)
    instance = make_instance()
    params = SamplingParams(max_tokens=4, frequency_penalty=0.5, logit_bias={3: 1.0}, logprobs=2, prompt_logprobs=1)
    seq = add_sequence(instance, num_tokens=6, params=params)
    add_sequence(instance, "plain", num_tokens=6, arrival=1.0)
    assert seq.began is None
    first = plan(instance)
    assert first is not None
    asking, plain = first.seqs
    assert (asking.history, asking.prompt_logprobs) == (True, PromptLogprobs(first=1, token_ids=(1, 2, 3, 4), top=1))
    assert (plain.history, plain.prompt_logprobs) == (False, None)
    second = plan(instance)
    assert second is not None
    asking = next(part for part in second.seqs if part.request_id == "r")
    assert asking.prompt_logprobs == PromptLogprobs(first=5, token_ids=(5,), top=1)
    assert asking.sample == Sampling(
        temperature=1.0, top_k=0, top_p=1.0, seed=1, frequency_penalty=0.5, logit_bias={3: 1.0}, prompt_tokens=6,
        logprobs=2,
    )  # fmt: skip
    assert seq.began == 5.0
