"""What `distkv status` shows of one instance."""

from __future__ import annotations

from distkv.control.request.sequence import SeqState
from distkv.control.rmanager.reports.reporting import MAX_REQUESTS, instance_status, request_statuses
from distkv.wire.messages.counters import Counters
from distkv.wire.messages.to_rmanager import TryMoveKvcache
from tests.control.parts import add_sequence, compute, lend, make_member, make_state, place


def test_slots_and_counters() -> None:
    state = make_state(num_blocks=16)
    seq = add_sequence(state, "r", 18)
    compute(state, seq)
    place(state, seq, lend(seq, "p", 2))
    add_sequence(state, "w", 4, SeqState.WAITING)
    ask = TryMoveKvcache(span_id="s", request_id="x", debtor_id="q", debtor_incarnation=1, num_blocks=3, ttl_s=4.0)
    state.loans.try_grant(b"d", ask, state.lendable(), 0.0)
    state.counters.preemptions = 2
    state.counters.refusals = 5
    others = Counters(kv_bytes=7, malformed_messages=1, attend_wait_s=0.5, steps=9, model_s=1.5, plan_s=0.25)
    status = instance_status(state, make_member("me", pid=11, worker_pid=12), others)
    assert (status.blocks.total, status.blocks.local, status.blocks.reserved, status.blocks.lent) == (16, 3, 3, 0)
    assert status.blocks.free == 10
    assert (status.borrowed_blocks, status.running, status.waiting) == (2, 1, 1)
    assert (status.pid, status.worker_pid, status.state) == (11, 12, "ready")
    counters = status.counters
    assert (counters.kv_bytes, counters.malformed_messages, counters.preemptions, counters.refusals) == (7, 1, 2, 5)
    assert (counters.attend_wait_s, counters.plan_s) == (0.5, 0.25)
    assert (counters.steps, counters.model_s) == (9, 1.5)


def test_where_the_kv_of_each_request_lies() -> None:
    state = make_state(num_blocks=16)
    later = add_sequence(state, "later", 3, arrival=2.0)
    seq = add_sequence(state, "r", 22, arrival=1.0)
    compute(state, seq)
    compute(state, later)
    place(state, seq, lend(seq, "p", 2))
    place(state, seq, lend(seq, "q", 1, at=2))
    lend(seq, "s", 1, at=0)
    first, second = request_statuses(state)
    assert (first.request_id, first.num_tokens, second.request_id) == ("r", 22, "later")
    assert [(span.instance_id, span.first_token, span.num_tokens) for span in first.spans] == [
        ("p", 0, 8),
        ("q", 8, 4),
        ("me", 12, 10),
    ]
    assert [(span.instance_id, span.first_token, span.num_tokens) for span in second.spans] == [("me", 0, 3)]


def test_blocks_without_a_place_are_not_shown() -> None:
    state = make_state()
    seq = add_sequence(state, "r", 10)
    assert request_statuses(state)[0].spans == ()
    seq.placement.cover(20)
    compute(state, seq)
    assert request_statuses(state)[0].spans[0].num_tokens == 10, "room for tokens to come is not counted"


def test_of_many_requests_those_that_hold_memory_are_shown() -> None:
    state = make_state()
    for index in range(2 * MAX_REQUESTS):
        add_sequence(state, f"w{index:03}", 4, SeqState.WAITING, arrival=float(index))
    add_sequence(state, "r", 4, arrival=1000.0)
    shown = request_statuses(state)
    assert [one.request_id for one in shown[:3]] == ["r", "w000", "w001"] and len(shown) == MAX_REQUESTS
