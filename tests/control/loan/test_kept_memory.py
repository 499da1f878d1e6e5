"""Memory that creditors keep for a request that waits: who is asked and told, and what ends it."""

from __future__ import annotations

import pytest

from distkv.control.blocks import SlotState
from distkv.control.commands import TellPeer
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.loan.debtor.keepers import KEPT_TIMES
from distkv.wire.messages.from_worker import Revoked
from distkv.wire.messages.to_rmanager import (
    Granted,
    Refused,
    Release,
    Released,
    TryMoveKvcache,
    Vacant,
)
from tests.control.loan.asking import Asking
from tests.control.loan.lending import DEBTOR, STRANGER, Lending
from tests.control.parts import issued, make_member


@pytest.fixture
def lending() -> Lending:
    return Lending()


@pytest.mark.parametrize(("num_peers", "kept"), [(1, 12), (2, 7), (3, 6), (9, 6)])
def test_of_what_an_aged_request_lacks_a_creditor_keeps_its_share(lending: Lending, num_peers: int, kept: int) -> None:
    """It kept all of it, and so did every other that was asked."""
    state = lending.state
    for number in range(num_peers - len(state.members)):
        state.members[f"peer{number}"] = make_member(f"peer{number}")
    for name in list(state.members)[num_peers:]:
        del state.members[name]
    taken = state.pool.allocate(state.pool.num_free - 3, SlotState.LOCAL)
    lending.ask(blocks=12, waited_s=3.0)
    assert taken is not None and state.loans.num_blocks == 2
    assert state.earmarks.kept_from(("me", "younger"), lending.clock.now(), lending.clock.now()) == kept


@pytest.mark.parametrize("is_avoidable", [False, True])
def test_who_is_refused_for_what_is_kept_learns_what_others_could_have(lending: Lending, is_avoidable: bool) -> None:
    """The gManager took it for full until its next heartbeat, also for those that grow into what is kept."""
    state = lending.state
    state.earmarks.ask(("peer", "waits"), b"its route", 20.0, state.pool.num_free, 0, lending.clock.now())
    lending.ask(is_avoidable=is_avoidable)
    ((_, refused),) = lending.answers()
    assert isinstance(refused, Refused) and refused.is_kept and "kept for requests that wait" in refused.reason
    assert refused.free_blocks == state.lendable() > 0


def test_only_the_connection_that_memory_is_kept_for_ends_that(lending: Lending) -> None:
    state, younger = lending.state, (("q", "younger"), lending.clock.now(), lending.clock.now())
    state.pool.allocate(state.pool.num_free, SlotState.LOCAL)
    lending.ask(blocks=12, waited_s=3.0)
    lending.ask(route=STRANGER, span_id="none", blocks=0)
    assert state.earmarks.kept_from(*younger) > 0
    lending.ask(span_id="none", blocks=0)
    assert state.earmarks.kept_from(*younger) == 0


@pytest.mark.parametrize(
    ("how", "granted"),
    [({}, 0), ({"is_avoidable": True, "is_running": True}, 0), ({"is_running": True}, 3)],
    ids=["waits", "runs, and could wait at home", "runs"],
)
def test_who_runs_and_has_no_other_place_grows_into_what_is_kept_for_who_waits(how, granted: int) -> None:
    """It gave way to itself, with all that it had computed, while memory lay unused for others."""
    lending = Lending()
    state = lending.state
    state.earmarks.ask(("peer", "waits"), b"its route", 20.0, state.pool.num_free, 0, lending.clock.now())
    lending.ask(**how)
    assert state.loans.num_blocks == granted


def test_who_waits_hears_once_that_what_it_lacked_is_free(lending: Lending) -> None:
    """And not by what it gives back itself, or it would ask as fast as it is answered."""
    state = lending.state
    first, second = (state.pool.allocate(count, SlotState.LOCAL) for count in (8, 5))
    assert first is not None and second is not None and state.pool.num_free == 3

    def told() -> list[object]:
        lending.creditor.advance(lending.clock.now())
        return [body for _, body in lending.answers()]

    lending.ask(blocks=12, waited_s=3.0)
    (granted,) = told()
    assert isinstance(granted, Granted) and (had := len(granted.slots)) == 2
    (loan,) = state.loans.held()
    lending.creditor.on_release(DEBTOR, Release(span=loan.span))
    lending.creditor.on_revoked(Revoked(span=loan.span))
    assert [type(body) for body in told()] == [Released], "as much is free as when it asked"
    state.pool.free(second[:4], SlotState.LOCAL)
    assert told() == [], "not half of what it lacks"
    state.pool.free(second[4:], SlotState.LOCAL)
    assert told() == [Vacant(request_id="r", free_blocks=had + 5)]
    state.pool.free(first, SlotState.LOCAL)
    assert told() == []


def test_who_has_all_that_a_creditor_lends_hears_nothing(lending: Lending) -> None:
    lending.ask(blocks=99, waited_s=3.0)
    (loan,) = lending.state.loans.held()
    assert loan.num_blocks == lending.state.settings.lendable_blocks
    lending.creditor.on_release(DEBTOR, Release(span=loan.span))
    lending.creditor.on_revoked(Revoked(span=loan.span))
    lending.answers()
    lending.creditor.advance(lending.clock.now())
    assert lending.answers() == []


@pytest.mark.parametrize("is_draining", [False, True])
def test_nothing_is_kept_for_a_request_that_asks_for_none(lending: Lending, is_draining: bool) -> None:
    state, younger = lending.state, (("q", "younger"), lending.clock.now(), lending.clock.now())
    taken = state.pool.allocate(state.pool.num_free, SlotState.LOCAL)
    lending.ask(blocks=12, waited_s=3.0)
    assert taken is not None and state.earmarks.kept_from(*younger) > 0
    state.instance_state = "draining" if is_draining else "ready"
    lending.ask(span_id="none", blocks=0)
    assert state.earmarks.kept_from(*younger) == 0
    assert [type(body) for _, body in lending.answers()] == [Refused, Refused] and not state.loans.loans


def in_vain(asking: Asking) -> None:
    """Of 9, p has none and q 4."""
    borrow = asking.start(9)
    asking.candidates(borrow, ("p", 9), ("q", 9))
    asking.refuse("p", asking.asked(), 0)
    asking.grant("q", asking.asked(), 4)
    asking.candidates(borrow)
    assert asking.borrower.take_finished() is borrow and borrow.granted == 4
    asking.state.commands.clear()


def forgone(asking: Asking) -> list[str]:
    """Creditors that are told that nothing is wanted for the request."""
    told = [command for command in asking.state.commands if isinstance(command, TellPeer)]
    asking.state.commands.clear()
    asks = [command.body for command in told if isinstance(command.body, TryMoveKvcache)]
    assert all((ask.request_id, ask.num_blocks) == (asking.seq.request_id, 0) for ask in asks)
    assert len({ask.span_id for ask in asks}) == len(asks) == len(told)
    return [command.instance_id for command in told]


@pytest.mark.parametrize("how", ["it has its memory", "it ends", "only a reclaim ends"])
def test_those_that_had_too_little_hear_when_a_request_needs_it_no_more(how: str) -> None:
    """They kept memory for requests that ran, and for those that had ended, for three seconds."""
    asking = Asking()
    in_vain(asking)
    if how == "it has its memory":
        asking.borrower.forgo(asking.seq)
    else:
        asking.borrower.cancel(asking.seq, Purpose.RECLAIM if how == "only a reclaim ends" else None)
    assert forgone(asking) == ([] if how == "only a reclaim ends" else ["p", "q"])
    asking.borrower.forgo(asking.seq)
    assert forgone(asking) == (["p", "q"] if how == "only a reclaim ends" else [])


def test_who_lent_all_that_it_was_asked_for_hears_nothing_nor_does_who_is_gone() -> None:
    asking = Asking()
    borrow = asking.start(5)
    asking.candidates(borrow, ("p", 9), ("q", 9))
    asking.refuse("p", asking.asked(), 0)
    asking.grant("q", asking.asked(), 5)
    asking.state.commands.clear()
    asking.borrower.on_peer_lost("p", asking.clock.now())
    asking.borrower.forgo(asking.seq)
    assert forgone(asking) == []


def test_those_that_may_keep_memory_for_a_request_are_asked_whoever_is_recommended() -> None:
    """What they kept lapsed, and another request had it, or waited for what this one had elsewhere."""
    asking = Asking()
    in_vain(asking)
    borrow = asking.start(9)
    asking.candidates(borrow, ("s", 9))
    asking.refuse("s", asking.asked(), 0)
    asking.refuse("p", asking.asked(), 0)
    asking.refuse("q", asking.asked(), 0)
    asking.candidates(borrow)
    assert asking.borrower.take_finished() is borrow
    for purpose in (Purpose.RELIEVE, Purpose.RECLAIM):
        asking.start(9, purpose)
        asking.candidates(next(iter(asking.borrower.active.values())), ("s", 9))
        assert asking.borrower.of(asking.seq, purpose) is not None
        asking.refuse("s", asking.asked(), 0)
        assert not issued(asking.state, TryMoveKvcache), "it runs"
        asking.borrower.cancel(asking.seq, purpose)


def test_of_those_that_may_keep_memory_as_many_are_asked_as_could_lend_twice_what_is_lacking() -> None:
    names = tuple(f"n{number}" for number in range(40))
    asking = Asking(names)
    lendable = asking.state.members["n0"].lendable_blocks
    borrow = asking.start(2 * lendable)
    for name in names:
        asking.candidates(borrow, (name, 9))
        asking.refuse(name, asking.asked(), 0)
        borrow.rounds = 0
    asking.borrower.cancel(asking.seq, Purpose.RECLAIM)
    asking.state.commands.clear()
    asking.borrower.forgo(asking.seq)
    assert len(forgone(asking)) == KEPT_TIMES * 2
