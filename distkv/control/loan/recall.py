"""A creditor wants its memory back: its blocks come home, or go to another creditor (000 §4.6, PROTOCOL `Reclaim`).

What finds no place by the deadline is lost when the creditor refuses the next renewal, and is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from distkv.control.blocks import SlotState
from distkv.control.commands import TellWorker
from distkv.control.loan.borrowing import Purpose
from distkv.control.loan.debts import DebtBook
from distkv.control.request.placement import Block, Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import Instance
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_rmanager import Reclaim
from distkv.wire.messages.to_worker import Pull


@dataclass(slots=True, eq=False)
class Homecoming:
    """Blocks being pulled home; the slots are this record's until the pull ends."""

    seq: Sequence
    debt: Debt
    pairs: list[tuple[Block, int]]


class Recaller:
    """Answers reclaims of one instance's creditors."""

    def __init__(self, instance: Instance, debts: DebtBook) -> None:
        self._instance = instance
        self._debts = debts
        self._pulls: dict[int, Homecoming] = {}

    def on_reclaim(self, creditor_id: str, message: Reclaim, now: float) -> None:
        """Begin to empty the span, or go on with it; blocks not yet computed lose the place they had there."""
        found = self._debts.find(message.span)
        if found is None:
            return
        seq, debt = found
        if (
            debt.creditor_id != creditor_id
            or debt.exposed
            or any(coming.debt is debt for coming in self._pulls.values())
        ):
            return
        self._debts.abandon(seq, debt)
        placed = [b for b in debt.blocks if b.debt is debt and b.placed]
        room = self._instance.pool.num_free - len(self._instance.running())
        slots = self._instance.pool.allocate(min(len(placed), max(0, room)), SlotState.LOCAL) or []
        if slots:
            self._pull_home(seq, debt, placed[len(placed) - len(slots) :], slots)
        rest = len(placed) - len(slots)
        if rest and self._instance.borrower.of(seq, Purpose.REHOME) is None:
            self._instance.borrower.start(seq, Purpose.REHOME, rest, now, exclude=[debt.creditor_id])

    def on_pulled(self, message: Pulled) -> bool:
        """A pull home is over; false if it was none of ours."""
        coming = self._pulls.pop(message.pull_id, None)
        if coming is None:
            return False
        unused = []
        for block, slot in coming.pairs:
            current = block.number < len(coming.seq.blocks) and coming.seq.blocks[block.number] is block
            if message.problem or not current or block.debt is not coming.debt or not block.placed:
                unused.append(slot)
            else:
                coming.seq.settle_here(block, slot)
        self._instance.pool.free(unused, SlotState.LOCAL)
        self._debts.release_if_empty(coming.seq, coming.debt)
        return True

    def slots(self) -> list[int]:
        """Slots that blocks on their way home go into."""
        return [slot for coming in self._pulls.values() for _, slot in coming.pairs]

    def _pull_home(self, seq: Sequence, debt: Debt, blocks: list[Block], slots: list[int]) -> None:
        member = self._instance.members[debt.creditor_id]
        pull_id = self._instance.next_id()
        self._pulls[pull_id] = Homecoming(seq, debt, list(zip(blocks, slots, strict=True)))
        self._instance.emit(
            TellWorker(
                Pull(
                    pull_id=pull_id,
                    source_id=debt.creditor_id,
                    source_incarnation=member.incarnation,
                    source_slots=tuple(debt.slots[block.index] for block in blocks),
                    slots=tuple(slots),
                    checksums=tuple(block.checksum or 0 for block in blocks),
                )
            )
        )
