"""Where the rBlocks of one request lie: here, in borrowed spans, or nowhere yet.

The one door for a request's memory: slots, checksums, spans and their blocks change in `Placement` and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from operator import neg

from distkv.control.request.block import HERE, MOVABLE, NOWHERE, PROMISED, Block, BlockCounts, Cleared, Debt
from distkv.control.request.block_table import BlockTable
from distkv.wire.messages.common import Run
from distkv.wire.messages.to_rmanager import BlocksReady
from distkv.wire.messages.to_worker import RemoteSpan


class Placement:
    """The memory of one request.

    blocks: by number. debts: spans borrowed for it. unassigned_slots: local slots it owns that hold nothing yet,
    descending. version: grows whenever a block changes place. unsettled: blocks may have lost their place.
    """

    __slots__ = ("_table", "block_tokens", "blocks", "counts", "debts", "unassigned_slots", "unsettled", "version")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.blocks: list[Block] = []
        self.debts: list[Debt] = []
        self.unassigned_slots: list[int] = []
        self.version = 0
        self.unsettled = False
        self.counts = BlockCounts()
        self._table = BlockTable()

    # --- what it holds

    @property
    def num_local_slots(self) -> int:
        """Slots of the own pool this request holds."""
        return self.counts.local + len(self.unassigned_slots)

    @property
    def num_without_slot(self) -> int:
        """Blocks that are still to be computed, beyond the unassigned slots there are for them."""
        return max(0, self.counts.awaiting_slot - len(self.unassigned_slots))

    @property
    def num_remote(self) -> int:
        """Blocks that lie, or are to lie, at creditors."""
        counts = self.counts
        return len(self.blocks) - counts.unplaced - counts.local + counts.outgoing

    @property
    def num_spare(self) -> int:
        """Borrowed positions that are kept for blocks still to come."""
        return sum(debt.num_spare for debt in self.debts) if self.debts else 0

    @property
    def holds_kv(self) -> bool:
        """Whether some of it lies somewhere, so that it would resume rather than begin."""
        return self.counts.local > 0 or bool(self.debts)

    @property
    def has_outgoing(self) -> bool:
        """Whether blocks are still to be computed for, or are on their way to, a creditor."""
        return any(len(debt.blocks) > debt.filled for debt in self.debts)

    @property
    def ends_in_transit(self) -> bool:
        """Whether the last block to be computed is to leave again, so that a slot must be kept for it."""
        if self.counts.awaiting_slot == self.counts.unplaced:
            return False
        uncomputed = (b for b in reversed(self.blocks) if b.slot is None and b.moving_from is None and not b.arrived)
        return next(uncomputed).debt is not None

    def unplaced(self) -> list[Block]:
        """Blocks that have no place yet, ascending."""
        return [b for b in self.blocks if b.counted is NOWHERE] if self.counts.unplaced else []

    def movable(self) -> list[Block]:
        """Full local blocks with no other destination, oldest first; the tail never is one."""
        return [b for b in self.blocks if b.movable] if self.counts.movable else []

    def holds(self, block: Block) -> bool:
        """Whether it is one of these blocks (still)."""
        return block.number < len(self.blocks) and self.blocks[block.number] is block

    def local_slots(self) -> list[int]:
        """Every slot of the own pool this request holds."""
        return [b.slot for b in self.blocks if b.slot is not None] + self.unassigned_slots

    def block_table(self, num_blocks: int) -> tuple[tuple[Run, ...], tuple[RemoteSpan, ...]]:
        """Where the first `num_blocks` blocks lie: runs of the own pool, and parts of borrowed spans."""
        return self._table.of(self.blocks, num_blocks)

    # --- slots of the own pool

    def cover(self, num_tokens: int) -> None:
        """Have a logical block for each of the first `num_tokens` positions."""
        known, wanted = len(self.blocks), -(-num_tokens // self.block_tokens)
        if known < wanted:
            self.blocks.extend(map(Block, range(known, wanted)))
            self.counts.add(wanted - known)

    def grow(self, num_tokens: int, first: int, slots: Seq[int]) -> None:
        """`cover` so many tokens, and `put` the blocks from number `first` on, which lie nowhere, into these slots; all
        before them are known."""
        blocks, known = self.blocks, len(self.blocks)
        for number, slot in enumerate(slots, first):
            if number < known:
                self.put(blocks[number], slot)
            else:
                blocks.append(Block(number, slot, counted=HERE))
        self.counts.local += len(blocks) - known
        if len(blocks) * self.block_tokens < num_tokens:
            self.cover(num_tokens)

    def add_slots(self, slots: Iterable[int]) -> None:
        """Own these slots, for blocks still to come. Costs what is no larger than they are: the lowest are taken first,
        and so those that come back lie below nearly all that a long prompt still has."""
        more = sorted(slots, reverse=True)
        owned = self.unassigned_slots
        if more and owned and owned[-1] < more[0]:
            first = bisect_left(owned, -more[0], key=neg)
            more = sorted((*owned[first:], *more), reverse=True)
            del owned[first:]
        owned += more

    def take_surplus(self) -> list[int]:
        """Give up the unassigned slots that no block waits for."""
        num_surplus = max(0, len(self.unassigned_slots) - self.counts.awaiting_slot)
        surplus = self.unassigned_slots[:num_surplus]
        del self.unassigned_slots[:num_surplus]
        return surplus

    def take_unassigned(self) -> list[int]:
        """Give up every unassigned slot."""
        slots, self.unassigned_slots = self.unassigned_slots, []
        return slots

    def put_unassigned(self, block: Block) -> bool:
        """Have the block computed into a slot that is owned already; false if there is none."""
        if not self.unassigned_slots:
            return False
        self.put(block, self.unassigned_slots.pop())
        return True

    def put(self, block: Block, slot: int) -> None:
        """The block is to be computed into a slot of the own pool."""
        block.slot = slot
        self._changed(block)

    def vacate(self, blocks: Iterable[Block]) -> list[int]:
        """Take their slots from blocks that hold nothing worth keeping."""
        slots = []
        for block in blocks:
            if block.slot is not None:
                slots.append(block.slot)
                block.slot = None
                self._changed(block)
                self.version += 1
        return slots

    # --- content

    def mark_full(self, blocks: Iterable[Block]) -> None:
        """Every layer of every position of these blocks is written."""
        num_movable = 0
        for block in blocks:
            block.full = True
            if block.counted is HERE:  # as nearly all are
                block.counted, num_movable = MOVABLE, num_movable + 1
            else:
                self.counts.update(block)
        self.counts.movable += num_movable

    def to_checksum(self, most_per_debt: int) -> list[tuple[Block, int]]:
        """Full blocks that are to leave and have no checksum yet, with their slots; the worker is to make them now."""
        found = [
            (block, block.slot)
            for debt in self.debts
            for block in debt.blocks[debt.filled : debt.filled + most_per_debt]
            if block.slot is not None and block.full and block.checksum is None and not block.checksumming
        ]
        for block, _ in found:
            block.checksumming = True
        return found

    @staticmethod
    def checksummed(pairs: Seq[tuple[Block, int]], checksums: Seq[int]) -> None:
        """The worker answered for these; what has left its slot or was lost meanwhile has no checksum."""
        for block, _ in pairs:
            block.checksumming = False
        for (block, slot), checksum in zip(pairs, checksums, strict=False):
            if block.slot == slot and block.full:
                block.checksum = checksum

    # --- borrowed spans

    def borrow(self, debt: Debt, blocks: Iterable[Block]) -> None:
        """Let blocks go to the next positions of a span, in order.

        Those of a long prompt, thousands at once, lie nowhere: they cost a tenth of others.
        """
        if debt not in self.debts:
            self.debts.append(debt)
        promised, first, known = 0, len(self.blocks), len(debt.blocks)
        debt.blocks.extend(blocks)
        for index, block in enumerate(debt.blocks[known:], known):
            if block.counted is NOWHERE:
                block.debt, block.index, block.counted = debt, index, PROMISED
                promised += 1
                if block.number < first:
                    first = block.number
                continue
            if block.arrived:
                block.moving_from, block.moving_from_index, block.arrived = block.debt, block.index, False
            block.debt, block.index = debt, index
            self._changed(block)
        self.counts.promise(promised)
        self._table.forget_from(first)

    def offered(self, debt: Debt, message: BlocksReady, now: float) -> None:
        """`BlocksReady` was sent (again) for the next blocks of a span: they stay untouched until it answers."""
        if not debt.num_ready:
            debt.offered_at = now
            if not debt.failures:
                debt.waits_since = now
        debt.num_ready, debt.blocks_ready, debt.blocks_ready_sent_at = len(message.blocks), message, now

    def refused(self, debt: Debt) -> None:
        """The creditor could not take what lies ready."""
        debt.num_ready = 0
        debt.failures += 1

    def taken(self, debt: Debt) -> tuple[list[Block], list[int], dict[Debt, list[int]]]:
        """The creditor has what `BlocksReady` named, even if the place it read that from was lost since: returns the
        blocks, the slots they leave, and the positions by debt."""
        assert debt.blocks_ready is not None
        moved = debt.blocks[debt.filled : debt.filled + debt.num_ready]
        debt.filled, debt.num_ready, debt.failures = debt.filled + debt.num_ready, 0, 0
        slots: list[int] = []
        left: dict[Debt, list[int]] = {}
        for block, ready in zip(moved, debt.blocks_ready.blocks, strict=True):
            if block.slot is not None:
                slots.append(block.slot)
            if block.moving_from is not None:
                block.moving_from.given_back.add(block.moving_from_index)
                left.setdefault(block.moving_from, []).append(block.moving_from_index)
            block.slot, block.moving_from, block.arrived = None, None, True
            block.full, block.checksum = True, ready.checksum
            self._changed(block)
        self.version += 1
        return moved, slots, left

    def take_back(self, block: Block, slot: int) -> None:
        """The block was read back from its creditor into a slot of the own pool."""
        assert block.debt is not None
        block.debt.given_back.add(block.index)
        block.debt, block.arrived = None, False
        self.put(block, slot)
        self.version += 1

    def abandon(self, debt: Debt, first: int) -> list[int]:
        """Give up the positions of a span from `first` on, where nothing was placed or is being read, and return them;
        their blocks stay where they are, if anywhere."""
        for block in debt.blocks[first:]:
            self._stay(block)
        del debt.blocks[first:]
        return self.abandon_unused(debt)

    def abandon_unused(self, debt: Debt, keep: int = 0) -> list[int]:
        """Give up the positions of a span that no block is to go to, but for `keep` spare ones; returns them."""
        positions = [p for p in range(len(debt.blocks) + keep, len(debt.slots)) if p not in debt.given_back]
        debt.given_back.update(positions)
        return positions

    def close_if_empty(self, debt: Debt) -> bool:
        """Owe a span no more once no block lies in it or is to go there; false if one does, or it was closed before."""
        if debt.capacity or debt not in self.debts:
            return False
        self.debts.remove(debt)
        return True

    def lose(self, debt: Debt) -> list[Block]:
        """A span is gone; returns the blocks whose KV is gone with it."""
        self.unsettled = True
        lost = [block for block in debt.blocks if self._lose(block, debt)]
        debt.num_ready = 0
        self.debts.remove(debt)
        return lost

    def give_up(self, debt: Debt, blocks: Iterable[Block]) -> list[int]:
        """The KV of blocks that lie in a span is gone, of these and no others; returns the positions they leave."""
        self.unsettled = True
        positions = []
        for block in blocks:
            assert block.debt is debt and block.arrived
            positions.append(block.index)
            self._lose(block, debt)
        debt.given_back.update(positions)
        return positions

    def clear(self) -> Cleared:
        """Hold nothing any more."""
        slots = self.take_unassigned() + [b.slot for b in self.blocks if b.slot is not None and not b.is_being_read]
        being_read = [(debt, read) for debt in self.debts if (read := debt.slots_being_read())]
        debts, self.debts, self.blocks = self.debts, [], []
        for debt in debts:
            debt.blocks.clear()  # they name it, and nobody looks for what only names each other
        self.counts, self._table = BlockCounts(), BlockTable()
        return Cleared(slots, being_read, debts)

    def take_unsettled(self) -> bool:
        """Whether blocks may have lost their place since the last call."""
        was, self.unsettled = self.unsettled, False
        return was

    def new_version(self) -> None:
        """What the worker knows of the places is out of date."""
        self.version += 1

    def _lose(self, block: Block, debt: Debt) -> bool:
        if block.moving_from is debt:
            block.moving_from = None
            lost = block.debt is not None and not block.arrived and block.slot is None
        elif block.debt is debt and block.arrived:
            block.debt, block.arrived = None, False
            lost = True
        else:
            if block.debt is debt:
                self._stay(block)
            return False
        if lost:
            block.full, block.checksum = False, None
        self._changed(block)
        return lost

    def _stay(self, block: Block) -> None:
        """The block goes nowhere: it stays where it is, if it is anywhere."""
        self.unsettled = True
        block.debt, block.index = block.moving_from, block.moving_from_index
        block.arrived = block.moving_from is not None
        block.moving_from = None
        self._changed(block)

    def _changed(self, block: Block) -> None:
        self.counts.update(block)
        self._table.forget_from(block.number)

    def validate(self) -> None:
        """Blocks have one live place at most; what lies elsewhere is full and checksummed; debts and blocks agree."""
        for number, block in enumerate(self.blocks):
            assert block.number == number
            assert block.debt is None or block.debt in self.debts
            assert block.moving_from is None or block.moving_from in self.debts
            block.validate()
        for debt in self.debts:
            debt.validate()
        self.counts.validate(self.blocks)
        assert self._table.is_of(self.blocks), "a block changed its place unseen"
        assert self.unassigned_slots == sorted(self.unassigned_slots, reverse=True), "slots are out of order"
        slots = self.local_slots()
        assert len(slots) == len(set(slots)) == self.num_local_slots, "a slot is held twice"
