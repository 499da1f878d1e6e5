"""Heartbeats: what an instance tells, and what a gManager that misses some of it still knows."""

from __future__ import annotations

import pytest

from distkv.clock import ManualClock
from distkv.control.blocks import SlotState
from distkv.control.request.sequence import SeqState
from distkv.control.rmanager.reports.heartbeats import (
    EARLY_S,
    GENERATED_S,
    IN_VAIN,
    IN_VAIN_S,
    KEPT_HEARTBEATS,
    WANTED_BACK_S,
    Heartbeats,
)
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.to_gmanager import MAX_ARRIVED, MAX_LONGEST, Heartbeat, LongRequest
from distkv.wire.messages.to_rmanager import Granted, HeartbeatAck, TryMoveKvcache
from tests.control.parts import add_sequence, compute, lend, make_state, place


def entries(heartbeat: Heartbeat) -> dict[tuple[str, bool], int]:
    return {(entry.req_id, entry.local): entry.num_blocks for entry in heartbeat.entries}


def test_the_first_is_full_the_next_tell_changes_once_one_is_acknowledged() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    compute(state, add_sequence(state, "a", 8))
    first = heartbeats.build(0)
    assert (first.full, first.seq, first.base, entries(first)) == (True, 1, 0, {("a", True): 2})
    compute(state, add_sequence(state, "b", 4))
    second = heartbeats.build(0)
    assert second.full and entries(second) == {("a", True): 2, ("b", True): 1}
    heartbeats.on_ack(HeartbeatAck(seq=1))
    third = heartbeats.build(0)
    assert (third.full, third.base, entries(third)) == (False, 1, {("b", True): 1})
    heartbeats.on_ack(HeartbeatAck(seq=3))
    assert entries(heartbeats.build(0)) == {}


def test_what_changed_back_is_told_as_the_gmanager_may_know_more_than_it_acknowledged() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    seq = add_sequence(state, "a", 8)
    compute(state, seq)
    heartbeats.build(0)
    heartbeats.on_ack(HeartbeatAck(seq=1))
    compute(state, add_sequence(state, "short-lived", 4))
    assert entries(heartbeats.build(0)) == {("short-lived", True): 1}
    slots = state.sequences.pop("short-lived").placement.local_slots()
    state.deferred.add(None, slots)
    assert entries(heartbeats.build(0)) == {("short-lived", True): 0}


def test_what_was_generated_is_counted_over_the_last_seconds() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    found = []
    for half in range(24):
        assert heartbeats.due(100 + half * state.settings.heartbeat_s)
        found.append(heartbeats.build(0).generated_per_s)
        state.counters.generation_tokens += 30 if 4 <= half < 14 else 0
    assert state.settings.heartbeat_s == GENERATED_S / 10
    assert found[:5] == [0.0] * 5 and found[5] == 30 / 2.5
    assert found[14] == 300 / GENERATED_S
    assert found[23] == 30 / GENERATED_S
    assert len(heartbeats._generated) <= 12


def test_what_has_come_is_named_once_whatever_became_of_it() -> None:
    heartbeats = Heartbeats(make_state())
    heartbeats.on_submitted("a")
    heartbeats.on_submitted("b")
    assert heartbeats.build(0).arrived == ("a", "b")
    assert heartbeats.build(0).arrived == ()
    for number in range(MAX_ARRIVED + 1):
        heartbeats.on_submitted(f"r{number}")
    assert heartbeats.build(0).arrived == tuple(f"r{number}" for number in range(1, MAX_ARRIVED + 1)), "the newest"


def test_that_it_drains_is_said_early_and_once() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    assert heartbeats.due(10.0)
    heartbeats.build(0)
    state.instance_state = "draining"
    assert heartbeats.next_deadline() == 10.0 + EARLY_S and heartbeats.due(10.0 + EARLY_S)
    assert heartbeats.build(0).state == "draining"
    assert heartbeats.next_deadline() == 10.0 + EARLY_S + state.settings.heartbeat_s


def test_who_is_told_to_join_again_and_again_beats_no_faster() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    assert heartbeats.due(10.0)
    heartbeats.build(0)
    heartbeats.on_ack(HeartbeatAck(seq=1))
    heartbeats.on_ack(HeartbeatAck(seq=1, want_join=True))
    assert heartbeats.due(10.1), "after the first time everything is told at once"
    assert heartbeats.build(0).full
    heartbeats.on_ack(HeartbeatAck(seq=2, want_join=True))
    assert not heartbeats.due(10.2), "it was refused: the next try is the next heartbeat"
    assert heartbeats.due(10.1 + state.settings.heartbeat_s)


def test_an_answer_to_what_was_sent_before_all_was_wanted_is_nothing_to_build_on() -> None:
    heartbeats = Heartbeats(make_state())
    for _ in range(3):
        heartbeats.build(0)
    heartbeats.on_ack(HeartbeatAck(seq=2, want_full=True))
    heartbeats.on_ack(HeartbeatAck(seq=3))
    assert heartbeats.build(0).full
    heartbeats.on_ack(HeartbeatAck(seq=4))
    assert heartbeats.build(0).base == 4


def test_on_request_everything_is_told() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    compute(state, add_sequence(state, "a", 8))
    heartbeats.build(0)
    heartbeats.on_ack(HeartbeatAck(seq=1))
    assert heartbeats.due(0.0) and not heartbeats.due(0.05)
    heartbeats.on_ack(HeartbeatAck(seq=1, want_full=True))
    assert heartbeats.due(0.05), "at once"
    assert entries(heartbeats.build(0)) == {("a", True): 2}


def test_after_many_unanswered_ones_it_starts_over_and_remembers_no_more_than_it_must() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    heartbeats.build(0)
    heartbeats.on_ack(HeartbeatAck(seq=1))
    for index in range(3 * KEPT_HEARTBEATS):
        compute(state, add_sequence(state, f"r{index}", 4))
        last = heartbeats.build(0)
        state.deferred.add(None, state.sequences.pop(f"r{index}").placement.local_slots())
    assert last.full and len(heartbeats._changed_in) <= 2 * KEPT_HEARTBEATS
    heartbeats.on_ack(HeartbeatAck(seq=last.seq - KEPT_HEARTBEATS - 1))
    assert heartbeats.build(0).full, "what changed since then is forgotten"
    heartbeats.on_ack(HeartbeatAck(seq=last.seq))
    assert entries(heartbeats.build(0)) == {(f"r{3 * KEPT_HEARTBEATS - 1}", True): 0}


def test_what_is_lent_is_told_by_request_and_by_debtor() -> None:
    state = make_state(num_blocks=16, staging_blocks=1)
    for span_id, request_id in (("s", "a"), ("t", "a"), ("u", "b")):
        ask = TryMoveKvcache(
            span_id=span_id, request_id=request_id, debtor_id="p", debtor_incarnation=1, num_blocks=2, ttl_s=4.0
        )
        assert isinstance(state.loans.try_grant(b"d", ask, state.lendable(), 0.0)[0], Granted)
    heartbeats = Heartbeats(state)
    heartbeat = heartbeats.build(3)
    assert entries(heartbeat) == {("a", False): 4, ("b", False): 2}
    assert [(debtor.instance_id, debtor.num_blocks) for debtor in heartbeat.debtors] == [("p", 6)]
    assert (heartbeat.total_blocks, heartbeat.free_blocks, heartbeat.lendable_blocks) == (16, 10, 9)
    assert heartbeat.waiting_blocks == 3
    heartbeats.validate()


def test_running_and_waiting_and_the_time_of_steps() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    add_sequence(state, "a", 4)
    add_sequence(state, "b", 4, SeqState.WAITING)
    add_sequence(state, "c", 4, SeqState.ACQUIRING)
    heartbeats.on_step(1.0)
    heartbeats.on_step(2.0)
    heartbeat = heartbeats.build(0)
    assert (heartbeat.running, heartbeat.waiting) == (1, 2)
    assert abs(heartbeat.step_s - 1.1) < 1e-9
    state.instance_state = "draining"
    assert heartbeats.build(0).lendable_blocks == 0


def test_what_is_to_be_computed_and_what_lies_where() -> None:
    state = make_state(num_blocks=64)
    heartbeats = Heartbeats(state)
    decoding, prefilling = add_sequence(state, "a", 20), add_sequence(state, "b", 9)
    compute(state, decoding)
    decoding.planned(19, 20)  # samples the next token: one position is to be computed, and that is no prefill
    waiting = add_sequence(state, "c", 6, SeqState.WAITING)
    add_sequence(state, "d", 5, SeqState.ACQUIRING)
    debt = lend(decoding, "p", 2, spare=1)
    assert heartbeats.build(0).longest == (), "only who plans moves needs them"
    state.policy = "greedy"
    beat = heartbeats.build(0, (2, 2))
    assert (beat.context_tokens, beat.prefill_tokens) == (20, 9 + 6 + 5)
    assert (beat.borrowed_blocks, beat.lent_blocks, beat.waiting_sizes) == (3, 0, (2, 2))
    assert beat.longest == (LongRequest("a", 3, 2),), "of b nothing could leave"
    place(state, decoding, debt)
    assert heartbeats.build(0).longest == (LongRequest("a", 3, 2),)
    compute(state, prefilling)
    assert heartbeats.build(0).longest == (LongRequest("a", 3, 2), LongRequest("b", 2, 0))
    del state.sequences[waiting.request_id]
    assert heartbeats.build(0).prefill_tokens == 5


def test_what_steps_in_flight_compute_of_prompts_is_not_computed_yet() -> None:
    """Whoever comes next waits for them."""
    state = make_state(num_blocks=64)
    heartbeats = Heartbeats(state)
    prefilling = add_sequence(state, "a", 20)
    prefilling.placement.add_slots(state.pool.allocate(5, SlotState.LOCAL) or [])
    step = state.scheduler.plan(state.running(), 0.0)
    assert step is not None and prefilling.is_decoding, "all of its prompt is on its way"
    assert heartbeats.build(0).prefill_tokens == 20
    state.scheduler.finished(step.step_id)
    assert heartbeats.build(0).prefill_tokens == 0


def test_no_more_requests_are_named_than_a_reader_takes() -> None:
    state = make_state(num_blocks=64)
    state.policy = "greedy"
    heartbeats = Heartbeats(state)
    for number in range(20):
        compute(state, add_sequence(state, f"r{number:02d}", 8 + 4 * (number % 2)))
    longest = heartbeats.build(0).longest
    assert [one.request_id for one in longest] == [f"r{number:02d}" for number in range(1, 17, 2)]
    assert len(longest) == MAX_LONGEST


def test_those_that_have_most_elsewhere_are_named_beside_those_that_could_leave() -> None:
    state = make_state(num_blocks=64)
    state.policy = "greedy"
    heartbeats = Heartbeats(state)
    for number in range(10):
        compute(state, add_sequence(state, f"r{number}", 8 + 4 * (number % 2)))
    away = add_sequence(state, "away", 8)
    compute(state, away)
    place(state, away, lend(away, "p", 2))
    longest = heartbeats.build(0).longest
    assert len(longest) == MAX_LONGEST and LongRequest("away", 0, 2) in longest
    assert [one.movable_blocks for one in longest] == [3, 3, 3, 3, 3, 2, 2, 0]


def test_a_period_or_sooner_when_memory_came_free() -> None:
    clock = ManualClock(100.0)
    state = make_state(num_blocks=4, heartbeat_s=0.5)
    heartbeats = Heartbeats(state)
    compute(state, add_sequence(state, "a", 12))
    assert heartbeats.due(clock.now())
    heartbeats.build(0)
    assert not heartbeats.due(clock.advance(0.4))
    assert heartbeats.due(clock.advance(0.2))
    heartbeats.build(0)
    state.deferred.add(None, state.sequences.pop("a").placement.local_slots())
    assert not heartbeats.due(clock.advance(EARLY_S / 2))
    assert heartbeats.due(clock.advance(EARLY_S))


def full() -> tuple[ManualClock, RManagerState, Heartbeats]:
    """An instance without room, right after a heartbeat."""
    clock = ManualClock(100.0)
    state = make_state(num_blocks=4)
    heartbeats = Heartbeats(state)
    compute(state, add_sequence(state, "a", 16))
    assert heartbeats.due(clock.now()) and heartbeats.build(0).waiting == 0
    return clock, state, heartbeats


def test_who_comes_and_waits_makes_news_once() -> None:
    clock, state, heartbeats = full()
    add_sequence(state, "b", seq_state=SeqState.WAITING, can_move=True, arrival=clock.advance(EARLY_S / 4))
    assert not heartbeats.due(clock.advance(EARLY_S / 4)), "no faster than any other news"
    assert heartbeats.due(clock.advance(EARLY_S)) and heartbeats.build(0).waiting == 1
    assert not heartbeats.due(clock.advance(2 * EARLY_S)), "nobody else has come"
    add_sequence(state, "c", seq_state=SeqState.WAITING, can_move=True, arrival=clock.now())
    assert heartbeats.due(clock.now())


def test_who_has_waited_elsewhere_before_it_came_makes_news_too() -> None:
    clock, state, heartbeats = full()
    for _ in range(2):
        clock.advance(2 * EARLY_S)
        add_sequence(state, "b", seq_state=SeqState.WAITING, can_move=True, arrival=clock.now() - 5.0)
        assert not heartbeats.due(clock.now())
        heartbeats.on_submitted("b")
        heartbeats.on_submitted("began at once")
        assert heartbeats.due(clock.now())
        heartbeats.build(0)
        del state.sequences["b"]
    heartbeats.on_submitted("gone")
    assert not heartbeats.due(clock.advance(EARLY_S))


def early(heartbeats: Heartbeats, state: RManagerState, clock: ManualClock, seconds: float, room_tokens: int) -> int:
    """Heartbeats of a full instance in so long, of a period that is longer, while somebody comes all the time."""
    count = 0
    for number in range(round(seconds / EARLY_S * 2)):
        clock.advance(EARLY_S / 2)
        add_sequence(state, f"{clock.now()} {number}", seq_state=SeqState.WAITING, can_move=True, arrival=clock.now())
        clock.advance(0.001)
        if heartbeats.due(clock.now()):
            count += 1
            heartbeats.on_ack(HeartbeatAck(seq=heartbeats.build(0).seq, room_tokens=room_tokens))
    return count


def test_who_comes_where_nobody_has_room_makes_news_once_a_second_after_a_few() -> None:
    """Else each instance that is full, where all are, beats ten times a second for nothing."""
    clock = ManualClock(100.0)
    state = make_state(num_blocks=4, heartbeat_s=1000.0)
    heartbeats = Heartbeats(state)
    compute(state, add_sequence(state, "a", 16))
    heartbeats.due(clock.now())
    heartbeats.on_ack(HeartbeatAck(seq=heartbeats.build(0).seq))
    assert 9 <= early(heartbeats, state, clock, 1.0, 1000) <= 10, "there is room elsewhere"
    heartbeats.due(clock.advance(EARLY_S))
    heartbeats.on_ack(HeartbeatAck(seq=heartbeats.build(0).seq, room_tokens=7))
    assert IN_VAIN <= early(heartbeats, state, clock, 20 * IN_VAIN_S, 7) - 20 <= IN_VAIN + 1
    assert heartbeats.due(clock.advance(1000.0)), "each period as ever"


def test_who_comes_and_must_stay_makes_no_news() -> None:
    clock, state, heartbeats = full()
    add_sequence(state, "b", seq_state=SeqState.WAITING, can_move=False, arrival=clock.advance(EARLY_S / 4))
    assert not heartbeats.due(clock.advance(2 * EARLY_S))


def test_a_debtor_that_was_told_less_makes_more_news() -> None:
    clock = ManualClock(100.0)
    state = make_state(num_blocks=8)
    heartbeats = Heartbeats(state)
    assert heartbeats.due(clock.now())
    heartbeats.build(0)
    slots = [state.take_slot() for _ in range(4)]
    heartbeats.on_lendable_reported()
    state.deferred.add(None, [slot for slot in slots if slot is not None])
    assert heartbeats.due(clock.advance(EARLY_S)), "it told a debtor of less than there is now"


def test_a_slot_that_the_next_step_takes_is_no_news() -> None:
    clock = ManualClock(100.0)
    state = make_state(num_blocks=32)
    heartbeats = Heartbeats(state)
    seq = add_sequence(state, "a", 8, max_tokens=64)
    compute(state, seq)
    seq.uncomputed.add(7, 8)
    assert heartbeats.due(clock.now())
    told = heartbeats.build(0).lendable_blocks
    assert state.scheduler.plan(state.running(), clock.now()) is not None
    assert state.lendable() == told + 1 and state.lastingly_lendable() == told, "its third rBlock has no slot yet"
    assert not heartbeats.due(clock.advance(EARLY_S))


def test_what_does_not_fit_one_heartbeat_comes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distkv.control.rmanager.reports.heartbeats.MAX_REPORTED", 2)
    state = make_state(num_blocks=64)
    heartbeats = Heartbeats(state)
    for name in "abcde":
        compute(state, add_sequence(state, name, 4))
    told: set[str] = set()
    for expected in (2, 2, 1, 0):
        beat = heartbeats.build(0)
        assert len(beat.entries) == expected and not told & {entry.req_id for entry in beat.entries}
        told |= {entry.req_id for entry in beat.entries}
        heartbeats.on_ack(HeartbeatAck(seq=beat.seq))
    assert told == set("abcde")


def test_who_wanted_memory_back_says_so_for_a_while() -> None:
    state = make_state()
    heartbeats = Heartbeats(state)
    told = []
    for now in (100.0, 101.0, 100.0 + WANTED_BACK_S, 101.0 + WANTED_BACK_S):
        assert heartbeats.due(now)
        told.append(heartbeats.build(0).wanted_back)
        if now == 100.0:
            state.demanded_at = 100.5
    assert told == [False, True, True, False]
