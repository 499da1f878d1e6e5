"""One logical rBlock, the borrowed span it may lie in, and how many blocks of a sequence are what.

These are facts to read; only `Placement` changes them, and `DebtBook` the leases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import msgspec

from distkv.wire.messages.common import SpanRef
from distkv.wire.messages.to_rmanager import BlocksReady

Kinds = tuple[bool, bool, bool, bool, bool]
"""What `BlockCounts` counts of a block, in its order."""
NOWHERE: Kinds = (False, True, True, False, False)
PROMISED: Kinds = (False, False, True, False, False)
"""Nowhere yet, but a position of a span is kept for it."""
ELSEWHERE: Kinds = (False, False, False, False, False)
HERE: Kinds = (True, False, False, False, False)
MOVABLE: Kinds = (True, False, False, False, True)
OUTGOING: Kinds = (True, False, False, True, False)


@dataclass(slots=True, eq=False)
class Debt:
    """A span borrowed for one request, seen from its debtor.

    blocks: for each position of the span the rBlock that is to lie, or lies, there. Positions are filled in order;
    [0, filled) are verified at the creditor, [filled, filled + num_ready) it is reading now, as `blocks_ready` says.
    Those behind `blocks` that were not given back are spare: kept for blocks that are still to come. given_back:
    positions that nothing lies in or is to go to any more, for good; releasing: those of them that the
    creditor was told and has not answered for. valid_until: when its lease runs out, as this side counts. lease_s: how
    long it holds, as the creditor said last. failures: of moves, one after the other. offered_at: when the creditor was
    first told of what it is reading; blocks_ready_sent_at: when last; waits_since: as the first, before moves that
    failed. is_planned: a gManager planned it.
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
    offered_at: float = 0.0
    waits_since: float = 0.0
    blocks_ready_sent_at: float = 0.0
    failures: int = 0
    given_back: set[int] = field(default_factory=set)
    releasing: set[int] = field(default_factory=set)
    is_planned: bool = False

    @property
    def capacity(self) -> int:
        """Positions that are (still) ours."""
        return len(self.slots) - len(self.given_back)

    @property
    def num_spare(self) -> int:
        """Positions, the next ones, that are kept for blocks still to come."""
        first = len(self.blocks)
        return len(self.slots) - first - sum(position >= first for position in self.given_back)

    def placed(self) -> list[Block]:
        """Blocks that lie there and go nowhere else, in order."""
        placed = enumerate(self.blocks[: self.filled])
        return [b for index, b in placed if b.debt is self and b.index == index and b.arrived]

    @property
    def num_lying(self) -> int:
        """Positions that blocks lie in, those that leave it included; of a span that nothing is on its way to."""
        return self.capacity - self.num_spare

    def slots_being_read(self) -> list[int]:
        """Slots of the debtor's own pool that the creditor may be reading."""
        return [b.slot for b in self.blocks[self.filled : self.filled + self.num_ready] if b.slot is not None]

    def validate(self) -> None:
        """Filled in order; a position is used by one block, or was given back."""
        assert 0 <= self.filled <= self.filled + self.num_ready <= len(self.blocks) <= len(self.slots)
        assert self.releasing <= self.given_back <= set(range(len(self.slots)))
        for index, block in enumerate(self.blocks):
            what = f"{self.span.span_id}[{index}]"
            is_here = block.debt is self and block.index == index
            leaves = block.moving_from is self and block.moving_from_index == index
            assert not is_here or block.arrived == (index < self.filled), f"{what} is filled or not"
            assert (is_here or leaves) == (index not in self.given_back), f"{what} is used and given back, or neither"
        spare = set(range(len(self.blocks), len(self.blocks) + self.num_spare))
        assert not spare & self.given_back, f"{self.span.span_id}: the next positions are not the spare ones"


class Block(msgspec.Struct, eq=False):
    """One logical rBlock of a sequence. A long prompt has thousands, all made at once: as a dataclass each would cost
    five times as much.

    slot: where it lies here, if it does. debt, index: the borrowed span it lies in (`arrived`) or is to go to.
    moving_from: the debt it still lies in while it is to go to `debt`. full: every layer written. checksum: of its
    content once full; checksumming while the worker makes it. counted: as what it is counted now.
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
    def movable(self) -> bool:
        """Full, here, and with no other destination."""
        return self.slot is not None and self.full and self.debt is None

    @property
    def is_being_read(self) -> bool:
        """Whether a creditor may be reading it from where it lies."""
        debt = self.debt
        return debt is not None and debt.filled <= self.index < debt.filled + debt.num_ready

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
        """What it counts as, in the order of `BlockCounts`."""
        is_bound = self.debt is not None
        if self.slot is not None:
            return OUTGOING if is_bound else MOVABLE if self.full else HERE
        if self.moving_from is not None or self.arrived:
            return ELSEWHERE
        return PROMISED if is_bound else NOWHERE

    def validate(self) -> None:
        """One live place at most; what lies elsewhere is full and checksummed; debts name it where it says."""
        if self.arrived:
            assert self.debt is not None and self.slot is None and self.moving_from is None
        if self.arrived or self.moving_from is not None:
            assert self.full and self.checksum is not None, f"block {self.number} was lent unfinished"
        if self.debt is not None:
            assert self.debt.blocks[self.index] is self
        if self.moving_from is not None:
            assert self.slot is None and self.moving_from_index < self.moving_from.filled


class BlockCounts:
    """How many blocks of a sequence are what, so that no event looks at all blocks of a long one.

    local: have a slot here. unplaced: have no place. awaiting_slot: will need a slot to be computed in.
    outgoing: have a slot here that will be free again. movable: see Block.
    """

    __slots__ = ("awaiting_slot", "local", "movable", "outgoing", "unplaced")

    def __init__(self) -> None:
        self.local = self.unplaced = self.awaiting_slot = self.outgoing = self.movable = 0

    def add(self, num_blocks: int) -> None:
        """Count new blocks, which lie nowhere yet."""
        self.unplaced += num_blocks
        self.awaiting_slot += num_blocks

    def promise(self, num_blocks: int) -> None:
        """Blocks that lay nowhere count as PROMISED now."""
        self.unplaced -= num_blocks

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
        counts = (self.local, self.unplaced, self.awaiting_slot, self.outgoing, self.movable)
        kinds = Counter(block.kinds() for block in blocks)
        found = tuple(sum(kind[i] * num_blocks for kind, num_blocks in kinds.items()) for i in range(5))
        assert counts == found, f"{counts} is off"


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a request held. slots: of the own pool; being_read: those of them that a creditor still reads, by debt."""

    slots: list[int]
    being_read: list[tuple[Debt, list[int]]]
    debts: list[Debt]
