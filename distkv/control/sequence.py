"""One request inside its debtor: its tokens, what of them is computed, and where each rBlock lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from distkv.control.output import OutputText
from distkv.control.ranges import Ranges
from distkv.types import SamplingParams
from distkv.wire.messages.common import Run, SpanRef
from distkv.wire.messages.to_worker import RemoteSpan


class SeqState(Enum):
    """waiting: holds nothing, or what a loss left it, until memory is found. acquiring: a borrow for it is under way.
    running: in the batch."""

    WAITING = "waiting"
    ACQUIRING = "acquiring"
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class Debt:
    """A span borrowed for one request, seen from its debtor.

    blocks: for each position of the span the rBlock that is to lie, or lies, there. Positions are filled in order;
    [0, filled) are verified at the creditor, [filled, filled + exposed) it is reading now.
    """

    span: SpanRef
    creditor_id: str
    slots: tuple[int, ...]
    valid_until: float
    blocks: list[Block] = field(default_factory=list)
    filled: int = 0
    exposed: int = 0
    source_id: str = ""
    failures: int = 0

    @property
    def capacity(self) -> int:
        return len(self.slots)


@dataclass(slots=True, eq=False)
class Block:
    """One logical rBlock of a sequence.

    slot: where it lies here, if it does. debt, index: the borrowed span it lies in (`placed`) or is to go to.
    home: the debt it still lies in while it is to go to `debt` (re-homing). sealed: full, every layer written.
    """

    number: int
    slot: int | None = None
    debt: Debt | None = None
    index: int = 0
    placed: bool = False
    home: Debt | None = None
    home_index: int = 0
    sealed: bool = False
    sealing: bool = False
    checksum: int | None = None

    @property
    def located(self) -> bool:
        """Whether its KV lies somewhere, or has a place to be computed into."""
        return self.slot is not None or self.debt is not None or self.home is not None

    def whereabouts(self) -> tuple[Debt, int] | None:
        """The span and position to attend at when the block is remote."""
        if self.slot is not None:
            return None
        if self.home is not None:
            return self.home, self.home_index
        if self.debt is not None and self.placed:
            return self.debt, self.index
        return None


@dataclass(slots=True, eq=False)
class Sequence:
    """All that an rManager knows of a request it owns.

    tokens: prompt and what was sampled and seen. pending: tokens sampled by steps whose results are not back.
    todo: positions whose KV no sent step computes. spare: local slots it owns that hold nothing yet.
    high_water: how far it was ever computed. unsettled: blocks may have lost their place.
    """

    request_id: str
    route: bytes
    arrival: float
    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_tokens: int
    output: OutputText
    block_tokens: int
    deadline: float | None = None
    pending: int = 0
    todo: Ranges = field(default_factory=Ranges)
    blocks: list[Block] = field(default_factory=list)
    debts: list[Debt] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)
    state: SeqState = SeqState.WAITING
    version: int = 0
    life: int = 0
    retry_at: float = 0.0
    retries: int = 0
    starved_since: float | None = None
    high_water: int = 0
    unsettled: bool = False

    @property
    def age(self) -> tuple[float, str]:
        """Sorts sequences oldest first."""
        return self.arrival, self.request_id

    @property
    def length(self) -> int:
        """Tokens known or about to be."""
        return len(self.tokens) + self.pending

    @property
    def num_generated(self) -> int:
        return self.length - self.prompt_tokens

    @property
    def can_grow(self) -> bool:
        """Whether another token may be sampled after those on their way."""
        return self.num_generated < self.params.max_tokens

    def cover(self, num_tokens: int) -> None:
        """Have a logical block for each of the first `num_tokens` positions."""
        while len(self.blocks) * self.block_tokens < num_tokens:
            self.blocks.append(Block(len(self.blocks)))

    def homeless(self) -> list[Block]:
        """Blocks that have no place yet, ascending."""
        return [b for b in self.blocks if not b.located]

    @property
    def leaving(self) -> bool:
        """Whether blocks are still to be computed for, or are on their way to, a creditor."""
        return any(len(debt.blocks) > debt.filled for debt in self.debts)

    @property
    def surplus(self) -> int:
        """Spare slots that no block of the sequence waits for."""
        waiting = sum(1 for b in self.blocks if b.slot is None and b.home is None and not b.placed)
        return max(0, len(self.spare) - waiting)

    def assign(self, block: Block, debt: Debt) -> None:
        """Let a block go to the next position of a borrowed span."""
        if block.placed:
            block.home, block.home_index, block.placed = block.debt, block.index, False
        block.debt, block.index = debt, len(debt.blocks)
        debt.blocks.append(block)

    def unassign(self, block: Block) -> None:
        """The block goes nowhere: it stays where it is, if it is anywhere."""
        self.unsettled = True
        block.debt, block.index = block.home, block.home_index
        block.placed = block.home is not None
        block.home = None

    def span_of(self, block: Block) -> tuple[int, int]:
        """Positions of a block, the last one clipped to the sequence."""
        start = block.number * self.block_tokens
        return start, min(start + self.block_tokens, self.length)

    def local_slots(self) -> list[int]:
        """Every slot of the own pool this sequence holds."""
        return [b.slot for b in self.blocks if b.slot is not None] + self.spare

    def movable(self) -> list[Block]:
        """Sealed local blocks with no other destination, oldest first; the tail never is one."""
        return [b for b in self.blocks if b.slot is not None and b.sealed and b.debt is None]

    def local_runs(self, num_blocks: int) -> tuple[Run, ...]:
        """Where the local ones of the first `num_blocks` blocks lie, neighbours joined."""
        runs: list[Run] = []
        for block in self.blocks[:num_blocks]:
            if block.slot is None:
                continue
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.first_block + last.num_blocks == block.number
                and last.first_slot + last.num_blocks == block.slot
            ):
                runs[-1] = Run(last.first_block, last.first_slot, last.num_blocks + 1)
            else:
                runs.append(Run(block.number, block.slot, 1))
        return tuple(runs)

    def remote_spans(self, num_blocks: int) -> tuple[RemoteSpan, ...]:
        """Which borrowed spans hold the others, ascending, neighbours joined."""
        spans = []
        for debt, index, first, count in self._remote_runs(num_blocks):
            spans.append(
                RemoteSpan(
                    instance_id=debt.creditor_id, span=debt.span, index=index, first_block=first, num_blocks=count
                )
            )
        return tuple(spans)

    def _remote_runs(self, num_blocks: int) -> Iterator[tuple[Debt, int, int, int]]:
        current: tuple[Debt, int, int, int] | None = None
        for block in self.blocks[:num_blocks]:
            place = block.whereabouts()
            if place is None:
                continue
            debt, index = place
            if current is not None:
                held, first_index, first, count = current
                if held is debt and first + count == block.number and first_index + count == index:
                    current = (held, first_index, first, count + 1)
                    continue
                yield current
            current = (debt, index, block.number, 1)
        if current is not None:
            yield current

    def validate(self) -> None:
        """Every block has at most one live place; debts and blocks name each other."""
        for number, block in enumerate(self.blocks):
            assert block.number == number
            if block.placed:
                assert block.debt is not None and block.slot is None and block.home is None
            if block.debt is not None:
                assert block.debt in self.debts and block.debt.blocks[block.index] is block
            if block.home is not None:
                assert block.home in self.debts and block.slot is None
        for debt in self.debts:
            assert debt.filled >= 0 and debt.filled + debt.exposed <= len(debt.blocks) <= debt.capacity
        slots = self.local_slots()
        assert len(slots) == len(set(slots)), "a slot is held twice"
        for start, end in self.todo:
            assert 0 <= start < end <= self.length
