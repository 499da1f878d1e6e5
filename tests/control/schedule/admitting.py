"""An instance on which somebody is admitted, or makes room."""

from __future__ import annotations

from random import Random

from distkv.clock import ManualClock
from distkv.control.loan.debtor.borrow import Borrow
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.block import Debt
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.control.schedule.admission.admission import Admission
from distkv.control.schedule.admission.demand import Demand
from distkv.control.schedule.holdings import Holdings
from distkv.control.schedule.making_room import MakingRoom
from distkv.wire.messages.common import Epoch, SpanRef
from tests.control.parts import add_sequence, compute, make_state, validate

WAITING, ACQUIRING, RUNNING = SeqState.WAITING, SeqState.ACQUIRING, SeqState.RUNNING


class Admitting:
    """One instance with a pool of `num_blocks`, and what decides about it."""

    def __init__(self, num_blocks: int = 8, peers: tuple[str, ...] = ("p", "q"), **settings: object) -> None:
        self.clock = ManualClock(10.0)
        self.state: RManagerState = make_state(num_blocks, peers, **settings)
        self.debts = DebtBook(self.state)
        self.holdings = Holdings(self.state, self.debts, Random(1))
        self.making_room = MakingRoom(self.state, self.holdings, Random(1))
        self.demand = Demand(self.state, self.holdings)
        self.admission = Admission(self.state, self.debts, self.holdings, self.demand, self.making_room)

    def wait(self, name: str, num_blocks: int, arrival: float = 0.0) -> Sequence:
        return add_sequence(self.state, name, num_blocks * 4, WAITING, arrival=arrival)

    def run(self, name: str, num_blocks: int, arrival: float = 0.0, max_tokens: int = 8) -> Sequence:
        """A request that runs, its prompt computed."""
        seq = add_sequence(self.state, name, num_blocks * 4, RUNNING, arrival=arrival, max_tokens=max_tokens)
        compute(self.state, seq)
        return seq

    def admit(self) -> None:
        self.admission.admit(self.clock.now())
        self.check()

    def make_room(self) -> None:
        self.making_room.advance(self.clock.now())
        self.check()

    def stall(self) -> None:
        """Plan steps until nothing is left to plan, and let each be answered without a token."""
        for seq in self.state.running():
            seq.uncomputed.add(seq.length, seq.length)
        while (step := self.state.scheduler.plan(self.state.running(), self.clock.now())) is not None:
            self.state.scheduler.finished(step.step_id)
        self.state.deferred.settle()

    def borrow(self) -> Borrow:
        (borrow,) = self.state.borrower.active.values()
        return borrow

    def end(self, borrow: Borrow, *grants: tuple[str, int]) -> None:
        """The borrow is over, with these grants."""
        for index, (creditor, count) in enumerate(grants):
            span = SpanRef(span_id=f"{borrow.borrow_id}-{index}", epoch=Epoch(1, 1))
            debt = Debt(span, creditor, tuple(range(count)), self.clock.now() + 3.5, 4.0)
            self.state.borrower.collect(borrow, debt)
            self.debts.add(borrow.seq, debt, self.clock.now())
        self.state.borrower.end(borrow)
        assert self.state.borrower.take_finished() is borrow
        self.admission.on_borrowed(borrow, self.clock.now())
        self.check()

    def check(self) -> None:
        validate(self.state, self.debts)


def slow_to_attend_elsewhere(admitting: Admitting) -> None:
    """Steps take 10 ms and 1 ms more for each sequence; where they wait for partials, three times as long."""
    waited_s = 0.0
    for decodes in (1, 2, 4, 8, 4, 2, 1):
        for is_remote in (False, True):
            step_s = 0.010 + 0.001 * decodes
            waited_s += 2 * step_s * is_remote
            admitting.state.worth.observe(
                decodes,
                has_chunks=False,
                is_remote=is_remote,
                compute_s=step_s * (3 if is_remote else 1),
                attend_wait_s=waited_s,
                now=admitting.clock.now(),
            )
