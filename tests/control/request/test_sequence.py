"""Sequence and its placement: what is computed, what is void, what is lost; and each invariant can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from distkv.control.request.answer.output import NoText, OutputText
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from tests.control.parts import BLOCK, add_sequence, compute, lend, make_state, offer, place
from tests.token_ids import packed


@pytest.fixture
def state() -> RManagerState:
    return make_state()


def prepared(state: RManagerState, num_blocks: int = 4) -> Sequence:
    """Its first two blocks at a creditor, the rest here."""
    seq = add_sequence(state, num_tokens=num_blocks * BLOCK)
    compute(state, seq)
    place(state, seq, lend(seq, "p", 2))
    seq.validate()
    return seq


def test_a_step_that_samples_makes_the_next_position_its_own(state: RManagerState) -> None:
    seq = add_sequence(state, num_tokens=6, max_tokens=2)
    seq.planned(0, 4)
    assert list(seq.uncomputed) == [(4, 6)] and seq.length == 6
    seq.planned(4, 6)
    assert list(seq.uncomputed) == [(6, 7)] and (seq.pending, seq.length, len(seq.request.tokens)) == (1, 7, 6)
    seq.append(42)
    assert (seq.pending, seq.length, seq.request.tokens[-1], seq.num_generated) == (0, 7, 42, 1)
    seq.planned(6, 7)
    assert not seq.uncomputed and not seq.can_grow, "the KV of the last token is never needed"


def test_what_is_computed_again_is_counted_and_full_blocks_are_known(state: RManagerState) -> None:
    seq = add_sequence(state, num_tokens=10)
    assert seq.computed(0, 6) == 0
    assert [block.full for block in seq.placement.blocks] == [True, False, False]
    assert seq.computed(0, 8) == 6 and seq.computed(8, 10) == 0
    assert [block.full for block in seq.placement.blocks] == [True, True, False]


def test_void_steps_leave_what_the_client_has(state: RManagerState) -> None:
    seq = add_sequence(state, num_tokens=6, max_tokens=9)
    seq.planned(0, 6)
    seq.append(7)
    seq.planned(6, 7)
    seq.planned(7, 8)
    assert seq.pending == 2
    version = seq.placement.version
    seq.void([(6, 7), (7, 8)], 3)
    assert list(seq.request.tokens[6:]) == [7] and seq.pending == 0
    assert list(seq.uncomputed) == [(6, 7)], "positions of tokens that nobody saw are gone"
    assert (seq.attempt, seq.placement.version) == (1, version + 1)


def test_only_what_lay_in_a_lost_span_is_computed_again(state: RManagerState) -> None:
    seq = prepared(state)
    (debt,) = seq.placement.debts
    assert seq.lose(debt) == 2 and seq.placement.debts == []
    assert list(seq.uncomputed) == [(0, 2 * BLOCK)]
    assert [block.number for block in seq.placement.unplaced()] == [0, 1]
    assert seq.placement.take_unsettled() and not seq.placement.take_unsettled()
    seq.validate()


def test_blocks_that_must_wait_for_lost_ones_lend_no_slots_to_nothing(state: RManagerState) -> None:
    seq = prepared(state)
    tail = seq.placement.blocks[3]
    tail.full = False
    seq.uncomputed.add(*seq.span_of(tail))
    seq.lose(seq.placement.debts[0])
    slot = tail.slot
    assert seq.vacate() == [slot] and tail.slot is None
    assert seq.uncomputed.covers(*seq.span_of(tail))
    state.deferred.add(seq, [slot] if slot is not None else [])
    state.validate()


def test_all_it_held_comes_back_but_what_is_being_read(state: RManagerState) -> None:
    seq = prepared(state)
    outgoing = lend(seq, "q", 2, at=2)
    offer(seq, outgoing, 1)
    seq.placement.add_slots([state.take_slot() or 0])
    held, read = set(seq.placement.local_slots()), seq.placement.blocks[2].slot
    cleared = seq.clear()
    assert cleared.being_read == [(outgoing, [read])]
    assert set(cleared.slots) == held - {read} and len(cleared.debts) == 2
    assert not seq.placement.holds_kv and seq.placement.num_local_slots == 0
    assert list(seq.uncomputed) == [(0, 16)]
    seq.validate()


def test_a_request_goes_on_elsewhere_from_its_value_alone(state: RManagerState) -> None:
    """What another instance needs to take it over: no part of its placement is in it."""
    seq = add_sequence(state, num_tokens=6, max_tokens=5)
    seq.planned(0, 6)
    seq.append(11)
    request = copy.deepcopy(seq.request)
    assert request == seq.request
    other = make_state(num_blocks=4, peers=())
    taken_over = Sequence(request, OutputText(NoText(), request.params, frozenset()), BLOCK)
    other.sequences[request.request_id] = taken_over
    assert list(taken_over.uncomputed) == [(0, 7)] and taken_over.num_generated == 1
    taken_over.placement.cover(7)
    other.sequences.run(taken_over)
    step = other.scheduler.plan(other.running(), 0.0)
    assert step is not None and step.seqs[0].tokens == packed(0, 1, 2, 3, 4, 5, 11) and step.seqs[0].sample is not None
    assert step.seqs[0].sample.seed == seq.request.seed
    other.validate()


def lent_unfinished(seq: Sequence) -> None:
    seq.placement.blocks[0].full = False


def lent_without_checksum(seq: Sequence) -> None:
    seq.placement.blocks[1].checksum = None


def arrived_but_not_filled(seq: Sequence) -> None:
    seq.placement.debts[0].filled -= 1


def filled_but_not_arrived(seq: Sequence) -> None:
    block = seq.placement.blocks[1]
    block.arrived = False
    seq.placement.counts.update(block)
    seq.placement._table.forget_from(0)


def uncounted(seq: Sequence) -> None:
    seq.placement.blocks[3].slot = None


def moved_unseen(seq: Sequence) -> None:
    seq.placement.block_table(4)
    seq.placement.blocks[2].slot, seq.placement.blocks[3].slot = (
        seq.placement.blocks[3].slot,
        seq.placement.blocks[2].slot,
    )


def slot_held_twice(seq: Sequence) -> None:
    seq.placement.add_slots([seq.placement.blocks[3].slot or 0])


def waits_with_slots(seq: Sequence) -> None:
    slots = seq.clear().slots
    seq.state = SeqState.WAITING
    seq.placement.add_slots(slots[:1])


def computes_the_unknown(seq: Sequence) -> None:
    seq.uncomputed.add(16, 17)


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lent_unfinished, "lent unfinished"),
        (lent_without_checksum, "lent unfinished"),
        (arrived_but_not_filled, "filled or not"),
        (filled_but_not_arrived, "filled or not"),
        (uncounted, "is off"),
        (moved_unseen, "unseen"),
        (slot_held_twice, "held twice"),
        (waits_with_slots, "waits and holds slots"),
        (computes_the_unknown, "16 to 17 of 16 positions"),
    ],
)
def test_each_invariant_can_fail(state: RManagerState, break_it: Callable[[Sequence], None], why: str) -> None:
    seq = prepared(state)
    break_it(seq)
    with pytest.raises(AssertionError, match=why):
        seq.validate()
