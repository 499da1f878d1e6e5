"""Scheduler: what the next step computes, under a budget, at most two steps ahead."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkv.control.blocks import SlotState
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule import scheduler as batching
from distkv.control.schedule.scheduler import MAX_IN_FLIGHT, STREAMING_SHARE
from distkv.types import SamplingParams
from distkv.wire.messages.to_worker import PromptLogprobs, Sampling, SeqStep, Step
from tests.control.parts import BLOCK, add_sequence, lend, make_state, validate
from tests.token_ids import packed


def plan(state: RManagerState) -> Step | None:
    return state.scheduler.plan(state.running(), now=5.0)


def parts(step: Step | None) -> dict[str, tuple[int, int]]:
    return {} if step is None else {part.request_id: (part.start, part.end) for part in step.seqs}


def answer(state: RManagerState, step: Step, token: int = 5) -> None:
    """What `Requests` does with a good result."""
    for name, part in state.scheduler.finished(step.step_id).planned.items():
        seq = part.seq
        if part.attempt == seq.attempt and name in state.sequences:
            seq.placement.mark_full(seq.placement.blocks[part.start // BLOCK : part.end // BLOCK])
            if part.sampled:
                seq.request.tokens.append(token)
                seq.pending -= 1
    state.deferred.settle()


def test_oldest_first_within_the_budget() -> None:
    state = make_state(num_blocks=32, max_num_batched_tokens=16)
    add_sequence(state, "new", 12, arrival=3.0)
    add_sequence(state, "old", 12, arrival=1.0)
    step = plan(state)
    assert list(parts(step).items()) == [("old", (0, 12)), ("new", (0, 4))]
    assert step is not None and [part.sample is not None for part in step.seqs] == [True, False]
    validate(state)


def test_decodes_go_before_chunks_of_older_requests() -> None:
    state = make_state(num_blocks=32, max_num_batched_tokens=16)
    add_sequence(state, "young", 4, arrival=9.0)
    assert parts(plan(state)) == {"young": (0, 4)}
    add_sequence(state, "old", 40, arrival=1.0)
    assert list(parts(plan(state)).items()) == [("young", (4, 5)), ("old", (0, 15))]
    assert plan(state) is None, "two are in flight"
    answer(state, Step(step_id=1, seqs=()))
    assert list(parts(plan(state)).items()) == [("young", (5, 6)), ("old", (15, 30))]


def test_short_prompts_take_turns_with_a_long_one_that_came_before_them() -> None:
    state = make_state(num_blocks=64, max_num_batched_tokens=16)
    add_sequence(state, "long", 100, arrival=1.0)
    add_sequence(state, "long too", 90, arrival=2.0)
    add_sequence(state, "short", 20, arrival=3.0)
    add_sequence(state, "shorter", 12, arrival=4.0)
    seen = []
    for _ in range(5):
        step = plan(state)
        assert step is not None
        seen.append(list(parts(step).items()))
        answer(state, step)
    assert seen == [
        [("long", (0, 16))],
        [("shorter", (0, 12)), ("short", (0, 4))],
        [("shorter", (12, 13)), ("long", (16, 31))],
        [("shorter", (13, 14)), ("short", (4, 19))],
        [("short", (19, 20)), ("shorter", (14, 15)), ("long", (31, 45))],
    ]


def test_prompts_of_about_the_same_length_are_computed_in_the_order_in_which_they_came() -> None:
    state = make_state(num_blocks=64, max_num_batched_tokens=16)
    for index in range(3):
        add_sequence(state, f"r{index}", 48 - 8 * index, arrival=float(index))
    seen = []
    for _ in range(9):
        step = plan(state)
        assert step is not None
        seen.extend(name for name, (start, end) in parts(step).items() if end - start > 1)
        answer(state, step)
    assert seen == sorted(seen), "each ends before the next one begins"


def test_no_more_sequences_than_allowed() -> None:
    state = make_state(num_blocks=32, max_num_seqs=2)
    for index in range(4):
        add_sequence(state, f"r{index}", 4, arrival=float(index))
    assert set(parts(plan(state))) == {"r0", "r1"}


def test_two_steps_ahead_the_second_leaves_out_the_token_it_does_not_know() -> None:
    state = make_state()
    seq = add_sequence(state, num_tokens=6, max_tokens=3)
    first, second = plan(state), plan(state)
    assert first is not None and second is not None
    assert (first.seqs[0].tokens, second.seqs[0].tokens) == (packed(0, 1, 2, 3, 4, 5), b"")
    assert parts(second) == {"r": (6, 7)}
    assert (state.scheduler.last_step_id, state.scheduler.last_done_id) == (2, 0)
    answer(state, first, token=42)
    third = plan(state)
    assert third is not None and third.seqs[0].tokens == b"" and parts(third) == {"r": (7, 8)}
    assert seq.request.tokens[-1] == 42 and seq.pending == 2
    assert not seq.can_grow
    answer(state, second)
    answer(state, third)
    assert plan(state) is None
    assert seq.num_generated == 3 == len(seq.request.tokens) - 6


@given(st.integers(0, 2**16), st.integers(1, 30), st.integers(1, 9), st.integers(1, 20))
def test_every_position_is_computed_once_and_nothing_beyond_max_tokens(
    seed: int, length: int, max_tokens: int, budget: int
) -> None:
    random = Random(seed)
    state = make_state(num_blocks=32, max_num_batched_tokens=budget)
    seqs = [add_sequence(state, f"r{i}", length + i, max_tokens=max_tokens, arrival=float(i)) for i in range(3)]
    computed: dict[str, list[int]] = {seq.request_id: [] for seq in seqs}
    flying: list[Step] = []
    for _ in range(400):
        step = plan(state) if random.random() < 0.6 else None
        if step is not None:
            assert sum(part.end - part.start for part in step.seqs) <= budget
            flying.append(step)
            for part in step.seqs:
                computed[part.request_id].extend(range(part.start, part.end))
                check_places(state.sequences[part.request_id], part)
            validate(state)
        elif flying:
            answer(state, flying.pop(0))
        elif not any(seq.uncomputed for seq in seqs):
            break
        assert len(state.scheduler.in_flight) == len(flying) <= MAX_IN_FLIGHT
    for seq in seqs:
        assert seq.num_generated == max_tokens
        assert computed[seq.request_id] == list(range(seq.length - 1)), "the last one has no KV"
    assert state.pool.num_free == 32 - sum(-(-(seq.length - 1) // BLOCK) for seq in seqs)


def check_places(seq: Sequence, part: SeqStep) -> None:
    covered = [run.first_block + i for run in part.local for i in range(run.num_blocks)]
    covered += [span.first_block + i for span in part.remote for i in range(span.num_blocks)]
    assert sorted(covered) == list(range(-(-part.end // BLOCK)))
    assert part.version == seq.placement.version


def test_without_a_slot_a_sequence_stands_still_and_is_named() -> None:
    state = make_state(num_blocks=2)
    seq = add_sequence(state, num_tokens=10)
    assert parts(plan(state)) == {"r": (0, 8)}
    assert plan(state) is None
    assert state.scheduler.stalled == [seq]
    assert state.scheduler.has_in_flight(seq)


def test_a_chunk_leaves_room_for_blocks_that_are_leaving() -> None:
    state = make_state(num_blocks=32)
    seq = add_sequence(state, num_tokens=40)
    seq.placement.add_slots(state.pool.allocate(6, SlotState.LOCAL) or [])
    lend(seq, "p", 8)
    add_sequence(state, "w", 40, arrival=2.0, seq_state=SeqState.WAITING)
    step = plan(state)
    assert parts(step) == {"r": (0, 6 // STREAMING_SHARE * BLOCK)}
    assert parts(plan(state)) == {"r": (8, 16)}
    answer(state, step)  # type: ignore[arg-type]
    assert parts(plan(state)) == {"r": (16, 24)}
    answer(state, Step(step_id=2, seqs=()))
    assert plan(state) is None, "all its slots are full, and blocks 0 to 7 have not left"
    assert state.scheduler.stalled == [], "it waits for what is leaving, not for the pool"
    assert state.pool.num_free == 26
    validate(state)


def test_a_prompt_that_leaves_has_free_memory_on_its_way_that_nobody_needs() -> None:
    """One that was admitted with a single slot would be computed a block at a time, to its end."""
    state = make_state(num_blocks=32)
    seq = add_sequence(state, num_tokens=100)
    seq.placement.add_slots(state.pool.allocate(1, SlotState.LOCAL) or [])
    lend(seq, "p", 25)
    add_sequence(state, "w", 40, arrival=2.0, seq_state=SeqState.WAITING)
    assert parts(plan(state)) == {"r": (0, BLOCK)} and seq.placement.num_local_slots == 1
    assert plan(state) is None, "somebody waits for what is free"
    del state.sequences["w"]
    step = plan(state)
    slots = seq.placement.num_local_slots
    assert slots == 25 and state.pool.num_free == 32 - slots, "one for each of its rBlocks"
    assert parts(step) == {"r": (BLOCK, BLOCK + slots // STREAMING_SHARE * BLOCK)}
    validate(state)


def test_what_was_taken_back_is_done_again_in_a_new_life() -> None:
    state = make_state(max_num_batched_tokens=8)
    seq = add_sequence(state, num_tokens=10, max_tokens=5)
    for _ in range(2):
        plan(state)
    assert seq.pending == 1 and state.scheduler.has_in_flight(seq)
    version, attempt = seq.placement.version, seq.attempt
    state.scheduler.take_back(seq)
    assert list(seq.uncomputed) == [(0, 10)] and seq.pending == 0
    assert (seq.placement.version, seq.attempt) == (version + 1, attempt + 1)
    assert not state.scheduler.has_in_flight(seq)
    for step_id in (1, 2):
        answer(state, Step(step_id=step_id, seqs=()))
    assert len(seq.request.tokens) == 10, "what the lost attempt sampled does not count"
    step = plan(state)
    assert parts(step) == {"r": (0, 8)} and step.seqs[0].attempt == attempt + 1  # type: ignore[union-attr]


def test_a_sequence_of_the_same_name_is_another_one() -> None:
    state = make_state()
    old = add_sequence(state, num_tokens=6)
    plan(state)
    del state.sequences["r"]
    new = add_sequence(state, num_tokens=6)
    assert state.scheduler.has_in_flight(old) and not state.scheduler.has_in_flight(new)
    state.scheduler.take_back(new)
    assert list(new.uncomputed) == [(0, 6)]


def test_only_running_sequences_with_something_to_do() -> None:
    state = make_state()
    seq = add_sequence(state, num_tokens=6)
    state.sequences.wait(seq, 0.0)
    assert state.scheduler.plan([seq], now=5.0) is None
    assert state.scheduler.last_step_id == state.scheduler.last_done_id == 0


def test_results_come_in_order() -> None:
    state = make_state()
    add_sequence(state, num_tokens=6)
    plan(state)
    plan(state)
    assert state.scheduler.finished(2) is None and len(state.scheduler.in_flight) == 2
    for step_id in (1, 2):
        step = state.scheduler.finished(step_id)
        assert step is not None and step.step_id == step_id
    assert state.scheduler.finished(2) is None, "answered once"


def test_the_sampling_is_that_of_the_request() -> None:
    state = make_state()
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, max_tokens=4)
    add_sequence(state, num_tokens=6, params=params)
    step = plan(state)
    assert step is not None
    sample = step.seqs[0].sample
    assert sample is not None
    assert (sample.temperature, sample.top_k, sample.top_p, sample.seed) == (0.5, 3, 0.9, 1)


def test_penalties_need_a_history_and_prompt_logprobs_the_token_after_the_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "MAX_PROMPT_LOGPROBS", 8)
    state = make_state()
    params = SamplingParams(max_tokens=4, frequency_penalty=0.5, logit_bias={3: 1.0}, logprobs=2, prompt_logprobs=1)
    seq = add_sequence(state, num_tokens=6, params=params)
    add_sequence(state, "plain", num_tokens=6, arrival=1.0)
    assert seq.request.began is None
    first = plan(state)
    assert first is not None
    asking, plain = first.seqs
    assert (asking.history, asking.prompt_logprobs) == (
        True,
        PromptLogprobs(first=1, token_ids=packed(1, 2, 3, 4), top=1),
    )
    assert (plain.history, plain.prompt_logprobs) == (False, None)
    second = plan(state)
    assert second is not None
    asking = next(part for part in second.seqs if part.request_id == "r")
    assert asking.prompt_logprobs == PromptLogprobs(first=5, token_ids=packed(5), top=1)
    assert asking.sample == Sampling(
        temperature=1.0, top_k=0, top_p=1.0, seed=1, frequency_penalty=0.5, logit_bias={3: 1.0}, prompt_tokens=6,
        logprobs=2,
    )  # fmt: skip
    assert seq.request.began == 5.0


def test_the_logprobs_of_prompts_that_a_step_reports_are_bounded_for_all_of_them_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "MAX_PROMPT_LOGPROBS", 6)
    state = make_state()
    for index, name in enumerate("abcd"):
        top = None if name == "d" else 1
        add_sequence(state, name, num_tokens=3, arrival=index, params=SamplingParams(max_tokens=4, prompt_logprobs=top))
    ranges = []
    for _ in range(3):
        step = plan(state)
        assert step is not None
        ranges.append([(part.request_id, part.start, part.end) for part in step.seqs])
        wanted = [part.prompt_logprobs for part in step.seqs if part.prompt_logprobs is not None]
        assert sum(one.num_tokens * (1 + one.top) for one in wanted) <= 6
        assert state.scheduler.finished(step.step_id) is not None
    assert ranges[0] == [("a", 0, 3), ("b", 0, 1), ("d", 0, 3)], "what reports nothing waits for nobody"
    assert ranges[1][2:] == [("b", 1, 3), ("c", 0, 2)]
    assert ("c", 2, 3) in ranges[2] and not state.scheduler.stalled
