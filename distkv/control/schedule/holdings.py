"""What the sequences of one instance hold, where somebody decides about it: whose blocks go to which span, and who
gives back everything."""

from __future__ import annotations

from random import Random

from distkv import events
from distkv.control.loan.debtor.borrow import Borrow
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.request.block import Block
from distkv.control.request.sequence import SeqState, Sequence
from distkv.control.rmanager.state import RManagerState

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 0.5


class Holdings:
    """What admission and making room do alike."""

    def __init__(self, state: RManagerState, debts: DebtBook, entropy: Random) -> None:
        self._state = state
        self._debts = debts
        self._entropy = entropy

    def unplaced_blocks(self, seq: Sequence) -> int:
        """Blocks it needs a place for before it can go on, beyond the slots it holds or will soon have back."""
        seq.placement.cover(len(seq.request.tokens))
        wanted = seq.placement.counts.unplaced + seq.placement.ends_in_transit
        return max(0, wanted - len(seq.placement.unassigned_slots) - self._state.deferred.returning(seq))

    def hand_over(self, seq: Sequence, borrow: Borrow, blocks: list[Block], spare: int = 0) -> None:
        """Let blocks go to the granted spans, in order, and keep so many positions for blocks still to come; what is
        left goes back."""
        rest = list(blocks)
        for debt in borrow.grants:
            if not rest and spare <= 0:
                self._debts.give_back([debt])
                continue
            here, rest = rest[: debt.capacity], rest[debt.capacity :]
            keep = max(0, min(spare, debt.capacity - len(here)))
            spare -= keep
            seq.placement.borrow(debt, here)
            self._debts.release_unused(seq, debt, keep)
            self._state.histories.note(
                seq.request_id,
                "borrowed",
                instance_id=debt.creditor_id,
                why=borrow.purpose.value,
                blocks=len(here) + keep,
            )
        self._state.sequences.touch(seq)

    def use_spare(self, seq: Sequence, most: int, creditor_id: str | None = None) -> int:
        """Have up to `most` full blocks go to what a sequence keeps at creditors, or at this one; returns how many."""
        if not seq.placement.counts.movable:
            return 0
        debts = [debt for debt in seq.placement.debts if creditor_id in (None, debt.creditor_id) and debt.num_spare]
        blocks = seq.placement.movable()[:most] if debts else []
        count = len(blocks)
        for debt in debts:
            here, blocks = blocks[: debt.num_spare], blocks[debt.num_spare :]
            seq.placement.borrow(debt, here)
        if count:
            self._state.sequences.touch(seq)
        return count - len(blocks)

    def restart(self, seq: Sequence, now: float) -> None:
        """Take everything from a sequence; it starts over from its tokens when there is memory again."""
        state = self._state
        state.scheduler.take_back(seq)
        self._debts.give_back(state.borrower.cancel(seq))
        self._debts.drop(seq, now)
        state.sequences.wait(seq, now)

    def preempt(self, seq: Sequence, now: float, why: str) -> None:
        """Take everything that a sequence holds; others may have it first."""
        held = seq.size_blocks - seq.placement.counts.unplaced
        self._state.histories.note(seq.request_id, "preempted", why=why, blocks=held)
        self._state.counters.preemptions += 1
        self._state.publish(events.Preempted(request_id=seq.request_id, num_tokens=len(seq.request.tokens)))
        self.restart(seq, now)
        self._state.sequences.wait(seq, now + self.backoff(0))

    def check_places(self, seq: Sequence) -> None:
        """After a loss: no more steps for a sequence whose lost blocks have no place, until they do; and one that waits
        with nothing left keeps no slots from others."""
        if seq.state is SeqState.WAITING and not seq.placement.holds_kv:
            self._state.deferred.trim(seq)
        if seq.state is not SeqState.RUNNING or not seq.placement.take_unsettled():
            return
        if not self._state.scheduler.has_in_flight(seq) and (slots := seq.vacate()):
            self._state.deferred.add(seq, slots)
        if self.unplaced_blocks(seq):
            for debt in list(seq.placement.debts):
                self._debts.release_unused(seq, debt)
            self._state.sequences.wait(seq, 0.0)
            self._state.deferred.trim(seq)

    def backoff(self, retries: int) -> float:
        """Doubling, with jitter, so that instances that compete for the same blocks do not do so for ever."""
        return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(retries, 10)) * (0.5 + self._entropy.random())
