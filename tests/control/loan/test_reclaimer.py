"""Reclaimer: an own request that waits has as much memory brought home as it lacks, once, with a deadline."""

from __future__ import annotations

import math

import pytest

from distkv.clock import ManualClock
from distkv.control.commands import Answer
from distkv.control.loan.creditor.lending import LAST_CALL_S, Loan
from distkv.control.loan.creditor.reclaimer import NONE_LACKS, REMIND_S, Lack, Reclaimer
from distkv.control.request.sequence import SeqState, Sequence
from distkv.wire.messages.to_rmanager import Granted, Reclaim, TryMoveKvcache
from tests.control.parts import add_sequence, make_state

AFTER_S, DEADLINE_S = 1.0, 2.0


class Short:
    """A creditor that has lent 8 of 16 slots, and an own request that lacks some."""

    def __init__(self, **settings: float) -> None:
        self.clock = ManualClock(10.0)
        self.state = make_state(16, peers=(), **settings)
        self.waiting: Sequence = add_sequence(self.state, num_tokens=40, seq_state=SeqState.WAITING)
        self.lack = 4
        self.reclaimer = Reclaimer(
            self.state, lambda now: Lack(self.waiting, self.lack, self.waiting.retries > 0) if self.lack else NONE_LACKS
        )
        self.first, self.second = self.lend("a", 2), self.lend("b", 6)
        self.clock.advance(AFTER_S)

    def lend(self, span_id: str, num_blocks: int) -> Loan:
        wanted = TryMoveKvcache(
            span_id=span_id, request_id="r", debtor_id="d", debtor_incarnation=1, num_blocks=num_blocks, ttl_s=4.0
        )
        answer, _ = self.state.loans.try_grant(b"d", wanted, num_blocks, self.clock.now())
        assert isinstance(answer, Granted)
        return self.state.loans.loans[span_id]

    def look(self) -> list[tuple[str, int, float]]:
        """What is reclaimed: span, rBlocks to keep, seconds to do it."""
        self.reclaimer.tick(self.clock.now())
        self.reclaimer.advance(self.clock.now())
        self.reclaimer.validate()
        told = [command.body for command in self.state.commands if isinstance(command, Answer)]
        self.state.commands.clear()
        return [(one.span.span_id, one.keep_blocks, one.deadline_s) for one in told if isinstance(one, Reclaim)]

    def renew(self, loan: Loan) -> bool:
        return not self.state.loans.renew((loan.span,), b"d", 4.0, self.clock.now())


def test_after_a_while_as_many_as_are_missing_and_again_until_they_are_back() -> None:
    short = Short()
    assert short.look() == [] and short.state.is_short and short.state.lendable() == 0
    assert short.reclaimer.next_deadline() == short.clock.now() + AFTER_S
    short.clock.advance(AFTER_S - 0.01)
    assert short.look() == []
    short.clock.advance(0.01)
    assert short.look() == [("b", 2, DEADLINE_S)], "one that gives all of it"
    assert short.state.counters.reclaimed_blocks == 4 and short.look() == []
    assert short.state.demanded_at == short.clock.now()
    short.clock.advance(REMIND_S)
    assert short.look() == [("b", 2, DEADLINE_S - REMIND_S)]
    short.state.loans.close(short.second, (0, 1, 2))
    short.lack = 1
    short.clock.advance(REMIND_S)
    assert short.look() == [("b", 2, DEADLINE_S - 2 * REMIND_S)]
    short.state.loans.close(short.second, (3,))
    short.lack = 0
    short.clock.advance(REMIND_S)
    assert short.look() == [] and not short.state.is_short and short.reclaimer.next_deadline() == math.inf
    assert short.second.demand is None


def test_who_does_not_give_back_in_time_cannot_renew_and_is_lent_nothing_for_a_while() -> None:
    short = Short()
    short.look()
    short.clock.advance(AFTER_S)
    short.look()
    assert short.renew(short.first) and short.renew(short.second) and short.reclaimer.is_cooling("d", short.clock.now())
    short.clock.advance(DEADLINE_S)
    assert short.look() == [("b", 2, 0.0)], "its time is over"
    assert short.renew(short.first) and short.renew(short.second)
    short.clock.advance(REMIND_S)
    assert short.look() == [("b", 2, 0.0)], "that may have been lost"
    short.clock.advance(LAST_CALL_S - REMIND_S)
    assert short.renew(short.first) and not short.renew(short.second)
    short.state.loans.close(short.second, (0, 1, 2, 3))
    assert short.renew(short.second), "what it may keep, it keeps"
    short.clock.advance(DEADLINE_S)
    assert not short.reclaimer.is_cooling("d", short.clock.now())


@pytest.mark.parametrize("why", ["nobody waits", "more than all loans", "draining", "others may lend", "young loans"])
def test_nothing_is_reclaimed_that_would_not_help(why: str) -> None:
    short = Short()
    match why:
        case "nobody waits":
            short.lack = 0
        case "more than all loans":
            short.lack = 11
        case "draining":
            short.state.instance_state = "draining"
        case "others may lend":
            short = Short()
            short.state.members.update({"p": make_state().members["p"]})
        case _:
            for loan in (short.first, short.second):
                loan.granted_at = 1000.0
    for _ in range(10):
        assert short.look() == []
        short.clock.advance(0.5)
    if why == "others may lend":
        short.waiting.enter(SeqState.WAITING, 0.0, 1)
        assert short.look() == [("b", 2, DEADLINE_S)], "one was tried in vain"


@pytest.mark.parametrize(("room", "reclaimed"), [(0, []), (1, []), (2, [("a", 0, DEADLINE_S)])])
def test_where_all_loans_are_too_few_a_debtor_keeps_what_it_has_begun_with(room: int, reclaimed: list[object]) -> None:
    """Nothing lay in it yet, so it was taken from requests just begun, which computed everything again, for ever."""
    short = Short()
    short.state.policy, short.lack = "greedy", 11
    for loan in (short.first, short.second):
        short.state.loans.renew((loan.span,), b"d", 1000.0, short.clock.now(), room)
    short.look()
    short.clock.advance(AFTER_S)
    assert short.look() == reclaimed
    short.lack = 8
    short.clock.advance(REMIND_S)
    assert {one[0] for one in short.look()} >= {"b"}, "which is enough, if it comes home"


def test_at_most_so_many_at_a_time() -> None:
    short = Short(reclaim_blocks=3)
    short.look()
    short.clock.advance(AFTER_S)
    assert short.look() == [("b", 3, DEADLINE_S)]
    short.clock.advance(REMIND_S)
    assert short.look() == [("b", 3, DEADLINE_S - REMIND_S)]
    short.state.loans.close(short.second, (0, 1, 2))
    assert short.look() == [("a", 1, DEADLINE_S)], "the next, at once, from whoever was not asked yet"
    short.clock.advance(REMIND_S)
    assert short.look() == [("a", 1, DEADLINE_S - REMIND_S)], "three are on their way, and four are missing"


def test_when_the_need_is_gone_so_is_the_demand() -> None:
    short = Short()
    short.look()
    short.clock.advance(AFTER_S)
    short.look()
    short.lack = 0
    short.look()
    short.clock.advance(2 * DEADLINE_S)
    assert short.renew(short.second) and short.look() == []


def test_what_its_debtor_has_no_room_for_is_left_alone_for_as_long_as_reclaiming_it_might_take() -> None:
    short = Short()
    for loan in (short.first, short.second):
        loan.filled = len(loan.slots)
    short.look()
    short.clock.advance(AFTER_S)
    assert short.look() == []
    short.state.loans.renew((short.second.span,), b"d", 4.0, short.clock.now(), room=3)
    short.clock.advance(REMIND_S)
    assert short.look() == [], "it lacks four"
    short.clock.advance(DEADLINE_S + short.state.settings.lease_s - REMIND_S)
    assert short.look() == [("b", 2, DEADLINE_S)]


def test_what_its_debtor_has_room_for_is_reclaimed_at_once() -> None:
    short = Short()
    for loan in (short.first, short.second):
        loan.filled = len(loan.slots)
    short.look()
    short.state.loans.renew((short.second.span,), b"d", 4.0, short.clock.now(), room=4)
    short.clock.advance(AFTER_S)
    assert short.look() == [("b", 2, DEADLINE_S)]


def test_for_a_request_that_all_loans_are_too_few_for_nobody_is_to_preempt() -> None:
    """Where none borrows while it lends: those that have borrowed would lose what they have computed, and it would
    not begin. They go on to grow, and nobody else is lent anything."""
    short = Short()
    short.state.policy, short.lack = "greedy", 9
    for loan in (short.first, short.second):
        loan.filled = len(loan.slots)
    short.look()
    short.clock.advance(AFTER_S + 2 * DEADLINE_S + 2 * short.state.settings.lease_s)
    short.state.loans.renew((short.first.span, short.second.span), b"d", 4.0, short.clock.now(), room=1)
    assert short.look() == []
    assert short.state.is_short and short.state.lendable() == 0
    assert short.state.lendable_to("d", "another") == short.state.lendable_to("e", "r") == 0
    assert short.state.lendable_to("d", "r") > 0
    short.state.loans.renew((short.second.span,), b"d", 4.0, short.clock.now(), room=6)
    short.clock.advance(REMIND_S)
    assert short.look() == [("b", 0, DEADLINE_S)], "there is room for it at home"
    assert short.state.lendable_to("d", "r") == 0
    short.lack = 8
    short.look()
    assert short.state.lendable_to("d", "r") == 0, "it would begin"


def test_what_a_run_of_dgfm_has_pinned_is_not_reclaimed_meanwhile() -> None:
    short = Short()
    short.state.pinned_debtor = "d"
    for _ in range(10):
        assert short.look() == []
        short.clock.advance(REMIND_S)
    short.state.pinned_debtor = ""
    assert short.look() == [("b", 2, DEADLINE_S)]
