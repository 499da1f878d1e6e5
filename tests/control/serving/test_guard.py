"""ServingGuard and the creditor: what serving takes too much of is refused, and goes back with a deadline."""

from __future__ import annotations

import pytest

from distkv.clock import ManualClock
from distkv.control.loan.creditor.creditor import Creditor
from distkv.control.loan.creditor.lending import Loan
from distkv.control.loan.creditor.reclaimer import Reclaimer
from distkv.control.serving.guard import ServingGuard
from distkv.control.serving.limit import JUDGED_S
from distkv.wire.messages.to_rmanager import BlocksReady, Granted, ReadyBlock, Reclaim, Refused, TryMoveKvcache
from tests.control.parts import add_sequence, issued, make_state

AFTER_S, DEADLINE_S, LEASE_S = 1.0, 2.0, 4.0
STEP_S = 0.02
ROOM = 100


class Serving:
    """A creditor that computes for itself while it lends to p and q, who have room for `room` rBlocks at home."""

    def __init__(self, room: int = ROOM, num_blocks: int = 40) -> None:
        self.clock = ManualClock(10.0)
        self.room = room
        self.state = make_state(num_blocks, peers=("p", "q"))
        self.reclaimer = Reclaimer(self.state, lambda now: None)
        self.creditor = Creditor(self.state, self.reclaimer)
        self.guard = ServingGuard(self.state, self.reclaimer)
        self.served_s = 0.0
        self.own = add_sequence(self.state)

    def request(self, debtor: str, num_blocks: int) -> Granted | Refused:
        wanted = TryMoveKvcache(
            span_id=f"s-{debtor}",
            request_id=f"r-{debtor}",
            debtor_id=debtor,
            debtor_incarnation=1,
            num_blocks=num_blocks,
            ttl_s=LEASE_S,
        )
        self.creditor.on_try_move(debtor, debtor.encode(), wanted, self.clock.now())
        (answer,) = [one for one in issued(self.state, object) if isinstance(one, Granted | Refused)]
        return answer

    def lend(self, debtor: str, num_blocks: int, filled: int) -> Loan:
        """So many, of which so many hold something."""
        assert isinstance(self.request(debtor, num_blocks), Granted)
        loan = self.state.loans.loans[f"s-{debtor}"]
        ready = BlocksReady(
            span=loan.span,
            index=0,
            source_id=debtor,
            source_incarnation=1,
            blocks=tuple(ReadyBlock(slot, slot) for slot in range(filled)),
        )
        assert not isinstance(self.state.loans.start_pull(ready), str)
        self.state.loans.end_pull(loan, ok=True)
        return loan

    def give_back(self, loan: Loan, num_blocks: int) -> None:
        """Its debtor has brought so many of it elsewhere."""
        positions = loan.positions()[-num_blocks:]
        assert self.state.loans.close(loan, positions) == tuple(positions)
        self.state.loans.revoked(loan.span, tuple(positions))

    def run(self, seconds: float, share: float) -> list[tuple[str, int]]:
        """Own steps, of whose time serving takes a share; returns what is reclaimed first: span, and rBlocks to
        keep."""
        told: dict[str, int] = {}
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            compute_s = STEP_S / (1 - share)
            now = self.clock.advance(compute_s)
            self.served_s += share * compute_s
            spans = tuple(loan.span for loan in self.state.loans.loans.values())
            for span in spans:
                self.state.loans.renew((span,), self.state.loans.loans[span.span_id].route, LEASE_S, now, self.room)
            self.state.serving.on_step(compute_s, self.served_s, True, now)
            self.reclaimer.tick(now)
            self.guard.advance(now)
            assert self.guard.next_deadline() > now, "it would be looked at again at once"
            self.reclaimer.validate()
            for one in issued(self.state, Reclaim):
                told.setdefault(one.span.span_id, one.keep_blocks)
        return list(told.items())


def test_it_refuses_more_and_says_for_how_long() -> None:
    serving = Serving()
    assert serving.run(2, 0.4) == []
    granted = serving.request("p", 2)
    assert isinstance(granted, Granted) and granted.max_serve_fraction == 0.5
    assert abs(granted.serve_fraction - 0.4) < 0.01
    serving.run(1, 0.8)
    refused = serving.request("q", 2)
    assert isinstance(refused, Refused) and "serving takes" in refused.reason and refused.free_blocks == 0
    assert 0 < refused.retry_after_s <= 2.0 and serving.state.lendable() == 0
    assert isinstance(serving.request("p", 2), Granted), "an answer that was lost is given again"


def test_the_youngest_loan_goes_first_and_no_more_than_what_is_too_much() -> None:
    serving = Serving()
    old = serving.lend("p", 4, 4)
    serving.run(1, 0.1)
    young = serving.lend("q", 20, 16)
    serving.run(1, 0.1)
    ((span_id, keep),) = serving.run(AFTER_S + 2.0, 0.6)
    # 20 are served; of them goes what brings 0.6 to 0.35, and with it the four that hold nothing.
    assert span_id == young.span.span_id and 4 + 10 <= young.num_kept - keep <= 4 + 14
    assert old.demand is None
    assert serving.reclaimer.is_cooling("q", serving.clock.now())


def test_what_is_back_lets_the_rest_be() -> None:
    serving = Serving()
    loan = serving.lend("p", 10, 10)
    serving.run(1, 0.1)
    assert serving.run(AFTER_S + 1.0, 0.9)
    assert loan.demand is not None
    serving.run(2, 0.1)
    assert loan.demand is None, "its debtor's request may have ended elsewhere"


def test_all_that_is_too_much_goes_at_once_however_much_it_is() -> None:
    """More than is reclaimed at a time for memory; its debtor has as much more time."""
    serving = Serving(room=400, num_blocks=400)
    loan = serving.lend("p", 320, 320)
    serving.run(1, 0.1)
    ((_, keep),) = serving.run(AFTER_S + 1.0, 0.8)
    assert loan.demand is not None
    # What is left is to be 0.35 of the whole, where it is 0.8: by what steps take without it, 0.54 and 4 times.
    assert keep == pytest.approx(320 * 0.54 / 4, abs=2)
    demanded, until = loan.num_demanded, loan.demand.until
    assert demanded > 4 * serving.state.settings.reclaim_blocks
    assert until - serving.clock.now() > 4 * DEADLINE_S - AFTER_S
    assert serving.run(3.0, 0.8) == [(loan.span.span_id, keep)], "it is said again, and no more is wanted"


def test_what_is_still_too_much_goes_soon_after_the_first_is_back() -> None:
    serving = Serving()
    loan = serving.lend("p", 30, 30)
    serving.run(1, 0.1)
    ((_, keep),) = serving.run(AFTER_S + 1.0, 0.8)
    serving.give_back(loan, loan.num_demanded)
    assert serving.run(JUDGED_S - 0.1, 0.6) == [], "what that changed is not known yet"
    ((_, less),) = serving.run(0.5, 0.6)
    assert 0 < less < keep
    serving.give_back(loan, loan.num_demanded)
    assert serving.run(4.0, 0.35) == [], "enough, though more than where memory is lent again"


def test_a_debtor_gives_back_as_much_as_it_has_room_for_and_more_only_after_as_long_as_it_might_take() -> None:
    serving = Serving(room=3)
    loan = serving.lend("p", 10, 10)
    serving.run(1, 0.1)
    assert serving.run(AFTER_S + 1.0, 0.8) == [(loan.span.span_id, 7)]
    serving.give_back(loan, 3)
    serving.room = 0
    assert serving.run(DEADLINE_S + LEASE_S - 1.5, 0.8) == []
    assert serving.run(3.0, 0.8)


def test_without_own_requests_nothing_is_too_much() -> None:
    serving = Serving()
    serving.lend("p", 10, 10)
    serving.run(AFTER_S + 1.0, 0.8)
    assert serving.state.serving.is_limited
    serving.state.sequences.wait(serving.own, 0.0)
    serving.guard.advance(serving.clock.now())
    assert not serving.state.serving.is_limited and serving.state.lendable() > 0
