"""Over a network that carries queries more slowly than prompts are computed, nobody borrows what its host can hold."""

from __future__ import annotations

import pytest

from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.loan.debtor.recall import Recaller
from distkv.control.request.sequence import SeqState
from distkv.wire.messages.common import DataEndpoint
from distkv.wire.messages.profile import LinkProfile
from distkv.wire.messages.to_gmanager import BorrowQuery
from distkv.wire.messages.to_rmanager import Candidate, Creditors, Reclaim, TryMoveKvcache
from tests.control.parts import issued, lend, make_member, place
from tests.control.performance.profiles import HOST, make_profile
from tests.control.schedule.admitting import ACQUIRING, RUNNING, WAITING, Admitting

BYTES_PER_S = 4e5
"""A row's queries and partials are 4,000 bytes in all layers, and its tokens take 1 ms to compute: a tenth as fast."""


def on_two_hosts(num_blocks: int = 8, near: int = 8, bytes_per_s: float = BYTES_PER_S) -> Admitting:
    """The creditor "near", with so much to lend, on the same host, and "far", with more, on another one."""
    slow = LinkProfile(round_trip_s=1e-4, bytes_per_s=bytes_per_s, read_bytes_per_s=bytes_per_s)
    profile = make_profile(block_tokens=4, links={"host": HOST, "network": slow})
    admitting = Admitting(num_blocks, ("near", "far") if near else ("far",), profile=profile)
    admitting.state.members.place_on("here")
    for name, host, blocks in (("near", "here", near), ("far", "there", 32)):
        if blocks:
            data = DataEndpoint(address=f"sim://{name}:1", host_key=host)
            admitting.state.members[name] = make_member(name, free_blocks=blocks, data=data)
    return admitting


def asked(admitting: Admitting, borrow: Borrow) -> list[str]:
    """Whom a borrow asks that is recommended both, first one and then, refused, the other."""
    state, now = admitting.state, admitting.clock.now()
    issued(state, BorrowQuery)
    both = (Candidate("far", 32), Candidate("near", 8))
    state.borrower.on_creditors(Creditors(borrow_id=borrow.borrow_id, candidates=both), now)
    found = [borrow.trying, *(one.instance_id for one in borrow.candidates)]
    assert len(issued(state, TryMoveKvcache)) == 1
    return found


def test_who_fits_here_asks_creditors_on_its_host_only() -> None:
    admitting = on_two_hosts()
    admitting.run("running", 5)
    seq = admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert seq.state is ACQUIRING and asked(admitting, admitting.borrow()) == ["near"]


def test_over_a_network_that_is_quick_enough_it_asks_anybody() -> None:
    admitting = on_two_hosts(bytes_per_s=5e6)
    admitting.run("running", 5)
    admitting.wait("r", 4, arrival=5.0)
    admitting.admit()
    assert asked(admitting, admitting.borrow()) == ["far", "near"]


@pytest.mark.parametrize(("num_blocks", "state"), [(4, WAITING), (20, ACQUIRING)])
def test_alone_on_its_host_an_instance_borrows_only_what_it_cannot_hold(num_blocks: int, state: SeqState) -> None:
    admitting = on_two_hosts(near=0)
    admitting.run("running", 5)
    seq = admitting.wait("r", num_blocks, arrival=5.0)
    admitting.admit()
    assert seq.state is state
    assert len(issued(admitting.state, BorrowQuery)) == (state is ACQUIRING)


@pytest.mark.parametrize(("num_blocks", "found"), [(10, ["near"]), (20, ["far", "near"])])
def test_what_is_larger_than_its_instance_waits_for_its_host_if_that_can_hold_it(
    num_blocks: int, found: list[str]
) -> None:
    admitting = on_two_hosts()
    admitting.state.growing.outputs.ended(1)
    admitting.wait("r", num_blocks)
    admitting.admit()
    assert asked(admitting, admitting.borrow()) == found


def test_once_its_prompt_is_computed_it_grows_wherever_there_is_memory() -> None:
    admitting = on_two_hosts(num_blocks=8)
    admitting.state.growing.outputs.ended(1)
    seq = admitting.run("r", 8)
    seq.request.tokens.extend(range(4))
    seq.placement.cover(len(seq.request.tokens))
    assert not admitting.state.fits_at_home(seq)
    assert admitting.state.stays_near(seq), "more than one token is to be computed"
    seq.uncomputed.remove(seq.length - 4, seq.length)
    seq.uncomputed.add(seq.length - 1, seq.length)
    assert not admitting.state.stays_near(seq)


def test_nothing_leaves_to_make_room_where_only_the_network_leads_to_others() -> None:
    for near in (0, 8):
        admitting = on_two_hosts(near=near)
        admitting.run("small", 2)
        admitting.run("full", 6, arrival=1.0)
        admitting.make_room()
        assert len(admitting.state.borrower.active) == (near > 0)
        if near:
            assert admitting.borrow().purpose is Purpose.RELIEVE and asked(admitting, admitting.borrow()) == ["near"]


def test_what_a_creditor_reclaims_does_not_go_over_the_network() -> None:
    admitting = on_two_hosts()
    seq = admitting.run("r", 4)
    debt = lend(seq, "near", 2, debts=admitting.debts)
    place(admitting.state, seq, debt)
    admitting.run("filler", admitting.state.pool.num_free)
    recaller = Recaller(admitting.state, admitting.debts)
    recaller.on_reclaim("near", Reclaim(span=debt.span, keep_blocks=0, deadline_s=2.0), admitting.clock.now())
    borrow = admitting.borrow()
    assert borrow.purpose is Purpose.RECLAIM and borrow.stays_near and seq.state is RUNNING
