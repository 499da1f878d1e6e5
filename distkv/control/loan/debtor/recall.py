"""A creditor wants its memory back (`Reclaim`): the debtor recalls its blocks, or moves them on (000 §4.6).

What finds no place by the deadline is given up, that much of the span and no more, and is computed again: the creditor
would refuse to renew all of it.

A creditor that drains can leave when all has left it. So while not all of it finds a place, those that run here keep
what they are expected to grow into, here and there: they may end before its time is up. In its last seconds what fits
comes home.

Where both drain, the debtor goes first: its requests end soon, and need here what room there is to grow into. So
nothing comes home, and what it has borrowed stays where it is unless others lend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from distkv import events
from distkv.checksums import pack
from distkv.control.blocks import SlotState
from distkv.control.commands import TellWorker
from distkv.control.loan.debtor.borrow import Purpose
from distkv.control.loan.debtor.debts import DebtBook
from distkv.control.loan.debtor.paths import LONGEST_UNUSED_S, Path
from distkv.control.request.block import Block, Debt
from distkv.control.request.sequence import Sequence
from distkv.control.rmanager.state import LAST_S, RManagerState
from distkv.wire.messages.from_worker import Pulled
from distkv.wire.messages.to_rmanager import Reclaim
from distkv.wire.messages.to_worker import Pull


class Cause(Enum):
    """Why blocks come home, in words; a reclaim is in the history already."""

    RECLAIM = ""
    ROOM = "there was room for all of them"
    PLAN = "a gManager planned it"
    SWAP = "loans that went round were swapped (DGFM)"


@dataclass(slots=True, eq=False)
class Recall:
    """Blocks being pulled back since `began_at`; the slots are this record's until the pull ends."""

    seq: Sequence
    debt: Debt
    pairs: list[tuple[Block, int]]
    began_at: float
    cause: Cause


class Recaller:
    """Answers reclaims of one instance's creditors."""

    def __init__(self, state: RManagerState, debts: DebtBook) -> None:
        self._state = state
        self._debts = debts
        self._pulls: dict[int, Recall] = {}

    def on_reclaim(self, creditor_id: str, message: Reclaim, now: float) -> None:
        """Begin to empty the span as far as it must be, or go on with it.

        Positions that nothing lies in yet go first: their blocks lose the place they had there. Of those placed there,
        the last ones come home as far as there is room; others look for another creditor. To one that drains nothing is
        given back before all that lies there has a place, or its last seconds. Of an instance that drains as its
        creditor does, they only look for another one.
        """
        found = self._debts.find(message.span)
        if found is None or found[1].creditor_id != creditor_id or found[1] not in found[0].placement.debts:
            return
        seq, debt = found
        both_drain = message.is_draining and self._state.instance_state == "draining"
        if both_drain and not self._state.has_creditors:
            return
        leaving = sum(block.moving_from is debt for block in debt.blocks)
        coming = self.coming(debt)
        excess = debt.capacity - message.keep_blocks - leaving - len(coming)
        placed = [block for block in debt.placed() if block.number not in coming]
        if excess > 0:
            why = "it drains" if message.is_draining else ""
            self._state.histories.note(seq.request_id, "reclaimed", instance_id=creditor_id, why=why, blocks=excess)
        stays = both_drain or self._waits_for_end(message, len(placed))
        if excess > 0 and not (stays and placed):
            excess -= self._debts.abandon(seq, debt, excess)
            self._state.sequences.touch(seq)
        if excess <= 0 or debt.num_ready:
            return
        placed = placed[-excess:]
        if message.deadline_s <= 0:
            self._give_up(seq, debt, placed)
        elif not coming:
            room = 0 if both_drain else self._room(message, len(placed))
            self._bring_home(seq, debt, placed, room, now)

    def recall(self, seq: Sequence, most: int, now: float) -> int:
        """Bring up to `most` blocks home as a gManager planned, as far as there is room beyond what the running
        sequences are expected to need: those at the creditor that has fewest first, so that Steps wait for fewer.
        Returns how many."""
        state = self._state
        if any(one.seq is seq for one in self._pulls.values()):
            return 0
        most = min(most, state.pool.num_free - state.growing.blocks())
        settled = [debt for debt in seq.placement.debts if debt.filled == len(debt.blocks)]
        coming = 0
        for debt in sorted(settled, key=lambda debt: debt.num_lying):
            coming += self.recall_from(seq, debt, most - coming, Cause.PLAN, now)
        return coming

    def recall_from(self, seq: Sequence, debt: Debt, most: int, cause: Cause, now: float) -> int:
        """Bring up to `most` blocks of a span home that nothing is on its way to, the last ones; returns how many."""
        blocks = debt.placed()[-most:] if most > 0 else []
        slots = self._state.pool.allocate(len(blocks), SlotState.LOCAL) if blocks else None
        if slots is None:
            return 0
        self.pull_back(seq, debt, blocks, slots, cause, now)
        return len(slots)

    def _room(self, message: Reclaim, num_blocks: int) -> int:
        """Slots into which some of so many blocks may come home."""
        free, num_running = self._state.pool.num_free, len(self._state.running())
        if self._waits_for_end(message, num_blocks):
            return free - max(num_running, self._state.growing.blocks())
        return free - num_running

    def _waits_for_end(self, message: Reclaim, num_blocks: int) -> bool:
        """Whether the creditor drains, and so many blocks, which do not all fit here, may stay for now."""
        room = self._state.pool.num_free - len(self._state.running())
        return message.is_draining and room < num_blocks and message.deadline_s > LAST_S

    def _bring_home(self, seq: Sequence, debt: Debt, placed: list[Block], room: int, now: float) -> None:
        slots = self._state.pool.allocate(min(len(placed), max(0, room)), SlotState.LOCAL) or []
        if slots:
            self.pull_back(seq, debt, placed[len(placed) - len(slots) :], slots, Cause.RECLAIM, now)
        rest = len(placed) - len(slots)
        if rest and self._state.borrower.of(seq, Purpose.RECLAIM) is None:
            near = self._state.stays_near(seq)
            self._state.borrower.start(seq, Purpose.RECLAIM, rest, now, stays_near=near, leaves=debt)

    def _give_up(self, seq: Sequence, debt: Debt, placed: list[Block]) -> None:
        self._debts.give_back(self._state.borrower.cancel(seq, Purpose.RECLAIM))
        self._state.scheduler.take_back(seq)
        self._debts.give_up(seq, debt, placed)
        self._state.histories.note(
            seq.request_id, "lost", instance_id=debt.creditor_id, why="its creditor reclaimed them", blocks=len(placed)
        )
        lost = events.SpanLost(
            request_id=seq.request_id, creditor=debt.creditor_id, blocks=len(placed), why="its creditor reclaimed them"
        )
        self._state.publish(lost)

    def coming(self, debt: Debt) -> set[int]:
        """Numbers of the blocks of this debt that are on their way back."""
        return {block.number for one in self._pulls.values() if one.debt is debt for block, _ in one.pairs}

    def on_pulled(self, message: Pulled, now: float) -> int | None:
        """A pull is over: how many blocks are back by it; None if it was none of ours."""
        recall = self._pulls.pop(message.pull_id, None)
        if recall is None:
            return None
        path = Path(self._state.settings.instance_id, recall.debt.creditor_id)
        if message.problem:
            self._state.paths.failed(path, message.problem, now, now - recall.began_at, LONGEST_UNUSED_S)
        else:
            self._state.paths.worked(path)
        unused, left = [], []
        for block, slot in recall.pairs:
            if (
                message.problem
                or not recall.seq.placement.holds(block)
                or block.debt is not recall.debt
                or not block.arrived
            ):
                unused.append(slot)
            else:
                left.append(block.index)
                recall.seq.placement.take_back(block, slot)
        self._state.pool.free(unused, SlotState.LOCAL)
        self._state.counters.recalled_blocks += len(left)
        if left:
            self._state.histories.note(
                recall.seq.request_id,
                "came_home",
                instance_id=recall.debt.creditor_id,
                why=recall.cause.value,
                blocks=len(left),
            )
            self._debts.release_positions(recall.seq, recall.debt, left)
        self._state.sequences.touch(recall.seq)
        return len(left)

    @property
    def num_coming(self) -> int:
        """Blocks that are on their way back."""
        return sum(len(recall.pairs) for recall in self._pulls.values())

    @property
    def is_idle(self) -> bool:
        """Whether no block is on its way back."""
        return not self._pulls

    def slots(self) -> list[int]:
        """Slots that blocks on their way back go into."""
        return [slot for recall in self._pulls.values() for _, slot in recall.pairs]

    def pull_back(
        self, seq: Sequence, debt: Debt, blocks: list[Block], slots: list[int], cause: Cause, now: float
    ) -> int:
        """Read placed blocks of a debt into these slots, which are no longer the caller's; returns the pull's id."""
        member = self._state.members[debt.creditor_id]
        pull_id = self._state.next_id()
        self._pulls[pull_id] = Recall(seq, debt, list(zip(blocks, slots, strict=True)), now, cause)
        self._state.emit(
            TellWorker(
                Pull(
                    pull_id=pull_id,
                    source_id=debt.creditor_id,
                    source_incarnation=member.incarnation,
                    source_slots=tuple(debt.slots[block.index] for block in blocks),
                    slots=tuple(slots),
                    checksums=pack(block.checksum or 0 for block in blocks),
                )
            )
        )
        return pull_id
