"""Admission: who fits its instance borrows only where that is expected to pay, and who does not, whatever it costs."""

from __future__ import annotations

import pytest

from distkv.control.request.sequence import SeqState
from distkv.control.schedule.admission.waiting import AGED_S
from distkv.wire.messages.profile import LinkProfile
from distkv.wire.messages.to_gmanager import BorrowQuery
from distkv.wire.messages.to_rmanager import TryMoveKvcache
from tests.control.parts import add_sequence, issued
from tests.control.performance.profiles import make_profile
from tests.control.schedule.admitting import ACQUIRING, RUNNING, WAITING, Admitting, slow_to_attend_elsewhere


def test_who_fits_here_waits_for_memory_at_home_where_borrowing_does_not_pay() -> None:
    admitting = Admitting(8)
    slow_to_attend_elsewhere(admitting)
    running = admitting.run("running", 5)
    seq = admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert seq.state is WAITING and not seq.retries and issued(admitting.state, BorrowQuery) == []
    small = admitting.wait("small", 1, arrival=6.0)
    admitting.state.growing.outputs.ended(1)
    admitting.admit()
    assert small.state is RUNNING, "what fits goes by"
    for done in (running, small):
        del admitting.state.sequences[done.request_id]
        admitting.debts.drop(done, admitting.clock.now())
    admitting.admit()
    assert seq.state is RUNNING


def test_who_is_larger_than_its_instance_borrows_whatever_it_costs_and_does_not_wait_for_who_does_not() -> None:
    admitting = Admitting(8)
    slow_to_attend_elsewhere(admitting)
    admitting.run("running", 5)
    fits, larger = admitting.wait("fits", 4, arrival=5.0), admitting.wait("larger", 12, arrival=6.0)
    admitting.admit()
    assert (fits.state, larger.state) == (WAITING, ACQUIRING)
    assert not admitting.borrow().is_avoidable


def test_who_has_lent_to_requests_that_could_wait_does_not_borrow_for_such_but_reclaims() -> None:
    admitting = Admitting(16)
    wanted = TryMoveKvcache(
        span_id="s",
        request_id="other",
        debtor_id="p",
        debtor_incarnation=1,
        num_blocks=8,
        ttl_s=4.0,
        is_avoidable=True,
    )
    admitting.state.loans.try_grant(b"p", wanted, 8, admitting.clock.now())
    admitting.run("running", 2)
    seq = admitting.wait("r", 5, arrival=5.0)
    admitting.admit()
    assert seq.state is WAITING and issued(admitting.state, BorrowQuery) == []
    lack = admitting.admission.lacking(admitting.clock.now())
    assert lack.seq is seq and lack.blocks > 0 and lack.is_to_reclaim


def test_while_nothing_is_known_of_what_steps_cost_who_fits_here_borrows() -> None:
    admitting = Admitting(8)
    admitting.run("running", 5)
    seq = admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert seq.state is ACQUIRING and admitting.borrow().is_avoidable


def test_who_fits_here_and_borrows_says_that_all_of_it_could_go_elsewhere() -> None:
    """Then the gManager may send it where it fits alone; it has had time to do so before."""
    admitting = Admitting(8)
    admitting.run("running", 5)
    fits = add_sequence(admitting.state, "fits", 16, WAITING, arrival=5.0, can_move=True)
    admitting.admit()
    assert fits.state is WAITING
    admitting.clock.advance(AGED_S)
    admitting.admit()
    assert fits.state is ACQUIRING and admitting.borrow().is_avoidable
    (query,) = issued(admitting.state, BorrowQuery)
    assert query.movable_tokens >= 16 and query.request_id == "fits"


def test_who_could_wait_leaves_what_is_free_to_a_younger_one_that_fits() -> None:
    admitting = Admitting(8)
    admitting.state.growing.outputs.ended(1)
    admitting.run("running", 4)
    large, small = admitting.wait("large", 5, arrival=5.0), admitting.wait("small", 1, arrival=6.0)
    admitting.admit()
    assert (large.state, small.state) == (ACQUIRING, RUNNING)
    assert small.age > large.age and large.placement.num_local_slots <= 2


@pytest.mark.parametrize(("round_trip_s", "state"), [(0.00001, ACQUIRING), (0.1, WAITING)])
def test_before_anybody_waited_a_profile_says_what_waiting_costs(round_trip_s: float, state: SeqState) -> None:
    link = LinkProfile(round_trip_s=round_trip_s, bytes_per_s=1e9, read_bytes_per_s=1e9, busy_round_trip_s=round_trip_s)
    admitting = Admitting(8, profile=make_profile(links={"host": link}))
    admitting.state.worth.observe(
        1, has_chunks=False, is_remote=False, compute_s=0.01, attend_wait_s=0.0, now=admitting.clock.now()
    )
    admitting.run("running", 5)
    seq = admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert seq.state is state
