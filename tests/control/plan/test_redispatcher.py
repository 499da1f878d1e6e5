"""Which waiting requests an instance hands back, and when."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.plan.redispatcher import MOST_LOOKED_AT, Redispatcher
from distkv.control.request.answer.output import NoText
from distkv.control.request.lifecycle import RequestLifecycle
from distkv.control.request.sequence import SeqState
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.to_client import RequestEnded
from distkv.wire.messages.to_gmanager import MAX_REDISPATCHED, BorrowQuery, RedispatchQuery, WaitingRequest
from distkv.wire.messages.to_rmanager import Creditors, Redispatch, Redispatched
from tests.control.parts import add_sequence, issued, make_state


def redispatcher_of(state: RManagerState) -> Redispatcher:
    lifecycle = RequestLifecycle(state, DebtBook(state), NoText, Random(0), lambda seq, lost: None)
    return Redispatcher(state, lifecycle)


def wait(state: RManagerState, request_id: str, **fields: Any) -> None:
    seq = add_sequence(state, request_id, **{"seq_state": SeqState.WAITING, "can_move": True, "max_tokens": 1} | fields)
    state.histories.begin(request_id, len(seq.request.tokens))


def asked(state: RManagerState, room_tokens: int) -> dict[str, int]:
    """What is asked for when there is so much room elsewhere."""
    redispatcher_of(state).on_room(room_tokens)
    return {one.req_id: one.num_tokens for query in issued(state, RedispatchQuery) for one in query.requests}


def test_the_oldest_that_would_fit_there_are_asked_for() -> None:
    state = make_state()
    wait(state, "large", num_tokens=80)
    wait(state, "small", num_tokens=8, arrival=0.1)
    assert asked(state, 60) == {"small": 8}
    assert asked(state, 80) == {"large": 80, "small": 8}
    assert asked(state, 0) == {}


def test_output_that_is_expected_needs_memory_too() -> None:
    state = make_state()
    wait(state, "r", num_tokens=8, max_tokens=12)
    assert asked(state, 20) == {"r": 20}
    assert asked(state, 16) == {}


def test_it_is_told_how_much_of_a_request_is_to_be_computed() -> None:
    state = make_state()
    wait(state, "r", num_tokens=8, max_tokens=12)
    redispatcher_of(state).on_room(20)
    (query,) = issued(state, RedispatchQuery)
    assert query.requests == (WaitingRequest("r", 20, 8),)


@pytest.mark.parametrize("fields", [{"can_move": False}, {"seq_state": SeqState.RUNNING}])
def test_what_cannot_go_stays(fields: dict[str, Any]) -> None:
    state = make_state()
    wait(state, "r", **fields)
    assert asked(state, 100) == {}
    redispatcher_of(state).on_redispatch(Redispatch(requests=(Redispatched("r", "p"),)), 1.0)
    assert "r" in state.sequences and issued(state, RequestEnded) == []


def test_what_has_begun_once_stays() -> None:
    """Its client may have got logprobs of its prompt."""
    state = make_state()
    wait(state, "r", began=0.1)
    assert asked(state, 100) == {}


def test_what_fits_is_found_behind_any_number_of_larger_ones() -> None:
    state = make_state()
    for index in range(2 * MOST_LOOKED_AT):
        wait(state, f"r{index:03}", num_tokens=80)
    wait(state, "small", num_tokens=8, arrival=0.1)
    state.sequences.queue.look(1.0)
    assert asked(state, 60) == {"small": 8}


def test_a_query_is_bounded_however_many_wait() -> None:
    state = make_state()
    for index in range(2 * MOST_LOOKED_AT):
        wait(state, f"r{index}")
    assert len(asked(state, 100)) == MAX_REDISPATCHED


def test_a_request_that_is_to_go_is_handed_back_with_the_place_to_go_to() -> None:
    state = make_state()
    wait(state, "r")
    redispatcher_of(state).on_redispatch(Redispatch(requests=(Redispatched("r", "q"), Redispatched("x", "q"))), 1.0)
    (ended,) = issued(state, RequestEnded)
    assert (ended.request_id, ended.retryable, ended.go_to) == ("r", True, "q")
    assert "r" not in state.sequences and state.counters.redispatched == 1


def test_nothing_is_handed_back_to_an_instance_that_is_no_peer() -> None:
    state = make_state()
    wait(state, "r")
    redispatcher_of(state).on_redispatch(Redispatch(requests=(Redispatched("r", "stranger"),)), 1.0)
    assert "r" in state.sequences


def test_a_request_that_is_to_borrow_goes_if_all_of_it_fits_elsewhere() -> None:
    state = make_state()
    wait(state, "r", num_tokens=40, seq_state=SeqState.ACQUIRING)
    seq = state.sequences["r"]
    borrow = state.borrower.start(seq, Purpose.PLACE, 4, 0.0, movable_tokens=state.movable_tokens(seq))
    (query,) = issued(state, BorrowQuery)
    assert (query.movable_tokens, query.prompt_tokens) == (40, 40)
    redispatcher_of(state).on_creditors(Creditors(borrow_id=borrow.borrow_id, go_to="q"), 0.1)
    (ended,) = issued(state, RequestEnded)
    assert ended.go_to == "q" and "r" not in state.sequences
    assert not state.borrower.active
    state.validate()


def test_a_request_that_has_begun_borrows() -> None:
    state = make_state()
    wait(state, "r", num_tokens=40, can_move=False, seq_state=SeqState.ACQUIRING)
    borrow = state.borrower.start(state.sequences["r"], Purpose.PLACE, 4, 0.0)
    (query,) = issued(state, BorrowQuery)
    assert (query.movable_tokens, query.prompt_tokens) == (0, 0)
    redispatcher_of(state).on_creditors(Creditors(borrow_id=borrow.borrow_id, go_to="q"), 0.1)
    assert "r" in state.sequences and borrow.borrow_id in state.borrower.active
