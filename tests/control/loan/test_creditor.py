"""Creditor: grants, pulls, leases and their ends; a span obeys only the route that asked for it."""

from __future__ import annotations

import pytest

from distkv.checksums import pack
from distkv.control.blocks import SlotState
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.sequence import SeqState
from distkv.wire.messages.common import ANY_EPOCH, SpanRef
from distkv.wire.messages.from_worker import Pulled, Revoked
from distkv.wire.messages.to_rmanager import (
    BlocksReady,
    Complete,
    Granted,
    ReadyBlock,
    Reclaim,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
)
from distkv.wire.messages.to_worker import Grant, Pull, Revoke
from tests.control.loan.lending import DEBTOR, STRANGER, Lending
from tests.control.parts import add_sequence, issued, lend, make_member


@pytest.fixture
def lending() -> Lending:
    return Lending()


def test_it_grants_what_it_has_and_tells_its_worker(lending: Lending) -> None:
    lending.ask()
    (grant,) = [command.body for command in lending.state.commands if isinstance(getattr(command, "body", 0), Grant)]
    ((route, granted),) = lending.answers()
    assert route == DEBTOR and isinstance(granted, Granted)
    assert granted.slots == grant.slots == (0, 1, 2) and grant.span.epoch == granted.epoch
    assert lending.state.pool.count(SlotState.RESERVED) == 3
    lending.ask()
    assert lending.answers() == [(DEBTOR, granted)], "asked twice, granted once"
    lending.check()


@pytest.mark.parametrize("why", ["draining", "not its own", "a stranger", "another incarnation"])
def test_it_refuses_what_it_must_not_lend(lending: Lending, why: str) -> None:
    if why == "draining":
        lending.state.instance_state = "draining"
        lending.ask()
    elif why == "not its own":
        lending.ask(sender="q")
    elif why == "a stranger":
        lending.ask(sender="x", debtor="x")
    else:
        lending.state.members["p"] = make_member("p", incarnation=2)
        lending.ask()
    ((_, answer),) = lending.answers()
    # What is about this debtor says nothing of what others may have.
    is_for_all = why == "draining"
    assert isinstance(answer, Refused) and answer.is_kept is not is_for_all
    assert answer.free_blocks == (0 if is_for_all else lending.state.lendable())
    assert (answer.reason == "the debtor is no member") == (why not in ("draining", "not its own"))
    assert lending.state.pool.num_free == 16 and lending.state.loans.num_spans == 0


def test_one_that_drains_lends_on_to_who_has_memory_there_and_no_other_place(lending: Lending) -> None:
    lending.lend()
    lending.answers()
    lending.state.instance_state, lending.state.leaves_at = "draining", 30.0
    lending.ask(span_id="t", is_avoidable=True)
    lending.ask(span_id="t", sender="q", debtor="q")
    lending.state.members["p"] = make_member("p", incarnation=2)
    lending.ask(span_id="t", incarnation=2)
    lending.state.members["p"] = make_member("p")
    assert all(isinstance(answer, Refused) and answer.is_draining for _, answer in lending.answers())
    lending.ask(span_id="t")
    ((_, granted),) = lending.answers()
    assert isinstance(granted, Granted) and (granted.span_id, len(granted.slots)) == ("t", 3)
    lending.check()
    lending.clock.advance(15.5)
    lending.ask(span_id="u")
    ((_, refused),) = lending.answers()
    assert isinstance(refused, Refused) and refused.is_draining, "it exits in less than five seconds"
    lending.check()


@pytest.mark.parametrize("state", ["starting", "ready", "draining", "unreachable", "dead"])
def test_it_lends_to_every_member_that_asks(lending: Lending, state: str) -> None:
    """Also when the gManager does not hear it, says that it is dead, or is gone itself."""
    lending.state.members["p"] = make_member("p", state=state)
    lending.lend()


def test_blocks_are_pulled_in_order_and_answered_when_they_are_there(lending: Lending) -> None:
    loan = lending.lend()
    ready = lending.ready(loan, count=2)
    lending.creditor.on_blocks_ready(DEBTOR, ready)
    (pull,) = issued(lending.state, Pull)
    assert (pull.span, pull.source_id, pull.source_slots) == (loan.span, "p", (0, 1))
    assert (pull.slots, pull.checksums) == (loan.slots[:2], pack((7, 8)))
    lending.creditor.on_blocks_ready(DEBTOR, ready)
    assert lending.answers() == [], "it is reading already"
    assert lending.creditor.on_pulled(Pulled(pull_id=pull.pull_id))
    assert lending.answers() == [(DEBTOR, Complete(span=loan.span, index=0, num_blocks=2))]
    assert lending.state.pool.count(SlotState.LENT) == 2
    lending.creditor.on_blocks_ready(DEBTOR, ready)
    assert lending.answers() == [(DEBTOR, Complete(span=loan.span, index=0, num_blocks=2))], "the answer was lost"
    assert not lending.creditor.on_pulled(Pulled(pull_id=pull.pull_id)), "over once"
    lending.check()


def test_a_pull_that_failed_takes_nothing_over(lending: Lending) -> None:
    loan = lending.lend()
    lending.creditor.on_blocks_ready(DEBTOR, lending.ready(loan))
    (pull,) = issued(lending.state, Pull)
    lending.creditor.on_pulled(Pulled(pull_id=pull.pull_id, problem="checksum"))
    ((_, answer),) = lending.answers()
    assert isinstance(answer, Complete) and (answer.num_blocks, answer.problem) == (0, "checksum")
    assert loan.filled == 0 and lending.state.pool.count(SlotState.LENT) == 0


def test_a_release_is_answered_when_the_last_reader_is_done(lending: Lending) -> None:
    loan = lending.lend()
    lending.creditor.on_release(DEBTOR, Release(span=loan.span))
    (revoke,) = issued(lending.state, Revoke)
    lending.creditor.on_release(DEBTOR, Release(span=loan.span))
    assert lending.state.commands == [], "on its way back already"
    assert lending.state.pool.num_free == 13
    lending.creditor.on_revoked(Revoked(span=revoke.span))
    assert lending.answers() == [(DEBTOR, Released(span=loan.span))] and lending.state.pool.num_free == 16
    lending.creditor.on_release(DEBTOR, Release(span=loan.span))
    assert lending.answers() == [(DEBTOR, Released(span=loan.span))], "it is gone"


def test_a_part_is_released_when_its_last_reader_is_done(lending: Lending) -> None:
    loan = lending.lend()
    lending.creditor.on_release(DEBTOR, Release(span=loan.span, positions=(1, 7)))
    (revoke,) = issued(lending.state, Revoke)
    assert revoke == Revoke(span=loan.span, positions=(1,))
    lending.creditor.on_release(DEBTOR, Release(span=loan.span, positions=(1,)))
    assert lending.state.commands == [], "on its way back already"
    lending.creditor.on_revoked(Revoked(span=loan.span, positions=(1,)))
    back = (DEBTOR, Released(span=loan.span, positions=(1,)))
    assert lending.answers() == [back] and lending.state.pool.num_free == 14
    lending.creditor.on_release(DEBTOR, Release(span=loan.span, positions=(1,)))
    assert lending.answers() == [back], "the answer was lost"
    lending.creditor.on_release(STRANGER, Release(span=loan.span, positions=(0,)))
    assert lending.answers() == [(STRANGER, Released(span=loan.span, positions=(0,)))] and not loan.closing
    lending.check()


def test_with_its_last_position_a_span_ends(lending: Lending) -> None:
    loan = lending.lend()
    lending.creditor.on_release(DEBTOR, Release(span=loan.span, positions=(0, 2)))
    lending.creditor.on_release(DEBTOR, Release(span=loan.span, positions=(1,)))
    assert issued(lending.state, Revoke) == [Revoke(span=loan.span, positions=(0, 2)), Revoke(span=loan.span)]
    lending.creditor.on_revoked(Revoked(span=loan.span, positions=(0, 2)))
    lending.creditor.on_revoked(Revoked(span=loan.span))
    assert lending.answers()[-1] == (DEBTOR, Released(span=loan.span)) and lending.state.pool.num_free == 16
    lending.check()


def test_a_grant_nobody_heard_of_is_released_in_any_epoch(lending: Lending) -> None:
    loan = lending.lend()
    lending.creditor.on_release(DEBTOR, Release(span=SpanRef(span_id="s", epoch=ANY_EPOCH)))
    assert [revoke.span for revoke in issued(lending.state, Revoke)] == [loan.span]


def test_a_span_nobody_gave_back_is_not_freed_by_its_worker(lending: Lending) -> None:
    loan = lending.lend()
    lending.creditor.on_revoked(Revoked(span=loan.span))
    lending.creditor.on_revoked(Revoked(span=SpanRef(span_id="unknown", epoch=ANY_EPOCH)))
    assert lending.state.pool.num_free == 13 and lending.state.loans.find("s") is loan
    assert lending.state.commands == []


def test_a_lease_that_nobody_renews_runs_out(lending: Lending) -> None:
    loan = lending.lend()
    lending.creditor.on_renew(DEBTOR, Renew(renewal=4, spans=(loan.span,), ttl_s=4.0), lending.clock.advance(3.0))
    assert lending.answers() == [(DEBTOR, Renewed(renewal=4, incarnation=7, ttl_s=4.0))]
    lending.creditor.tick(lending.clock.advance(3.9))
    assert lending.state.commands == []
    lending.creditor.tick(lending.clock.advance(0.2))
    assert [revoke.span for revoke in issued(lending.state, Revoke)] == [loan.span]
    assert lending.state.counters.lease_expiries == 1
    lending.creditor.on_revoked(Revoked(span=loan.span))
    assert lending.answers() == [], "its debtor did not ask for it"


def test_what_a_former_incarnation_owes_ends_by_the_words_of_the_new_one(lending: Lending) -> None:
    loan = lending.lend()
    lending.ask(span_id="other")
    assert issued(lending.state, Revoke) == []
    lending.state.members["p"] = make_member("p", incarnation=2)
    lending.ask(span_id="late")
    assert issued(lending.state, Revoke) == [], "nobody was heard in incarnation 2"
    lending.ask(span_id="new", incarnation=2)
    assert [revoke.span.span_id for revoke in issued(lending.state, Revoke)] == [loan.span.span_id, "other"]
    lending.ask(span_id="newer", incarnation=2)
    assert issued(lending.state, Revoke) == []


def test_a_drain_asks_for_everything(lending: Lending) -> None:
    lending.ask(span_id="a")
    lending.ask(span_id="b")
    second = lending.state.loans.find("b")
    assert second is not None
    lending.creditor.on_release(DEBTOR, Release(span=second.span))
    lending.state.commands.clear()
    lending.creditor.reclaim_all(9.0)
    ((route, body),) = lending.answers()
    assert route == DEBTOR and isinstance(body, Reclaim) and (body.span.span_id, body.deadline_s) == ("a", 9.0)


@pytest.mark.parametrize("epoch", ["exact", "any"])
def test_a_stranger_that_knows_every_id_moves_nothing(lending: Lending, epoch: str) -> None:
    """It claims to be p, with p's ids and epochs; its connection is not p's."""
    loan = lending.lend()
    span = loan.span if epoch == "exact" else SpanRef(span_id="s", epoch=ANY_EPOCH)
    expires_at = loan.expires_at
    lending.clock.advance(1.0)

    lending.creditor.on_release(STRANGER, Release(span=span))
    assert lending.answers() == [(STRANGER, Released(span=span))]
    lending.creditor.on_renew(STRANGER, Renew(renewal=1, spans=(span,), ttl_s=99.0), lending.clock.now())
    assert lending.answers() == [(STRANGER, Renewed(renewal=1, refused=(span,), incarnation=7, ttl_s=4.0))]
    ready = BlocksReady(span=span, index=0, source_id="x", source_incarnation=1, blocks=(ReadyBlock(0, 0),))
    lending.creditor.on_blocks_ready(STRANGER, ready)
    ((route, answer),) = lending.answers()
    assert route == STRANGER and isinstance(answer, Complete) and answer.num_blocks == 0 and answer.problem
    lending.ask(STRANGER)
    ((route, answer),) = lending.answers()
    assert route == STRANGER and isinstance(answer, Refused)

    assert loan.expires_at == expires_at and not loan.revoking and loan.pulling == 0
    lending.creditor.on_blocks_ready(DEBTOR, lending.ready(loan))
    (pull,) = issued(lending.state, Pull)
    lending.creditor.on_pulled(Pulled(pull_id=pull.pull_id))
    assert [route for route, _ in lending.answers()] == [DEBTOR], "answers go to who asked first"
    lending.check()


@pytest.mark.parametrize("policy", ["contract", "greedy"])
def test_what_nobody_here_has_room_for_is_lent_to_who_could_wait(policy: str) -> None:
    """Each of two instances would have too little for who waits there; together they have enough for one. What small
    ones need is kept."""
    lending = Lending()
    lending.state.policy = policy
    add_sequence(lending.state, "small", 4)
    lending.state.small_ones.look(lending.clock.now())
    lending.clock.advance(10.0)
    lendable = lending.state.lendable()
    add_sequence(lending.state, "own", 4 * (lending.state.pool.num_free + 1), SeqState.WAITING)
    lending.state.sequences.queue.look(lending.clock.now())
    lending.ask(is_avoidable=True, blocks=lendable, waited_s=10.0)
    (loan,) = lending.state.loans.held()
    kept = lending.state.kept_for_next(lending.clock.now())
    assert loan.is_avoidable and loan.num_blocks == lendable - kept and kept > 0
    assert lending.state.earmarks.look(lending.clock.now()) is None, "nothing is kept for who could wait"


def lending_where(what: str) -> Lending:
    lending = Lending()
    if what == "one waits":
        add_sequence(lending.state, "own", 8, SeqState.WAITING)
        lending.state.sequences.queue.look(lending.clock.now())
    else:
        own = add_sequence(lending.state, "own", 8, SeqState.RUNNING)
        lend(own, "q", 1, debts=DebtBook(lending.state))
    return lending


@pytest.mark.parametrize("what", ["one waits", "it has borrowed"])
def test_who_needs_memory_lends_only_to_requests_that_need_it(what: str) -> None:
    """Nobody is debtor and creditor at once but for a request that could not run otherwise (001 §5.2)."""
    lending = lending_where(what)
    lending.ask(is_avoidable=True)
    ((_, refused),) = lending.answers()
    assert isinstance(refused, Refused) and refused.is_kept
    assert refused.free_blocks == lending.state.lendable() > 0, "others could have that"
    assert not lending.state.loans.loans
    lending.ask(is_avoidable=False)
    assert lending.state.loans.num_blocks == 3 and not lending.state.loans.has_avoidable


def test_who_has_memory_to_spare_lends_to_who_could_wait() -> None:
    lending = Lending()
    lending.ask(is_avoidable=True)
    (loan,) = lending.state.loans.held()
    assert loan.is_avoidable and lending.state.loans.has_avoidable
    lending.creditor.on_release(DEBTOR, Release(span=loan.span))
    lending.creditor.on_revoked(Revoked(span=loan.span))
    assert not lending.state.loans.has_avoidable
    lending.state.loans.validate()
