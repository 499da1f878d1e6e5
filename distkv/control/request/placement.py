"""Where the rBlocks of one sequence lie: here, in borrowed spans, or nowhere yet."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from msgspec import structs

from distkv.wire.messages.common import Run, SpanRef
from distkv.wire.messages.to_rmanager import BlocksReady
from distkv.wire.messages.to_worker import RemoteSpan

Kinds = tuple[bool, bool, bool, bool, bool]
"""What `BlockCounts` counts of a block, in its order."""
NOWHERE: Kinds = (False, True, True, False, False)


@dataclass(slots=True, eq=False)
class Debt:
    """A span borrowed for one request, seen from its debtor.

    blocks: for each position of the span the rBlock that is to lie, or lies, there. Positions are filled in order;
    [0, filled) are verified at the creditor, [filled, filled + num_ready) it is reading now, as `blocks_ready` says.
    lease_s: how long the grant and each renewal hold; the creditor may allow less than was asked for.
    """

    span: SpanRef
    creditor_id: str
    slots: tuple[int, ...]
    valid_until: float
    lease_s: float
    blocks: list[Block] = field(default_factory=list)
    filled: int = 0
    num_ready: int = 0
    blocks_ready: BlocksReady | None = None
    blocks_ready_sent_at: float = 0.0
    failures: int = 0

    @property
    def capacity(self) -> int:
        return len(self.slots)


@dataclass(slots=True, eq=False)
class Block:
    """One logical rBlock of a sequence. Change it through its sequence, which counts.

    slot: where it lies here, if it does. debt, index: the borrowed span it lies in (`arrived`) or is to go to.
    moving_from: the debt it still lies in while it is to go to `debt`. full: every layer written.
    """

    number: int
    slot: int | None = None
    debt: Debt | None = None
    index: int = 0
    arrived: bool = False
    moving_from: Debt | None = None
    moving_from_index: int = 0
    full: bool = False
    checksumming: bool = False
    checksum: int | None = None
    counted: Kinds = NOWHERE

    @property
    def has_place(self) -> bool:
        """Whether its KV lies somewhere, or has a place to be computed into."""
        return self.slot is not None or self.debt is not None or self.moving_from is not None

    @property
    def movable(self) -> bool:
        """Checksummed, here, and with no other destination."""
        return self.slot is not None and self.full and self.debt is None

    def location(self) -> tuple[Debt, int] | None:
        """The span and position to attend at when the block is remote."""
        if self.slot is not None:
            return None
        if self.moving_from is not None:
            return self.moving_from, self.moving_from_index
        if self.debt is not None and self.arrived:
            return self.debt, self.index
        return None

    def kinds(self) -> Kinds:
        here = self.slot is not None
        return (
            here,
            not self.has_place,
            not here and self.moving_from is None and not self.arrived,
            here and self.debt is not None,
            self.movable,
        )


class BlockCounts:
    """How many blocks of a sequence are what, so that no event looks at all blocks of a long one.

    local: have a slot here. unplaced: have no place. awaiting_slot: will need a slot to be computed in.
    outgoing: have a slot here that will be free again. movable: see Block.
    """

    def __init__(self) -> None:
        self.local = self.unplaced = self.awaiting_slot = self.outgoing = self.movable = 0

    def add(self, num_blocks: int) -> None:
        """Count new blocks, which lie nowhere yet."""
        self.unplaced += num_blocks
        self.awaiting_slot += num_blocks

    def update(self, block: Block) -> None:
        """Count a block that was changed."""
        was, now = block.counted, block.kinds()
        if was == now:
            return
        self.local += now[0] - was[0]
        self.unplaced += now[1] - was[1]
        self.awaiting_slot += now[2] - was[2]
        self.outgoing += now[3] - was[3]
        self.movable += now[4] - was[4]
        block.counted = now

    def validate(self, blocks: Seq[Block]) -> None:
        """The counts are those of these blocks."""
        facts = [block.kinds() for block in blocks]
        counts = (self.local, self.unplaced, self.awaiting_slot, self.outgoing, self.movable)
        assert counts == tuple(sum(fact[kind] for fact in facts) for kind in range(5)), f"{counts} is off"


class BlockTable:
    """The first blocks of a sequence as runs of neighbours.

    A step looks only at blocks from the first one on that changed since the step before it.
    """

    def __init__(self) -> None:
        self._num_blocks = 0
        self._local: list[Run] = []
        self._remote: list[RemoteSpan] = []

    def of(self, blocks: Seq[Block], num_blocks: int) -> tuple[tuple[Run, ...], tuple[RemoteSpan, ...]]:
        """Where the first `num_blocks` blocks lie here, and in which borrowed spans the others lie; both ascending."""
        self.forget_from(num_blocks)
        while self._num_blocks < num_blocks:
            block = blocks[self._num_blocks]
            if block.slot is not None:
                self._extend_local(blocks, num_blocks, block.slot)
            elif (place := block.location()) is not None:
                self._extend_remote(blocks, num_blocks, *place)
            else:
                self._num_blocks += 1
        return tuple(self._local), tuple(self._remote)

    def forget_from(self, number: int) -> None:
        """Block `number`, and maybe some after it, lie elsewhere now."""
        if number >= self._num_blocks:
            return
        self._num_blocks = number
        while self._local and (last := self._local[-1]).first_block + last.num_blocks > number:
            self._local.pop()
            if last.first_block < number:
                self._local.append(Run(last.first_block, last.first_slot, number - last.first_block))
        while self._remote and (end := self._remote[-1]).first_block + end.num_blocks > number:
            self._remote.pop()
            if end.first_block < number:
                self._remote.append(structs.replace(end, num_blocks=number - end.first_block))

    def is_of(self, blocks: Seq[Block]) -> bool:
        """Whether the runs say where the blocks lie now."""
        return BlockTable().of(blocks, self._num_blocks) == (tuple(self._local), tuple(self._remote))

    def _extend_local(self, blocks: Seq[Block], num_blocks: int, slot: int) -> None:
        first = number = self._num_blocks
        while number < num_blocks and blocks[number].slot == slot + number - first:
            number += 1
        self._num_blocks = number
        last = self._local[-1] if self._local else Run(0, 0, 0)
        if last.first_block + last.num_blocks == first and last.first_slot + last.num_blocks == slot and self._local:
            self._local[-1] = Run(last.first_block, last.first_slot, last.num_blocks + number - first)
        else:
            self._local.append(Run(first, slot, number - first))

    def _extend_remote(self, blocks: Seq[Block], num_blocks: int, debt: Debt, index: int) -> None:
        first = number = self._num_blocks
        while number < num_blocks and blocks[number].location() == (debt, index + number - first):
            number += 1
        self._num_blocks = number
        count = number - first
        if self._remote:
            last = self._remote[-1]
            if (
                last.span == debt.span
                and last.first_block + last.num_blocks == first
                and last.index + last.num_blocks == index
            ):
                first, index, count = last.first_block, last.index, last.num_blocks + count
                self._remote.pop()
        self._remote.append(
            RemoteSpan(instance_id=debt.creditor_id, span=debt.span, index=index, first_block=first, num_blocks=count)
        )
