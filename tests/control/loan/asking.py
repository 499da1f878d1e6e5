"""One instance that borrows."""

from __future__ import annotations

from distkv.clock import ManualClock
from distkv.control.loan.debtor.borrow import Borrow, Purpose
from distkv.control.request.block import Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import RManagerState
from distkv.wire.messages.common import Epoch
from distkv.wire.messages.to_gmanager import BorrowQuery
from distkv.wire.messages.to_rmanager import Candidate, Creditors, Granted, Refused, TryMoveKvcache
from tests.control.parts import add_sequence, issued, make_state

LEASE_S, MARGIN_S = 4.0, 0.5


class Asking:
    """One instance that borrows, and the answers it gets."""

    def __init__(self, peers: tuple[str, ...] = ("p", "q", "s")) -> None:
        self.clock = ManualClock(50.0)
        self.state: RManagerState = make_state(peers=peers)
        self.borrower = self.state.borrower
        self.seq: Sequence = add_sequence(self.state)

    def start(self, num_blocks: int, purpose: Purpose = Purpose.PLACE, exclude: tuple[str, ...] = ()) -> Borrow:
        return self.borrower.start(self.seq, purpose, num_blocks, self.clock.now(), exclude)

    def query(self) -> BorrowQuery:
        (query,) = issued(self.state, BorrowQuery)
        return query

    def asked(self) -> TryMoveKvcache:
        (ask,) = issued(self.state, TryMoveKvcache)
        return ask

    def candidates(self, borrow: Borrow, *candidates: tuple[str, int]) -> None:
        message = Creditors(borrow_id=borrow.borrow_id, candidates=tuple(Candidate(i, free) for i, free in candidates))
        self.borrower.on_creditors(message, self.clock.now())

    def grant(
        self, sender: str, ask: TryMoveKvcache, num_blocks: int, ttl_s: float = LEASE_S
    ) -> tuple[Sequence, Debt] | None:
        slots = tuple(range(num_blocks))
        granted = Granted(span_id=ask.span_id, epoch=Epoch(9, 1), slots=slots, ttl_s=ttl_s)
        return self.borrower.on_granted(sender, granted, self.clock.now())

    def refuse(self, sender: str, ask: TryMoveKvcache, free_blocks: int) -> None:
        refused = Refused(span_id=ask.span_id, reason="full", free_blocks=free_blocks)
        self.borrower.on_refused(sender, refused, self.clock.now())


def bodies(asking: Asking) -> list[object]:
    """Of all commands since the last call."""
    found = [getattr(command, "body", command) for command in asking.state.commands]
    asking.state.commands.clear()
    return found


def asking_for(borrow: Borrow) -> TryMoveKvcache:
    """What the creditor was asked that a borrow is trying."""
    return TryMoveKvcache(
        span_id=borrow.span_id, request_id="r", debtor_id="me", debtor_incarnation=7, num_blocks=2, ttl_s=LEASE_S
    )
