"""One creditor."""

from __future__ import annotations

from distkv.clock import ManualClock
from distkv.control.commands import Answer
from distkv.control.loan.creditor.creditor import Creditor
from distkv.control.loan.creditor.lending import Loan
from distkv.control.loan.creditor.reclaimer import NONE_LACKS, Reclaimer
from distkv.wire.messages.to_rmanager import (
    BlocksReady,
    ReadyBlock,
    TryMoveKvcache,
)
from distkv.wire.messages.to_worker import Grant
from tests.control.parts import issued, make_state

DEBTOR, STRANGER = b"the route of p", b"a stranger's route"


class Lending:
    """One creditor with 16 slots, and what it answers."""

    def __init__(self) -> None:
        self.clock = ManualClock(10.0)
        self.state = make_state()
        self.lacking = NONE_LACKS
        self.reclaimer = Reclaimer(self.state, lambda now: self.lacking)
        self.creditor = Creditor(self.state, self.reclaimer)

    def ask(
        self,
        route: bytes = DEBTOR,
        sender: str = "p",
        debtor: str = "p",
        span_id: str = "s",
        blocks: int = 3,
        incarnation: int = 1,
        waited_s: float = 0.0,
        is_avoidable: bool = False,
        is_running: bool = False,
    ):
        ask = TryMoveKvcache(
            span_id=span_id,
            request_id="r",
            debtor_id=debtor,
            debtor_incarnation=incarnation,
            num_blocks=blocks,
            ttl_s=4.0,
            waited_s=waited_s,
            is_avoidable=is_avoidable,
            is_running=is_running,
        )
        self.creditor.on_try_move(sender, route, ask, self.clock.now())

    def lend(self) -> Loan:
        self.ask()
        (grant,) = issued(self.state, Grant)
        loan = self.state.loans.find(grant.span.span_id)
        assert loan is not None and grant.span == loan.span and grant.slots == loan.slots
        return loan

    def answers(self) -> list[tuple[bytes, object]]:
        answers = [(command.route, command.body) for command in self.state.commands if isinstance(command, Answer)]
        self.state.commands.clear()
        return answers

    def ready(self, loan: Loan, index: int = 0, count: int = 1) -> BlocksReady:
        blocks = tuple(ReadyBlock(i, 7 + i) for i in range(count))
        return BlocksReady(span=loan.span, index=index, source_id="p", source_incarnation=1, blocks=blocks)

    def check(self) -> None:
        self.state.validate()
